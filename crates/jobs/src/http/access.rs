//! Who may ask: anybody on this machine, whoever shows the token, or whoever has a certificate.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;
use lockd_serve::{Secret, bearer};
use lockd_wire::node::CERTIFIED_HEADER;

/// Who asked a proxy, which asks here.
const FORWARDED_FOR: &str = "x-forwarded-for";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} can be reached from other machines: configure a token or a server bundle, or listen on \
     127.0.0.1"
)]
pub struct AccessError(pub SocketAddr);

/// The rule of one listener.
#[derive(Clone, Debug, Default)]
pub struct Access {
    secret: Option<Secret>,
    certificates: bool,
}

impl Access {
    /// `certificates`: whether clients have shown theirs before they are served.
    #[must_use]
    pub fn new(secret: Option<Secret>, certificates: bool) -> Self {
        Self { secret, certificates }
    }

    /// # Errors
    /// When everybody could ask.
    pub fn check(&self, address: SocketAddr) -> Result<(), AccessError> {
        if self.is_open() && !address.ip().is_loopback() {
            return Err(AccessError(address));
        }
        Ok(())
    }

    /// Whether whoever reaches the port may do everything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.secret.is_none() && !self.certificates
    }

    /// A certificate is only given to those who may.
    pub(super) fn allows(&self, headers: &HeaderMap, has_certificate: bool) -> bool {
        if self.is_open() {
            // A front on this machine may be open to others.
            return headers.contains_key(CERTIFIED_HEADER) || comes_from_here(headers);
        }
        let shown = self.secret.as_ref().zip(bearer(headers));
        (self.certificates && has_certificate)
            || shown.is_some_and(|(secret, shown)| secret.is(shown))
    }
}

/// Whether every proxy on the way was asked by this machine.
fn comes_from_here(headers: &HeaderMap) -> bool {
    headers.get_all(FORWARDED_FOR).iter().all(|value| {
        let mut hops = value.to_str().unwrap_or("?").split(',');
        hops.all(|hop| hop.trim().parse::<IpAddr>().is_ok_and(|hop| hop.is_loopback()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_port_is_for_this_machine_only() {
        let open = Access::default();
        assert_eq!(open.check("127.0.0.1:1".parse().unwrap()), Ok(()));
        assert!(open.check("0.0.0.0:1".parse().unwrap()).is_err());
        let closed = Access::new(Some(Secret::new("0123456789abcdef").unwrap()), false);
        assert_eq!(closed.check("0.0.0.0:1".parse().unwrap()), Ok(()));
        let (none, shown) =
            (HeaderMap::new(), headers(&[("authorization", "Bearer 0123456789abcdef")]));
        let wrong = headers(&[("authorization", "Bearer 0123456789abcdeF")]);
        assert!(closed.allows(&shown, false));
        assert!(!closed.allows(&wrong, false) && !closed.allows(&none, false));
        assert!(!closed.allows(&none, true), "a certificate counts only where they are asked for");
        assert!(Access::new(None, true).allows(&none, true));
        assert!(
            !closed.allows(&headers(&[(CERTIFIED_HEADER, "1")]), false),
            "anybody could say so"
        );
    }

    #[test]
    fn a_front_that_is_open_to_others_does_not_open_it() {
        let open = Access::default();
        for (chain, allowed) in [
            (vec![], true),
            (vec!["127.0.0.1"], true),
            (vec!["127.0.0.9, ::1"], true),
            (vec!["10.0.0.7"], false),
            (vec!["127.0.0.1, 10.0.0.7"], false),
            (vec!["10.0.0.7, 127.0.0.1"], false),
            (vec!["127.0.0.1", "10.0.0.7"], false),
            (vec!["unknown"], false),
            (vec![""], false),
        ] {
            let mut asked: Vec<_> = chain.iter().map(|hop| (FORWARDED_FOR, *hop)).collect();
            assert_eq!(open.allows(&headers(&asked), false), allowed, "{chain:?}");
            asked.push((CERTIFIED_HEADER, "1"));
            assert!(open.allows(&headers(&asked), false), "{chain:?}, with a certificate");
        }
    }

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        headers
    }
}
