//! Which controller is asked next. Pure: what came of a question goes in, where to ask is read off.
//!
//! Several may ask at once. What comes of a question counts only if its controller is still the one
//! that is asked, so that one that is gone is left once, not once by everybody.

use std::sync::Arc;

/// How often a leader that others have named may be missed before it is left.
const NAMED_TRIES: u32 = 2;

#[derive(Debug)]
pub(crate) struct Routes {
    configured: Vec<Arc<str>>,
    at: usize,
    named: Option<Named>,
}

/// A leader that is not one of the configured ones.
#[derive(Debug)]
struct Named {
    url: Arc<str>,
    missed: u32,
}

impl Routes {
    pub(crate) fn new(configured: &[String]) -> Self {
        let configured = configured.iter().map(|url| bare(url).into()).collect();
        Self { configured, at: 0, named: None }
    }

    pub(crate) fn current(&self) -> Arc<str> {
        let configured = || self.configured.get(self.at).cloned().unwrap_or_default();
        self.named.as_ref().map_or_else(configured, |named| Arc::clone(&named.url))
    }

    /// It leads.
    pub(crate) fn answered(&mut self, asked: &str) {
        if let Some(named) = self.named.as_mut().filter(|named| &*named.url == asked) {
            named.missed = 0;
        }
    }

    /// It cannot be reached, or cannot tell.
    pub(crate) fn missed(&mut self, asked: &str) {
        if *self.current() != *asked {
            return;
        }
        match &mut self.named {
            Some(named) if named.missed + 1 < NAMED_TRIES => named.missed += 1,
            Some(_) | None => self.next(),
        }
    }

    /// It does not lead, and perhaps says who does. Whether that is worth asking at once.
    pub(crate) fn pointed(&mut self, asked: &str, leader: Option<&str>) -> bool {
        if *self.current() != *asked {
            return true;
        }
        let leader = leader.map(bare).filter(|leader| *leader != asked && self.may_go_to(leader));
        let Some(leader) = leader else {
            self.next();
            return false;
        };
        match self.configured.iter().position(|url| **url == *leader) {
            Some(at) => (self.at, self.named) = (at, None),
            None => self.named = Some(Named { url: leader.into(), missed: 0 }),
        }
        true
    }

    fn next(&mut self) {
        self.named = None;
        self.at = (self.at + 1) % self.configured.len().max(1);
    }

    /// A secret that is only shown over TLS is not carried anywhere else.
    fn may_go_to(&self, url: &str) -> bool {
        let is_open = self.configured.iter().any(|one| one.starts_with("http://"));
        url.starts_with("https://") || (is_open && url.starts_with("http://"))
    }
}

fn bare(url: &str) -> &str {
    url.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(urls: &[&str]) -> Routes {
        Routes::new(&urls.iter().map(|&url| url.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn one_that_is_gone_is_left_once_by_all_who_ask() {
        let mut routes = routes(&["http://a/", "http://b", "http://c"]);
        assert_eq!(&*routes.current(), "http://a");
        routes.missed("http://a");
        routes.missed("http://a");
        assert_eq!(&*routes.current(), "http://b");
        routes.missed("http://b");
        routes.missed("http://c");
        assert_eq!(&*routes.current(), "http://a");
    }

    #[test]
    fn a_named_leader_is_asked_and_left_again_when_it_is_not_there() {
        let mut routes = routes(&["http://a", "http://b"]);
        assert!(routes.pointed("http://a", Some("http://x/")));
        assert_eq!(&*routes.current(), "http://x");
        routes.missed("http://x");
        routes.answered("http://x");
        routes.missed("http://x");
        assert_eq!(&*routes.current(), "http://x");
        routes.missed("http://x");
        assert_eq!(&*routes.current(), "http://b");
    }

    #[test]
    fn a_leader_that_is_configured_is_one_of_these() {
        let mut routes = routes(&["http://a", "http://b", "http://c"]);
        assert!(routes.pointed("http://a", Some("http://b")));
        routes.missed("http://b");
        assert_eq!(&*routes.current(), "http://c");
    }

    #[test]
    fn one_that_names_nobody_or_itself_is_passed_over() {
        let mut routes = routes(&["http://a", "http://b"]);
        assert!(!routes.pointed("http://a", None));
        assert_eq!(&*routes.current(), "http://b");
        assert!(!routes.pointed("http://b", Some("http://b/")));
        assert_eq!(&*routes.current(), "http://a");
    }

    #[test]
    fn from_tls_nobody_is_led_to_where_there_is_none() {
        let mut safe = routes(&["https://a", "https://b"]);
        assert!(!safe.pointed("https://a", Some("http://x")));
        assert_eq!(&*safe.current(), "https://b");
        assert!(safe.pointed("https://b", Some("https://x")));
        assert!(!routes(&["http://a"]).pointed("http://a", Some("file:///etc/passwd")));
    }
}
