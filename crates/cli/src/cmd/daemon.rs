//! What the daemons beside the server share: the signals that end them, how one comes in, and the
//! files with secrets and certificates.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use lockd_client::{ClientBundle, chain};
use lockd_pki::{Bundle, Credentials, LiveCredentials, files};
use lockd_serve::{Door, ServeError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{failed, told, wrong};

/// How often the file of a bundle is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What to do about a port that another program has.
const TAKEN: &str = "another program listens there: pass another port with --listen";

/// Why a daemon did not start, or did not go on.
#[derive(Debug)]
pub(super) enum Ended {
    /// It was told what cannot be: whoever started it must change that.
    Wrong(anyhow::Error),
    Failed(anyhow::Error),
}

impl Ended {
    pub(super) fn wrong(error: impl Into<anyhow::Error>) -> Self {
        Self::Wrong(error.into())
    }

    pub(super) fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(error.into())
    }

    /// A port that cannot be had. What is no address at all was told wrongly.
    pub(super) fn unserved(error: ServeError) -> Self {
        let kind = match &error {
            ServeError::Listen { source, .. } => Some(source.kind()),
            ServeError::Tls(_) => None,
        };
        match kind {
            Some(io::ErrorKind::InvalidInput) => Self::wrong(error),
            Some(io::ErrorKind::AddrInUse) => {
                Self::Failed(anyhow::anyhow!("{}\n  {TAKEN}", chain(&error)))
            }
            Some(_) | None => Self::failed(error),
        }
    }

    /// Says why, and gives the exit code.
    pub(super) fn code(done: Result<(), Self>) -> ExitCode {
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(Self::Wrong(error)) => wrong(&told(&error)),
            Err(Self::Failed(error)) => failed(&told(&error)),
        }
    }
}

/// How log lines are written, by the same name in every daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    Text,
    Json,
}

/// Whether the log is JSON: `--log-format` counts, and without it `--log-json`, its older form.
pub(super) fn log_is_json(format: Option<LogFormat>, json: Option<bool>) -> bool {
    format.map_or(json.unwrap_or(false), |format| format == LogFormat::Json)
}

/// The log, as it is asked for.
pub(super) fn log(filter: &str, json: bool) -> Result<(), Ended> {
    lockd_cli::log::init(filter, json).map_err(|told| Ended::Wrong(anyhow::Error::msg(told)))
}

/// The signals that end it.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// What a settings file says; without one, nothing.
pub(super) fn settings_file<T: DeserializeOwned + Default>(
    path: Option<&Path>,
) -> anyhow::Result<T> {
    let Some(path) = path else { return Ok(T::default()) };
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the settings file {shown}"))?;
    serde_saphyr::from_str(&text).map_err(|error| {
        // With its snippet it says everything three times.
        anyhow::anyhow!("the settings file {shown} cannot be used: {}", error.without_snippet())
    })
}

/// A program that runs this very one as a guard.
pub(super) fn guard() -> io::Result<[std::ffi::OsString; 3]> {
    Ok([std::env::current_exe()?.into_os_string(), "guard".into(), "--".into()])
}

/// What a process needs before anything else: of the ways to encrypt that could be chosen one must
/// be, and connections are files.
pub(super) fn prepare() {
    lockd_child::raise_open_files();
    let _chosen_before = rustls::crypto::ring::default_provider().install_default().is_err();
}

/// The name that was given, else that of the machine. The machine is asked itself: shells have
/// `HOSTNAME` without passing it on, and the name must be the same after a restart.
pub(super) fn name(given: Option<String>, flag: &str) -> anyhow::Result<String> {
    let given = given.filter(|name| !name.is_empty());
    given
        .or_else(files::machine_name)
        .with_context(|| format!("this machine has no name that can be used: pass {flag} NAME"))
}

/// The first line of a file, without what is around it.
pub(super) fn secret(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let first = text.lines().next().unwrap_or_default().trim();
    anyhow::ensure!(
        !first.is_empty(),
        "the first line of {shown} is empty: a secret belongs there"
    );
    Ok(first.to_owned())
}

/// A door with a bundle's certificates, which are read again when the file changes; for as long as
/// the guard is kept.
pub(super) fn door(bundle: Option<&Path>) -> anyhow::Result<(Door, Option<DropGuard>)> {
    let Some(path) = bundle else { return Ok((Door::Plain, None)) };
    let live = LiveCredentials::new(credentials(path)?);
    let stop = CancellationToken::new();
    let (door, changed) = Door::tls(Arc::clone(&live));
    let (path, stopped) = (path.to_owned(), stop.clone());
    let looking = async move {
        let mut known = modified(&path);
        loop {
            tokio::select! {
                () = stopped.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let now = modified(&path);
            if now == known {
                continue;
            }
            match credentials(&path) {
                Ok(read) => {
                    live.replace(read);
                    changed.announce();
                    known = now;
                    tracing::info!(bundle = %path.display(), "certificates were read again");
                }
                Err(error) => {
                    tracing::warn!("certificates stay as they were: {}", told(&error));
                    known = now;
                }
            }
        }
    };
    #[expect(clippy::disallowed_methods, reason = "ends with the guard")]
    tokio::spawn(looking);
    Ok((door, Some(stop.drop_guard())))
}

fn modified(path: &Path) -> Option<std::time::SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn credentials(path: &Path) -> anyhow::Result<Credentials> {
    let (bundle, warning) = files::load(path)?;
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    let Bundle::Server(bundle) = bundle else {
        anyhow::bail!("{} is the bundle of a {}; pass a server's", path.display(), bundle.kind())
    };
    Ok(Credentials::server(&bundle, &[], bundle.denylist())?)
}

/// A client's bundle.
pub(super) fn client_bundle(path: &Path) -> anyhow::Result<ClientBundle> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    Ok(ClientBundle::parse(&shown, &text)?)
}

/// How to speak TLS as the client that a bundle names.
pub(super) fn client_tls(path: Option<&Path>) -> anyhow::Result<Option<rustls::ClientConfig>> {
    let Some(path) = path else { return Ok(None) };
    Ok(Some(lockd_pki::client_config(&client_bundle(path)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_the_first_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (text, expected) in
            [("abc\n", "abc"), ("abc", "abc"), (" abc \r\n# made by hand\n", "abc")]
        {
            std::fs::write(&path, text).unwrap();
            assert_eq!(secret(&path).unwrap(), expected, "{text:?}");
        }
        std::fs::write(&path, "\nabc\n").unwrap();
        assert!(told(&secret(&path).unwrap_err()).contains("first line"));
    }

    #[test]
    fn a_cause_is_told_once_and_a_taken_port_with_the_next_step() {
        let taken = |kind: io::ErrorKind| {
            let source = io::Error::new(kind, "no such luck");
            Ended::unserved(ServeError::Listen { address: "a:1".into(), source })
        };
        let Ended::Failed(error) = taken(io::ErrorKind::AddrInUse) else { panic!("it failed") };
        let text = told(&error);
        assert_eq!(text.matches("no such luck").count(), 1, "{text}");
        assert!(text.contains("--listen"), "{text}");
        let Ended::Wrong(error) = taken(io::ErrorKind::InvalidInput) else { panic!("no address") };
        assert_eq!(told(&error), "cannot listen on a:1: no such luck");
    }
}
