//! The server: settings from all layers, then serve until told to stop.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgMatches;
use lockd_server::config::{self, Layers, ProcessEnvironment};
use lockd_server::{Server, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failed;
use crate::args::given_settings;
use crate::log;

pub(crate) async fn run(file: Option<PathBuf>, matches: &ArgMatches) -> ExitCode {
    match serve(file, matches).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("{error:#}")),
    }
}

async fn serve(file: Option<PathBuf>, matches: &ArgMatches) -> anyhow::Result<()> {
    let layers = Layers {
        flags: given_settings(matches),
        file: settings_file(file)?,
        home: home().and_then(|home| home.into_os_string().into_string().ok()),
    };
    let loaded = config::load(&layers, &ProcessEnvironment)?;
    let settings = loaded.settings;
    log::init(&settings.log_level, settings.log_json).map_err(anyhow::Error::msg)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut stop = Stop::new()?;
    until_stopped(settings, &mut stop).await
}

async fn until_stopped(settings: Settings, stop: &mut Stop) -> anyhow::Result<()> {
    let grace = settings.drain_grace;
    let server = Server::new(settings).await?;
    for bound in server.start().await? {
        tracing::info!("listening on {bound}");
    }
    if let Some(bound) = server.metrics_bound() {
        tracing::info!("metrics on {bound}/metrics");
    }
    let name = stop.wait().await;
    let wait = humantime::format_duration(grace);
    tracing::info!("{name}: draining for at most {wait}; once more to stop at once");
    tokio::select! {
        done = server.shutdown(grace) => {
            tracing::info!(leases_left = done.leases_left, "stopped");
        }
        name = stop.wait() => tracing::warn!("{name} again: stopped at once"),
    }
    Ok(())
}

fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| !home.as_os_str().is_empty())
}

/// The named file, which must exist, or the usual one if it does.
fn settings_file(named: Option<PathBuf>) -> anyhow::Result<Option<(String, String)>> {
    let usual = home().map(|home| home.join(".lockd/config.yaml")).filter(|path| path.exists());
    let Some(path) = named.or(usual) else { return Ok(None) };
    let shown = path.display().to_string();
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((shown, text))),
        Err(error) => anyhow::bail!("cannot read the settings file {shown}: {error}"),
    }
}

/// The signals that end a server.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
