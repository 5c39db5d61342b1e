//! Reading scenarios. A line is `at TIME ACTOR COMMAND ... -> ANSWER ...`; `#` begins a comment. A
//! word that begins like JSON goes to the end of that value, blanks included.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::step::{Case, Command, Conditions, Event, Step, Under};
use crate::call::{Fence, Then, What};

/// A line that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadCase {
    pub name: String,
    pub line: usize,
    pub why: String,
}

impl std::fmt::Display for BadCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.name, self.line, self.why)
    }
}

/// # Errors
/// Names the first line that is not understood.
pub fn parse(name: &str, text: &str) -> Result<Case, BadCase> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let bad = |why: String| BadCase { name: name.to_owned(), line: number, why };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let step = step(number, line).map_err(bad)?;
        if steps.last().is_some_and(|last| last.at_ms > step.at_ms) {
            return Err(bad("time goes back".into()));
        }
        steps.push(step);
    }
    Ok(Case { name: name.to_owned(), steps })
}

fn step(line: usize, text: &str) -> Result<Step, String> {
    let mut words = words(text)?;
    let expected = match words.iter().position(|word| word == "->") {
        Some(arrow) => words.split_off(arrow).into_iter().skip(1).collect(),
        None => Vec::new(),
    };
    let mut words = Words::new(words);
    if words.next("at")? != "at" {
        return Err("a line begins with `at`".into());
    }
    let at_ms = span(&words.next("time")?)?;
    let actor = words.next("actor")?;
    let verb = words.next("command")?;
    let event = if actor == "world" {
        match verb.as_str() {
            "restart" => Event::Restart,
            "reboot" => Event::Reboot,
            "wall" => Event::Wall { by_ms: signed_span(&words.next("step")?)? },
            other => return Err(format!("the world cannot {other}")),
        }
    } else {
        if expected.is_empty() {
            return Err("a command expects an answer: -> ...".into());
        }
        Event::Command { actor, command: command(&verb, &mut words)?, expected }
    };
    words.end()?;
    Ok(Step { line, at_ms, event })
}

fn command(verb: &str, words: &mut Words) -> Result<Command, String> {
    if verb == "read" {
        return Ok(Command::Read { keys: words.rest() });
    }
    let key = words.next("key")?;
    Ok(match verb {
        "acquire" => Command::Acquire {
            key,
            ttl_ms: words.named("ttl").map(|text| span(&text)).transpose()?,
            if_not_exists: words.flag("if_not_exists"),
            txn: words.named("txn"),
            idem: words.named("idem"),
            label: words.named("as"),
        },
        "keepalive" => Command::Keepalive {
            key,
            ttl_ms: words.named("ttl").map(|text| span(&text)).transpose()?,
            under: under(words)?,
        },
        "update" | "checkpoint" | "finish" | "update_state" | "remove" | "metadata" | "mutate" => {
            write(verb, key, words)?
        }
        "release" | "rollback" => Command::Release {
            key,
            rollback: verb == "rollback",
            under: under(words)?,
            conditions: conditions(words)?,
        },
        "get" => Command::Get { key },
        "view" => Command::View { key, under: under(words)? },
        "get_state" => Command::View { key, under: Under { by_id: true, ..under(words)? } },
        "describe" => Command::Describe { key },
        "revoke" => Command::Revoke { key, reason: text(&words.next("reason")?)? },
        other => return Err(format!("no such command: {other}")),
    })
}

fn write(verb: &str, key: String, words: &mut Words) -> Result<Command, String> {
    let under = Under { by_id: verb == "update_state", ..under(words)? };
    let conditions = conditions(words)?;
    let then = match (verb, words.named("then").as_deref()) {
        ("checkpoint" | "update_state", None) | (_, Some("commit")) => Then::Commit,
        ("finish", None) | (_, Some("release")) => Then::Release,
        (_, None) => Then::Stage,
        (_, Some(other)) => return Err(format!("then is commit or release, not {other}")),
    };
    let what = match verb {
        "remove" => What::Remove,
        "metadata" => What::Metadata,
        "mutate" => {
            let expressions = words.rest();
            What::Mutate(expressions.iter().map(|word| text(word)).collect::<Result<_, _>>()?)
        }
        _ => What::Document(words.next("document")?.into()),
    };
    Ok(Command::Write { key, under, what, then, conditions })
}

fn under(words: &mut Words) -> Result<Under, String> {
    Ok(Under {
        label: words.named("lease"),
        token: words.named("token").map(|text| number(&text)).transpose()?,
        txn: words.named("txn"),
        by_id: words.flag("by_id"),
    })
}

fn conditions(words: &mut Words) -> Result<Conditions, String> {
    let mut conditions = Conditions {
        if_version: words.named("if_version").map(|text| number(&text)).transpose()?,
        if_etag: words.named("if_etag").map(|document| etag(&document)),
        hidden: words.named("hidden").map(|text| text == "true"),
        idem: words.named("idem"),
        streamed: words.flag("streamed"),
        fences: Vec::new(),
    };
    while let Some(fence) = words.named("fence") {
        let (name, token) = fence.rsplit_once(':').ok_or("a fence is namespace/key:token")?;
        conditions.fences.push(Fence { name: name.to_owned(), token: number(token)? });
    }
    Ok(conditions)
}

/// The etag of a document, or of none.
fn etag(document: &str) -> String {
    if document == "none" {
        return String::new();
    }
    Sha256::digest(document.as_bytes()).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _infallible = write!(text, "{byte:02x}").is_ok();
        text
    })
}

/// The words of a command, taken one by one or by name.
struct Words(Vec<String>);

impl Words {
    fn new(words: Vec<String>) -> Self {
        Self(words)
    }

    /// The next word that has no name.
    fn next(&mut self, what: &str) -> Result<String, String> {
        let plain = |word: &String| !is_named(word);
        let index = self.0.iter().position(plain).ok_or_else(|| format!("{what} is missing"))?;
        Ok(self.0.remove(index))
    }

    /// The next value of a name.
    fn named(&mut self, name: &str) -> Option<String> {
        let value = |word: &str| {
            word.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')).map(str::to_owned)
        };
        let index = self.0.iter().position(|word| value(word).is_some())?;
        value(&self.0.remove(index))
    }

    fn flag(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|word| word != name);
        self.0.len() < before
    }

    /// All words that have no name.
    fn rest(&mut self) -> Vec<String> {
        let (named, plain) =
            std::mem::take(&mut self.0).into_iter().partition(|word| is_named(word));
        self.0 = named;
        plain
    }

    fn end(&self) -> Result<(), String> {
        match self.0.first() {
            Some(word) => Err(format!("not understood: {word}")),
            None => Ok(()),
        }
    }
}

fn is_named(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
}

fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let end = word_end(rest)?;
        let (word, after) = rest.split_at(end);
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    Ok(words)
}

/// Where the first word ends; a JSON value in it is passed as a whole.
fn word_end(text: &str) -> Result<usize, String> {
    let blank = text.find(char::is_whitespace).unwrap_or(text.len());
    let json = text.find(['{', '[', '"']).filter(|start| *start < blank);
    let Some(start) = json else { return Ok(blank) };
    let value = text.get(start..).unwrap_or_default();
    let mut values = serde_json::Deserializer::from_str(value).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Ok(start + values.byte_offset()),
        Some(Err(error)) => Err(format!("not JSON: {error}")),
        None => Ok(blank),
    }
}

/// A word in quotes, or as it is.
fn text(word: &str) -> Result<String, String> {
    if word.starts_with('"') {
        return serde_json::from_str(word).map_err(|error| error.to_string());
    }
    Ok(word.to_owned())
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

fn span(text: &str) -> Result<u64, String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    for (unit, ms) in units {
        if let Some(count) = text.strip_suffix(unit) {
            return Ok(number(count)? * ms);
        }
    }
    Err(format!("not a time: {text}"))
}

fn signed_span(text: &str) -> Result<i64, String> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let ms = i64::try_from(span(rest)?).map_err(|error| error.to_string())?;
    Ok(sign * ms)
}

#[cfg(test)]
mod tests {
    use super::{Command, Event, Then, What, parse};

    fn first(text: &str) -> Event {
        parse("t", text).unwrap().steps.remove(0).event
    }

    #[test]
    fn a_line_has_a_time_an_actor_a_command_and_an_answer() {
        let case =
            parse("t", "# why\n\nat 1500ms a get k -> {\"a b\": 1} version=2 # so\n").unwrap();
        let step = &case.steps[0];
        assert_eq!((step.line, step.at_ms), (3, 1_500));
        let Event::Command { actor, command: Command::Get { key }, expected } = &step.event else {
            panic!("{step:?}")
        };
        assert_eq!((actor.as_str(), key.as_str()), ("a", "k"));
        assert_eq!(expected, &["{\"a b\": 1}", "version=2"]);
    }

    #[test]
    fn conditions_are_found_wherever_they_stand() {
        let event =
            first("at 0s a finish k fence=default/x:3 {\"n\": 1} if_version=7 idem=i -> ok");
        let Event::Command { command: Command::Write { what, then, conditions, .. }, .. } = event
        else {
            panic!()
        };
        assert_eq!(what, What::Document("{\"n\": 1}".into()));
        assert_eq!((then, conditions.if_version), (Then::Release, Some(7)));
        assert_eq!(
            (conditions.fences[0].name.as_str(), conditions.fences[0].token),
            ("default/x", 3)
        );
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        for (text, why) in [
            ("\nat 0s a dance k -> ok", "no such command: dance"),
            ("\nat 0s a get -> ok", "key is missing"),
            ("\nat 0s a get k", "a command expects an answer: -> ..."),
            ("\nat 0s a get k if_version=1 -> ok", "not understood: if_version=1"),
            ("\nat 5 a get k -> ok", "not a time: 5"),
            ("at 5s a get k -> none\nat 4s a get k -> none", "time goes back"),
            ("\nat 0s world dance", "the world cannot dance"),
        ] {
            let bad = parse("t", text).unwrap_err();
            assert_eq!((bad.line, bad.why.as_str()), (2, why));
        }
    }
}
