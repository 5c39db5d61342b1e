//! `lockd coordinator`: an instance's part in its cluster, as a daemon beside the program.

mod backend;
mod settings;

use std::process::ExitCode;

use anyhow::Context as _;
use lockd_coordinator::api::{Access, Door, Role, ServeError, Serving, Token};
use lockd_coordinator::{Coordinator, StartError, Task};
use tokio_util::sync::DropGuard;

use super::daemon::{self, Ended, Signals};
use crate::notify::Notify;
pub(crate) use settings::CoordinatorArgs;
use settings::{Settled, TokenFile};

pub(crate) async fn run(args: CoordinatorArgs) -> ExitCode {
    match args.settle() {
        Ok(settled) => Ended::code(serve(settled).await),
        Err(error) => Ended::code(Err(Ended::Wrong(error))),
    }
}

async fn serve(mut settled: Settled) -> Result<(), Ended> {
    daemon::log(&settled.log_level, settled.log_json)?;
    let mut signals = Signals::new().map_err(Ended::failed)?;
    // For TLS to Redis and to whatever tasks call.
    daemon::prepare();
    let guard = daemon::guard().map_err(Ended::failed)?;
    let id = settled.coordinator.instance_id.clone();
    let tasks = std::mem::take(&mut settled.tasks).into_iter();
    let tasks: Result<Vec<Task>, _> = tasks.map(|spec| spec.task(&id, &guard)).collect();
    let tasks = tasks.map_err(Ended::wrong)?;
    let (door, access, _looking) = admission(&settled).map_err(Ended::wrong)?;
    let (backend, embedded) = backend::open(&settled).await?;
    let started = tokio::select! {
        started = Coordinator::start(settled.coordinator.clone(), backend) => started,
        name = signals.next() => {
            return Err(Ended::failed(anyhow::anyhow!("{name} before the start was over")));
        }
    };
    let coordinator = started.map_err(not_started)?;
    let opened = async {
        for task in tasks {
            coordinator.register(task).map_err(Ended::wrong)?;
        }
        let serving = Serving::start(&settled.listen, door, access, coordinator.clone()).await;
        serving.map_err(|error| match error {
            ServeError::Serve(error) => Ended::unserved(error),
            ServeError::Access(error) => Ended::wrong(error),
        })
    };
    let serving = match opened.await {
        Ok(serving) => serving,
        Err(error) => {
            coordinator.deregister().await;
            return Err(error);
        }
    };
    tracing::info!("listening on {}", serving.address);
    let notify = Notify::of_environment();
    notify.ready();
    let name = signals.next().await;
    notify.stopping();
    tracing::info!("{name}: deregistering; once more to stop at once");
    let leaving = async {
        coordinator.deregister().await;
        serving.stop().await;
        if let Some(server) = embedded {
            server.shutdown(std::time::Duration::ZERO).await;
        }
    };
    tokio::select! {
        () = leaving => tracing::info!("stopped"),
        name = signals.next() => tracing::warn!("{name} again: stopped at once"),
    }
    Ok(())
}

fn not_started(error: StartError) -> Ended {
    let end = match error {
        StartError::Settings(_) => Ended::Wrong,
        StartError::Refused(_) => Ended::Failed,
    };
    end(anyhow::Error::new(error).context("the coordinator cannot start"))
}

/// How one comes in, and what one may do then. The door is looked after while the last is kept.
fn admission(settled: &Settled) -> anyhow::Result<(Door, Access, Option<DropGuard>)> {
    let tokens: anyhow::Result<Vec<Token>> = settled.tokens.iter().map(token).collect();
    let (door, looking) = daemon::door(settled.bundle.as_deref())?;
    let certificates = matches!(door, Door::Tls { .. });
    Ok((door, Access::new(tokens?, certificates), looking))
}

fn token(written: &TokenFile) -> anyhow::Result<Token> {
    let secret = match (&written.token, &written.token_file) {
        (Some(token), None) => token.clone(),
        (None, Some(path)) => daemon::secret(path)?,
        (Some(_), Some(_)) | (None, None) => {
            anyhow::bail!("tokens: give each either `token` or `token_file`")
        }
    };
    let roles: anyhow::Result<Vec<Role>> = written
        .roles
        .iter()
        .map(|role| {
            let known = || format!("{role:?} is no role: metrics:read, metrics:write, tasks:run");
            Role::parse(role).with_context(known)
        })
        .collect();
    Ok(Token::new(&secret, roles?)?)
}
