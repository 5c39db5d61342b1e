//! Addresses of locks and stores, as they are written in settings, and what is there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use lockd_client::Client;
use lockd_elect::etcd::{EtcdLock, EtcdSettings};
use lockd_elect::lockd::LockdLock;
use lockd_elect::postgres::{PostgresLock, PostgresSettings};
use lockd_elect::redis::{Address, Redis, RedisLock, RedisSettings};
use lockd_elect::{Candidate, Identity, LeaderLock, Tls};
use lockd_jobs::ledger::Ledger;
use lockd_jobs::ledger::lockd::LockdLedger;
use lockd_jobs::ledger::postgres::PostgresLedger;

const CLUSTER_MAX: usize = 64;

/// An address, and what to show there.
#[derive(Clone)]
pub(super) struct Reach {
    /// The setting that it comes from.
    pub(super) flag: &'static str,
    pub(super) url: String,
    /// The bundle of a client, for lockd; without it the one that `lockd client` would show.
    pub(super) bundle: Option<PathBuf>,
    /// For the others.
    pub(super) certificates: Certificates,
}

/// Files for TLS, in PEM.
#[derive(Clone, Debug, Default)]
pub(super) struct Certificates {
    pub(super) authorities: Option<PathBuf>,
    /// To be shown.
    pub(super) own: Option<PathBuf>,
    /// Of the one to be shown; without it in the same file.
    pub(super) key: Option<PathBuf>,
}

impl Certificates {
    fn read(&self) -> anyhow::Result<Tls> {
        let read = |path: &PathBuf| {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let authorities = self.authorities.as_ref().map(read).transpose()?;
        let identity = match (&self.own, &self.key) {
            (Some(own), key) => {
                let (certificate, key) = (read(own)?, read(key.as_ref().unwrap_or(own))?);
                Some(Identity { certificate, key })
            }
            (None, Some(key)) => {
                anyhow::bail!("{} is a key without a certificate to be shown", key.display())
            }
            (None, None) => None,
        };
        Ok(Tls { authorities, identity })
    }
}

/// The name of a cluster is part of keys.
pub(super) fn check_cluster(name: &str) -> anyhow::Result<()> {
    let may =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let starts = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    if !starts || name.len() > CLUSTER_MAX || !name.bytes().all(may) {
        anyhow::bail!(
            "{name:?} is no name of a cluster: lower-case letters, digits, - and ., at most \
             {CLUSTER_MAX}"
        );
    }
    Ok(())
}

impl Reach {
    fn scheme(&self) -> &str {
        self.url.split_once("://").map_or("", |(scheme, _)| scheme)
    }

    fn client(&self) -> anyhow::Result<Client> {
        anyhow::ensure!(
            !self.certificates.read()?.is_given(),
            "lockd:// takes no certificates: with TLS it takes the bundle of a client"
        );
        client(&self.url, self.bundle.as_deref(), &format!("{}-bundle", self.flag))
    }

    /// Requests take no longer than this.
    fn postgres(&self, timeout: Duration) -> anyhow::Result<PostgresSettings> {
        let settings = PostgresSettings::parse(&self.url, &self.certificates.read()?);
        let settings = settings.map_err(|error| {
            anyhow::anyhow!("{error}: it is written as postgres://user:password@host:port/database")
        })?;
        Ok(settings.timeout(timeout))
    }

    /// The leader lock of a cluster, for one candidate.
    pub(super) fn lock(
        &self,
        cluster: &str,
        candidate: Candidate,
        ttl: Duration,
    ) -> anyhow::Result<Arc<dyn LeaderLock>> {
        let lock = self.any_lock(cluster, candidate, ttl);
        lock.with_context(|| format!("{} cannot be used", self.flag))
    }

    fn any_lock(
        &self,
        cluster: &str,
        candidate: Candidate,
        ttl: Duration,
    ) -> anyhow::Result<Arc<dyn LeaderLock>> {
        // A leader must be able to ask more than once before its time is over.
        let timeout = (ttl / 6).clamp(Duration::from_millis(250), Duration::from_secs(3));
        Ok(match self.scheme() {
            "lockd" => {
                let client = self.client()?;
                Arc::new(LockdLock::new(client, &format!("ha/{cluster}/leader"), candidate, ttl))
            }
            "postgres" | "postgresql" => {
                let timeout = timeout.max(Duration::from_secs(1));
                Arc::new(PostgresLock::new(self.postgres(timeout)?, cluster, candidate, ttl))
            }
            "etcd" | "etcds" => {
                let settings = EtcdSettings::parse(&self.url, &self.certificates.read()?);
                let settings = settings.map_err(anyhow::Error::msg)?;
                Arc::new(EtcdLock::new(settings, &format!("lockd/ha/{cluster}"), candidate, ttl))
            }
            scheme if scheme.starts_with("redis") => {
                let mut settings = RedisSettings::new(Address::parse(&self.url)?);
                settings.timeout = settings.timeout.min(timeout);
                settings.tls = self.certificates.read()?;
                anyhow::ensure!(
                    settings.address.tls || !settings.tls.is_given(),
                    "{scheme}:// takes no certificates: with TLS it is {}://",
                    scheme.replacen("redis", "rediss", 1)
                );
                // One slot of a Redis cluster has them all.
                let prefix = format!("{{lockd:ha:{cluster}}}");
                Arc::new(RedisLock::new(Redis::new(settings), &prefix, candidate, ttl))
            }
            _ => anyhow::bail!(
                "{:?} is no lock: it begins with lockd://, postgres://, etcd:// or redis://",
                shown(&self.url)
            ),
        })
    }

    /// The jobs of a cluster.
    pub(super) fn ledger(&self, cluster: &str) -> anyhow::Result<Arc<dyn Ledger>> {
        let ledger = self.any_ledger(cluster);
        ledger.with_context(|| format!("{} cannot be used", self.flag))
    }

    fn any_ledger(&self, cluster: &str) -> anyhow::Result<Arc<dyn Ledger>> {
        Ok(match self.scheme() {
            "lockd" => {
                let client = self.client()?;
                Arc::new(LockdLedger::new(client, &format!("ha/{cluster}/controller")))
            }
            "postgres" | "postgresql" => {
                Arc::new(PostgresLedger::new(self.postgres(Duration::from_secs(3))?, cluster))
            }
            _ => anyhow::bail!(
                "{:?} is no store of jobs: it begins with lockd:// or postgres://",
                shown(&self.url)
            ),
        })
    }
}

/// Without what may be a password.
fn shown(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://...@{rest}"),
        (None, Some((_, rest))) => format!("...@{rest}"),
        (Some(_) | None, None) => url.to_owned(),
    }
}

/// A client of `lockd://host:port,host:port?insecure=1&namespace=NAME`.
///
/// Plain HTTP is spoken only where it is asked for: the usual server speaks mutual TLS.
fn client(url: &str, bundle: Option<&Path>, flag: &str) -> anyhow::Result<Client> {
    let written = shown(url);
    let wrong =
        || format!("{written:?} is not written as lockd://host:port[,host:port][?insecure=1]");
    let rest = url.strip_prefix("lockd://").with_context(wrong)?;
    let (hosts, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut insecure, mut namespace) = (false, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("insecure", "1" | "true")) => insecure = true,
            Some(("insecure", "0" | "false")) => insecure = false,
            Some(("namespace", name)) => {
                anyhow::ensure!(!name.trim().is_empty(), "the namespace in {written:?} is empty");
                namespace = Some(name);
            }
            Some(_) | None => {
                anyhow::bail!(
                    "{pair:?} in {written:?} is not known: insecure=1 and namespace=NAME are"
                )
            }
        }
    }
    let scheme = if insecure { "http" } else { "https" };
    let mut builder = Client::builder();
    for host in hosts.trim_end_matches('/').split(',') {
        anyhow::ensure!(!host.is_empty(), wrong());
        builder = builder.endpoint(format!("{scheme}://{host}"));
    }
    if let Some(namespace) = namespace {
        builder = builder.namespace(namespace);
    }
    if !insecure || bundle.is_some() {
        let found = lockd_cli::bundle::of_daemon(bundle, flag);
        let (_, bundle) = found.map_err(|problem| {
            anyhow::anyhow!("{problem}; a server without TLS is written with ?insecure=1")
        })?;
        builder = builder.bundle(bundle);
    }
    Ok(builder.build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_addresses_are_told_what_is_right() {
        let with = |url: &str, certificates: Certificates| {
            let (flag, url) = ("--lock", url.into());
            let reach = Reach { flag, url, bundle: None, certificates };
            let candidate = Candidate::new("a");
            let lock = reach.lock("default", candidate, Duration::from_secs(1));
            lock.map(drop).map_err(|error| super::super::told(&error))
        };
        let told = |url: &str| with(url, Certificates::default());
        assert_eq!(told("lockd://127.0.0.1:9341?insecure=1"), Ok(()));
        assert_eq!(told("lockd://a:1,b:1?insecure=1&namespace=ha"), Ok(()));
        assert!(told("lockd://a:1?insecure=1&namespace=").unwrap_err().contains("is empty"));
        assert!(told("lockd://a:1?secure=1").unwrap_err().contains("not known"));
        assert!(told("lockd://,?insecure=1").unwrap_err().contains("lockd://host:port"));
        assert!(told("consul://user:secret@a").unwrap_err().contains("begins with lockd://"));
        assert!(!told("consul://user:secret@a").unwrap_err().contains("secret"));
        assert!(told("redis://").unwrap_err().contains("host"));
        let postgres = told("postgres://user:secret@a:b:c/d").unwrap_err();
        assert!(postgres.starts_with("--lock cannot be used: "), "{postgres}");
        assert!(postgres.contains("postgres://user:password@host"), "{postgres}");
        assert!(!told("lockd://user:secret@a?b").unwrap_err().contains("secret"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let authorities = Some(file.path().to_owned());
        let certificates = Certificates { authorities, ..Certificates::default() };
        for (url, right) in [
            ("lockd://a:1?insecure=1", "bundle"),
            ("etcd://a:1", "etcds://"),
            ("redis://a:1", "rediss://"),
            ("redis-sentinel://a:1/main", "rediss-sentinel://"),
            ("postgres://a/b?sslmode=disable", "sslmode=disable"),
            ("postgres://a/b", "no certificate of an authority"),
        ] {
            let why = with(url, certificates.clone()).unwrap_err();
            assert!(why.contains(right), "{url}: {why}");
        }
        let key = Some(file.path().to_owned());
        let alone = with("etcds://a:1", Certificates { key, ..Certificates::default() });
        assert!(alone.unwrap_err().contains("without a certificate"));
    }

    #[test]
    fn a_cluster_has_a_plain_name() {
        assert!(check_cluster("default").is_ok() && check_cluster("eu-1.prod").is_ok());
        for wrong in ["", "A", "a b", "a/b", "-a", &"x".repeat(65)] {
            assert!(check_cluster(wrong).is_err(), "{wrong}");
        }
    }
}
