//! Which caller may use which route. The right that a route needs stands in the table of
//! `router`; its role is checked before the handler runs, its namespace when the handler has read
//! the request. Without mutual TLS there are no identities, and everything is allowed.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::StatusCode;
use lockd_pki::{Access, Admitted, Claims, Namespaces, Role};
use lockd_wire::ErrorCode;

use super::error::ApiError;

/// What a route needs of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing but an accepted connection.
    Open,
    /// A claim on every namespace that the request names. Listings that name none show what the
    /// claims cover.
    Namespace(Access),
    /// A claim to read and to write on all namespaces, with no weaker one on any of them.
    Everything,
    /// The role of a transaction coordinator or of a server. Transactions also need a claim to
    /// read and to write on the namespace of each participant.
    TcClient,
    /// The role of a server.
    TcServer,
}

impl Right {
    /// Every right that a route of the API can need, the least first.
    pub(super) const ALL: &[Self] = &[
        Self::Open,
        Self::Namespace(Access::Any),
        Self::Namespace(Access::Read),
        Self::Namespace(Access::Write),
        Self::Namespace(Access::ReadWrite),
        Self::Everything,
        Self::TcClient,
        Self::TcServer,
    ];

    /// As `docs/security.md` names it.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Open => "nothing",
            Self::Namespace(Access::Any) => "any claim",
            Self::Namespace(Access::Read) => "`r`",
            Self::Namespace(Access::Write) => "`w`",
            Self::Namespace(Access::ReadWrite) => "`rw`",
            Self::Everything => "`ALL=rw`",
            Self::TcClient => "role `tc` or `server`",
            Self::TcServer => "role `server`",
        }
    }
}

/// Which CAs are believed about coordinators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcRules {
    /// Our own, besides those of the trust folder.
    pub(crate) own_ca: bool,
    /// Any that let the caller in.
    pub(crate) any_ca: bool,
}

/// The caller, if it has a certificate.
pub(crate) type Who = Option<Arc<Admitted>>;

fn forbidden(code: ErrorCode, detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, code, detail)
}

/// Whether the caller may use a route at all.
pub(super) fn enter(who: &Who, right: Right, rules: TcRules) -> Result<(), ApiError> {
    let Some(who) = who else { return Ok(()) };
    match right {
        Right::Open => Ok(()),
        Right::Namespace(_) => has_claims(who),
        Right::Everything => everywhere(who),
        Right::TcClient => match who.peer.role {
            Role::Tc(_) | Role::Server(_) => trusted(who, rules),
            Role::Sdk(_) => Err(forbidden(
                ErrorCode::TcClientRequired,
                "this is for transaction coordinators; use a bundle made by `lockd auth new \
                 tcclient`",
            )),
        },
        Right::TcServer => match who.peer.role {
            Role::Server(_) => trusted(who, rules),
            Role::Tc(_) | Role::Sdk(_) => Err(forbidden(
                ErrorCode::TcServerRequired,
                "this is for lockd servers among themselves",
            )),
        },
    }
}

fn everywhere(who: &Admitted) -> Result<(), ApiError> {
    if who.peer.claims.all_rw() {
        return Ok(());
    }
    has_claims(who)?;
    let detail = "this needs a certificate with the claim ALL=rw and no weaker claim";
    Err(forbidden(ErrorCode::NamespaceForbidden, detail))
}

fn trusted(who: &Admitted, rules: TcRules) -> Result<(), ApiError> {
    if rules.any_ca || who.trust.tc || (who.trust.own && rules.own_ca) {
        return Ok(());
    }
    let detail = "the CA of this certificate is not trusted for coordinators here";
    Err(forbidden(ErrorCode::TcForbidden, detail))
}

fn has_claims(who: &Admitted) -> Result<(), ApiError> {
    match &who.peer.claims {
        Claims::Malformed(fault) => Err(forbidden(
            ErrorCode::InvalidNamespaceClaims,
            format!("a claim in the certificate cannot be read: {fault}"),
        )),
        Claims::Granted(grants) if grants.is_empty() => Err(forbidden(
            ErrorCode::NamespaceForbidden,
            "the certificate has no claim on any namespace",
        )),
        Claims::Granted(_) => Ok(()),
    }
}

/// Whether the caller may do this in a namespace.
pub(super) fn permit(who: &Who, namespace: &str, access: Access) -> Result<(), ApiError> {
    let Some(who) = who else { return Ok(()) };
    if who.peer.claims.allows(namespace, access) {
        return Ok(());
    }
    has_claims(who)?;
    let wanted = match access {
        Access::Any => "",
        Access::Read => " to read",
        Access::Write => " to write",
        Access::ReadWrite => " to read and write",
    };
    let detail = format!("the certificate has no claim{wanted} in namespace {namespace:?}");
    Err(forbidden(ErrorCode::NamespaceForbidden, detail))
}

/// Whether the caller may read and write every namespace.
pub(super) fn permit_everywhere(who: &Who) -> Result<(), ApiError> {
    who.as_ref().map_or(Ok(()), |who| everywhere(who))
}

/// The namespaces in which the caller may do this.
pub(super) fn namespaces(who: &Who, access: Access) -> Namespaces {
    match who {
        Some(who) => who.peer.claims.namespaces(access),
        None => Namespaces::AllBut(BTreeSet::new()),
    }
}

#[cfg(test)]
mod tests;
