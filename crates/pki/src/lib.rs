//! Keys, certificates and who they name: the bundles lockd reads and writes, the identities in
//! them, and the verifiers that decide in a TLS handshake who may come in.
//!
//! We trust certificates, not host names. A peer is let in because its certificate leads to a CA
//! that we trust, is made for the purpose, is in time, is not revoked and says who it is.
//! What a peer may then do is for others to ask; [`Claims`] has the answer for namespaces.
//!
//! No network and no runtime here; time is an argument, randomness comes from `entropy`, and only
//! `files` touches the disk.

mod entropy;
mod error;
mod pem;
mod seal;

pub mod bootstrap;
pub mod bundle;
pub mod certificate;
pub mod claims;
pub mod credentials;
pub mod files;
pub mod identity;
pub mod inspect;
pub mod issue;
pub mod key;
pub mod serial;
pub mod tls;
pub mod verify;

#[cfg(test)]
mod fixture;

pub use bootstrap::bootstrap;
pub use bundle::{Bundle, CaBundle, ClientBundle, Leaf, ServerBundle};
pub use certificate::Certificate;
pub use claims::{Access, Claim, Claims, Grants, Namespaces, Permission};
pub use credentials::{Admitted, Credentials, LiveCredentials, Trust};
pub use error::{BundleError, BundleFault, FileError, IssueError, TlsError};
pub use identity::{NoIdentity, Peer, Role};
pub use inspect::{Summary, inspect};
pub use issue::{Authority, ClientRequest, ServerRequest};
pub use key::PrivateKey;
pub use seal::{Cost, Password, SealFault};
pub use serial::{Denylist, Serial};
pub use tls::{client_config, live_client_config, server_config};
pub use verify::{Distrust, OnRefusal, PeerRefused, Refusal};
