//! What a client hears. An answer is written in words, `granted token=1 version=0`, and a scenario
//! expects some of those words.

use std::fmt;
use std::sync::Arc;

use crate::call::Held;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted { held: Held, version: u64, etag: Option<String>, ttl_ms: u64 },
    Renewed { ttl_ms: u64 },
    Written { version: u64, etag: Option<String>, bytes: u64, hidden: bool },
    Removed { version: Option<u64> },
    Marked { version: u64, hidden: bool },
    Released,
    Document(Option<Document>),
    Described(Described),
    Entries(Vec<Entry>),
    Revoked { owner: Option<String>, token: u64 },
    Refused(Refused),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub version: u64,
    pub text: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    pub owner: Option<String>,
    pub left_ms: Option<u64>,
    pub token: u64,
    pub version: u64,
    pub etag: Option<String>,
    pub hidden: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub version: u64,
    pub text: Option<Arc<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The wire's code.
    pub code: String,
    pub detail: String,
    pub version: Option<u64>,
    pub token: Option<u64>,
    /// It may have happened all the same.
    pub unknown: bool,
}

impl Refused {
    #[must_use]
    pub fn code(code: &str) -> Self {
        Self { code: code.to_owned(), ..Self::default() }
    }
}

impl Answer {
    /// The answer in words; the first says what it is.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::Granted { held, version, ttl_ms, .. } => vec![
                "granted".into(),
                format!("token={}", held.token),
                format!("version={version}"),
                format!("ttl={}", span(*ttl_ms)),
            ],
            Self::Renewed { ttl_ms } => vec!["renewed".into(), format!("ttl={}", span(*ttl_ms))],
            Self::Written { version, bytes, hidden, .. } => vec![
                "ok".into(),
                format!("version={version}"),
                format!("bytes={bytes}"),
                format!("hidden={hidden}"),
            ],
            Self::Removed { version: Some(version) } => {
                vec!["removed".into(), format!("version={version}")]
            }
            Self::Removed { version: None } => vec!["nothing_removed".into()],
            Self::Marked { version, hidden } => {
                vec!["marked".into(), format!("version={version}"), format!("hidden={hidden}")]
            }
            Self::Released => vec!["released".into()],
            Self::Document(None) => vec!["none".into()],
            Self::Document(Some(document)) => {
                vec![document.text.to_string(), format!("version={}", document.version)]
            }
            Self::Described(described) => described.words(),
            Self::Entries(entries) => entry_words(entries),
            Self::Revoked { owner: Some(owner), token } => {
                vec!["revoked".into(), format!("owner={owner}"), format!("token={token}")]
            }
            Self::Revoked { owner: None, token } => {
                vec!["nobody".into(), format!("token={token}")]
            }
            Self::Refused(refused) => refused.words(),
        }
    }

    /// Whether the answer begins with the first of these words and has all the others. Three dots
    /// stand for anything.
    #[must_use]
    pub fn fits(&self, expected: &[String]) -> bool {
        let words = self.words();
        let Some((first, rest)) = expected.split_first() else { return true };
        (first == "..." || words.first() == Some(first))
            && rest.iter().all(|word| word == "..." || words.contains(word))
    }

    #[must_use]
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::Granted { .. }
            | Self::Renewed { .. }
            | Self::Written { .. }
            | Self::Removed { .. }
            | Self::Marked { .. }
            | Self::Released
            | Self::Document(_)
            | Self::Described(_)
            | Self::Entries(_)
            | Self::Revoked { .. } => None,
        }
    }
}

impl Described {
    fn words(&self) -> Vec<String> {
        let mut words = match &self.owner {
            Some(owner) => vec!["held".into(), format!("owner={owner}")],
            None => vec!["free".into()],
        };
        words.extend(self.left_ms.map(|left| format!("left={}", span(left))));
        words.push(format!("token={}", self.token));
        words.push(format!("version={}", self.version));
        words.push(format!("state={}", if self.etag.is_some() { "some" } else { "none" }));
        words.push(format!("hidden={}", self.hidden));
        words
    }
}

impl Refused {
    fn words(&self) -> Vec<String> {
        let mut words = vec![self.code.clone()];
        words.extend(self.version.map(|version| format!("version={version}")));
        words.extend(self.token.map(|token| format!("token={token}")));
        if self.unknown {
            words.push("outcome=unknown".into());
        }
        words
    }
}

fn entry_words(entries: &[Entry]) -> Vec<String> {
    let mut words = vec!["entries".to_owned()];
    for entry in entries {
        words.push(format!("{}={}", entry.key, entry.text.as_deref().unwrap_or("none")));
        words.push(format!("{}@{}", entry.key, entry.version));
    }
    words
}

/// A length of time as scenarios write it.
#[must_use]
pub fn span(ms: u64) -> String {
    if ms.is_multiple_of(1_000) { format!("{}s", ms / 1_000) } else { format!("{ms}ms") }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.words().iter().enumerate() {
            let shown = word.get(..200).unwrap_or(word);
            write!(f, "{}{shown}", if index > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}
