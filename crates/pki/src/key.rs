//! Private keys: read in the three forms that files have, made in one (Ed25519, PKCS#8), wiped
//! when dropped, never printed. A key is matched to its certificate by the public key.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use rustls::sign::SigningKey;
use zeroize::Zeroizing;

use crate::certificate::Certificate;
use crate::entropy;
use crate::error::IssueError;
use crate::pem::Block;

/// An Ed25519 key in PKCS#8 is these bytes and its seed. We write this first version of the
/// format, without the public key at its end: every tool reads it.
const ED25519_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
const SEED_BYTES: usize = 32;

/// How a key is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Pkcs8,
    Pkcs1,
    Sec1,
}

/// A private key that can sign.
#[derive(Clone)]
pub struct PrivateKey {
    form: Form,
    der: Zeroizing<Vec<u8>>,
    public_key: Vec<u8>,
    signing: Arc<dyn SigningKey>,
}

impl Form {
    pub(crate) fn of_label(label: &str) -> Option<Self> {
        [Self::Pkcs8, Self::Pkcs1, Self::Sec1].into_iter().find(|form| form.label() == label)
    }

    fn label(self) -> &'static str {
        match self {
            Self::Pkcs8 => "PRIVATE KEY",
            Self::Pkcs1 => "RSA PRIVATE KEY",
            Self::Sec1 => "EC PRIVATE KEY",
        }
    }
}

impl PrivateKey {
    /// A new Ed25519 key.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn generate() -> Result<Self, IssueError> {
        let mut der = Zeroizing::new(vec![0; ED25519_PREFIX.len() + SEED_BYTES]);
        let (prefix, seed) = der.split_at_mut(ED25519_PREFIX.len());
        prefix.copy_from_slice(&ED25519_PREFIX);
        entropy::fill(seed)?;
        Self::parse(Form::Pkcs8, der)
            .ok_or_else(|| IssueError::Failed("a new key was not accepted".to_owned()))
    }

    /// `None` when the bytes are no key of a kind that is known.
    pub(crate) fn parse(form: Form, der: Zeroizing<Vec<u8>>) -> Option<Self> {
        let bytes = der.as_slice();
        let borrowed = match form {
            Form::Pkcs8 => PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(bytes)),
            Form::Pkcs1 => PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(bytes)),
            Form::Sec1 => PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(bytes)),
        };
        let signing = any_supported_type(&borrowed).ok()?;
        let public_key = signing.public_key()?.as_ref().to_vec();
        Some(Self { form, der, public_key, signing })
    }

    #[must_use]
    pub fn belongs_to(&self, certificate: &Certificate) -> bool {
        self.public_key == certificate.public_key()
    }

    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    pub(crate) fn signing(&self) -> &Arc<dyn SigningKey> {
        &self.signing
    }

    /// The key itself, for sealing it. Only keys in PKCS#8 are sealed.
    pub(crate) fn pkcs8(&self) -> Option<&[u8]> {
        (self.form == Form::Pkcs8).then_some(self.der.as_slice())
    }

    pub(crate) fn to_block(&self) -> Block {
        Block::new(self.form.label(), &[], &self.der)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}
