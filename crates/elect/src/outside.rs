//! What the locks in other people's servers share.

use std::error::Error;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// TLS that trusts these authorities, in PEM, and nobody else.
pub(crate) fn trusting(pem: &[u8]) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

/// An error with the reasons behind it.
pub(crate) fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
