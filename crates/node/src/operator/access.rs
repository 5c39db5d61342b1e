//! Who may change something: anybody on this machine, whoever shows the token, or whoever has a
//! certificate.

use std::net::SocketAddr;

use axum::http::header::ORIGIN;
use axum::http::request::Parts;
use lockd_serve::{Certified, Door, Secret, bearer};

use crate::settings::{NodeSettings, StartError};

/// The rule of one port.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    token: Option<Secret>,
    certificates: bool,
}

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// Nobody knows who it is.
    Unknown,
    /// A page in somebody's browser acts through a port that trusts this machine.
    WebPage,
}

impl Access {
    /// # Errors
    /// When everybody could ask.
    pub(crate) fn new(settings: &NodeSettings, address: SocketAddr) -> Result<Self, StartError> {
        let token = settings.token.as_ref().map(|token| token.secret.clone());
        let access = Self { token, certificates: matches!(settings.door, Door::Tls { .. }) };
        if access.is_open() && !address.ip().is_loopback() {
            return Err(StartError::Open(address));
        }
        Ok(access)
    }

    fn is_open(&self) -> bool {
        self.token.is_none() && !self.certificates
    }

    pub(super) fn may_change(&self, parts: &Parts) -> Result<(), Denied> {
        if self.is_open() {
            let by_page = parts.headers.contains_key(ORIGIN);
            return if by_page { Err(Denied::WebPage) } else { Ok(()) };
        }
        if self.certificates && parts.extensions.get::<Certified>().is_some() {
            return Ok(());
        }
        let shown = bearer(&parts.headers).ok_or(Denied::Unknown)?;
        let known = self.token.as_ref().is_some_and(|token| token.is(shown));
        if known { Ok(()) } else { Err(Denied::Unknown) }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use axum::http::header::AUTHORIZATION;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_token_is_asked_for_where_there_is_one() {
        let secret = Secret::new("0123456789abcdef").unwrap();
        let access = Access { token: Some(secret), certificates: false };
        let shown = parts(&[(AUTHORIZATION.as_str(), "Bearer 0123456789abcdef")]);
        assert_eq!(access.may_change(&shown), Ok(()));
        assert_eq!(access.may_change(&parts(&[])), Err(Denied::Unknown));
        let wrong = parts(&[(AUTHORIZATION.as_str(), "Bearer 0123456789abcdeF")]);
        assert_eq!(access.may_change(&wrong), Err(Denied::Unknown));
        let mut certified = parts(&[]);
        certified.extensions.insert(Certified);
        assert_eq!(access.may_change(&certified), Err(Denied::Unknown), "none are asked for");
        let access = Access { certificates: true, ..access };
        assert_eq!(access.may_change(&certified), Ok(()));
    }

    #[test]
    fn web_pages_change_nothing_on_an_open_port() {
        let access = Access { token: None, certificates: false };
        assert_eq!(access.may_change(&parts(&[])), Ok(()));
        let page = parts(&[(ORIGIN.as_str(), "http://evil.example")]);
        assert_eq!(access.may_change(&page), Err(Denied::WebPage));
    }
}
