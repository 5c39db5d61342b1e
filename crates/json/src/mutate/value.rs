//! What stands after the equals sign, as JSON text.
//!
//! Quotes decide: bare words and numbers are taken for what they look like, quoted ones are text.
//! The exception, a negative number in double quotes, exists because a bare one subtracts.

use super::error::Cause;
use super::number::{Delta, is_json_number, read_number};

/// A value as written, told apart by what it asks for.
#[derive(Debug, PartialEq)]
pub(super) enum Written {
    /// Set this JSON text.
    Json(Vec<u8>),
    /// Add this number.
    Delta(Delta),
}

pub(super) fn read_value(text: &str) -> Result<Written, Cause> {
    let text = text.trim();
    if let Some(inner) = within(text, '\'') {
        return Ok(Written::Json(quote(inner)));
    }
    if let Some(inner) = within(text, '"') {
        if inner.starts_with('-') && is_json_number(inner) {
            return number(inner);
        }
        return Ok(Written::Json(quote(inner)));
    }
    if text.starts_with(['+', '-'])
        && let Some(delta) = Delta::read(text)?
    {
        return Ok(Written::Delta(delta));
    }
    for word in ["true", "false", "null"] {
        if text.eq_ignore_ascii_case(word) {
            return Ok(Written::Json(word.into()));
        }
    }
    number(text)
}

/// The text itself, with quotes of either kind around it dropped.
pub(super) fn unquote(text: &str) -> &str {
    let text = text.trim();
    within(text, '\'').or_else(|| within(text, '"')).unwrap_or(text)
}

/// JSON text of a string.
pub(super) fn quote(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            ..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
    out
}

fn number(text: &str) -> Result<Written, Cause> {
    Ok(Written::Json(match read_number(text)? {
        Some(number) => number.into_bytes(),
        None => quote(text),
    }))
}

fn within(text: &str, mark: char) -> Option<&str> {
    text.strip_prefix(mark)?.strip_suffix(mark)
}
