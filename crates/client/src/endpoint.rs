//! Where a server is: `https://host:port`, `http://host:port`, a bare `host[:port]`, or
//! `unix:///path/to/socket`. A bare one means TLS for a client that has a bundle.
//!
//! Parsing is the only way to an [`Endpoint`]. Opening a connection to one is left to `dial`.

use std::fmt;
use std::path::PathBuf;

use http::uri::Authority;

/// The port that is meant when none is given.
pub const PORT: u16 = 9341;

/// A parsed server address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    target: Target,
    /// What requests name as their host.
    authority: Authority,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Tcp { host: String, port: u16, tls: bool },
    Unix { path: PathBuf },
}

/// Why an address was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    #[error("no server address: give one, as in http://127.0.0.1:9341")]
    Missing,
    #[error("server address {0:?} has no host: write http://host:port, host:port or unix:///path")]
    NoHost(String),
    #[error("server address {0:?} is not one: write http://host:port, host:port or unix:///path")]
    Malformed(String),
    #[error("server address {0:?} has a path: only the server itself can be named")]
    Path(String),
    #[error("server address {0:?} needs a client bundle; name one, or use http:// or unix://")]
    NoBundle(String),
    #[error("server address {0:?} has an unknown scheme: use https://, http:// or unix://")]
    Scheme(String),
    /// The bundle cannot be used; the text says why.
    #[error("{0}")]
    Bundle(String),
}

impl Endpoint {
    /// Reads an address.
    ///
    /// # Errors
    /// When it is not one, or cannot be spoken to.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        Self::parse_for(text, false)
    }

    /// Reads an address for a client that has a bundle, or has none.
    ///
    /// # Errors
    /// When it is not one, or cannot be spoken to.
    pub fn parse_for(text: &str, bundle: bool) -> Result<Self, EndpointError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(EndpointError::Missing);
        }
        match text.split_once("://") {
            None => Self::tcp(text, text, bundle),
            Some(("http", rest)) => Self::tcp(rest, text, false),
            Some(("https", rest)) if bundle => Self::tcp(rest, text, true),
            Some(("https", _)) => Err(EndpointError::NoBundle(text.to_owned())),
            Some(("unix", path)) => Self::unix(path, text),
            Some(_) => Err(EndpointError::Scheme(text.to_owned())),
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    fn tcp(rest: &str, text: &str, tls: bool) -> Result<Self, EndpointError> {
        let malformed = || EndpointError::Malformed(text.to_owned());
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, path),
            None => (rest, ""),
        };
        if !path.is_empty() || authority.contains(['?', '#']) {
            return Err(EndpointError::Path(text.to_owned()));
        }
        if authority.is_empty() || authority.starts_with(':') {
            return Err(EndpointError::NoHost(text.to_owned()));
        }
        let parsed: Authority = authority.parse().map_err(|_| malformed())?;
        if parsed.as_str().contains('@') {
            return Err(malformed());
        }
        let port = match parsed.port_u16() {
            Some(port) => port,
            None if authority.len() > parsed.host().len() => return Err(malformed()),
            None => PORT,
        };
        let authority = format!("{}:{port}", parsed.host()).parse().map_err(|_| malformed())?;
        // Brackets belong to the text of an IPv6 address, not to the address.
        let host = parsed.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { target: Target::Tcp { host, port, tls }, authority })
    }

    fn unix(path: &str, text: &str) -> Result<Self, EndpointError> {
        if !path.starts_with('/') || path.ends_with('/') {
            return Err(EndpointError::Malformed(text.to_owned()));
        }
        let target = Target::Unix { path: PathBuf::from(path) };
        Ok(Self { target, authority: Authority::from_static("localhost") })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Tcp { tls: true, .. } => write!(f, "https://{}", self.authority),
            Target::Tcp { .. } => write!(f, "http://{}", self.authority),
            Target::Unix { path } => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed_and_shown_in_full() {
        for (given, full) in [
            ("http://127.0.0.1:9341", "http://127.0.0.1:9341"),
            ("http://example.org", "http://example.org:9341"),
            ("http://example.org/", "http://example.org:9341"),
            ("localhost", "http://localhost:9341"),
            ("localhost:80", "http://localhost:80"),
            ("[::1]:99", "http://[::1]:99"),
            ("http://[::1]", "http://[::1]:9341"),
            (" unix:///run/lockd.sock ", "unix:///run/lockd.sock"),
        ] {
            let parsed = Endpoint::parse(given);
            assert_eq!(parsed.map(|endpoint| endpoint.to_string()), Ok(full.to_owned()), "{given}");
        }
    }

    #[test]
    fn with_a_bundle_a_bare_address_means_tls_and_a_scheme_is_honoured() {
        for (given, full) in [
            ("localhost", "https://localhost:9341"),
            ("https://h:1", "https://h:1"),
            ("http://h:1", "http://h:1"),
            ("unix:///run/lockd.sock", "unix:///run/lockd.sock"),
        ] {
            let parsed = Endpoint::parse_for(given, true);
            assert_eq!(parsed.map(|endpoint| endpoint.to_string()), Ok(full.to_owned()), "{given}");
        }
    }

    #[test]
    fn ipv6_is_dialled_without_brackets() {
        let endpoint = Endpoint::parse("http://[::1]:7").unwrap();
        assert_eq!(endpoint.target(), &Target::Tcp { host: "::1".to_owned(), port: 7, tls: false });
    }

    #[test]
    fn what_cannot_be_spoken_to_is_refused_with_a_reason() {
        let refused = |text: &str| Endpoint::parse(text).unwrap_err();
        assert_eq!(refused("  "), EndpointError::Missing);
        assert!(matches!(refused("https://h"), EndpointError::NoBundle(_)));
        assert!(matches!(refused("ftp://h"), EndpointError::Scheme(_)));
        assert!(matches!(refused("http://"), EndpointError::NoHost(_)));
        assert!(matches!(refused(":9341"), EndpointError::NoHost(_)));
        assert!(matches!(refused("http://h/base"), EndpointError::Path(_)));
        assert!(matches!(refused("h?x"), EndpointError::Path(_)));
        assert!(matches!(refused("h:"), EndpointError::Malformed(_)));
        assert!(matches!(refused("h:99999"), EndpointError::Malformed(_)));
        assert!(matches!(refused("user@h"), EndpointError::Malformed(_)));
        assert!(matches!(refused("unix://sock"), EndpointError::Malformed(_)));
    }
}
