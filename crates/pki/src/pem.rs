//! PEM as blocks of text. A block is cut out of the file as it stands and decoded only when
//! somebody needs what is inside, so blocks that we do not know survive a rewrite byte for byte.
//! What the labels mean is for `bundle`.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Blocks that a file may have. Bundles have fewer than ten.
const BLOCKS_MAX: usize = 256;
const LINE_CHARS: usize = 64;

/// One block, from its BEGIN line to its END line. It may hold a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Block {
    label: String,
    text: Zeroizing<String>,
}

/// What a block says, decoded.
pub(crate) struct Contents {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) bytes: Zeroizing<Vec<u8>>,
}

/// Why a text is not PEM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemFault {
    #[error("the {label} block that begins in line {line} has no end; the file may be cut off")]
    Unended { label: String, line: usize },
    #[error("line {line} ends a {found} block inside a {label} block")]
    Mislabelled { label: String, found: String, line: usize },
    #[error("the contents of a {label} block are not base64; the file may be damaged")]
    NotBase64 { label: String },
    #[error("there are more than {BLOCKS_MAX} blocks")]
    TooManyBlocks,
    #[error("there is no PEM block in it")]
    Empty,
}

/// The blocks of a text, in their order. What stands between them is not kept.
pub(crate) fn parse(text: &str) -> Result<Vec<Block>, PemFault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut blocks = Vec::new();
    let mut open: Option<Open<'_>> = None;
    let mut end = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let begin = end;
        end += line.len();
        let number = index + 1;
        let Some(inside) = &open else {
            open = boundary(line, "BEGIN").map(|label| Open { label, line: number, begin });
            continue;
        };
        if boundary(line, "BEGIN").is_some() {
            return Err(inside.unended());
        }
        let Some(found) = boundary(line, "END") else { continue };
        if found != inside.label {
            let (label, found) = (inside.label.to_owned(), found.to_owned());
            return Err(PemFault::Mislabelled { label, found, line: number });
        }
        if blocks.len() == BLOCKS_MAX {
            return Err(PemFault::TooManyBlocks);
        }
        let whole = text.get(inside.begin..end).unwrap_or_default();
        let label = inside.label.to_owned();
        blocks.push(Block { label, text: Zeroizing::new(whole.to_owned()) });
        open = None;
    }
    match open {
        Some(inside) => Err(inside.unended()),
        None if blocks.is_empty() => Err(PemFault::Empty),
        None => Ok(blocks),
    }
}

/// A block whose end has not been seen yet.
struct Open<'a> {
    label: &'a str,
    line: usize,
    begin: usize,
}

impl Open<'_> {
    fn unended(&self) -> PemFault {
        PemFault::Unended { label: self.label.to_owned(), line: self.line }
    }
}

/// The blocks one after the other, as they are.
pub(crate) fn join<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Zeroizing<String> {
    let blocks: Vec<&Block> = blocks.into_iter().collect();
    let size = blocks.iter().map(|block| block.text.len() + 1).sum();
    let mut text = Zeroizing::new(String::with_capacity(size));
    for block in blocks {
        text.push_str(&block.text);
        if !block.text.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}

impl Block {
    pub(crate) fn new(label: &str, headers: &[(&str, String)], bytes: &[u8]) -> Self {
        let body = Zeroizing::new(STANDARD.encode(bytes));
        let header_size: usize =
            headers.iter().map(|(name, value)| name.len() + value.len() + 3).sum();
        let size = body.len() + body.len() / LINE_CHARS + header_size + 2 * label.len() + 64;
        let mut text = Zeroizing::new(String::with_capacity(size));
        let mut push = |parts: &[&str]| parts.iter().for_each(|part| text.push_str(part));
        push(&["-----BEGIN ", label, "-----\n"]);
        for (name, value) in headers {
            push(&[name, ": ", value, "\n"]);
        }
        if !headers.is_empty() {
            push(&["\n"]);
        }
        let mut rest = body.as_str();
        while let Some((line, after)) = rest.split_at_checked(LINE_CHARS) {
            push(&[line, "\n"]);
            rest = after;
        }
        if !rest.is_empty() {
            push(&[rest, "\n"]);
        }
        push(&["-----END ", label, "-----\n"]);
        Self { label: label.to_owned(), text }
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// Headers and bytes. Lines with a colon before the first blank line are headers.
    pub(crate) fn contents(&self) -> Result<Contents, PemFault> {
        let mut headers = Vec::new();
        let mut body = Zeroizing::new(String::with_capacity(self.text.len()));
        let inner = self
            .text
            .lines()
            .filter(|line| boundary(line, "BEGIN").is_none() && boundary(line, "END").is_none());
        for line in inner {
            match line.split_once(':') {
                Some((name, value)) if body.is_empty() => {
                    headers.push((name.trim().to_owned(), value.trim().to_owned()));
                }
                Some(_) | None => body.push_str(line.trim()),
            }
        }
        let bytes = STANDARD
            .decode(body.as_bytes())
            .map_err(|_| PemFault::NotBase64 { label: self.label.clone() })?;
        Ok(Contents { headers, bytes: Zeroizing::new(bytes) })
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({}, ..)", self.label)
    }
}

/// The label, when the line is a boundary of this kind.
fn boundary<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    let inner = line.trim().strip_prefix("-----")?.strip_suffix("-----")?;
    let label = inner.strip_prefix(kind)?.strip_prefix(' ')?;
    (!label.is_empty() && !label.contains("-----")).then_some(label)
}

#[cfg(test)]
mod tests {
    use super::{Block, PemFault, join, parse};

    #[test]
    fn blocks_survive_byte_for_byte() {
        let odd = "-----BEGIN KRYPT-DESCRIPTOR-----\r\nName: lockd/metadata\r\nVersion: 1\r\n\r\n\
                   not even base64 !\r\n-----END KRYPT-DESCRIPTOR-----\r\n";
        let text = format!("a comment\n{odd}\nanother\n{odd}");
        let blocks = parse(&text).unwrap();
        assert_eq!(blocks.len(), 2);
        assert_eq!(join(&blocks).as_str(), format!("{odd}{odd}"));
        assert!(blocks[0].contents().is_err(), "decoded only when asked");
    }

    #[test]
    fn what_is_written_is_read() {
        for size in [0, 1, 47, 48, 49, 500] {
            let bytes = vec![7; size];
            let block = Block::new("X Y", &[("Name", "a: b".to_owned())], &bytes);
            let again = parse(&join([&block])).unwrap().remove(0);
            assert_eq!(again, block);
            let contents = again.contents().unwrap();
            assert_eq!(*contents.bytes, bytes);
            assert_eq!(contents.headers, [("Name".to_owned(), "a: b".to_owned())]);
            assert!(again.text.lines().all(|line| line.len() <= 64));
        }
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let unended = |line| PemFault::Unended { label: "A".to_owned(), line };
        assert_eq!(parse("").unwrap_err(), PemFault::Empty);
        assert_eq!(parse("\n-----BEGIN A-----\nAAAA\n").unwrap_err(), unended(2));
        let nested = "-----BEGIN A-----\n-----BEGIN A-----\n-----END A-----\n";
        assert_eq!(parse(nested).unwrap_err(), unended(1));
        let crossed = parse("-----BEGIN A-----\n-----END B-----\n").unwrap_err();
        assert!(matches!(crossed, PemFault::Mislabelled { line: 2, .. }), "{crossed}");
        let many = "-----BEGIN A-----\n-----END A-----\n".repeat(257);
        assert_eq!(parse(&many).unwrap_err(), PemFault::TooManyBlocks);
    }
}
