//! The server: settings from all layers, then serve until told to stop.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgMatches;
use lockd_cli::folder;
use lockd_server::config::{self, Layers, Loaded, ProcessEnvironment};
use lockd_server::{Server, Settings, StartError};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::daemon::{self, Ended};
use crate::args::given_settings;
use crate::notify::Notify;

pub(crate) async fn run(file: Option<PathBuf>, matches: &ArgMatches) -> ExitCode {
    Ended::code(serve(file, matches).await)
}

async fn serve(file: Option<PathBuf>, matches: &ArgMatches) -> Result<(), Ended> {
    let loaded = loaded(file, matches).map_err(Ended::wrong)?;
    let mut settings = loaded.settings;
    daemon::log(&settings.log_level, settings.log_json)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(warning) = settings.fit_open_files() {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::new().map_err(Ended::failed)?;
    until_stopped(settings, &mut signals).await
}

/// The settings, out of all layers.
pub(crate) fn loaded(file: Option<PathBuf>, matches: &ArgMatches) -> anyhow::Result<Loaded> {
    let flags = given_settings(matches);
    let layers = Layers { flags, file: settings_file(file)?, home: home_text() };
    Ok(config::load(&layers, &ProcessEnvironment)?)
}

/// What was told wrongly ends with another code than what failed.
fn not_started(error: StartError) -> Ended {
    let kind = match &error {
        StartError::Listen { source, .. } => Some(source.kind()),
        StartError::Identity(_) => return Ended::wrong(error),
        StartError::Open(_)
        | StartError::Store(_)
        | StartError::Object { .. }
        | StartError::Runtime(_) => None,
    };
    match kind {
        Some(ErrorKind::InvalidInput) => Ended::wrong(error),
        Some(_) | None => Ended::failed(error),
    }
}

async fn until_stopped(settings: Settings, signals: &mut Signals) -> Result<(), Ended> {
    let grace = settings.drain_grace;
    let server = Server::new(settings).await.map_err(not_started)?;
    for bound in server.start().await.map_err(not_started)? {
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
