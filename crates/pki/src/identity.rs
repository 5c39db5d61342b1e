//! Who a certificate names: exactly one SPIFFE URI in our trust domain gives the role and the
//! name, other URIs may claim namespaces. Read once per connection and then carried along.
//! Whether the certificate may be believed is decided before anybody looks here.

use std::fmt;

use jiff::Timestamp;

use crate::certificate::Certificate;
use crate::claims::Claims;
use crate::serial::Serial;

/// The only trust domain.
pub const TRUST_DOMAIN: &str = "lockd";
/// Longest name in an identity; also the longest common name that X.509 allows.
pub const NAME_CHARS_MAX: usize = 64;

/// What a peer is, and its name as such.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A server, by its node id.
    Server(String),
    /// A transaction coordinator's client.
    Tc(String),
    /// An ordinary client.
    Sdk(String),
}

/// A peer, as its certificate describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub role: Role,
    pub serial: Serial,
    pub claims: Claims,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// Why a certificate names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoIdentity {
    #[error("the certificate has no spiffe: URI, so it does not say whose it is")]
    Missing,
    #[error("the certificate has {0} spiffe: URIs; exactly one says whose it is")]
    Several(usize),
    #[error("the identity {0} is outside the trust domain \"{TRUST_DOMAIN}\"")]
    OtherDomain(String),
    #[error(
        "the identity {0} is not one of spiffe://{TRUST_DOMAIN}/server/<id>, /tc/<name>, \
         /sdk/<name>"
    )]
    OtherPath(String),
}

impl Peer {
    /// # Errors
    /// When the certificate does not have exactly one identity of ours.
    pub fn of(certificate: &Certificate) -> Result<Self, NoIdentity> {
        Ok(Self {
            role: Role::of_uris(&certificate.uris)?,
            serial: certificate.serial,
            claims: Claims::of_uris(&certificate.uris),
            not_before: certificate.not_before,
            not_after: certificate.not_after,
        })
    }
}

impl Role {
    fn of_uris(uris: &[String]) -> Result<Self, NoIdentity> {
        let mut identities = uris.iter().filter_map(|uri| after_scheme(uri, "spiffe"));
        match (identities.next(), identities.count()) {
            (None, _) => Err(NoIdentity::Missing),
            (Some(only), 0) => Self::parse(only),
            (Some(_), more) => Err(NoIdentity::Several(more + 1)),
        }
    }

    /// From what follows `spiffe:`.
    fn parse(rest: &str) -> Result<Self, NoIdentity> {
        let whole = || format!("\"spiffe:{}\"", rest.escape_debug());
        let (domain, path) = rest
            .strip_prefix("//")
            .map(|rest| rest.split_once('/').unwrap_or((rest, "")))
            .ok_or_else(|| NoIdentity::OtherPath(whole()))?;
        if domain != TRUST_DOMAIN {
            return Err(NoIdentity::OtherDomain(whole()));
        }
        let (kind, name) = path.split_once('/').ok_or_else(|| NoIdentity::OtherPath(whole()))?;
        if !is_name(name) {
            return Err(NoIdentity::OtherPath(whole()));
        }
        let name = name.to_owned();
        match kind {
            "server" => Ok(Self::Server(name)),
            "tc" => Ok(Self::Tc(name)),
            "sdk" => Ok(Self::Sdk(name)),
            _ => Err(NoIdentity::OtherPath(whole())),
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Server(name) | Self::Tc(name) | Self::Sdk(name) => name,
        }
    }

    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Server(_) => "server",
            Self::Tc(_) => "tc",
            Self::Sdk(_) => "sdk",
        }
    }

    #[must_use]
    pub fn uri(&self) -> String {
        format!("spiffe://{TRUST_DOMAIN}/{}/{}", self.kind(), self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

/// Whether a name can stand in an identity as it is. SPIFFE knows no escapes, so what would need
/// one is refused when issuing and when reading.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=NAME_CHARS_MAX).contains(&name.len())
        && name.chars().all(allowed)
        && name != "."
        && name != ".."
}

/// What follows the scheme and its colon, when the URI has this scheme in whatever case.
pub(crate) fn after_scheme<'a>(uri: &'a str, scheme: &str) -> Option<&'a str> {
    let (found, rest) = uri.split_once(':')?;
    found.trim().eq_ignore_ascii_case(scheme).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::{NoIdentity, Role, is_name};

    fn role(uris: &[&str]) -> Result<Role, NoIdentity> {
        let uris: Vec<String> = uris.iter().map(|uri| (*uri).to_owned()).collect();
        Role::of_uris(&uris)
    }

    #[test]
    fn one_identity_gives_role_and_name() {
        for (uri, expected) in [
            ("spiffe://lockd/server/0198", Role::Server("0198".to_owned())),
            ("spiffe://lockd/tc/a.b", Role::Tc("a.b".to_owned())),
            ("SPIFFE://lockd/sdk/Worker_1-x", Role::Sdk("Worker_1-x".to_owned())),
        ] {
            assert_eq!(role(&["lockd://ns/ALL?perm=rw", uri]).unwrap(), expected);
        }
        assert_eq!(Role::Tc("x".to_owned()).uri(), "spiffe://lockd/tc/x");
    }

    #[test]
    fn anything_else_names_nobody() {
        assert_eq!(role(&["lockd://ns/ALL"]), Err(NoIdentity::Missing));
        let two = ["spiffe://lockd/sdk/a", "Spiffe://other/x"];
        assert_eq!(role(&two), Err(NoIdentity::Several(2)));
        for uri in ["spiffe://other/sdk/a", "spiffe://LOCKD/sdk/a", "spiffe://lockd:1/sdk/a"] {
            assert!(matches!(role(&[uri]), Err(NoIdentity::OtherDomain(_))), "{uri}");
        }
        for uri in [
            "spiffe:lockd/sdk/a",
            "spiffe://lockd",
            "spiffe://lockd/sdk",
            "spiffe://lockd/sdk/",
            "spiffe://lockd/sdk/a/b",
            "spiffe://lockd/sdk/a%20b",
            "spiffe://lockd/sdk/..",
            "spiffe://lockd/sdk/a?x",
            "spiffe://lockd/SDK/a",
            "spiffe://lockd/admin/a",
        ] {
            assert!(matches!(role(&[uri]), Err(NoIdentity::OtherPath(_))), "{uri}");
        }
    }

    #[test]
    fn names_need_no_escapes() {
        assert!(is_name("worker-1.example_x"));
        assert!(is_name(&"x".repeat(64)));
        for name in ["", ".", "..", "a b", "a/b", "ä", "a%", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
