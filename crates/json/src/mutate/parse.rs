//! Reads expressions into mutations.
//!
//! An expression is told by its outermost sign: a prefix, else a brace before any equals sign, else
//! the first equals sign, else a trailing `++` or `--`. So `/lang=C++` sets text. Nothing is looked
//! up here; whether a path fits a document is known only when it is applied.

use std::sync::Arc;

use super::error::{Cause, MutationError};
use super::file::FileKind;
use super::number::Delta;
use super::path::{Segment, read_path};
use super::time;
use super::value::{Written, quote, read_value, unquote};
use super::{Action, BRACES_MAX, EXPANDED_MAX, EXPRESSION_BYTES_MAX, Mutation, Source, Value};

/// Reads one expression; a group stands for several mutations.
pub fn parse(expression: &str, source: Source) -> Result<Vec<Mutation>, MutationError> {
    let refused = |cause| MutationError::of(expression, cause);
    if expression.len() > EXPRESSION_BYTES_MAX {
        return Err(refused(Cause::TooLong));
    }
    let mut reader = Reader { source, expression: expression.into(), mutations: Vec::new() };
    reader.read(expression, &[], 0).map_err(refused)?;
    Ok(reader.mutations)
}

/// Whether an argument has the form of an expression, valid or not.
///
/// Keys contain none of the signs of an expression, except that a key may end in `--`; such an
/// argument is taken for an expression.
pub fn is_expression(text: &str) -> bool {
    let text = text.trim();
    prefix(text).0.is_some()
        || text.contains('=')
        || text.ends_with("++")
        || text.ends_with("--")
        || (text.contains('{') && text.ends_with('}'))
}

#[derive(Clone, Copy)]
enum Prefix {
    Remove,
    Time,
    File(FileKind),
}

fn prefix(text: &str) -> (Option<Prefix>, &str) {
    const PREFIXES: [(&str, Prefix); 8] = [
        ("rm:", Prefix::Remove),
        ("remove:", Prefix::Remove),
        ("delete:", Prefix::Remove),
        ("del:", Prefix::Remove),
        ("time:", Prefix::Time),
        ("file:", Prefix::File(FileKind::Either)),
        ("textfile:", Prefix::File(FileKind::Text)),
        ("base64file:", Prefix::File(FileKind::Base64)),
    ];
    for (word, prefix) in PREFIXES {
        if let Some(rest) = text.strip_prefix(word) {
            return (Some(prefix), rest.trim_start());
        }
    }
    (None, text)
}

struct Reader {
    source: Source,
    expression: Arc<str>,
    mutations: Vec<Mutation>,
}

impl Reader {
    fn read(&mut self, text: &str, group: &[Segment], depth: usize) -> Result<(), Cause> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Cause::Blank);
        }
        let (prefix_found, body) = prefix(text);
        if prefix_found.is_some() {
            if prefix(body).0.is_some() {
                return Err(Cause::TwoPrefixes);
            }
            if body.split('=').next().is_some_and(|path| path.contains('{')) {
                return Err(Cause::PrefixBeforeGroup);
            }
        }
        match prefix_found {
            Some(Prefix::Remove) => self.push(body, group, Action::Remove),
            Some(Prefix::Time) => {
                let (path, value) = assignment(body)?;
                self.push(path, group, Action::Set(read_time(value)?))
            }
            Some(Prefix::File(_)) if self.source == Source::Server => Err(Cause::FileRefused),
            Some(Prefix::File(kind)) => {
                let (path, value) = assignment(body)?;
                self.push(path, group, Action::Set(read_file(kind, value)?))
            }
            None => self.read_plain(text, group, depth),
        }
    }

    fn read_plain(&mut self, text: &str, group: &[Segment], depth: usize) -> Result<(), Cause> {
        match text.find(['{', '=']).and_then(|at| text.split_at_checked(at)) {
            Some((path, rest)) if rest.starts_with('{') => {
                self.read_group(path, rest, group, depth)
            }
            Some((path, rest)) => {
                let value = rest.strip_prefix('=').unwrap_or(rest);
                let action = match read_value(value)? {
                    Written::Json(json) => Action::Set(Value::Json(json.into())),
                    Written::Delta(delta) => Action::Add(delta),
                };
                self.push(path, group, action)
            }
            None => {
                let (path, delta) = match (text.strip_suffix("++"), text.strip_suffix("--")) {
                    (Some(path), _) => (path, 1),
                    (None, Some(path)) => (path, -1),
                    (None, None) => return Err(Cause::NoOperation),
                };
                self.push(path, group, Action::Add(Delta::Integer(delta)))
            }
        }
    }

    fn read_group(
        &mut self,
        path: &str,
        braced: &str,
        group: &[Segment],
        depth: usize,
    ) -> Result<(), Cause> {
        let content = braced.strip_prefix('{').and_then(|inner| inner.strip_suffix('}'));
        let content = content.ok_or(Cause::Braces)?;
        if depth >= BRACES_MAX {
            return Err(Cause::GroupTooDeep);
        }
        let mut segments = group.to_vec();
        read_path(path, &mut segments)?;
        let before = self.mutations.len();
        for part in split_group(content)? {
            if !part.trim().is_empty() {
                self.read(part, &segments, depth + 1)?;
            }
        }
        if self.mutations.len() == before { Err(Cause::EmptyGroup) } else { Ok(()) }
    }

    fn push(&mut self, path: &str, group: &[Segment], action: Action) -> Result<(), Cause> {
        if self.mutations.len() >= EXPANDED_MAX {
            return Err(Cause::TooManyMutations);
        }
        let mut segments = group.to_vec();
        read_path(path, &mut segments)?;
        let expression = Arc::clone(&self.expression);
        self.mutations.push(Mutation { path: segments, action, expression });
        Ok(())
    }
}

fn assignment(body: &str) -> Result<(&str, &str), Cause> {
    body.split_once('=').ok_or(Cause::NoOperation)
}

fn read_file(kind: FileKind, value: &str) -> Result<Value, Cause> {
    match unquote(value) {
        "" => Err(Cause::NoFile),
        path => Ok(Value::File { kind, path: path.into() }),
    }
}

fn read_time(value: &str) -> Result<Value, Cause> {
    let literal = unquote(value);
    if literal.eq_ignore_ascii_case("now") {
        return Ok(Value::Now);
    }
    Ok(Value::Json(quote(&time::normalise(literal)?).into()))
}

/// Parts the inside of a group at commas and line breaks.
///
/// A quote counts only where a value begins, so that an apostrophe within a word stays one.
fn split_group(content: &str) -> Result<Vec<&str>, Cause> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut depth = 0_usize;
    let mut quote: Option<u8> = None;
    let mut value_begins = false;
    for (at, byte) in content.bytes().enumerate() {
        if quote.is_some() {
            if quote == Some(byte) {
                quote = None;
            }
            continue;
        }
        match byte {
            b'"' | b'\'' if value_begins => quote = Some(byte),
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1).ok_or(Cause::Braces)?,
            b',' | b'\n' if depth == 0 => {
                parts.extend(content.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
        value_begins = byte == b'=' || (value_begins && matches!(byte, b' ' | b'\t'));
    }
    if quote.is_some() {
        return Err(Cause::OpenQuote);
    }
    if depth != 0 {
        return Err(Cause::Braces);
    }
    parts.extend(content.get(start..));
    Ok(parts)
}
