//! `lockd coordinator`: an instance's part in its cluster, as a daemon beside the program.

mod backend;
mod settings;

use std::process::ExitCode;

use anyhow::Context as _;
use lockd_cli::log;
use lockd_coordinator::api::{Access, Door, Role, Serving, Token};
use lockd_coordinator::{Coordinator, Task};
use lockd_pki::{Bundle, Credentials, LiveCredentials, files};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failed;
use crate::notify::Notify;
pub(crate) use settings::CoordinatorArgs;
use settings::{Settled, TokenFile};

pub(crate) async fn run(args: CoordinatorArgs) -> ExitCode {
    match serve(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("{error:#}")),
    }
}

async fn serve(args: CoordinatorArgs) -> anyhow::Result<()> {
    let mut settled = args.settle()?;
    log::init(&settled.log_level, settled.log_json).map_err(anyhow::Error::msg)?;
    let mut signals = Signals::new()?;
    // For TLS to Redis and to whatever tasks call.
    let _chosen_before = rustls::crypto::ring::default_provider().install_default().is_err();
    let guard = [std::env::current_exe()?.into_os_string(), "guard".into(), "--".into()];
    let id = settled.coordinator.instance_id.clone();
    let tasks = std::mem::take(&mut settled.tasks).into_iter();
    let tasks: Vec<Task> = tasks.map(|spec| spec.task(&id, &guard)).collect::<Result<_, _>>()?;
    let (door, access) = admission(&settled)?;
    let (backend, embedded) = backend::open(&settled).await?;
    let started = tokio::select! {
        started = Coordinator::start(settled.coordinator.clone(), backend) => started,
        name = signals.next() => anyhow::bail!("{name} before the start was over"),
    };
    let coordinator = started.context("the coordinator cannot start")?;
    let opened = async {
        for task in tasks {
            coordinator.register(task)?;
        }
        let serving = Serving::start(&settled.listen, door, access, coordinator.clone()).await?;
        Ok::<_, anyhow::Error>(serving)
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

/// How one comes in, and what one may do then.
fn admission(settled: &Settled) -> anyhow::Result<(Door, Access)> {
    let tokens: anyhow::Result<Vec<Token>> = settled.tokens.iter().map(token).collect();
    let door = match &settled.bundle {
        None => Door::Plain,
        Some(path) => {
            let (bundle, warning) = files::load(path)?;
            if let Some(warning) = warning {
                tracing::warn!("{warning}");
            }
            let Bundle::Server(bundle) = bundle else {
                anyhow::bail!(
                    "{} is the bundle of a {}; pass a server's",
                    path.display(),
                    bundle.kind()
                )
            };
            let credentials = Credentials::server(&bundle, &[], bundle.denylist())?;
            Door::Tls(LiveCredentials::new(credentials))
        }
    };
    let certificates = matches!(door, Door::Tls(_));
    Ok((door, Access::new(tokens?, certificates)))
}

fn token(written: &TokenFile) -> anyhow::Result<Token> {
    let secret = match (&written.token, &written.token_file) {
        (Some(token), None) => token.clone(),
        (None, Some(path)) => {
            let read = std::fs::read_to_string(path);
            read.with_context(|| format!("cannot read {}", path.display()))?.trim().to_owned()
        }
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

/// The signals that end it.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
