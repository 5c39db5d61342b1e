//! Who may ask for what: anybody on this machine, whoever shows a token, or whoever has a
//! certificate.

use std::net::SocketAddr;

use lockd_serve::{Secret, SecretError};

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// See the cluster, its tasks and its numbers.
    MetricsRead,
    /// Set the numbers of this instance.
    MetricsWrite,
    /// Have a task run now.
    TasksRun,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::MetricsRead, Self::MetricsWrite, Self::TasksRun];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MetricsRead => "metrics:read",
            Self::MetricsWrite => "metrics:write",
            Self::TasksRun => "tasks:run",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// A bearer token, of which only the hash is kept.
#[derive(Clone)]
pub struct Token {
    secret: Secret,
    roles: Vec<Role>,
}

impl Token {
    /// # Errors
    /// When it is too short to be a secret, or cannot be sent.
    pub fn new(secret: &str, roles: Vec<Role>) -> Result<Self, AccessError> {
        let secret = Secret::new(secret)?;
        if roles.is_empty() {
            return Err(AccessError::NoRoles);
        }
        Ok(Self { secret, roles })
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({:?})", self.roles)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("a token has at least one role: metrics:read, metrics:write, tasks:run")]
    NoRoles,
    #[error(
        "{0} can be reached from other machines: configure tokens or a server bundle, or listen on \
         127.0.0.1"
    )]
    Open(SocketAddr),
}

/// The rule of one listener.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tokens: Vec<Token>,
    certificates: bool,
}

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Nobody knows who it is.
    Unknown,
    /// It is known, and may not.
    Forbidden,
}

impl Access {
    #[must_use]
    pub fn new(tokens: Vec<Token>, certificates: bool) -> Self {
        Self { tokens, certificates }
    }

    /// # Errors
    /// When everybody could ask.
    pub fn check(&self, address: SocketAddr) -> Result<(), AccessError> {
        if self.is_open() && !address.ip().is_loopback() {
            return Err(AccessError::Open(address));
        }
        Ok(())
    }

    /// Whether whoever reaches the port may do everything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty() && !self.certificates
    }

    /// A certificate is as good as all roles: it is only given to those who may.
    pub(crate) fn allows(
        &self,
        role: Role,
        bearer: Option<&str>,
        has_certificate: bool,
    ) -> Result<(), Denied> {
        if self.is_open() || (self.certificates && has_certificate) {
            return Ok(());
        }
        let shown = bearer.ok_or(Denied::Unknown)?;
        let token = self.tokens.iter().find(|token| token.secret.is(shown));
        let token = token.ok_or(Denied::Unknown)?;
        if token.roles.contains(&role) { Ok(()) } else { Err(Denied::Forbidden) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_port_is_for_this_machine_only() {
        let open = Access::default();
        assert_eq!(open.check("127.0.0.1:1".parse().unwrap()), Ok(()));
        assert_eq!(open.check("[::1]:1".parse().unwrap()), Ok(()));
        assert!(open.check("0.0.0.0:1".parse().unwrap()).is_err());
        assert!(open.check("10.0.0.1:1".parse().unwrap()).is_err());
        let token = Token::new("0123456789abcdef", vec![Role::TasksRun]).unwrap();
        let closed = Access::new(vec![token], false);
        assert_eq!(closed.check("0.0.0.0:1".parse().unwrap()), Ok(()));
    }

    #[test]
    fn a_token_may_what_its_roles_say() {
        let token = Token::new("0123456789abcdef", vec![Role::MetricsRead]).unwrap();
        let access = Access::new(vec![token], false);
        let may = |role, bearer| access.allows(role, bearer, false);
        assert_eq!(may(Role::MetricsRead, Some("0123456789abcdef")), Ok(()));
        assert_eq!(may(Role::TasksRun, Some("0123456789abcdef")), Err(Denied::Forbidden));
        assert_eq!(may(Role::MetricsRead, Some("0123456789abcdeF")), Err(Denied::Unknown));
        assert_eq!(may(Role::MetricsRead, None), Err(Denied::Unknown));
        // A certificate counts only where they are asked for.
        assert_eq!(access.allows(Role::MetricsRead, None, true), Err(Denied::Unknown));
        assert!(matches!(Token::new("short", vec![Role::TasksRun]), Err(AccessError::Secret(_))));
        assert!(matches!(Token::new("0123456789abcdef", vec![]), Err(AccessError::NoRoles)));
    }
}
