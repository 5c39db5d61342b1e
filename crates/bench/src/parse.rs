//! The smallest HTTP/1.1 answer parser that tells the truth: status line, the two ways to frame a
//! body that a keep-alive server uses, and nothing else. It works on what has arrived so far and
//! says whether that is all; reading is left to the client.

use anyhow::{Context as _, Result, bail, ensure};

/// A longer head is not one of the servers that are measured here.
const HEAD_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) framing: Framing,
    /// Bytes up to and including the empty line.
    pub(crate) size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Fixed(usize),
    Chunked,
}

/// A whole answer within the bytes that were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    /// Bytes of head and body on the wire.
    pub(crate) wire_bytes: usize,
}

/// The answer at the start of `bytes`, or `None` while a part of it has not arrived. The body of a
/// chunked answer is put together in `joined`.
pub(crate) fn answer(bytes: &[u8], joined: &mut Vec<u8>) -> Result<Option<Answer>> {
    let Some(head) = head(bytes)? else { return Ok(None) };
    let rest = bytes.get(head.size..).unwrap_or_default();
    let body_bytes = match head.framing {
        Framing::Fixed(length) => (rest.len() >= length).then_some(length),
        Framing::Chunked => chunks(rest, joined)?,
    };
    Ok(body_bytes.map(|length| Answer { head, wire_bytes: head.size + length }))
}

fn head(bytes: &[u8]) -> Result<Option<Head>> {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        ensure!(bytes.len() <= HEAD_BYTES_MAX, "the answer's head does not end");
        return Ok(None);
    };
    let text = std::str::from_utf8(bytes.get(..end).unwrap_or_default())
        .context("the answer's head is not text")?;
    let mut lines = text.split("\r\n");
    let status = status(lines.next().unwrap_or_default())?;
    let mut framing = None;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { bail!("no header: {line:?}") };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            framing = Some(Framing::Fixed(value.parse().context("content-length")?));
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            ensure!(value.eq_ignore_ascii_case("chunked"), "unknown coding {value:?}");
            framing = Some(Framing::Chunked);
        }
    }
    if status == 204 || status == 304 {
        framing = Some(Framing::Fixed(0));
    }
    let Some(framing) = framing else { bail!("an answer that ends only with the connection") };
    Ok(Some(Head { status, framing, size: end + 4 }))
}

fn status(line: &str) -> Result<u16> {
    let rest = line.strip_prefix("HTTP/1.1 ").with_context(|| format!("no HTTP/1.1: {line:?}"))?;
    let code = rest.get(..3).unwrap_or_default();
    code.parse().with_context(|| format!("no status: {line:?}"))
}

/// Length of the chunked body at the start of `bytes`, if all of it is there.
fn chunks(bytes: &[u8], joined: &mut Vec<u8>) -> Result<Option<usize>> {
    joined.clear();
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(line_end) = find(rest, b"\r\n") else { return Ok(None) };
        let line = std::str::from_utf8(rest.get(..line_end).unwrap_or_default())?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let length = usize::from_str_radix(digits, 16).context("chunk size")?;
        let start = line_end + 2;
        if length == 0 {
            // Trailers end with an empty line, which follows at once when there are none.
            let trailers = rest.get(line_end..).unwrap_or_default();
            return Ok(find(trailers, b"\r\n\r\n").map(|end| at + line_end + end + 4));
        }
        let end = start.checked_add(length).context("chunk size")?;
        let Some(chunk) = rest.get(start..end) else { return Ok(None) };
        let Some(mark) = rest.get(end..end + 2) else { return Ok(None) };
        ensure!(mark == b"\r\n", "a chunk does not end where it says");
        joined.extend_from_slice(chunk);
        at += end + 2;
    }
}

pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds every prefix: only the whole answer may be taken for one. Returns status, body, size.
    fn check(text: &str, trailing: &str) -> (u16, String, usize) {
        let mut joined = Vec::new();
        for end in 0..text.len() {
            assert_eq!(answer(&text.as_bytes()[..end], &mut joined).unwrap(), None, "at {end}");
        }
        let all = format!("{text}{trailing}");
        let found = answer(all.as_bytes(), &mut joined).unwrap().unwrap();
        let body = match found.head.framing {
            Framing::Fixed(length) => all.as_bytes()[found.head.size..][..length].to_vec(),
            Framing::Chunked => joined,
        };
        (found.head.status, String::from_utf8(body).unwrap(), found.wire_bytes)
    }

    #[test]
    fn a_counted_body_ends_by_its_count() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx: y\r\n\r\nhello";
        assert_eq!(check(text, "HTTP"), (200, "hello".into(), text.len()));
    }

    #[test]
    fn a_chunked_body_is_joined() {
        let text = "HTTP/1.1 409 Conflict\r\ntransfer-encoding: chunked\r\n\r\n\
                    3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(check(text, ""), (409, "abc0123456789".into(), text.len()));
    }

    #[test]
    fn trailers_belong_to_the_answer() {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                    2\r\nok\r\n0\r\nX-Cursor: 7\r\n\r\n";
        assert_eq!(check(text, "x"), (200, "ok".into(), text.len()));
    }

    #[test]
    fn no_content_has_no_body() {
        assert_eq!(check("HTTP/1.1 204 No Content\r\n\r\n", ""), (204, String::new(), 27));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for text in [
            "HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        ] {
            assert!(answer(text.as_bytes(), &mut Vec::new()).is_err(), "{text:?}");
        }
        let endless = vec![b'a'; HEAD_BYTES_MAX + 1];
        assert!(answer(&endless, &mut Vec::new()).is_err());
    }
}
