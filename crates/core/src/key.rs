//! Names of keys. [`KeyName::parse`] is the only way to one, so nothing below ever validates a
//! name again. Names are lower-cased: `Orders` and `orders` are the same key.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::limits::{COMPONENT_BYTES_MAX, KEY_BYTES_MAX};
use crate::queue;

/// A key in its namespace, written `namespace/key`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyName {
    /// Where the namespace ends follows from it, so it alone decides about equality and order.
    full: Arc<str>,
    namespace_len: usize,
}

/// Why a name was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameRefused {
    #[error("a namespace has 1 to 128 characters out of a-z 0-9 . _ -")]
    Namespace,
    #[error("namespaces that start with a dot are reserved")]
    Reserved,
    #[error("a key is missing")]
    KeyMissing,
    #[error(
        "a key has at most 128 characters: segments out of a-z 0-9 . _ - separated by single slashes"
    )]
    Key,
    #[error("a queue has a name of 1 to 128 characters out of a-z 0-9 . _ -")]
    Queue,
}

impl KeyName {
    /// Blanks around both parts and one leading slash of the key are dropped; upper case is
    /// lowered.
    ///
    /// # Errors
    /// When a part breaks its rule.
    pub fn parse(namespace: &str, key: &str) -> Result<Self, NameRefused> {
        let namespace = parse_namespace(namespace)?;
        let key = key.trim();
        let key = key.strip_prefix('/').unwrap_or(key);
        if key.is_empty() {
            return Err(NameRefused::KeyMissing);
        }
        if !key.split('/').all(is_component) {
            return Err(NameRefused::Key);
        }
        let key = key.to_ascii_lowercase();
        // What belongs to a queue may be longer by what the queue puts around its name.
        if key.len() > KEY_BYTES_MAX && queue::structure(&key).is_none() {
            return Err(NameRefused::Key);
        }
        let mut full = namespace;
        let namespace_len = full.len();
        full.push('/');
        full.push_str(&key);
        Ok(Self { full: full.into(), namespace_len })
    }

    /// For queues, which make only names that `parse` would take.
    pub(crate) fn structural(full: Arc<str>, namespace_len: usize) -> Self {
        Self { full, namespace_len }
    }

    /// Reads back what [`KeyName::as_str`] gave, or what a caller wrote as `namespace/key`. No
    /// slash before the namespace is dropped: `/a/b` has an empty namespace, it is not `b` in `a`.
    ///
    /// # Errors
    /// When a part breaks its rule, or there is no slash.
    pub fn parse_full(full: &str) -> Result<Self, NameRefused> {
        let full = full.trim();
        let (namespace, key) = full.split_once('/').ok_or(NameRefused::KeyMissing)?;
        Self::parse(namespace, key)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.full
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        self.full.get(..self.namespace_len).unwrap_or_default()
    }

    #[must_use]
    pub fn key(&self) -> &str {
        self.full.get(self.namespace_len + 1..).unwrap_or_default()
    }
}

/// A namespace a caller may use.
///
/// # Errors
/// When it breaks the rule for components or is reserved.
pub fn parse_namespace(namespace: &str) -> Result<String, NameRefused> {
    let namespace = namespace.trim();
    if !is_component(namespace) {
        return Err(NameRefused::Namespace);
    }
    if namespace.starts_with('.') {
        return Err(NameRefused::Reserved);
    }
    Ok(namespace.to_ascii_lowercase())
}

pub(crate) fn is_component(text: &str) -> bool {
    (1..=COMPONENT_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Keys are found by the text that [`KeyName::as_str`] gives, and between two texts.
impl Borrow<str> for KeyName {
    fn borrow(&self) -> &str {
        &self.full
    }
}

impl Hash for KeyName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.full.hash(state);
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyName, NameRefused};

    fn check(namespace: &str, key: &str, expected: Result<&str, NameRefused>) {
        let got = KeyName::parse(namespace, key);
        assert_eq!(
            got.as_ref().map(KeyName::as_str).map_err(|e| *e),
            expected,
            "{namespace} {key}"
        );
    }

    #[test]
    fn names_follow_the_rules() {
        check("default", "orders", Ok("default/orders"));
        check(" Default ", " /Jobs/7 ", Ok("default/jobs/7"));
        check("default", "a.b-c_d/..", Ok("default/a.b-c_d/.."));
        check("default", "", Err(NameRefused::KeyMissing));
        check("default", "/", Err(NameRefused::KeyMissing));
        check("default", "a//b", Err(NameRefused::Key));
        check("default", "a/", Err(NameRefused::Key));
        check("default", "ä", Err(NameRefused::Key));
        check("default", "a b", Err(NameRefused::Key));
        check("default", &"k".repeat(129), Err(NameRefused::Key));
        check("default", &"k".repeat(128), Ok(&format!("default/{}", "k".repeat(128))));
        check(".txns", "a", Err(NameRefused::Reserved));
        check("", "a", Err(NameRefused::Namespace));
        check("a/b", "a", Err(NameRefused::Namespace));
        check(&"n".repeat(129), "a", Err(NameRefused::Namespace));
    }

    #[test]
    fn the_parts_of_a_name_come_apart_again() {
        let name = KeyName::parse("ns", "a/b").unwrap();
        assert_eq!((name.namespace(), name.key()), ("ns", "a/b"));
        assert_eq!(KeyName::parse_full(name.as_str()), Ok(name));
        assert_eq!(KeyName::parse_full("alone"), Err(NameRefused::KeyMissing));
        for unnamed in ["/a/b", " /a/b", "/a", "/"] {
            assert_eq!(KeyName::parse_full(unnamed), Err(NameRefused::Namespace), "{unnamed}");
        }
    }
}
