//! Hearing from the node beside it what the controller is to be. The lease is counted from before
//! the question was sent, on a clock that runs through suspend.

use std::sync::Arc;
use std::time::Duration;

use lockd_client::chain;
use lockd_wire::node::Assignment;
use tokio::sync::watch;

use super::settings::Orders;
use super::{Shared, relay};

/// How long the node is asked to wait for news: the longest, and the shortest.
const WAIT_MAX: Duration = Duration::from_secs(10);
const WAIT_MIN: Duration = Duration::from_millis(50);
/// How much longer than that an answer may take.
const GRACE: Duration = Duration::from_secs(2);
/// Pauses while the node cannot be asked: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const BODY_MAX: usize = 64 * 1024;

/// Until the controller is stopped.
pub(crate) async fn follow(
    shared: Arc<Shared>,
    endpoint: String,
    token: String,
    told: watch::Sender<Orders>,
) {
    let following = async {
        let Some(client) = relay::client(None) else { return };
        let url = format!("{}/assignment", endpoint.trim_end_matches('/'));
        let (mut after, mut wait, mut pause) = (None, Duration::ZERO, PAUSE_MIN);
        loop {
            let sent = shared.time.clock.now();
            match ask(&client, &url, &token, (after, wait)).await {
                Ok(assignment) => {
                    let lease = assignment.lease_ms.map(Duration::from_millis);
                    after = Some(assignment.version);
                    wait = lease.map_or(WAIT_MAX, |lease| lease / 4).clamp(WAIT_MIN, WAIT_MAX);
                    pause = PAUSE_MIN;
                    let until = lease.map(|lease| sent.plus(lease));
                    // News that was long waited for comes with little time left by this count.
                    let left = until.map(|until| until.since(shared.time.clock.now()));
                    if left.zip(lease).is_some_and(|(left, lease)| left < lease / 2) {
                        wait = Duration::ZERO;
                    }
                    told.send_replace(Orders { assignment, until });
                }
                Err(error) => {
                    tracing::warn!(%error, "the node cannot be asked");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    };
    tokio::select! {
        () = shared.stop.cancelled() => {}
        () = following => {}
    }
}

async fn ask(
    client: &reqwest::Client,
    url: &str,
    token: &str,
    (after, wait): (Option<u64>, Duration),
) -> Result<Assignment, String> {
    let after = after.map(|after| format!("after={after}&")).unwrap_or_default();
    let url = format!("{url}?{after}wait_ms={}", wait.as_millis());
    let asking = async {
        let mut answer = client.get(url).bearer_auth(token).send().await.map_err(told)?;
        if !answer.status().is_success() {
            return Err(format!("answered {}", answer.status()));
        }
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(told)? {
            body.extend_from_slice(&piece);
            if body.len() > BODY_MAX {
                return Err("answered too much".to_owned());
            }
        }
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    };
    let patience = wait.saturating_add(GRACE);
    tokio::time::timeout(patience, asking).await.unwrap_or_else(|_| Err("no answer".into()))
}

/// With the reasons behind it, without the address.
pub(crate) fn told(error: reqwest::Error) -> String {
    chain(&error.without_url())
}
