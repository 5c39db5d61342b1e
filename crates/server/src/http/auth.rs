//! Who may call what. One question, asked in two moments: the class of a route is known before
//! its handler runs, the namespace only when the handler has read the request. Without mutual TLS
//! there is nobody to ask about, and everything is allowed.

use std::sync::Arc;

use http::StatusCode;
use lockd_pki::{Access, Admitted, Claims, Role};
use lockd_wire::ErrorCode;

use super::error::ApiError;

/// What a route asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Nothing but to have come in.
    Open,
    /// A claim on the namespace that the request is about.
    Namespace(Access),
    /// The claim on all namespaces, to read and to write.
    Everything,
    /// A transaction coordinator, or a server in its stead.
    TcClient,
    /// A server.
    TcServer,
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
pub(super) fn enter(who: &Who, class: Class, rules: TcRules) -> Result<(), ApiError> {
    let Some(who) = who else { return Ok(()) };
    match class {
        Class::Open => Ok(()),
        Class::Namespace(_) => has_claims(who),
        Class::Everything if who.peer.claims.all_rw() => Ok(()),
        Class::Everything => {
            has_claims(who)?;
            Err(forbidden(
                ErrorCode::NamespaceForbidden,
                "this needs a certificate with the claim ALL=rw",
            ))
        }
        Class::TcClient => match who.peer.role {
            Role::Tc(_) | Role::Server(_) => trusted(who, rules),
            Role::Sdk(_) => Err(forbidden(
                ErrorCode::TcClientRequired,
                "this is for transaction coordinators; use a bundle made by `lockd auth new \
                 tcclient`",
            )),
        },
        Class::TcServer => match who.peer.role {
            Role::Server(_) => trusted(who, rules),
            Role::Tc(_) | Role::Sdk(_) => Err(forbidden(
                ErrorCode::TcServerRequired,
                "this is for lockd servers among themselves",
            )),
        },
    }
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

#[cfg(test)]
mod tests;
