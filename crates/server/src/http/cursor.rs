//! Cursors: where the next page of a listing begins, as a text that means nothing to its bearer.
//!
//! A cursor holds the last entry of the page that it came with, so it names nothing that the page
//! did not show. It is neither sealed nor kept: what a caller may see is asked again for every
//! page, so a forged one only begins a page elsewhere, and any server of the store takes it, also
//! after a restart. Its checksum is for mistakes: a cursor of another listing, or cut off.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lockd_wire::ErrorCode;
use sha2::{Digest, Sha256};

use super::error::ApiError;
use super::request::bad;

/// Raised when what stands in a position changes.
const FORM: u8 = 1;
const CHECK_BYTES: usize = 8;
/// Longer than any name in base64.
const CURSOR_BYTES_MAX: usize = 2_048;

/// A listing, and what of the request chooses its entries.
pub(super) struct Listing<'a> {
    name: &'static str,
    about: [&'a str; 2],
}

impl<'a> Listing<'a> {
    pub(super) fn new(name: &'static str, about: [&'a str; 2]) -> Self {
        Self { name, about }
    }

    /// The cursor of the page that ends with `last`.
    pub(super) fn cursor(&self, last: &str) -> String {
        let mut bytes = vec![FORM];
        bytes.extend(self.check(last));
        bytes.extend(last.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The last entry of the page that the cursor came with, read by `parse`.
    pub(super) fn last<T>(
        &self,
        cursor: Option<&str>,
        parse: impl FnOnce(String) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(cursor) = cursor else { return Ok(None) };
        match self.open(cursor).and_then(parse) {
            Some(last) => Ok(Some(last)),
            None => {
                let detail = "pass next_cursor of the page before, with the same parameters";
                Err(bad(ErrorCode::InvalidCursor, detail))
            }
        }
    }

    fn open(&self, cursor: &str) -> Option<String> {
        if cursor.len() > CURSOR_BYTES_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (form, rest) = bytes.split_first()?;
        let (check, last) = rest.split_at_checked(CHECK_BYTES)?;
        let last = std::str::from_utf8(last).ok()?;
        (*form == FORM && self.check(last) == check).then(|| last.to_owned())
    }

    fn check(&self, last: &str) -> [u8; CHECK_BYTES] {
        let mut hash = Sha256::new();
        let [first, second] = self.about;
        for part in [self.name, first, second, last] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().first_chunk().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{CURSOR_BYTES_MAX, Listing};

    fn open(listing: &Listing<'_>, cursor: &str) -> Option<String> {
        listing.last(Some(cursor), Some).ok().flatten()
    }

    #[test]
    fn a_cursor_is_good_for_its_own_listing_only() {
        let keys = Listing::new("keys", ["default", "jobs/"]);
        let cursor = keys.cursor("jobs/7");
        assert_eq!(open(&keys, &cursor).as_deref(), Some("jobs/7"));
        assert!(!cursor.contains("jobs"), "{cursor}");
        for other in [
            Listing::new("leases", ["default", "jobs/"]),
            Listing::new("keys", ["other", "jobs/"]),
            Listing::new("keys", ["default", ""]),
            Listing::new("keys", ["defaultjobs/", ""]),
        ] {
            assert_eq!(open(&other, &cursor), None);
        }
        for wrong in ["", "x", "jobs/7", "AQ", &cursor[1..], &cursor[..cursor.len() - 2]] {
            assert_eq!(open(&keys, wrong), None, "{wrong}");
        }
        assert_eq!(open(&keys, &"A".repeat(CURSOR_BYTES_MAX + 1)), None);
        assert_eq!(keys.last(None, Some).unwrap(), None);
        assert!(keys.last(Some(&cursor), |_| None::<()>).is_err());
    }

    proptest! {
        #[test]
        fn any_last_entry_comes_back(last in "\\PC{0,200}") {
            let listing = Listing::new("keys", ["a", "b"]);
            prop_assert_eq!(open(&listing, &listing.cursor(&last)), Some(last));
        }

        #[test]
        fn any_other_text_is_refused(text in "[A-Za-z0-9_-]{0,80}") {
            prop_assert_eq!(open(&Listing::new("keys", ["a", "b"]), &text), None);
        }
    }
}
