//! Which requests change something. What is not certainly a read counts as a change: a change that
//! is taken for a read would be carried out on a node that does not lead.

mod glob;
mod readings;
#[cfg(test)]
mod tests;

use http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode;

use glob::Glob;
use readings::{decoded, readings};

use crate::path;

/// With these a request may be carried out under another method than its own.
const OTHER_METHOD: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
/// The same, in a query.
const OTHER_METHOD_PARAMETER: &[u8] = b"_method";
/// With these a request may be carried out for another path than its own.
const OTHER_PATH: [&str; 2] = ["x-original-url", "x-rewrite-url"];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern {pattern:?} cannot be used: {reason}")]
pub struct RulesError {
    pub pattern: String,
    pub reason: &'static str,
}

/// Every method but GET, HEAD and OPTIONS changes something, but for exceptions both ways.
///
/// A pattern is `METHOD PATH`, `PATH` (with any method) or `METHOD *` (with any path). In a path,
/// `*` is anything within one segment and `/**` at the end is any rest, also none.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    mutates: Vec<Pattern>,
    reads: Vec<Pattern>,
}

impl Rules {
    /// What `mutates` names is a change although its method says otherwise, what `reads` names is
    /// none; where both do, it is a change.
    ///
    /// # Errors
    /// When a pattern is none.
    pub fn new(mutates: &[String], reads: &[String]) -> Result<Self, RulesError> {
        let of = |patterns: &[String], cautious| -> Result<Vec<Pattern>, RulesError> {
            let parse = |text: &String| {
                Pattern::parse(text, cautious)
                    .map_err(|reason| RulesError { pattern: text.clone(), reason })
            };
            patterns.iter().map(parse).collect()
        };
        Ok(Self { mutates: of(mutates, true)?, reads: of(reads, false)? })
    }

    /// By its method and the path as it was written. A server may understand a path in many ways:
    /// it is a change if one of them is named by `mutates`, and an exception only if all of them
    /// are named by `reads`.
    #[must_use]
    pub fn mutates(&self, method: &Method, path: &str) -> bool {
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let exceptions = if reads { &self.mutates } else { &self.reads };
        if exceptions.is_empty() {
            return !reads;
        }
        let Some(readings) = readings(path) else { return true };
        // An overlong slash or dot that only shows after the second decoding.
        if readings.iter().any(|reading| std::str::from_utf8(reading).is_err()) {
            return true;
        }
        let named = |patterns: &[Pattern], reading: &[u8]| {
            patterns.iter().any(|pattern| pattern.names(method, reading))
        };
        if readings.iter().any(|reading| named(&self.mutates, reading)) {
            return true;
        }
        !reads && !readings.iter().all(|reading| named(&self.reads, reading))
    }

    /// By all that a request says about itself.
    #[must_use]
    pub fn changes(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
        if self.mutates(method, uri.path()) || has_other_method(uri, headers) {
            return true;
        }
        let other_paths = headers.iter().filter(|(name, _)| is_one_of(name.as_str(), &OTHER_PATH));
        other_paths.into_iter().any(|(_, value)| match value.to_str() {
            Ok(path) => path::check(path).is_err() || self.mutates(method, path),
            Err(_) => true,
        })
    }
}

fn has_other_method(uri: &Uri, headers: &HeaderMap) -> bool {
    if headers.keys().any(|name| is_one_of(name.as_str(), &OTHER_METHOD)) {
        return true;
    }
    let mut parameters = uri.query().unwrap_or_default().split(['&', ';']);
    parameters.any(|parameter| {
        let once: Vec<u8> = percent_decode(parameter.as_bytes()).collect();
        let twice: Vec<u8> = percent_decode(&once).collect();
        [parameter.as_bytes(), &once, &twice].into_iter().any(|text| {
            let text = text.trim_ascii_start();
            let start = text.get(..OTHER_METHOD_PARAMETER.len()).unwrap_or_default();
            start.eq_ignore_ascii_case(OTHER_METHOD_PARAMETER)
        })
    })
}

/// Programs behind old interfaces cannot tell `_` in the name of a header from `-`.
fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.contains(&name)
        || (name.contains('_') && names.contains(&name.replace('_', "-").as_str()))
}

/// What one setting names.
#[derive(Clone, Debug)]
struct Pattern {
    /// Without it, any.
    method: Option<Method>,
    /// As it is written, and as it is meant where that differs.
    paths: Vec<Glob>,
    /// Names rather too much: then letters of either case are the same, and HEAD is a GET.
    cautious: bool,
}

impl Pattern {
    fn parse(text: &str, cautious: bool) -> Result<Self, &'static str> {
        let mut words = text.split_ascii_whitespace();
        let (method, path) = match (words.next(), words.next(), words.next()) {
            (Some(path), None, None) if path.starts_with('/') => (None, path),
            (Some(_), None, None) => return Err("a path begins with a slash, a method needs one"),
            (Some("*"), Some(path), None) => (None, path),
            (Some(method), Some(path), None) => {
                let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes());
                (Some(method.map_err(|_| "no such method can be")?), path)
            }
            _ => return Err("METHOD PATH, PATH or METHOD * is wanted"),
        };
        let written = path.as_bytes().to_vec();
        let meant = decoded(&written);
        let marks = |path: &[u8]| path.iter().filter(|byte| b"*/%".contains(byte)).count();
        let escapes = written.iter().filter(|byte| **byte == b'%').count();
        if !cautious && marks(&meant) + escapes != marks(&written) {
            return Err("an encoded slash, star or percent sign cannot be an exception");
        }
        let mut paths = vec![Glob::parse(&written, cautious)?];
        if meant != written {
            paths.push(Glob::parse(&meant, cautious)?);
        }
        // A path with a slash at its end is also looked at without it.
        for form in [&written, &meant] {
            match form.strip_suffix(b"/") {
                Some(closed) if !closed.is_empty() => paths.push(Glob::parse(closed, cautious)?),
                Some(_) | None => {}
            }
        }
        Ok(Self { method, paths, cautious })
    }

    fn names(&self, method: &Method, reading: &[u8]) -> bool {
        let of_method = match &self.method {
            None => true,
            Some(named) if self.cautious && named == Method::GET => {
                *method == Method::GET || *method == Method::HEAD
            }
            Some(named) if self.cautious => named.as_str().eq_ignore_ascii_case(method.as_str()),
            Some(named) => named == method,
        };
        of_method && self.paths.iter().any(|path| path.fits(reading))
    }
}
