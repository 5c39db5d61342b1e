//! Listings as ListObjectsV2 of S3 has them; the XML API of GCS took them over.

use http::StatusCode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::ask::Ask;
use super::shelf::{Object, Shelf, hex};
use super::{Dialect, Flaw, State};
use crate::clock::iso_date;
use crate::xml::{self, Answer, leaf};

/// As AWS: nobody gets more on one page.
const PAGE: usize = 1000;

/// What `encoding-type=url` leaves as it is.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(super) fn list(state: &State, ask: &Ask) -> Answer {
    let Some(query) = Query::read(ask) else {
        let message = "max-keys or the continuation token is not valid";
        return xml::error(StatusCode::BAD_REQUEST, "InvalidArgument", message);
    };
    let inner = state.inner.lock();
    let none = Shelf::default();
    let shelf = if inner.flaw == Flaw::ListsNothing { &none } else { &inner.shelf };
    let page = Page::cut(shelf, &query);
    let show = |text: &str| match ask.query("encoding-type") {
        Some("url") => utf8_percent_encode(text, ENCODED).to_string(),
        _ => text.to_owned(),
    };
    let mut content = [
        leaf("Name", &ask.bucket),
        leaf("Prefix", &show(query.prefix)),
        leaf("MaxKeys", &query.max.to_string()),
        leaf("KeyCount", &(page.objects.len() + page.prefixes.len()).to_string()),
        leaf("IsTruncated", if page.next.is_some() { "true" } else { "false" }),
    ]
    .concat();
    if let Some(next) = &page.next {
        content.push_str(&leaf("NextContinuationToken", &hex(next.as_bytes())));
    }
    for (key, object) in &page.objects {
        content.push_str(&entry(state.dialect, &show(key), object));
    }
    for prefix in &page.prefixes {
        let prefix = leaf("Prefix", &show(prefix));
        content.push_str(&format!("<CommonPrefixes>{prefix}</CommonPrefixes>"));
    }
    xml::document(StatusCode::OK, "ListBucketResult", &content)
}

fn entry(dialect: Dialect, key: &str, object: &Object) -> String {
    let generation = match dialect {
        Dialect::S3 => String::new(),
        Dialect::Gcs => leaf("Generation", &object.generation.to_string()),
    };
    let parts = [
        leaf("Key", key),
        leaf("LastModified", &iso_date(object.modified)),
        leaf("ETag", &object.etag),
        leaf("Size", &object.bytes.len().to_string()),
        leaf("StorageClass", "STANDARD"),
        generation,
    ];
    format!("<Contents>{}</Contents>", parts.concat())
}

struct Query<'a> {
    bucket: &'a str,
    prefix: &'a str,
    delimiter: Option<&'a str>,
    start_after: &'a str,
    /// The last key or common prefix of the page before.
    seen: Option<String>,
    max: usize,
}

impl<'a> Query<'a> {
    fn read(ask: &'a Ask) -> Option<Self> {
        let max = ask.query("max-keys").map_or(Ok(PAGE), str::parse).ok()?;
        let seen = match ask.query("continuation-token") {
            None => None,
            Some(token) => Some(unhex(token)?),
        };
        Some(Self {
            bucket: &ask.bucket,
            prefix: ask.query("prefix").unwrap_or_default(),
            delimiter: ask.query("delimiter").filter(|text| !text.is_empty()),
            start_after: ask.query("start-after").unwrap_or_default(),
            seen,
            max: max.min(PAGE),
        })
    }

    fn wants(&self, key: &str) -> bool {
        let after = match &self.seen {
            None => key > self.start_after,
            Some(seen) => key > seen.as_str() && !self.is_behind(seen, key),
        };
        after && key.starts_with(self.prefix)
    }

    /// Whether this key is one of those that a common prefix already stood for.
    fn is_behind(&self, seen: &str, key: &str) -> bool {
        let is_common = self.delimiter.is_some_and(|delimiter| seen.ends_with(delimiter));
        is_common && seen.len() > self.prefix.len() && key.starts_with(seen)
    }

    fn common_prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.delimiter?;
        let at = key[self.prefix.len()..].find(delimiter)?;
        Some(&key[..self.prefix.len() + at + delimiter.len()])
    }
}

#[derive(Default)]
struct Page<'a> {
    objects: Vec<(&'a str, &'a Object)>,
    prefixes: Vec<&'a str>,
    next: Option<String>,
}

impl<'a> Page<'a> {
    fn cut(shelf: &'a Shelf, query: &Query<'_>) -> Self {
        let mut page = Self::default();
        let mut last = None;
        for (key, object) in shelf.objects(query.bucket).filter(|(key, _)| query.wants(key)) {
            let prefix = query.common_prefix(key);
            if prefix.is_some() && prefix == page.prefixes.last().copied() {
                continue;
            }
            if page.objects.len() + page.prefixes.len() == query.max {
                page.next = last.map(str::to_owned);
                break;
            }
            match prefix {
                Some(prefix) => page.prefixes.push(prefix),
                None => page.objects.push((key, object)),
            }
            last = Some(prefix.unwrap_or(key));
        }
        page
    }
}

fn unhex(text: &str) -> Option<String> {
    let digits = text.as_bytes().chunks(2);
    let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()
}
