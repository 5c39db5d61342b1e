//! `lockd node-controller`: a node of which one of several leads, with the programs that it runs.

mod settings;

use std::process::ExitCode;

use lockd_elect::Candidate;
use lockd_node::{Node, StartError};

use super::daemon::{self, Ended, Signals};
use crate::notify::Notify;
pub(crate) use settings::NodeControllerArgs;
use settings::Settled;

pub(crate) async fn run(args: NodeControllerArgs) -> ExitCode {
    match args.settle() {
        Ok(settled) => Ended::code(serve(settled).await),
        Err(error) => Ended::code(Err(Ended::Wrong(error))),
    }
}

async fn serve(settled: Settled) -> Result<(), Ended> {
    daemon::log(&settled.log_level, settled.log_json)?;
    daemon::prepare();
    let mut signals = Signals::new().map_err(Ended::failed)?;
    let (door, _looking) = daemon::door(settled.bundle.as_deref()).map_err(Ended::wrong)?;
    let mut node = settled.node().map_err(Ended::wrong)?;
    node.door = door;
    node.guard = daemon::guard().map_err(Ended::failed)?.to_vec();
    let candidate = Candidate::new(node.candidate_id());
    let lock = settled.lock.lock(&settled.cluster, candidate, settled.lock_ttl);
    let lock = lock.map_err(Ended::wrong)?;
    let node = tokio::select! {
        node = Node::start(node, lock) => node.map_err(not_started)?,
        name = signals.next() => {
            return Err(Ended::failed(anyhow::anyhow!("{name} before the start was over")));
        }
    };
    tracing::info!("listening on {}", node.handle().address);
    let notify = Notify::of_environment();
    notify.ready();
    let name = signals.next().await;
    notify.stopping();
    tracing::info!("{name}: handing over and stopping; once more to stop at once");
    tokio::select! {
        () = node.stop() => tracing::info!("stopped"),
        name = signals.next() => tracing::warn!("{name} again: stopped at once"),
    }
    Ok(())
}

fn not_started(error: StartError) -> Ended {
    match error {
        StartError::NodeId(_)
        | StartError::Url(_)
        | StartError::Candidate { .. }
        | StartError::NoCommand(_)
        | StartError::Controller(_)
        | StartError::Open(_) => Ended::wrong(error),
        StartError::Client(_) | StartError::Folder { .. } => Ended::failed(error),
        StartError::Serve(error) => Ended::unserved(error),
    }
}
