//! Who this server is and whom it lets in: the bundle and the denylist on disk, read at the start
//! and again whenever they change, without a connection being dropped for it. Only a client that
//! was revoked loses its connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use lockd_pki::bootstrap::{BootstrapError, SERVER_FILE};
use lockd_pki::{
    Bundle, Credentials, Denylist, FileError, LiveCredentials, Refusal, ServerBundle, TlsError,
    files,
};
use lockd_serve::{AfterChange, MutualTls};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::IdentitySettings;
use crate::metrics::Metrics;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// From here on a certificate that ends is worth a line in the log.
const WARN_BEFORE: jiff::SignedDuration = jiff::SignedDuration::from_hours(30 * 24);
/// How often that line comes.
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "there is no folder for bundles: set HOME or LOCKD_CONFIG_DIR, pass --bundle, or start \
         with --disable-mtls"
    )]
    NoFolder,
    #[error("{path} is the bundle of a {kind}; pass a server's to --bundle")]
    NotAServer { path: PathBuf, kind: &'static str },
    #[error(transparent)]
    First(#[from] BootstrapError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Bundle(#[from] lockd_pki::BundleError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The files that make up an identity.
#[derive(Clone, Debug)]
struct Sources {
    bundle: PathBuf,
    denylist: Option<PathBuf>,
    tc_trust: Option<PathBuf>,
}

/// The identity of a running server.
pub(crate) struct Identity {
    sources: Sources,
    pub(crate) live: Arc<LiveCredentials>,
    /// Counts the times the credentials were replaced.
    changed: watch::Sender<u64>,
    seen: Mutex<Vec<Option<Trace>>>,
    metrics: Arc<Metrics>,
}

/// What a file looks like from outside.
type Trace = (SystemTime, u64, u64);

impl Identity {
    /// Reads the bundles, making them first in a folder that has none. Blocks on the disk.
    pub(crate) fn open(
        settings: &IdentitySettings,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, IdentityError> {
        let bundle = match &settings.bundle {
            Some(path) => path.clone(),
            None => first_start(settings)?,
        };
        let sources = Sources {
            bundle,
            denylist: settings.denylist_path.clone(),
            tc_trust: settings.tc_trust_dir.clone(),
        };
        let seen = Mutex::new(sources.traces());
        let live = LiveCredentials::new(sources.read()?);
        let changed = watch::Sender::new(0);
        let identity =
            Arc::new(Self { sources, live, changed, seen, metrics: Arc::clone(metrics) });
        identity.tell();
        Ok(identity)
    }

    /// For a port: only the connections of a client that was revoked end when the files change.
    pub(crate) fn tls(&self) -> Result<MutualTls, TlsError> {
        let on_refusal = log_refusal(&self.metrics);
        MutualTls::new(&self.live, self.changed.subscribe(), AfterChange::Keep, on_refusal)
    }

    /// Reads the files again. What cannot be read leaves everything as it was.
    pub(crate) fn reload(&self) {
        *self.seen.lock() = self.sources.traces();
        match self.sources.read() {
            Ok(credentials) => {
                self.live.replace(credentials);
                self.changed.send_modify(|count| *count += 1);
                self.tell();
                tracing::info!(bundle = %self.sources.bundle.display(), "bundle and denylist read again");
            }
            Err(error) => {
                self.metrics.tls.reload_failures.inc();
                tracing::error!(%error, "the bundle cannot be read again; the one before stays");
            }
        }
    }

    fn reload_if_changed(&self) {
        let traces = self.sources.traces();
        if *self.seen.lock() != traces {
            self.reload();
        }
    }

    /// Says when the certificate ends.
    fn tell(&self) {
        let ends = self.live.current().own().not_after;
        self.metrics.tls.certificate_ends.set(ends.as_second());
        let left = ends.duration_since(Timestamp::now());
        if left < WARN_BEFORE {
            let days = left.as_hours() / 24;
            tracing::warn!(%ends, days, "the server's certificate ends soon; run `lockd auth renew`");
        }
    }
}

/// Looks at the files until the server stops.
pub(crate) async fn keep_up(identity: Arc<Identity>, stopping: impl Future<Output = ()>) {
    let mut stopping = std::pin::pin!(stopping);
    let mut warned = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = &mut stopping => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let looking = Arc::clone(&identity);
        let again = warned.elapsed() >= WARN_EVERY;
        let looked = tokio::task::spawn_blocking(move || {
            looking.reload_if_changed();
            if again {
                looking.tell();
            }
        });
        if looked.await.is_err() {
            tracing::error!("looking at the bundle failed");
        }
        if again {
            warned = tokio::time::Instant::now();
        }
    }
}

/// Where a refused client is told of: TLS tells it little.
fn log_refusal(metrics: &Arc<Metrics>) -> lockd_pki::OnRefusal {
    let metrics = Arc::clone(metrics);
    Arc::new(move |refusal: &Refusal| {
        metrics.tls.refused(refusal.reason.code());
        let serial = refusal.serial.map(|serial| serial.to_string()).unwrap_or_default();
        let name = refusal.name.as_deref().unwrap_or_default();
        tracing::warn!(reason = %refusal.reason, %serial, name, "a client was not let in");
    })
}

impl Sources {
    fn read(&self) -> Result<Credentials, IdentityError> {
        let bundle = load_server(&self.bundle)?;
        let denied = match &self.denylist {
            Some(path) => files::read_denylist(path)?,
            None => Denylist::default(),
        };
        let tc_trust = match &self.tc_trust {
            Some(folder) => files::read_trust(folder)?,
            None => Vec::new(),
        };
        Ok(Credentials::server(&bundle, &tc_trust, &denied)?)
    }

    fn traces(&self) -> Vec<Option<Trace>> {
        let mut paths = vec![self.bundle.clone()];
        paths.extend(self.denylist.clone());
        if let Some(folder) = &self.tc_trust {
            paths.push(folder.clone());
            let inside = std::fs::read_dir(folder).into_iter().flatten().flatten();
            paths.extend(inside.map(|entry| entry.path()));
        }
        paths.iter().map(|path| trace(path)).collect()
    }
}

fn trace(path: &Path) -> Option<Trace> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}

fn load_server(path: &Path) -> Result<ServerBundle, IdentityError> {
    match files::load(path)? {
        (Bundle::Server(bundle), warning) => {
            if let Some(warning) = warning {
                tracing::warn!("{warning}");
            }
            Ok(bundle)
        }
        (other, _) => Err(IdentityError::NotAServer { path: path.to_owned(), kind: other.kind() }),
    }
}

/// The usual bundle; a folder without one gets a CA and a bundle for everybody.
fn first_start(settings: &IdentitySettings) -> Result<PathBuf, IdentityError> {
    let folder = settings.config_dir.as_ref().ok_or(IdentityError::NoFolder)?;
    let done = lockd_pki::bootstrap(folder, &[], Timestamp::now())?;
    for warning in &done.warnings {
        tracing::warn!("{warning}");
    }
    if !done.made.is_empty() {
        let made: Vec<String> = done.made.iter().map(|path| path.display().to_string()).collect();
        tracing::info!("first start: made {}", made.join(", "));
        tracing::info!(
            "clients on this machine find client.pem by themselves; give others bundles of their \
             own with `lockd auth new client`. Keep ca.pem offline: the server does not need it"
        );
    }
    Ok(folder.join(SERVER_FILE))
}
