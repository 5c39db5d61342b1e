//! Configurations for TLS 1.2 and 1.3 out of live credentials. The crypto provider is always
//! ring, and always named: a process may have another one linked without knowing.
//!
//! Sessions are not resumed, on either side. A resumed session skips the certificates, so a
//! client that was revoked a minute ago, or whose CA is no longer trusted, would come in on the
//! word of an earlier handshake. A full handshake costs a fraction of a millisecond, and clients
//! keep their connections.

use std::fmt;
use std::sync::Arc;

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme, SupportedProtocolVersion};

use crate::bundle::ClientBundle;
use crate::credentials::{Credentials, LiveCredentials};
use crate::error::TlsError;
use crate::verify::{ClientVerifier, OnRefusal, ServerVerifier};

/// Protocols a server offers, the preferred one first.
pub const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// For a server: it shows its certificate, and every client must show one that is let in.
///
/// # Errors
/// When the crypto provider cannot do what is asked of it.
pub fn server_config(
    credentials: &Arc<LiveCredentials>,
    on_refusal: OnRefusal,
) -> Result<ServerConfig, TlsError> {
    let verifier = ClientVerifier::new(Arc::clone(credentials), on_refusal);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(Shown(Arc::clone(credentials))));
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// For a client with a bundle. Which protocols it speaks over the connection, the caller sets.
///
/// # Errors
/// When a CA certificate cannot be used, or the crypto provider cannot do what is asked of it.
pub fn client_config(bundle: &ClientBundle) -> Result<ClientConfig, TlsError> {
    let credentials = LiveCredentials::new(Credentials::client(bundle, &[])?);
    live_client_config(&credentials, Arc::new(|_| {}))
}

/// For a client whose credentials may be replaced, such as a server that calls its peers.
///
/// # Errors
/// When the crypto provider cannot do what is asked of it.
pub fn live_client_config(
    credentials: &Arc<LiveCredentials>,
    on_refusal: OnRefusal,
) -> Result<ClientConfig, TlsError> {
    client_of_versions(credentials, on_refusal, rustls::DEFAULT_VERSIONS)
}

pub(crate) fn client_of_versions(
    credentials: &Arc<LiveCredentials>,
    on_refusal: OnRefusal,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ClientConfig, TlsError> {
    let verifier = ServerVerifier::new(Arc::clone(credentials), on_refusal);
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(Shown(Arc::clone(credentials))));
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Shows the certificate of the moment, to whoever asks.
struct Shown(Arc<LiveCredentials>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified())
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown(..)")
    }
}
