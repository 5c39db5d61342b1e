//! Whether a name in a document is the one that a path means.
//!
//! Names are compared by what they say, not by how they are escaped. A name with half a surrogate
//! pair says nothing that a path could, so it matches no path.

/// Compares the text between a name's quotes with a decoded name.
pub(super) fn is_name(written: &[u8], name: &str) -> bool {
    if !written.contains(&b'\\') {
        return written == name.as_bytes();
    }
    std::str::from_utf8(written).ok().and_then(unescape).is_some_and(|decoded| decoded == name)
}

fn unescape(written: &str) -> Option<String> {
    let mut decoded = String::with_capacity(written.len());
    let mut rest = written;
    while let Some((plain, tail)) = rest.split_once('\\') {
        decoded.push_str(plain);
        let code = tail.chars().next()?;
        rest = tail.get(code.len_utf8()..)?;
        decoded.push(match code {
            '"' | '\\' | '/' => code,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => character(&mut rest)?,
            _ => return None,
        });
    }
    decoded.push_str(rest);
    Some(decoded)
}

/// Reads what follows `\u`, the second half of a pair included.
fn character(rest: &mut &str) -> Option<char> {
    let first = hex(rest)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first);
    }
    *rest = rest.strip_prefix("\\u")?;
    let second = hex(rest)?;
    if !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))
}

fn hex(rest: &mut &str) -> Option<u32> {
    let (digits, tail) = rest.split_at_checked(4)?;
    *rest = tail;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(digits, 16).ok()
}
