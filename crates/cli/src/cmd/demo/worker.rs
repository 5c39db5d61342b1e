//! A worker of the demo: takes the lease, reads how far the one before it came, counts on, and
//! checkpoints each step. It tells its parent what it does, a line of JSON each.

use std::path::PathBuf;
use std::time::Duration;

use lockd_client::{Client, LeaseContext};
use serde::{Deserialize, Serialize};

use crate::cmd::say;

/// Short, so that a hand-over after a kill is quick to watch.
const TTL: Duration = Duration::from_millis(1500);
/// How long a step of the work takes.
const STEP: Duration = Duration::from_millis(250);
/// How many steps a worker does before it lets go.
const STEPS: u64 = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    server: String,
    #[arg(long)]
    bundle: PathBuf,
    #[arg(long)]
    key: String,
}

/// The checkpoint.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) count: u64,
    by: String,
}

/// What a worker tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub(super) enum Report {
    Waiting,
    Granted { lease: Held },
    Resumed { count: u64 },
    Counted { count: u64 },
    Finished,
}

/// The lease, so that the parent can play the part of a worker that came back too late.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Held {
    namespace: Option<String>,
    key: String,
    lease_id: String,
    txn_id: Option<String>,
    token: Option<u64>,
}

impl From<&LeaseContext> for Held {
    fn from(context: &LeaseContext) -> Self {
        Self {
            namespace: context.namespace.clone(),
            key: context.key.clone(),
            lease_id: context.lease_id.clone(),
            txn_id: context.txn_id.clone(),
            token: context.token,
        }
    }
}

impl From<Held> for LeaseContext {
    fn from(held: Held) -> Self {
        Self {
            namespace: held.namespace,
            key: held.key,
            lease_id: held.lease_id,
            txn_id: held.txn_id,
            token: held.token,
        }
    }
}

pub(super) async fn run(args: &WorkerArgs) -> anyhow::Result<()> {
    let client = Client::builder()
        .endpoint(&args.server)
        .bundle_file(&args.bundle)
        .owner(&args.name)
        .build()?;
    let asked = client.lease(&args.key).ttl(TTL);
    let lease = match asked.no_wait().await {
        Ok(lease) => lease,
        Err(_) => {
            tell(&Report::Waiting)?;
            client.lease(&args.key).ttl(TTL).wait_forever().await?
        }
    };
    tell(&Report::Granted { lease: lease.context().into() })?;
    let mut progress: Progress = match lease.get().await? {
        Some(document) => document.json()?,
        None => Progress::default(),
    };
    tell(&Report::Resumed { count: progress.count })?;
    for _ in 0..STEPS {
        tokio::time::sleep(STEP).await;
        progress = Progress { count: progress.count + 1, by: args.name.clone() };
        lease.checkpoint(&progress).await?;
        tell(&Report::Counted { count: progress.count })?;
    }
    lease.release().await?;
    tell(&Report::Finished)
}

fn tell(report: &Report) -> anyhow::Result<()> {
    say(&serde_json::to_string(report)?);
    Ok(())
}
