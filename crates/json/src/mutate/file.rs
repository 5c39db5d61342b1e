//! Values that come from files on the client's machine.
//!
//! This crate opens nothing: callers hand in what reads, bounded as they see fit. Here the bytes
//! become JSON text.

use super::error::Cause;
use super::value::quote;

/// Reads files for `file:`, `textfile:` and `base64file:`.
pub trait FileValues {
    /// The whole content, or why not, in lowercase words.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;
}

/// Refuses every file, for a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl FileValues for NoFiles {
    fn read(&self, _path: &str) -> Result<Vec<u8>, String> {
        Err("files are not available here".to_owned())
    }
}

/// How a file's bytes become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// Text if it is UTF-8, else base64.
    Either,
    Text,
    Base64,
}

/// JSON text of a file's content.
pub(super) fn file_value(
    kind: FileKind,
    path: &str,
    files: &dyn FileValues,
) -> Result<Vec<u8>, Cause> {
    let bytes = files.read(path).map_err(|reason| Cause::File { path: path.to_owned(), reason })?;
    match (kind, std::str::from_utf8(&bytes)) {
        (FileKind::Base64, _) | (FileKind::Either, Err(_)) => Ok(base64(&bytes)),
        (FileKind::Text | FileKind::Either, Ok(text)) => Ok(quote(text)),
        (FileKind::Text, Err(_)) => Err(Cause::FileNotText { path: path.to_owned() }),
    }
}

/// A JSON string of standard base64 with padding.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |bits: u32| ALPHABET.get((bits & 63) as usize).copied().unwrap_or(b'=');
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4 + 2);
    out.push(b'"');
    for three in bytes.chunks(3) {
        let byte = |index| three.get(index).copied().map_or(0, u32::from);
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        out.push(letter(bits >> 18));
        out.push(letter(bits >> 12));
        out.push(if three.len() > 1 { letter(bits >> 6) } else { b'=' });
        out.push(if three.len() > 2 { letter(bits) } else { b'=' });
    }
    out.push(b'"');
    out
}
