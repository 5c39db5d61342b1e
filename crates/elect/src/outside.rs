//! What the locks in other people's servers share.

use std::time::Duration;

use lockd_client::clock::{Clock, Moment};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::lock::Memory;

/// When a lock was last found to have forgotten something. Whoever is granted it within a time to
/// live after that is told, also if the answer to the first attempt was lost.
#[derive(Debug, Default)]
pub(crate) struct Forgetting(Mutex<Option<Moment>>);

impl Forgetting {
    /// What to tell about a grant that finds things as they were left, or not.
    pub(crate) fn after(&self, kept: bool, ttl: Duration) -> Memory {
        let now = Clock::Boot.now();
        let mut found = self.0.lock();
        if !kept {
            *found = Some(now);
        }
        match *found {
            Some(found) if now.since(found) < ttl => Memory::Lost,
            Some(_) | None => Memory::Kept,
        }
    }
}

/// TLS that trusts these authorities, in PEM, and nobody else.
pub(crate) fn trusting(pem: &[u8]) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}
