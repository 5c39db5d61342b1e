//! What the compactor promises, each case in one chunk, in every pair of chunks and byte by byte.

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::{Compactor, Limits, compact};
use crate::error::JsonError;

/// Feeds the chunks one by one.
fn in_chunks<'a>(
    chunks: impl IntoIterator<Item = &'a [u8]>,
    limits: Limits,
) -> Result<Vec<u8>, JsonError> {
    let mut compactor = Compactor::new(limits);
    let mut out = Vec::new();
    let mut bytes_in = 0;
    for chunk in chunks {
        compactor.push(chunk, &mut out)?;
        bytes_in += chunk.len() as u64;
        assert_eq!(compactor.bytes_in(), bytes_in);
        assert_eq!(compactor.bytes_out(), out.len() as u64);
    }
    compactor.finish(&mut out)?;
    Ok(out)
}

/// The answer for one chunk, after making sure that no other cutting changes it.
fn compacted(document: &[u8], limits: Limits) -> Result<Vec<u8>, JsonError> {
    let whole = in_chunks([document], limits);
    assert_eq!(in_chunks(document.chunks(1), limits), whole, "byte by byte");
    for at in 0..=document.len() {
        let (left, right) = document.split_at(at);
        assert_eq!(in_chunks([left, right], limits), whole, "cut at {at}");
        assert_eq!(in_chunks([left, b"", right], limits), whole, "cut at {at}, empty between");
    }
    whole
}

#[track_caller]
fn check(document: &[u8], expected: &str) {
    let out = compacted(document, Limits::default()).map(|out| String::from_utf8(out).unwrap());
    assert_eq!(out.as_deref(), Ok(expected), "{}", document.escape_ascii());
}

#[track_caller]
fn check_refused(document: &[u8], expected: JsonError) {
    let out = compacted(document, Limits::default());
    assert_eq!(out, Err(expected), "{}", document.escape_ascii());
}

/// Refused by the grammar, at this offset.
#[track_caller]
fn check_not_json(document: &[u8], at: u64) {
    match compacted(document, Limits::default()) {
        Err(JsonError::NotJson { offset, .. }) => {
            assert_eq!(offset, at, "{}", document.escape_ascii());
        }
        other => panic!("{}: {other:?}", document.escape_ascii()),
    }
}

#[test]
fn any_one_value_is_a_document() {
    for document in ["{}", "[]", "\"\"", "0", "-1.5e+10", "true", "false", "null"] {
        check(document.as_bytes(), document);
        check(format!(" \t\r\n{document}\n ").as_bytes(), document);
    }
}

#[test]
fn blanks_between_tokens_are_dropped_and_others_stay() {
    check(
        b" { \"a b\" : [ 1 , 2 ,\n\t{ } , [ ] ] , \"c\" :\r\n null } ",
        r#"{"a b":[1,2,{},[]],"c":null}"#,
    );
    check(b"[\n                 1\n                         ]", "[1]");
    check(b"\"  {  }  \"", r#""  {  }  ""#);
}

#[test]
fn strings_and_numbers_are_kept_byte_for_byte() {
    for document in [
        r#"{"a":1,"a":2,"\u0061":3}"#,
        r#"["\ud800","\uDFFF\ud800","\/\b\f\n\r\t\"\\"]"#,
        "[1.50,1E5,1e-05,-0,0.0,123456789012345678901234567890,1e999]",
        "\"\u{7f}\u{80}é中\u{fffd}😀\u{10ffff}\"",
    ] {
        check(document.as_bytes(), document);
    }
}

#[test]
fn the_grammar_is_enforced_at_the_first_wrong_byte() {
    for (document, at) in [
        ("[1,]", 3),
        ("[,1]", 1),
        ("[1 2]", 3),
        ("[1}", 2),
        ("{]", 1),
        ("{\"a\":1]", 6),
        ("{\"a\":1,}", 7),
        ("{\"a\" 1}", 5),
        ("{\"a\":}", 5),
        ("{a:1}", 1),
        ("{1:1}", 1),
        ("{,}", 1),
        ("}", 0),
        ("'a'", 0),
        ("[tru]", 4),
        ("[trux]", 4),
        ("[nULL]", 2),
        ("[01]", 2),
        ("[-]", 2),
        ("[-a]", 2),
        ("[1.]", 3),
        ("[.5]", 1),
        ("[1.e5]", 3),
        ("[1e]", 3),
        ("[1e+]", 4),
        ("[+1]", 1),
        ("[0x1]", 2),
        ("[\"\\x\"]", 3),
        ("[\"\\u12g4\"]", 6),
        ("[\"\\u\"]", 4),
        ("[\"\\u123\"]", 7),
        ("[\"a\nb\"]", 3),
        ("[\"\u{0}\"]", 2),
        ("[\"\u{1f}\"]", 2),
        ("[1,\u{b}2]", 3),
        ("[1,\u{a0}2]", 3),
        ("/**/1", 0),
        ("NaN", 0),
        ("\u{feff}1", 0),
    ] {
        check_not_json(document.as_bytes(), at);
    }
}

#[test]
fn every_byte_is_judged_alike_anywhere_in_a_string() {
    // Long enough that the byte meets both the fast scan and its remainder.
    for at in 1..20 {
        for byte in 0..=255 {
            let mut document = *b"\"abcdefghijklmnopqrs\"";
            document[at] = byte;
            let answer = compact(&document, Limits::default());
            let offset = at as u64;
            match byte {
                ..0x20 => assert!(
                    matches!(answer, Err(JsonError::NotJson { offset, .. }) if offset == at as u64)
                ),
                0x22 => assert_eq!(answer, Err(JsonError::Trailing { offset: offset + 1 })),
                0x5c => assert_eq!(
                    answer.is_ok(),
                    matches!(document[at + 1], b'b' | b'f' | b'n' | b'r')
                ),
                0x80.. => assert!(matches!(answer, Err(JsonError::NotUtf8 { .. }))),
                _ => assert_eq!(answer, Ok(document.to_vec())),
            }
        }
    }
}

#[test]
fn a_document_is_exactly_one_value() {
    check_refused(b"", JsonError::Empty);
    check_refused(b" \n\t\r ", JsonError::Empty);
    check_refused(b"1 2", JsonError::Trailing { offset: 2 });
    check_refused(b"{}{}", JsonError::Trailing { offset: 2 });
    check_refused(b"[],", JsonError::Trailing { offset: 2 });
    check_refused(b"null\0", JsonError::Trailing { offset: 4 });
    check_refused(b"00", JsonError::Trailing { offset: 1 });
}

#[test]
fn a_cut_off_document_is_refused() {
    let document = r#" { "a" : [ true , null , -1.5e+10 , "é\u00e9\n" ] } "#.as_bytes();
    let end = document.len() - 1;
    for at in 2..end {
        check_refused(&document[..at], JsonError::CutOff);
    }
    for number in ["-", "1.", "1e", "1e-"] {
        check_refused(number.as_bytes(), JsonError::CutOff);
    }
}

#[test]
fn utf8_is_checked_across_chunk_borders() {
    let ends: [&[u8]; 8] = [
        b"\xc2\x80",
        b"\xdf\xbf",
        b"\xe0\xa0\x80",
        b"\xed\x9f\xbf",
        b"\xee\x80\x80",
        b"\xef\xbf\xbf",
        b"\xf0\x90\x80\x80",
        b"\xf4\x8f\xbf\xbf",
    ];
    for character in ends {
        let document = [b"[\"ab", character, b"c", character, character, b"\"]"].concat();
        check(&document, std::str::from_utf8(&document).unwrap());
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused_where_they_stop_being_it() {
    let wrong: [(&[u8], u64); 19] = [
        (b"\x80", 0),
        (b"\xbf", 0),
        (b"\xc0\x80", 0),
        (b"\xc1\xbf", 0),
        (b"\xf5\x80\x80\x80", 0),
        (b"\xff", 0),
        (b"\xe0\x80\x80", 1),
        (b"\xe0\x9f\xbf", 1),
        (b"\xed\xa0\x80", 1),
        (b"\xed\xbf\xbf", 1),
        (b"\xf0\x80\x80\x80", 1),
        (b"\xf0\x8f\xbf\xbf", 1),
        (b"\xf4\x90\x80\x80", 1),
        (b"\xc3", 1),
        (b"\xe4\xb8", 2),
        (b"\xf0\x9f\x98", 3),
        (b"\xc3a", 1),
        (b"\xe4\xb8\\n", 2),
        (b"\xf0\x9f\xc3\xa9", 2),
    ];
    for (bytes, at) in wrong {
        let document = [b"{\"k\":\"plain plain ", bytes, b"\"}"].concat();
        check_refused(&document, JsonError::NotUtf8 { offset: 18 + at });
    }
}

#[test]
fn nesting_is_allowed_up_to_the_limit_and_no_deeper() {
    let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat().into_bytes();
    let mixed = |depth: usize| ["{\"a\":[".repeat(depth), "]}".repeat(depth)].concat();
    assert_eq!(compact(&nested(512), Limits::default()), Ok(nested(512)));
    assert_eq!(
        compact(&nested(513), Limits::default()),
        Err(JsonError::TooDeep { offset: 512, max: 512 })
    );
    check(mixed(256).as_bytes(), &mixed(256));
    assert!(matches!(
        compact(mixed(257).as_bytes(), Limits::default()),
        Err(JsonError::TooDeep { max: 512, .. })
    ));
    let flat = Limits { depth_max: 0, ..Limits::default() };
    assert_eq!(compacted(b" 7 ", flat), Ok(b"7".to_vec()));
    assert_eq!(compacted(b"[]", flat), Err(JsonError::TooDeep { offset: 0, max: 0 }));
    // Depth is what is open at once, not what was opened in all.
    let wide = Limits { depth_max: 2, ..Limits::default() };
    assert!(compacted(b"[[],[],{},[1]]", wide).is_ok());
}

#[test]
fn size_is_counted_on_what_is_written() {
    let document = b" { \"a\" : [ 1 , 2 ] } ";
    let limits = |bytes_max| Limits { bytes_max, ..Limits::default() };
    assert_eq!(compacted(document, limits(11)), Ok(b"{\"a\":[1,2]}".to_vec()));
    for max in 0..11 {
        assert_eq!(compacted(document, limits(max)), Err(JsonError::TooLarge { max }));
    }
}

#[test]
fn the_first_fault_wins_however_the_input_is_cut() {
    let limits = |bytes_max| Limits { bytes_max, ..Limits::default() };
    assert_eq!(compacted(b"[1,2,x]", limits(4)), Err(JsonError::TooLarge { max: 4 }));
    let not_json = JsonError::NotJson { offset: 5, what: "expected a value" };
    assert_eq!(compacted(b"[1,2,x]", limits(5)), Err(not_json));
}

#[test]
fn a_refusal_is_repeated() {
    let mut out = Vec::new();
    let mut compactor = Compactor::new(Limits::default());
    let first = compactor.push(b"[1,,", &mut out);
    assert!(first.is_err());
    assert_eq!(compactor.push(b"2]", &mut out), first);
    assert_eq!(compactor.finish(&mut out), first);
}

#[test]
fn messages_say_what_is_wrong_and_where() {
    let message = |document: &[u8]| compact(document, Limits::default()).unwrap_err().to_string();
    assert_eq!(message(b"[1 2]"), "not json at byte 3: expected a comma or ]");
    assert_eq!(message(b"[\"\xff\"]"), "not utf-8 at byte 2: strings must be valid utf-8");
    assert_eq!(
        message(b"\xef\xbb\xbf{}"),
        "not json at byte 0: expected a value; a byte order mark is not allowed"
    );
}

/// Drops blanks outside of strings and knows nothing else; for valid documents only.
fn strip(document: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut in_text = false;
    let mut escaped = false;
    for byte in document {
        if in_text || !b" \t\r\n".contains(byte) {
            out.push(*byte);
        }
        if escaped {
            escaped = false;
        } else if in_text && *byte == b'\\' {
            escaped = true;
        } else if *byte == b'"' {
            in_text = !in_text;
        }
    }
    out
}

/// Another parser's opinion, and the plain way of dropping blanks.
fn agree(document: &[u8]) -> Result<(), TestCaseError> {
    let ours = compact(document, Limits::default());
    let theirs = serde_json::from_slice::<&RawValue>(document);
    prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} {:?}", ours, theirs);
    if let Ok(ours) = ours {
        prop_assert_eq!(ours, strip(document));
    }
    Ok(())
}

fn same_in_any_chunks(document: &[u8], sizes: &[usize]) -> Result<(), TestCaseError> {
    let mut rest = document;
    let mut chunks = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, tail) = rest.split_at((*size).min(rest.len()));
        chunks.push(chunk);
        rest = tail;
    }
    let whole = in_chunks([document], Limits::default());
    prop_assert_eq!(in_chunks(chunks, Limits::default()), whole);
    Ok(())
}

fn blank() -> impl Strategy<Value = String> {
    prop_oneof![6 => Just(String::new()), 2 => "[ \t\r\n]{1,3}", 1 => "\n {0,20}"]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z ]{0,12}",
        1 => "(\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}|[ -!#-\\[\\]-~]){0,6}",
        1 => "[^\\x00-\\x1f\"\\\\]{0,10}",
    ]
    .prop_map(|inner| format!("\"{inner}\""))
}

/// Valid documents, with blanks wherever they may stand.
fn document() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        "true|false|null",
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?",
        text(),
    ];
    let spaced = (blank(), scalar, blank()).prop_map(|(a, value, b)| format!("{a}{value}{b}"));
    spaced.prop_recursive(5, 40, 6, |inner| {
        let member = (blank(), text(), blank(), inner.clone())
            .prop_map(|(a, name, b, value)| format!("{a}{name}{b}:{value}"));
        prop_oneof![
            (prop::collection::vec(inner, 1..6), blank(), blank())
                .prop_map(|(items, a, b)| format!("{a}[{}]{b}", items.join(","))),
            (prop::collection::vec(member, 1..6), blank(), blank())
                .prop_map(|(items, a, b)| format!("{a}{{{}}}{b}", items.join(","))),
            (blank(), blank()).prop_map(|(a, b)| format!("{a}[{b}]")),
            (blank(), blank()).prop_map(|(a, b)| format!("{a}{{{b}}}")),
        ]
    })
}

/// Bytes that documents are made of, so that chance meets the grammar often.
fn token_soup() -> impl Strategy<Value = Vec<u8>> {
    const TOKENS: [&str; 24] = [
        "{", "}", "[", "]", ":", ",", "\"", "\"a\"", "\\", "\\u00e9", "1", "0", "-", ".", "e",
        "E+", "true", "false", "null", "nul", " ", "\n", "é", "\t",
    ];
    prop::collection::vec(prop::sample::select(&TOKENS[..]), 0..12)
        .prop_map(|tokens| tokens.concat().into_bytes())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(20_000))]

    #[test]
    fn random_bytes_are_judged_as_by_another_parser(
        bytes in prop::collection::vec(any::<u8>(), 0..24),
    ) {
        agree(&bytes)?;
    }

    #[test]
    fn random_tokens_are_judged_as_by_another_parser(bytes in token_soup()) {
        agree(&bytes)?;
        compacted(&bytes, Limits::default()).ok();
    }
}

proptest! {
    #![proptest_config(config(5000))]

    #[test]
    fn valid_documents_are_compacted_however_they_are_cut(
        document in document(),
        sizes in prop::collection::vec(1_usize..20, 1..6),
    ) {
        prop_assert!(compact(document.as_bytes(), Limits::default()).is_ok());
        agree(document.as_bytes())?;
        same_in_any_chunks(document.as_bytes(), &sizes)?;
    }

    #[test]
    fn damaged_documents_are_judged_as_by_another_parser(
        document in document(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..3),
        sizes in prop::collection::vec(1_usize..20, 1..6),
    ) {
        let mut bytes = document.into_bytes();
        for (place, byte, kind) in damage {
            let at = place.index(bytes.len() + 1);
            match kind {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => bytes[at] = byte,
                _ if at < bytes.len() => drop(bytes.remove(at)),
                _ => {}
            }
        }
        agree(&bytes)?;
        same_in_any_chunks(&bytes, &sizes)?;
    }
}
