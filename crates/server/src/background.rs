//! Work beside requests. Each pass takes no argument and may run twice: it looks at what there is
//! and brings it in order, woken by a timer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockd_core::key::KeyName;
use lockd_core::queue::QueueName;
use lockd_core::time::Span;

use crate::app::queue::tidy::TIDY_EVERY;
use crate::app::{App, Refused};
use crate::commit::LEASE_PREFIX;

/// How many leases are ended at a time.
const REAP_AT_ONCE: usize = 256;
/// When a lease could not be ended because the store did not work, it is tried again after this.
const REAP_AGAIN: Span = Span(500);

/// How often the queues that the metrics name are asked for: well before an idle one is forgotten.
const KEEP_QUEUES_EVERY: Duration = Duration::from_secs(60);

/// Ends each lease when its time is over, to the millisecond as far as the store allows.
pub(crate) async fn reap(app: Arc<App>) {
    let live = &app.records.live;
    loop {
        let due = live.take_due(app.clock().now(), REAP_AT_ONCE);
        if !due.is_empty() {
            end_all(&app, due).await;
            continue;
        }
        let next = live.next_deadline();
        let deadline = async {
            match next {
                Some(tick) => app.clock().sleep_until(tick).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = app.tasks.stopping() => return,
            () = deadline => {}
            () = live.sooner() => {}
        }
    }
}

async fn end_all(app: &Arc<App>, due: Vec<KeyName>) {
    let mut ending: FuturesUnordered<_> = due
        .into_iter()
        .map(|key| async move {
            if let Err(error) = end(app, &key).await {
                tracing::debug!(%key, %error, "an expired lease could not be cleared yet");
                let again = app.clock().now().tick.plus(REAP_AGAIN);
                app.records.live.try_again(&key, again);
            }
        })
        .collect();
    while ending.next().await.is_some() {}
}

async fn end(app: &Arc<App>, key: &KeyName) -> Result<(), Refused> {
    if !app.lapse(key).await? {
        // Renewed just then, or ended by a write of unknown outcome: the table did not know.
        app.records.adopt(key).await?;
        app.records.live.dealt_with(key);
    }
    Ok(())
}

/// Finds leases that are in the store's index but not on the timer, and puts them there.
pub(crate) async fn sweep(app: Arc<App>, every: Duration) {
    while pause(&app, every).await {
        let mut after: Option<Arc<str>> = None;
        loop {
            let page = app.records.store().scan(LEASE_PREFIX, after.as_deref(), 1_000).await;
            let Ok(page) = page else { break };
            for (name, _) in &page {
                let key = name.strip_prefix(LEASE_PREFIX).unwrap_or_default();
                let Ok(key) = KeyName::parse_full(key) else { continue };
                if app.records.live.get(&key).is_none()
                    && let Err(error) = app.records.adopt(&key).await
                {
                    tracing::debug!(%key, %error, "a lease could not be looked at yet");
                }
            }
            match page.last() {
                Some((last, _)) => after = Some(Arc::clone(last)),
                None => break,
            }
        }
    }
}

/// Finishes and forgets transactions: once at start, then every so often.
pub(crate) async fn tidy_txns(app: Arc<App>, every: Duration, retention: Span) {
    loop {
        match app.tidy_txns(retention).await {
            Ok(0) => {}
            Ok(forgotten) => tracing::debug!(forgotten, "old transactions removed"),
            // That the store is away is logged where it is found out.
            Err(error) if is_away(&app) => {
                tracing::debug!(%error, "transactions could not be looked through");
            }
            Err(error) => tracing::warn!(%error, "transactions could not be looked through"),
        }
        if !pause(&app, every).await {
            return;
        }
    }
}

/// Removes messages that have lived too long, and what queues leave behind.
pub(crate) async fn tidy_queues(app: Arc<App>) {
    while pause(&app, Duration::from_millis(TIDY_EVERY.0)).await {
        match app.tidy_queues().await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "messages removed that nobody took in time"),
            // That the store is away is logged where it is found out.
            Err(error) if is_away(&app) => {
                tracing::debug!(%error, "queues could not be looked through");
            }
            Err(error) => tracing::warn!(%error, "queues could not be looked through"),
        }
    }
}

/// Keeps queues in memory that the metrics name, whether or not they are in use.
pub(crate) async fn keep_queues(app: Arc<App>, queues: Vec<QueueName>) {
    loop {
        for queue in &queues {
            if let Err(error) = app.keep_queue(queue).await {
                tracing::warn!(%queue, %error, "queue of the metrics not read; trying again");
            }
        }
        if !pause(&app, KEEP_QUEUES_EVERY).await {
            return;
        }
    }
}

/// Removes blobs that nothing names: once at start, then every so often.
pub(crate) async fn collect(app: Arc<App>, every: Duration) {
    loop {
        match app.collect().await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "unused blobs removed"),
            // That the store is away is logged where it is found out.
            Err(error) if is_away(&app) => {
                tracing::debug!(%error, "unused blobs could not be looked through");
            }
            Err(error) => tracing::warn!(%error, "unused blobs could not be looked through"),
        }
        if let Err(error) = app.records.store().tidy().await
            && !is_away(&app)
        {
            tracing::warn!(%error, "the store could not be tidied up");
        }
        if !pause(&app, every).await {
            return;
        }
    }
}

fn is_away(app: &App) -> bool {
    app.records.store().health().is_err()
}

/// `false` when the server stops instead.
async fn pause(app: &App, span: Duration) -> bool {
    tokio::select! {
        biased;
        () = app.tasks.stopping() => false,
        () = tokio::time::sleep(span) => true,
    }
}
