//! Which namespaces a certificate grants, and how: `lockd://ns/<namespace>?perm=r|w|rw`.
//!
//! A claim for one namespace overrides the claim for `ALL`, even when it grants less. One claim
//! that cannot be read spoils them all: nobody can know what it was meant to restrict.
//! Which access an endpoint needs is for the server to say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::identity::after_scheme;

/// The namespace that stands for every namespace; only in upper case.
pub const ALL: &str = "ALL";
const NAMESPACE_CHARS_MAX: usize = 128;

/// What a claim grants. In the order of strength: of two claims the stronger one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    Read,
    Write,
    ReadWrite,
}

/// What an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any claim on the namespace.
    Any,
    Read,
    Write,
    ReadWrite,
}

/// One claim, for issuing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// `None` is every namespace.
    namespace: Option<String>,
    permission: Permission,
}

/// The claims of one certificate, taken together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claims {
    Granted(Grants),
    Malformed(ClaimFault),
}

/// A set of namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    AllBut(BTreeSet<String>),
    Only(BTreeSet<String>),
}

/// Claims that could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    everywhere: Option<Permission>,
    namespaces: BTreeMap<String, Permission>,
}

/// Why a claim cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimFault {
    #[error(
        "\"{0}\" claims no namespace; a namespace is ALL, or 1 to 128 characters out of \
         a-z 0-9 . _ -"
    )]
    Namespace(String),
    #[error("\"{0}\" has a permission other than r, w or rw")]
    Permission(String),
    #[error("\"{0}\" names a permission more than once")]
    Repeated(String),
    #[error("\"{0}\" has a part that claims do not have")]
    Part(String),
}

impl Permission {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Read, Self::Write, Self::ReadWrite]
            .into_iter()
            .find(|permission| text.eq_ignore_ascii_case(permission.as_str()))
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "r",
            Self::Write => "w",
            Self::ReadWrite => "rw",
        }
    }

    #[must_use]
    pub fn allows(self, access: Access) -> bool {
        match access {
            Access::Any => true,
            Access::Read => self != Self::Write,
            Access::Write => self != Self::Read,
            Access::ReadWrite => self == Self::ReadWrite,
        }
    }
}

impl Claim {
    /// Everything, everywhere.
    #[must_use]
    pub fn all() -> Self {
        Self { namespace: None, permission: Permission::ReadWrite }
    }

    /// From `namespace=permission`, as people write it; without a permission it is `rw`.
    ///
    /// # Errors
    /// When the namespace or the permission is not one.
    pub fn parse(text: &str) -> Result<Self, ClaimFault> {
        let (namespace, permission) = text.split_once('=').unwrap_or((text, "rw"));
        let permission = Permission::parse(permission.trim())
            .ok_or_else(|| ClaimFault::Permission(shown(text)))?;
        Ok(Self { namespace: parse_namespace(namespace.trim(), text)?, permission })
    }

    /// From a URI; `None` when the URI is no claim on a namespace.
    fn of_uri(uri: &str) -> Option<Result<Self, ClaimFault>> {
        let rest = after_scheme(uri, "lockd")?.strip_prefix("//")?;
        let host_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, rest) = rest.split_at_checked(host_end)?;
        host.eq_ignore_ascii_case("ns").then(|| Self::of_path(rest, uri))
    }

    /// From what follows the host.
    fn of_path(rest: &str, uri: &str) -> Result<Self, ClaimFault> {
        if rest.contains('#') {
            return Err(ClaimFault::Part(shown(uri)));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut permission = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if name != "perm" {
                return Err(ClaimFault::Part(shown(uri)));
            }
            let value =
                Permission::parse(value).ok_or_else(|| ClaimFault::Permission(shown(uri)))?;
            if permission.replace(value).is_some() {
                return Err(ClaimFault::Repeated(shown(uri)));
            }
        }
        let namespace = parse_namespace(path.trim_matches('/'), uri)?;
        Ok(Self { namespace, permission: permission.unwrap_or(Permission::ReadWrite) })
    }

    #[must_use]
    pub fn uri(&self) -> String {
        let namespace = self.namespace.as_deref().unwrap_or(ALL);
        format!("lockd://ns/{namespace}?perm={}", self.permission.as_str())
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace.as_deref().unwrap_or(ALL);
        write!(f, "{namespace}={}", self.permission.as_str())
    }
}

impl Claims {
    pub(crate) fn of_uris(uris: &[String]) -> Self {
        let mut grants = Grants::default();
        for claim in uris.iter().filter_map(|uri| Claim::of_uri(uri)) {
            match claim {
                Ok(claim) => grants.add(claim),
                Err(fault) => return Self::Malformed(fault),
            }
        }
        Self::Granted(grants)
    }

    /// Whether the operation may touch the namespace. Malformed claims allow nothing.
    #[must_use]
    pub fn allows(&self, namespace: &str, access: Access) -> bool {
        match self {
            Self::Granted(grants) => {
                grants.permission(namespace).is_some_and(|permission| permission.allows(access))
            }
            Self::Malformed(_) => false,
        }
    }

    /// The namespaces that the operation may touch. Malformed claims allow none.
    #[must_use]
    pub fn namespaces(&self, access: Access) -> Namespaces {
        let Self::Granted(grants) = self else { return Namespaces::Only(BTreeSet::new()) };
        let everywhere = grants.everywhere.is_some_and(|permission| permission.allows(access));
        let named = grants.namespaces.iter();
        let differing = named.filter(|(_, permission)| permission.allows(access) != everywhere);
        let differing = differing.map(|(namespace, _)| namespace.clone()).collect();
        if everywhere { Namespaces::AllBut(differing) } else { Namespaces::Only(differing) }
    }

    /// Whether every namespace may be read and written: by the claim on `ALL`, with no weaker
    /// claim on any namespace.
    #[must_use]
    pub fn all_rw(&self) -> bool {
        let is_rw = |permission: &Permission| *permission == Permission::ReadWrite;
        match self {
            Self::Granted(grants) => {
                grants.everywhere.is_some_and(|permission| is_rw(&permission))
                    && grants.namespaces.values().all(is_rw)
            }
            Self::Malformed(_) => false,
        }
    }

    /// Each claim as `namespace=permission`, `ALL` first.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::Granted(grants) => grants.iter().map(|claim| claim.to_string()).collect(),
            Self::Malformed(_) => Vec::new(),
        }
    }
}

impl Namespaces {
    #[must_use]
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::AllBut(without) => !without.contains(namespace),
            Self::Only(with) => with.contains(namespace),
        }
    }
}

impl Grants {
    fn add(&mut self, claim: Claim) {
        let held = match claim.namespace {
            None => self.everywhere.get_or_insert(claim.permission),
            Some(namespace) => self.namespaces.entry(namespace).or_insert(claim.permission),
        };
        *held = (*held).max(claim.permission);
    }

    /// The permission for a namespace, whose name is compared in lower case as all names are.
    #[must_use]
    pub fn permission(&self, namespace: &str) -> Option<Permission> {
        let exact = if namespace.bytes().any(|byte| byte.is_ascii_uppercase()) {
            self.namespaces.get(&namespace.to_ascii_lowercase())
        } else {
            self.namespaces.get(namespace)
        };
        exact.copied().or(self.everywhere)
    }

    /// Without any claim every namespace is closed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.everywhere.is_none() && self.namespaces.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = Claim> {
        let everywhere = self.everywhere.map(|permission| Claim { namespace: None, permission });
        let exact = self.namespaces.iter().map(|(namespace, permission)| Claim {
            namespace: Some(namespace.clone()),
            permission: *permission,
        });
        everywhere.into_iter().chain(exact)
    }
}

/// `None` for `ALL`.
fn parse_namespace(namespace: &str, whole: &str) -> Result<Option<String>, ClaimFault> {
    if namespace == ALL {
        return Ok(None);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let fits = (1..=NAMESPACE_CHARS_MAX).contains(&namespace.len());
    if !fits || !namespace.chars().all(allowed) {
        return Err(ClaimFault::Namespace(shown(whole)));
    }
    Ok(Some(namespace.to_ascii_lowercase()))
}

/// A claim as it may stand in a message: whoever wrote it must not be able to draw on a terminal.
fn shown(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::{Access, Claim, ClaimFault, Claims};

    fn claims(uris: &[&str]) -> Claims {
        let uris: Vec<String> = uris.iter().map(|uri| (*uri).to_owned()).collect();
        Claims::of_uris(&uris)
    }

    /// Which of any, read, write, read and write are allowed.
    fn check(uris: &[&str], namespace: &str, expected: &str) {
        let claims = claims(uris);
        let mut found = String::new();
        for (access, letter) in [
            (Access::Any, 'a'),
            (Access::Read, 'r'),
            (Access::Write, 'w'),
            (Access::ReadWrite, 'b'),
        ] {
            if claims.allows(namespace, access) {
                found.push(letter);
            }
        }
        assert_eq!(found, expected, "{uris:?} on {namespace}");
    }

    #[test]
    fn claims_grant_what_they_say() {
        check(&[], "orders", "");
        check(&["spiffe://lockd/sdk/a"], "orders", "");
        check(&["lockd://ns/orders?perm=r"], "orders", "ar");
        check(&["lockd://ns/orders?perm=w"], "orders", "aw");
        check(&["lockd://ns/orders?perm=rw"], "orders", "arwb");
        check(&["lockd://ns/orders?perm=RW"], "orders", "arwb");
        check(&["lockd://ns/orders"], "orders", "arwb");
        check(&["lockd://ns/orders/"], "orders", "arwb");
        check(&["LockD://NS/Orders?perm=r"], "orders", "ar");
        check(&["lockd://ns/orders?perm=r"], "Orders", "ar");
        check(&["lockd://ns/orders?perm=r"], "other", "");
        check(&["lockd://ns/ALL?perm=r"], "other", "ar");
    }

    #[test]
    fn the_exact_claim_overrides_all_even_if_it_is_weaker() {
        let uris = ["lockd://ns/ALL?perm=rw", "lockd://ns/orders?perm=r"];
        check(&uris, "orders", "ar");
        check(&uris, "other", "arwb");
        assert!(!claims(&uris).all_rw());
        assert!(claims(&["lockd://ns/ALL?perm=rw", "lockd://ns/orders?perm=rw"]).all_rw());
        check(&["lockd://ns/ALL?perm=r", "lockd://ns/orders?perm=rw"], "orders", "arwb");
    }

    #[test]
    fn the_namespaces_of_an_access_are_those_it_is_allowed_in() {
        for uris in [
            &["lockd://ns/a?perm=r", "lockd://ns/b?perm=w", "lockd://ns/c?perm=rw"][..],
            &["lockd://ns/ALL?perm=rw", "lockd://ns/a?perm=r", "lockd://ns/b?perm=w"],
            &["lockd://ns/ALL?perm=r", "lockd://ns/a?perm=w", "lockd://ns/b?perm=rw"],
            &["lockd://ns/ALL?perm=w", "lockd://ns/c?perm=r"],
            &["lockd://ns/a/b"],
            &[],
        ] {
            let claims = claims(uris);
            for access in [Access::Any, Access::Read, Access::Write, Access::ReadWrite] {
                let namespaces = claims.namespaces(access);
                for name in ["a", "b", "c", "d"] {
                    let allowed = claims.allows(name, access);
                    assert_eq!(namespaces.contains(name), allowed, "{uris:?} {access:?} {name}");
                }
            }
        }
    }

    #[test]
    fn of_duplicates_the_strongest_counts() {
        for uris in [
            ["lockd://ns/orders?perm=r", "lockd://ns/orders?perm=w"],
            ["lockd://ns/orders?perm=w", "lockd://ns/orders?perm=r"],
        ] {
            check(&uris, "orders", "aw");
        }
        check(&["lockd://ns/ALL?perm=rw", "lockd://ns/ALL?perm=r"], "x", "arwb");
    }

    #[test]
    fn only_upper_case_means_everything() {
        check(&["lockd://ns/all?perm=rw"], "orders", "");
        check(&["lockd://ns/all?perm=rw"], "all", "arwb");
        check(&["lockd://ns/All?perm=rw"], "orders", "");
        assert!(!claims(&["lockd://ns/all?perm=rw"]).all_rw());
        assert!(!claims(&["lockd://ns/ALL?perm=w"]).all_rw());
    }

    #[test]
    fn one_malformed_claim_closes_everything() {
        let good = "lockd://ns/ALL?perm=rw";
        for bad in [
            "lockd://ns",
            "lockd://ns/",
            "lockd://ns?perm=r",
            "lockd://ns/a/b?perm=r",
            "lockd://ns/a%20b?perm=r",
            "lockd://ns/ä",
            "lockd://ns/a?perm=x",
            "lockd://ns/a?perm=",
            "lockd://ns/a?perm=r&perm=r",
            "lockd://ns/a?perm=r&until=noon",
            "lockd://ns/a?perm=r#x",
        ] {
            for uris in [[good, bad], [bad, good]] {
                assert!(matches!(claims(&uris), Claims::Malformed(_)), "{bad}");
                check(&uris, "orders", "");
                assert!(!claims(&uris).all_rw());
            }
        }
    }

    #[test]
    fn other_hosts_are_no_claims() {
        check(&["lockd://queue/orders", "lockd://ns/orders?perm=r"], "orders", "ar");
    }

    #[test]
    fn claims_are_written_as_they_are_read() {
        for (text, uri) in [
            ("default=rw", "lockd://ns/default?perm=rw"),
            ("Orders=R", "lockd://ns/orders?perm=r"),
            ("ALL=w", "lockd://ns/ALL?perm=w"),
            ("x", "lockd://ns/x?perm=rw"),
        ] {
            let claim = Claim::parse(text).unwrap();
            assert_eq!(claim.uri(), uri);
            assert_eq!(Claim::of_uri(uri), Some(Ok(claim)));
        }
        assert!(matches!(Claim::parse("a=x"), Err(ClaimFault::Permission(_))));
        assert!(matches!(Claim::parse("a b=r"), Err(ClaimFault::Namespace(_))));
        let listed = claims(&["lockd://ns/b?perm=r", "lockd://ns/ALL", "lockd://ns/a?perm=w"]);
        assert_eq!(listed.list(), ["ALL=rw", "a=w", "b=r"]);
    }
}
