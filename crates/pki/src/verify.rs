//! The two verifiers that a TLS handshake asks, and why they say no. A client is told little of
//! the reason (TLS 1.3 may even show it a handshake that succeeded), so every refusal is also
//! handed to an observer on this side, who can log and count it.
//! The judgement itself is in `credentials`; host names are nowhere looked at.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, OtherError,
    SignatureScheme,
};
use webpki::KeyUsage;

use crate::certificate::{Certificate, CertificateFault};
use crate::credentials::{LiveCredentials, Purpose};
use crate::identity::{NoIdentity, Role};
use crate::serial::Serial;

/// The purpose that a server's certificate must name.
const SERVER_AUTH: &[usize] = KeyUsage::SERVER_AUTH_REPR;

/// Why a peer was not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerRefused {
    #[error("no certificate was shown")]
    NoCertificate,
    #[error("the certificate was not issued by a CA that is trusted here")]
    OtherCa,
    #[error(
        "the certificate was issued by an intermediate CA that the bundle does not have; issue it \
         by the CA itself, or add the intermediate's certificate to the bundle"
    )]
    Intermediate,
    #[error("the CA of the certificate is outside its own dates; renew the CA")]
    CaOutOfTime,
    #[error("the certificate expired at {0}; issue a new one")]
    Expired(Timestamp),
    #[error("the certificate is not valid before {0}; check the clocks")]
    NotYetValid(Timestamp),
    #[error("the certificate does not say what it is for; {0} is needed")]
    NoEku(&'static str),
    #[error("the certificate is for another purpose; {0} is needed")]
    WrongEku(&'static str),
    #[error("the certificate with serial {0} is revoked")]
    Revoked(Serial),
    #[error("{0}")]
    NoIdentity(#[from] NoIdentity),
    #[error("the certificate is that of {}; a server's is needed", .0.kind())]
    WrongRole(Role),
    #[error("the certificate {0}")]
    Unreadable(CertificateFault),
    #[error("the certificate cannot be verified: {0}")]
    Unsupported(String),
}

/// Why a connection came to nothing: one side does not accept the other's certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// We do not accept the peer's.
    #[error("its certificate is not accepted here: {0}")]
    OfPeer(PeerRefused),
    /// The peer does not accept ours, and said so in the few words that TLS has for it.
    #[error("it does not accept this client's certificate: {0}")]
    OfUs(&'static str),
}

/// A refusal, with what the peer's certificate says. Nothing of it has been proved.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub reason: PeerRefused,
    pub serial: Option<Serial>,
    /// The common name, cut short and free of control characters.
    pub name: Option<String>,
}

/// Is told of every refusal, inside the handshake: it must not block.
pub type OnRefusal = Arc<dyn Fn(&Refusal) + Send + Sync>;

/// Decides for a server which clients come in.
pub(crate) struct ClientVerifier(Verifier);

/// Decides for a client which servers it talks to.
pub(crate) struct ServerVerifier(Verifier);

struct Verifier {
    credentials: Arc<LiveCredentials>,
    algorithms: WebPkiSupportedAlgorithms,
    on_refusal: OnRefusal,
}

impl PeerRefused {
    /// A word for counting.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::OtherCa => "other_ca",
            Self::Intermediate => "intermediate_ca",
            Self::CaOutOfTime => "ca_out_of_time",
            Self::Expired(_) => "expired",
            Self::NotYetValid(_) => "not_yet_valid",
            Self::NoEku(_) => "no_eku",
            Self::WrongEku(_) => "wrong_eku",
            Self::Revoked(_) => "revoked",
            Self::NoIdentity(_) => "no_identity",
            Self::WrongRole(_) => "wrong_role",
            Self::Unreadable(_) => "unreadable",
            Self::Unsupported(_) => "unsupported",
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "not our enum, and it is open")]
    pub(crate) fn of_webpki(error: webpki::Error) -> Self {
        use webpki::Error;
        let time = |time: UnixTime| timestamp(time).unwrap_or_default();
        match error {
            Error::CertExpired { not_after, .. } => Self::Expired(time(not_after)),
            Error::CertNotValidYet { not_before, .. } => Self::NotYetValid(time(not_before)),
            Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => Self::OtherCa,
            Error::RequiredEkuNotFoundContext(context) => {
                let server = context.required.oid_values().eq(SERVER_AUTH.iter().copied());
                let needed = if server { Purpose::Server } else { Purpose::Client };
                Self::WrongEku(needed.as_str())
            }
            other => Self::Unsupported(other.to_string()),
        }
    }

    /// The nearest reason that TLS has a word for: it is all that the client will see.
    fn as_alert(&self) -> rustls::Error {
        let error = match self {
            Self::NoCertificate => return rustls::Error::NoCertificatesPresented,
            Self::OtherCa | Self::Intermediate | Self::CaOutOfTime => {
                CertificateError::UnknownIssuer
            }
            Self::Expired(_) => CertificateError::Expired,
            Self::NotYetValid(_) => CertificateError::NotValidYet,
            Self::NoEku(_) | Self::WrongEku(_) => CertificateError::InvalidPurpose,
            Self::Revoked(_) => CertificateError::Revoked,
            Self::NoIdentity(_) | Self::WrongRole(_) => {
                CertificateError::ApplicationVerificationFailure
            }
            Self::Unreadable(_) | Self::Unsupported(_) => CertificateError::BadEncoding,
        };
        error.into()
    }

    /// The reason itself, for our own side to find.
    fn into_error(self) -> rustls::Error {
        CertificateError::Other(OtherError(Arc::new(self))).into()
    }
}

impl Distrust {
    /// The distrust behind an error of a connection.
    #[must_use]
    pub fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                return Self::of(error);
            }
            // What an I/O error wraps is not its source, but the error itself.
            let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            next = match wrapped {
                Some(inner) => Some(inner),
                None => error.source(),
            };
        }
        None
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "not our enum, and it is open")]
    fn of(error: &rustls::Error) -> Option<Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(other)) => {
                other.0.downcast_ref().cloned().map(Self::OfPeer)
            }
            rustls::Error::AlertReceived(alert) => complaint(*alert).map(Self::OfUs),
            _ => None,
        }
    }
}

/// What an alert says about a certificate.
#[expect(clippy::wildcard_enum_match_arm, reason = "not our enum, and it is open")]
fn complaint(alert: AlertDescription) -> Option<&'static str> {
    use AlertDescription as A;
    Some(match alert {
        A::UnknownCA => "it was issued by another CA; use a bundle of the server's CA",
        A::CertificateExpired => "it has expired, or is not valid yet; issue a new one",
        A::CertificateRevoked => "it is revoked; issue a new one",
        A::CertificateRequired => "none was shown; use a client bundle",
        A::UnsupportedCertificate => "it is for another purpose; use a client bundle",
        A::AccessDenied
        | A::BadCertificate
        | A::CertificateUnknown
        | A::DecryptError
        | A::InsufficientSecurity => "the server's log says why",
        _ => return None,
    })
}

impl Verifier {
    fn new(credentials: Arc<LiveCredentials>, on_refusal: OnRefusal) -> Self {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        Self { credentials, algorithms, on_refusal }
    }

    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
        purpose: Purpose,
    ) -> Result<(), PeerRefused> {
        let judged = timestamp(now)
            .ok_or_else(|| PeerRefused::Unsupported("the clock is beyond all dates".to_owned()))
            .and_then(|now| self.credentials.current().judge(leaf, rest, now, purpose));
        judged.map(drop).inspect_err(|reason| {
            let certificate = Certificate::parse(leaf).ok();
            (self.on_refusal)(&Refusal {
                reason: reason.clone(),
                serial: certificate.as_ref().map(|certificate| certificate.serial),
                name: certificate.map(|certificate| shown(&certificate.name)),
            });
        })
    }
}

impl ClientVerifier {
    pub(crate) fn new(credentials: Arc<LiveCredentials>, on_refusal: OnRefusal) -> Self {
        Self(Verifier::new(credentials, on_refusal))
    }
}

impl ServerVerifier {
    pub(crate) fn new(credentials: Arc<LiveCredentials>, on_refusal: OnRefusal) -> Self {
        Self(Verifier::new(credentials, on_refusal))
    }
}

impl ClientCertVerifier for ClientVerifier {
    /// No hints: they are asked for once, and the CAs may change while we run.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let judged = self.0.judge(leaf, rest, now, Purpose::Client);
        judged.map(|()| ClientCertVerified::assertion()).map_err(|reason| reason.as_alert())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let judged = self.0.judge(leaf, rest, now, Purpose::Server);
        judged.map(|()| ServerCertVerified::assertion()).map_err(PeerRefused::into_error)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.algorithms.supported_schemes()
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientVerifier(..)")
    }
}

impl fmt::Debug for ServerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerVerifier(..)")
    }
}

fn timestamp(time: UnixTime) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(time.as_secs()).ok()?).ok()
}

/// A stranger chose this name; it goes into a log.
fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
