//! What can go wrong with bundles, with issuing and with files. Each sentence names the file, what
//! is wrong with it and what to do next. Why a peer was not let in is told in `verify`.

use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

use crate::certificate::CertificateFault;
use crate::identity::NoIdentity;
use crate::pem::PemFault;
use crate::seal::SealFault;
use crate::serial::DenylistFault;

/// A bundle that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {fault}")]
pub struct BundleError {
    /// The file, or what the caller called it.
    pub file: String,
    pub fault: BundleFault,
}

/// What is wrong with a bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleFault {
    #[error("{0}")]
    Pem(#[from] PemFault),
    #[error("certificate number {number}: {fault}")]
    Certificate { number: usize, fault: CertificateFault },
    #[error(
        "private key number {number} cannot be read; keys are Ed25519, ECDSA (P-256, P-384) or RSA"
    )]
    Key { number: usize },
    #[error(
        "private key number {number} is encrypted in a way that lockd does not read; \
         decrypt it with \"openssl pkey\""
    )]
    ForeignEncryption { number: usize },
    #[error(
        "private key number {number} belongs to no certificate in the file; \
         put its certificate beside it or remove the key"
    )]
    StrayKey { number: usize },
    #[error("the protected CA key belongs to no CA certificate in the file; add the certificate")]
    StraySealedKey,
    #[error("the key of the CA is not Ed25519; issue with the tool that made it, or make a new CA")]
    CaKeyType,
    #[error("the CA certificate \"{0}\" is of a kind that TLS cannot trust; make a new CA")]
    UnusableCa(String),
    #[error("there is no CA certificate in it; append the certificate from ca.pem")]
    NoCa,
    #[error("the private key of the CA is not in it; use the ca.pem that was made with the CA")]
    NoCaKey,
    #[error("there are private keys of several CAs in it; keep one")]
    SeveralCaKeys,
    #[error("there is no certificate with its private key in it; issue the bundle again")]
    NoLeaf,
    #[error("there are several certificates with private keys in it; keep one pair")]
    SeveralLeaves,
    #[error("it is a {found} bundle where a {wanted} bundle is needed")]
    OtherKind { wanted: &'static str, found: &'static str },
    #[error("{0}; issue the bundle again")]
    Identity(#[from] NoIdentity),
    #[error("{0}")]
    Denylist(#[from] DenylistFault),
    #[error("the denylist is not text; revoke the serials again")]
    DenylistNotText,
    #[error("the CA key is protected by a password, and none was given")]
    Locked,
    #[error("the password of the CA key is wrong, or the file has been changed")]
    WrongPassword,
    #[error("{0}")]
    Seal(#[from] SealFault),
}

impl BundleFault {
    pub(crate) fn of(self, file: &str) -> BundleError {
        BundleError { file: file.to_owned(), fault: self }
    }
}

/// A TLS configuration that was not made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// A certificate that was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    #[error(
        "the name \"{0}\" cannot be used; a name has 1 to 64 characters out of \
         a-z A-Z 0-9 . _ - and is not \".\" or \"..\""
    )]
    Name(String),
    #[error("\"{0}\" is neither a host name nor an address; write a name, an IP address or *")]
    Host(String),
    #[error("a certificate is valid for 1 to 3650 days, not for {0}")]
    Days(u32),
    #[error("the CA ended at {0}; make a new one with \"lockd auth new ca\"")]
    CaExpired(Timestamp),
    #[error("the present time cannot be written into a certificate; check the clock")]
    Time,
    #[error("the key of the CA is not Ed25519; make a new CA, or issue with the tool that made it")]
    CaKeyType,
    #[error("the private key does not belong to the CA certificate")]
    OtherCaKey,
    #[error("a password must not be empty")]
    EmptyPassword,
    #[error("the system has no random bytes: {0}")]
    Entropy(String),
    #[error("the certificate could not be made: {0}")]
    Failed(String),
}

/// A file that could not be read, written or found.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },
    #[error("{}: is not a file; name the file itself", path.display())]
    NotAFile { path: PathBuf },
    #[error("{}: is larger than {max} bytes, which no bundle is; check the name", path.display())]
    TooLarge { path: PathBuf, max: u64 },
    #[error("{}: is not text; bundles are PEM", path.display())]
    NotText { path: PathBuf },
    #[error("{}: exists already; choose another name, or ask to replace it", path.display())]
    Exists { path: PathBuf },
    #[error("{}: {fault}", path.display())]
    Denylist { path: PathBuf, fault: DenylistFault },
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(
        "{}: there is no usable client bundle (client*.pem){}; name one, or issue one with \
         \"lockd auth new client\"", folder.display(), listed(unusable)
    )]
    NoClient { folder: PathBuf, unusable: Vec<String> },
    #[error(
        "{}: several client bundles could be meant: {}; name one of them",
        folder.display(), usable.join(", ")
    )]
    SeveralClients { folder: PathBuf, usable: Vec<String> },
    #[error("{}: more than {max} files could be meant; name the one", folder.display())]
    TooManyFiles { folder: PathBuf, max: usize },
}

impl FileError {
    pub(crate) fn io(
        path: &std::path::Path,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}

fn listed(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}
