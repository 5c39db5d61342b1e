//! Paths that do not decode to one text. Servers disagree about them: some read an overlong
//! `%c0%af` as a slash, some end a path at `%00`, some leave `%zz` as it is. Such a path is refused
//! before it is judged or passed on.

use percent_encoding::percent_decode;

/// Why a path cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathFault {
    #[error("a percent sign in the path is not followed by two hexadecimal digits")]
    Escape,
    #[error("the path does not decode to UTF-8")]
    NotUtf8,
    #[error("the path has an encoded NUL")]
    Nul,
}

/// # Errors
/// When the path, decoded once, is not a text, or when it cannot be decoded.
pub(crate) fn check(path: &str) -> Result<(), PathFault> {
    let mut after = path.split('%');
    // What stands before the first percent sign.
    after.next();
    let is_escape = |text: &str| {
        text.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !after.all(is_escape) {
        return Err(PathFault::Escape);
    }
    match percent_decode(path.as_bytes()).decode_utf8() {
        Err(_) => Err(PathFault::NotUtf8),
        Ok(text) if text.contains('\0') => Err(PathFault::Nul),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{PathFault, check};

    fn escaped(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
    }

    /// The code point in so many bytes, whether it needs them or not.
    fn encoded(code: u32, length: usize) -> Vec<u8> {
        let tail = |index: usize| 0x80 | u8::try_from((code >> (6 * index)) & 0x3f).unwrap();
        let lead = [0, 0xc0, 0xe0, 0xf0][length - 1];
        let high = u8::try_from(code >> (6 * (length - 1))).unwrap();
        let mut bytes = vec![lead | high];
        bytes.extend((0..length - 1).rev().map(tail));
        bytes
    }

    #[test]
    fn paths_that_decode_to_a_text_pass() {
        for path in ["*", "/", "/v1/jobs", "/caf%C3%A9/%e2%82%ac", "/caf\u{e9}", "/a%2Fb%25%20"] {
            assert_eq!(check(path), Ok(()), "{path}");
        }
    }

    #[test]
    fn other_paths_do_not() {
        for (path, fault) in [
            ("/%", PathFault::Escape),
            ("/%4", PathFault::Escape),
            ("/%zz", PathFault::Escape),
            ("/%u002e", PathFault::Escape),
            ("/%%41", PathFault::Escape),
            ("/%\u{e9}", PathFault::Escape),
            ("/%c0%af", PathFault::NotUtf8),
            ("/%C3", PathFault::NotUtf8),
            ("/%ff", PathFault::NotUtf8),
            ("/%ed%a0%80", PathFault::NotUtf8),
            ("/a%00.png", PathFault::Nul),
        ] {
            assert_eq!(check(path), Err(fault), "{path}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn an_overlong_character_is_refused_wherever_it_stands(
            code in 1u32..0x1_0000, longer in 1usize..4, before in "[a-z/]{0,8}", after in "[a-z/]{0,8}",
        ) {
            let needed = char::from_u32(code).map_or(3, char::len_utf8);
            let length = (needed + longer).min(4);
            let path = format!("/{before}{}{after}", escaped(&encoded(code, length)));
            prop_assert_eq!(check(&path), Err(PathFault::NotUtf8), "{}", path);
        }

        #[test]
        fn escaped_bytes_pass_if_they_are_a_text_without_nul(
            bytes in prop::collection::vec(any::<u8>(), 0..12),
        ) {
            let is_text = std::str::from_utf8(&bytes).is_ok() && !bytes.contains(&0);
            prop_assert_eq!(check(&format!("/{}", escaped(&bytes))).is_ok(), is_text);
        }

        #[test]
        fn any_text_is_escaped_to_a_path_that_passes(text in "[^\0]{0,40}") {
            prop_assert_eq!(check(&format!("/{}", escaped(text.as_bytes()))), Ok(()));
        }

        /// A decoder of another make finds the same text in what passes.
        #[test]
        fn what_passes_decodes_to_one_text(path in "/([a-c]|%|%[0-9a-fA-F]|%[0-9a-fA-F]{2}|\u{e9}){0,12}") {
            if check(&path).is_ok() {
                let mut bytes = Vec::new();
                let mut rest = path.as_bytes();
                while let [first, tail @ ..] = rest {
                    rest = tail;
                    if *first == b'%' {
                        let digits = std::str::from_utf8(&tail[..2]).unwrap();
                        bytes.push(u8::from_str_radix(digits, 16).unwrap());
                        rest = &tail[2..];
                    } else {
                        bytes.push(*first);
                    }
                }
                prop_assert!(String::from_utf8(bytes).is_ok_and(|text| !text.contains('\0')));
            }
        }
    }
}
