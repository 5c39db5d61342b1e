//! Locks that are reached over TLS, in servers that let nobody in without a certificate.

use std::path::Path;
use std::time::Duration;

use lockd_cloud::{Etcd, Postgres, ServerFiles};
use lockd_elect::etcd::{EtcdLock, EtcdSettings};
use lockd_elect::postgres::{PostgresLock, PostgresSettings};
use lockd_elect::{Attempt, Candidate, Identity, LeaderLock, LockError, Renewal, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use super::granted;

const TTL: Duration = Duration::from_secs(30);

/// An authority, and how it is known.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// For this machine as a server, and for the user `lockd`. etcd shows its own to itself.
    fn identity(&self) -> Identity {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, "lockd");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Identity { certificate: certificate.into(), key: key.serialize_pem().into() }
    }

    fn files(&self, folder: &Path) -> ServerFiles {
        let Identity { certificate, key } = self.identity();
        let written = |name: &str, text: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        ServerFiles {
            authority: written("ca.pem", self.pem.as_bytes()),
            certificate: written("server.pem", &certificate),
            key: written("key.pem", &key),
        }
    }

    fn trusted(&self, identity: Option<Identity>) -> Tls {
        Tls { authorities: Some(self.pem.clone().into()), identity }
    }
}

/// A lock that is made with the right certificates is a lock; with others it is none.
async fn only_with_certificates(
    authority: &Authority,
    lock: impl Fn(&Tls, &str) -> Box<dyn LeaderLock>,
) {
    let right = authority.trusted(Some(authority.identity()));
    let first = lock(&right, "a");
    let grant = granted(&*first).await;
    assert_eq!(first.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
    let second = lock(&right, "b").try_acquire().await;
    assert!(matches!(second, Ok(Attempt::Held(_))), "{second:?}");
    first.release(grant.epoch).await.expect("released");
    let other = Authority::new();
    for (what, wrong) in [
        ("shows nothing", authority.trusted(None)),
        ("shows another's", authority.trusted(Some(other.identity()))),
        ("trusts another", other.trusted(Some(authority.identity()))),
    ] {
        let refused = lock(&wrong, "c").try_acquire().await;
        assert!(refused.is_err(), "{what}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_an_etcd_that_asks_for_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let etcd = Etcd::start_secure(authority.files(folder.path())).await;
    let url = format!("etcds://{}", etcd.address());
    only_with_certificates(&authority, |tls, id| {
        let settings = EtcdSettings::parse(&url, tls).expect("an address");
        Box::new(EtcdLock::new(settings, "cluster", Candidate::new(id), TTL))
    })
    .await;
    let plain = EtcdSettings::parse(&etcd.url(), &authority.trusted(None));
    assert!(plain.is_err_and(|why| why.contains("etcds://")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_a_postgres_that_asks_for_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let postgres = Postgres::start_secure(authority.files(folder.path())).await;
    let lock = |settings: PostgresSettings, id: &str| {
        Box::new(PostgresLock::new(settings, "cluster", Candidate::new(id), TTL))
    };
    only_with_certificates(&authority, |tls, id| {
        lock(PostgresSettings::parse(&postgres.url(), tls).expect("an address"), id)
    })
    .await;
    for way in ["disable", "prefer", "require", "verify-full"] {
        let url = format!("{}?sslmode={way}", postgres.url());
        // There are machines that trust nobody.
        let Ok(settings) = PostgresSettings::parse(&url, &Tls::default()) else { continue };
        let refused = lock(settings, "c").try_acquire().await;
        assert!(refused.is_err(), "{way}: {refused:?}");
    }
}

/// Whoever is in between could say so.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_speaks_no_tls_is_told_nothing_by_those_who_want_it() {
    let postgres = Postgres::start().await;
    let authority = Authority::new();
    let right = authority.trusted(None);
    let parsed = |query: &str, tls: &Tls| {
        PostgresSettings::parse(&format!("{}{query}", postgres.url()), tls)
    };
    for query in ["", "?sslmode=prefer", "?connect_timeout=3&sslmode=verify-ca"] {
        let settings = parsed(query, &right).expect("an address");
        let lock = PostgresLock::new(settings, "cluster", Candidate::new("a"), TTL);
        let refused = lock.try_acquire().await;
        assert!(matches!(refused, Err(LockError::Unavailable(_))), "{refused:?}");
    }
    let contradiction = parsed("?sslmode=disable", &right);
    assert!(contradiction.is_err_and(|why| why.contains("sslmode=disable")));
    let plain = PostgresLock::new(
        parsed("", &Tls::default()).expect("an address"),
        "cluster",
        Candidate::new("a"),
        TTL,
    );
    granted(&plain).await;
}
