//! Names of records and blobs as names of objects. Both are made of few characters, so that what
//! is seen in a bucket is what lockd calls it; what a store could take amiss is escaped. The order of
//! the objects is that of the names, but for names with a segment of nothing but dots: those are
//! found at another place of the same walk.

use object_store::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What is not escaped, besides letters and digits.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-').remove(b'!').remove(b'~').remove(b'/');

/// Where the objects of one lockd store are in a bucket.
#[derive(Clone, Debug)]
pub(super) struct Prefix(String);

impl Prefix {
    pub(super) fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/');
        Self(if prefix.is_empty() { String::new() } else { format!("{prefix}/") })
    }

    /// The object's name, as text.
    pub(super) fn key(&self, area: &str, name: &str) -> String {
        let name = utf8_percent_encode(name, ESCAPED).to_string();
        // Segments of nothing but dots mean something else to some stores and clients.
        let name: Vec<String> = name
            .split('/')
            .map(|segment| match segment {
                "." | ".." => segment.replace('.', "%2E"),
                segment => segment.to_owned(),
            })
            .collect();
        format!("{}{area}/{}", self.0, name.join("/"))
    }

    pub(super) fn path(&self, area: &str, name: &str) -> Path {
        // Nothing is left that could be refused, but an empty segment, which no name has.
        Path::parse(self.key(area, name)).unwrap_or_else(|_| Path::from(self.key(area, name)))
    }

    /// What [`Prefix::key`] was made of.
    pub(super) fn name(&self, area: &str, key: &str) -> Option<String> {
        let name = key.strip_prefix(&self.0)?.strip_prefix(area)?.strip_prefix('/')?;
        Some(percent_decode_str(name).decode_utf8().ok()?.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::Prefix;

    #[test]
    fn names_come_back_and_stay_readable() {
        let prefix = Prefix::new("/team/a/");
        for (name, key) in [
            ("k/default/orders", "team/a/records/k/default/orders"),
            ("r/default/jobs!0193", "team/a/records/r/default/jobs!0193"),
            ("k/default/a/../b", "team/a/records/k/default/a/%2E%2E/b"),
            ("b/x~7", "team/a/records/b/x~7"),
        ] {
            assert_eq!(prefix.key("records", name), key);
            assert_eq!(prefix.path("records", name).as_ref(), key);
            assert_eq!(prefix.name("records", key).as_deref(), Some(name));
        }
        assert_eq!(Prefix::new("").key("blobs", "x"), "blobs/x");
    }
}
