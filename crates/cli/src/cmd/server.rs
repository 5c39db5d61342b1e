//! The server: settings from all layers, then serve until told to stop.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgMatches;
use lockd_cli::{folder, log};
use lockd_server::config::{self, Layers, ProcessEnvironment};
use lockd_server::{Server, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{failed, told};
use crate::args::given_settings;
use crate::notify::Notify;

pub(crate) async fn run(file: Option<PathBuf>, matches: &ArgMatches) -> ExitCode {
    match serve(file, matches).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&told(&error)),
    }
}

async fn serve(file: Option<PathBuf>, matches: &ArgMatches) -> anyhow::Result<()> {
    let layers =
        Layers { flags: given_settings(matches), file: settings_file(file)?, home: home_text() };
    let loaded = config::load(&layers, &ProcessEnvironment)?;
    let settings = loaded.settings;
    log::init(&settings.log_level, settings.log_json).map_err(anyhow::Error::msg)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::new()?;
    until_stopped(settings, &mut signals).await
}

async fn until_stopped(settings: Settings, signals: &mut Signals) -> anyhow::Result<()> {
    let grace = settings.drain_grace;
    let server = Server::new(settings).await?;
    for bound in server.start().await? {
        tracing::info!("listening on {bound}");
    }
    if let Some(bound) = server.metrics_bound() {
        tracing::info!("metrics on {bound}/metrics");
    }
    let notify = Notify::of_environment();
    notify.ready();
    let name = loop {
        match signals.next().await {
            Told::Stop(name) => break name,
            Told::Reload => {
                notify.reloading();
                server.reload().await;
                notify.ready();
            }
        }
    };
    notify.stopping();
    let wait = humantime::format_duration(grace);
    tracing::info!("{name}: draining for at most {wait}; once more to stop at once");
    tokio::select! {
        done = server.shutdown(grace) => {
            tracing::info!(leases_left = done.leases_left, "stopped");
        }
        name = signals.stop() => tracing::warn!("{name} again: stopped at once"),
    }
    Ok(())
}

pub(crate) fn home_text() -> Option<String> {
    home().and_then(|home| home.into_os_string().into_string().ok())
}

fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| !home.as_os_str().is_empty())
}

/// The named file, which must exist, or the usual one if it does.
pub(crate) fn settings_file(named: Option<PathBuf>) -> anyhow::Result<Option<(String, String)>> {
    let usual = folder::config_dir().ok().map(|folder| folder.join("config.yaml"));
    let usual = usual.filter(|path| path.exists());
    let Some(path) = named.or(usual) else { return Ok(None) };
    let shown = path.display().to_string();
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((shown, text))),
        Err(error) => anyhow::bail!("cannot read the settings file {shown}: {error}"),
    }
}

/// What a signal asks for.
enum Told {
    Stop(&'static str),
    Reload,
}

/// The signals that a server listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Told::Stop("SIGINT"),
            _ = self.hangup.recv() => Told::Reload,
        }
    }

    /// The next one that ends the server.
    async fn stop(&mut self) -> &'static str {
        loop {
            if let Told::Stop(name) = self.next().await {
                return name;
            }
        }
    }
}
