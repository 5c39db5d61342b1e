//! Arguments that mean the same in several commands: durations, waits, fences, keys before
//! expressions.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use lockd_client::{Acquire, Client, NoWaitSet, WaitSet};
use lockd_json::mutate::is_expression;

use crate::exit::{Done, Problem};

/// `30s`, `1m30s`, `500ms`, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds)
            .map_err(|_| "a time is not negative, and not endless".to_owned());
    }
    humantime::parse_duration(text)
        .map_err(|_| "write a time as 30s, 1m30s, 500ms, or a number of seconds".to_owned())
}

/// As [`duration`], but not nothing.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a lease lives longer than that".to_owned()),
        ttl => Ok(ttl),
    }
}

/// How long an acquire waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    No,
    For(Duration),
    Forever,
}

impl FromStr for Block {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "-1" | "nowait" | "no" => Ok(Self::No),
            "forever" => Ok(Self::Forever),
            other => match duration(other) {
                Ok(Duration::ZERO) => Ok(Self::Forever),
                Ok(wait) => Ok(Self::For(wait)),
                Err(_) => {
                    Err("write a wait as 10s, a number of seconds, nowait (-1) or forever (0)"
                        .to_owned())
                }
            },
        }
    }
}

/// A condition on another key: `namespace/key=TOKEN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) full_name: String,
    pub(crate) token: u64,
}

impl FromStr for Fence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a fence as namespace/key=TOKEN".to_owned();
        let (name, token) = text.rsplit_once('=').ok_or_else(wrong)?;
        let (namespace, key) = name.trim().split_once('/').ok_or_else(wrong)?;
        if namespace.is_empty() || key.is_empty() {
            return Err(wrong());
        }
        let token = token.trim().parse().map_err(|_| wrong())?;
        Ok(Self { full_name: name.trim().to_owned(), token })
    }
}

/// How a key is asked for, in `acquire` and `run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Wish {
    /// How long the lease lives without renewal
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = ttl)]
    pub(crate) ttl: Duration,
    /// How long to wait for the key: a duration, seconds, nowait (-1) or forever (0)
    #[arg(long, value_name = "WAIT", default_value = "10s", allow_hyphen_values = true)]
    pub(crate) block: Block,
    /// Who holds it, for people to read (default: user and host; of run, host and process)
    /// [env: LOCKD_CLIENT_OWNER]
    #[arg(long, value_name = "NAME", value_parser = crate::context::name)]
    pub(crate) owner: Option<String>,
    /// Only if the key is not known yet
    #[arg(long)]
    pub(crate) if_not_exists: bool,
    /// Join this transaction
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    pub(crate) txn_id: Option<String>,
    /// How often to try again when no server can be reached
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) retries: u32,
}

impl Wish {
    pub(crate) fn attempts(&self) -> u32 {
        self.retries.saturating_add(1)
    }

    /// The request that this wish makes.
    /// Without a key the server generates one.
    pub(crate) fn acquire(&self, client: &Client, key: Option<String>) -> Acquire<WaitSet> {
        let mut acquire: Acquire<NoWaitSet> = match key {
            Some(key) => client.lease(key),
            None => client.lease_new_key(),
        };
        if let Some(owner) = &self.owner {
            acquire = acquire.owner(owner);
        }
        if let Some(txn_id) = &self.txn_id {
            acquire = acquire.txn(txn_id);
        }
        if self.if_not_exists {
            acquire = acquire.if_not_exists();
        }
        let acquire = acquire.ttl(self.ttl);
        match self.block {
            Block::No => acquire.no_wait(),
            Block::For(wait) => acquire.wait(wait),
            Block::Forever => acquire.wait_forever(),
        }
    }
}

/// Conditions on a write.
#[derive(Clone, Debug, Args)]
pub(crate) struct Conditions {
    /// Only if the state is at this version
    #[arg(long, value_name = "N")]
    pub(crate) if_version: Option<u64>,
    /// Only if the state has this etag
    #[arg(long, value_name = "ETAG")]
    pub(crate) if_etag: Option<String>,
    /// Only if that key's token is still this one: namespace/key=TOKEN; may be repeated
    #[arg(long = "fence", value_name = "NS/KEY=TOKEN")]
    pub(crate) fences: Vec<Fence>,
}

/// Adds conditions to a write; the writes of the client all take them by the same names.
macro_rules! with_conditions {
    ($write:expr, $conditions:expr) => {{
        let (mut write, conditions) = ($write, $conditions);
        if let Some(version) = conditions.if_version {
            write = write.if_version(version);
        }
        if let Some(etag) = &conditions.if_etag {
            write = write.if_etag(etag);
        }
        for fence in &conditions.fences {
            write = write.fence(&fence.full_name, fence.token);
        }
        write
    }};
}
pub(crate) use with_conditions;

/// Takes the key off the front of the arguments, unless a flag names it or it is an expression.
pub(crate) fn key_and_expressions(
    flag: Option<String>,
    mut arguments: Vec<String>,
) -> Done<(Option<String>, Vec<String>)> {
    let first_is_key =
        flag.is_none() && arguments.first().is_some_and(|first| !is_expression(first));
    let key = if first_is_key { Some(argued_key(&arguments.remove(0))?) } else { flag };
    if arguments.is_empty() {
        return Err(Problem::usage("no expression")
            .hint("write path=value, path++, path--, path=+N, rm:path or time:path=NOW"));
    }
    if let Some(other) = arguments.iter().find(|argument| !is_expression(argument)) {
        return Err(Problem::usage(format!("{other:?} is not an expression"))
            .hint("only the first argument can be the key"));
    }
    Ok((key, arguments))
}

fn argued_key(key: &str) -> Done<String> {
    let named = crate::context::name(key);
    named.map_err(|empty| Problem::usage(format!("the key is {key:?}: {empty}")))
}

/// Takes the key and then an input off the arguments, unless a flag names the key.
pub(crate) fn key_and_input(
    flag: Option<String>,
    arguments: Vec<String>,
) -> Done<(Option<String>, Option<String>)> {
    let mut arguments = arguments.into_iter();
    let key = match flag {
        Some(key) => Some(key),
        None => arguments.next().as_deref().map(argued_key).transpose()?,
    };
    let input = arguments.next();
    match arguments.next() {
        None => Ok((key, input)),
        Some(extra) => Err(Problem::usage(format!("one argument too many: {extra:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn durations_are_written_as_people_write_them() {
        for (text, ms) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("2", 2_000),
            ("0.5", 500),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "-1", "soon", "10 parsecs", "inf", "nan"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(ttl("0").is_err());
    }

    #[test]
    fn waits_have_names_for_never_and_for_ever() {
        for (text, block) in [
            ("-1", Block::No),
            ("nowait", Block::No),
            ("0", Block::Forever),
            ("0s", Block::Forever),
            ("Forever", Block::Forever),
            ("10", Block::For(Duration::from_secs(10))),
            ("1m", Block::For(Duration::from_secs(60))),
        ] {
            assert_eq!(text.parse(), Ok(block), "{text}");
        }
        for text in ["-2", "later", ""] {
            assert!(text.parse::<Block>().is_err(), "{text}");
        }
    }

    #[test]
    fn fences_name_a_key_and_a_token() {
        let fence: Fence = "team/a/b=12".parse().unwrap();
        assert_eq!(fence, Fence { full_name: "team/a/b".into(), token: 12 });
        for text in ["a=1", "team/a", "team/=1", "/a=1", "team/a=-1", "team/a=x"] {
            assert!(text.parse::<Fence>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_argument_is_the_key_unless_it_is_an_expression() {
        let split = |flag: Option<&str>, arguments: &[&str]| {
            key_and_expressions(flag.map(str::to_owned), words(arguments)).ok()
        };
        let key = |key: &str| Some(key.to_owned());
        assert_eq!(split(None, &["orders", "a=1"]), Some((key("orders"), words(&["a=1"]))));
        assert_eq!(split(None, &["a.b++", "c=2"]), Some((None, words(&["a.b++", "c=2"]))));
        assert_eq!(split(None, &["rm:/a"]), Some((None, words(&["rm:/a"]))));
        assert_eq!(split(Some("k"), &["a=1"]), Some((key("k"), words(&["a=1"]))));
        assert_eq!(split(None, &["orders"]), None, "no expression");
        assert_eq!(split(Some("k"), &["orders", "a=1"]), None, "a second key");
        assert_eq!(split(None, &[]), None);
        assert_eq!(split(None, &["", "a=1"]), None, "an empty key");
    }

    #[test]
    fn the_first_argument_is_the_key_unless_a_flag_names_it() {
        let split = |flag: Option<&str>, arguments: &[&str]| {
            key_and_input(flag.map(str::to_owned), words(arguments)).ok()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(split(None, &[]), Some((None, None)));
        assert_eq!(split(None, &["k"]), Some((some("k"), None)));
        assert_eq!(split(None, &["k", "f.json"]), Some((some("k"), some("f.json"))));
        assert_eq!(split(Some("k"), &["f.json"]), Some((some("k"), some("f.json"))));
        assert_eq!(split(Some("k"), &["f.json", "x"]), None);
        assert_eq!(split(None, &["k", "f.json", "x"]), None);
        assert_eq!(split(None, &[" ", "f.json"]), None, "an empty key");
    }
}
