//! TLS with servers that are not lockd's.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;

/// Whom to trust, and what to show.
#[derive(Clone, Default)]
pub struct Tls {
    /// Certificates of authorities, in PEM, instead of those of the system.
    pub authorities: Option<Vec<u8>>,
    pub identity: Option<Identity>,
}

/// A certificate with those between it and its authority, and its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({}, {})", self.authorities.is_some(), self.identity.is_some())
    }
}

impl Tls {
    /// Whether anything was said about it.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.authorities.is_some() || self.identity.is_some()
    }

    pub(crate) fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.authorities {
            Some(pem) => builder.with_root_certificates(roots(pem)?),
            None => builder.with_platform_verifier().map_err(|error| {
                format!("the certificates that this machine trusts cannot be used: {error}")
            })?,
        };
        let Some(Identity { certificate, key }) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates(certificate).map_err(|why| format!("{why} to be shown"))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| format!("the key of the certificate cannot be read: {error}"))?;
        let config = builder.with_client_auth_cert(chain, key);
        config.map_err(|error| format!("certificate and key do not go together: {error}"))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| format!("no certificate can be read: {error}"))?;
    if read.is_empty() { Err("there is no certificate".into()) } else { Ok(read) }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(pem).map_err(|why| format!("{why} of an authority"))? {
        let added = roots.add(authority);
        added.map_err(|error| format!("the certificate of an authority is none: {error}"))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::Tls;

    #[test]
    fn files_without_what_they_should_have_are_told() {
        let told = |tls: Tls| tls.config().map(drop).unwrap_err();
        let authorities = Some(b"nothing".to_vec());
        let why = told(Tls { authorities, identity: None });
        assert_eq!(why, "there is no certificate of an authority");
        // Not one that could be used, but one that can be read.
        let certificate =
            b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_vec();
        let why = told(Tls { authorities: Some(certificate), identity: None });
        assert!(why.starts_with("the certificate of an authority is none: "), "{why}");
    }
}
