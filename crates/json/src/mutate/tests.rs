//! What mutations promise: tables of document, expression and result, and two properties.

mod property;

use super::{
    Cause, FileValues, MATCHES_MAX, Mutation, MutationError, NoFiles, Source, apply, apply_within,
    find, is_expression, parse, wild,
};
use crate::error::JsonError;

const NOW: &str = "2025-11-15T18:56:00.5Z";

/// Two files: one of text, one of bytes.
struct TwoFiles;

impl FileValues for TwoFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        match path {
            "note.txt" => Ok("say \"hi\"\n".into()),
            "photo.png" => Ok(vec![0xff, 0xfe, 0x00, 0x01]),
            _ => Err("no such file".to_owned()),
        }
    }
}

fn mutate(document: &str, expressions: &[&str]) -> Result<String, MutationError> {
    let mut mutations: Vec<Mutation> = Vec::new();
    for expression in expressions {
        mutations.extend(parse(expression, Source::Local)?);
    }
    let out = apply(Some(document.as_bytes()), &mutations, NOW, &TwoFiles)?;
    Ok(String::from_utf8(out).unwrap())
}

#[track_caller]
fn check(document: &str, expression: &str, expected: &str) {
    let out = mutate(document, &[expression]);
    assert_eq!(out.as_deref(), Ok(expected), "{document} {expression}");
}

#[track_caller]
fn check_refused(document: &str, expression: &str, expected: &Cause) {
    match mutate(document, &[expression]) {
        Err(MutationError::Expression { cause, .. }) => {
            assert_eq!(&cause, expected, "{document} {expression}");
        }
        other => panic!("{document} {expression}: {other:?}"),
    }
}

#[test]
fn set_replaces_in_place_and_appends_what_is_new() {
    check(r#"{"a":1,"b":2}"#, "/a=3", r#"{"a":3,"b":2}"#);
    check(r#"{"a":1,"b":2}"#, "/c=3", r#"{"a":1,"b":2,"c":3}"#);
    check("{}", "/a=1", r#"{"a":1}"#);
    check("", "/a=1", r#"{"a":1}"#);
    check("{}", "/a/b/c=x", r#"{"a":{"b":{"c":"x"}}}"#);
    check(r#"{"a":{}}"#, "a.b.c=x", r#"{"a":{"b":{"c":"x"}}}"#);
    check(r#"{"a":{"b":1}}"#, "/a=x", r#"{"a":"x"}"#);
    check("{}", " /a b = x y ", r#"{"a b":"x y"}"#);
    check("{}", "/lang=C++", r#"{"lang":"C++"}"#);
    check("{}", "/a=b=c", r#"{"a":"b=c"}"#);
    check("{}", "/a=x{y},z", r#"{"a":"x{y},z"}"#);
}

#[test]
fn scalars_on_the_way_become_objects_and_arrays_do_not() {
    check(r#"{"a":5,"b":2}"#, "/a/x/y=1", r#"{"a":{"x":{"y":1}},"b":2}"#);
    check(r#"{"a":"t"}"#, "/a/x++", r#"{"a":{"x":1}}"#);
    check(r#"{"a":null}"#, "a.x=1", r#"{"a":{"x":1}}"#);
    check_refused(r#"{"a":[1]}"#, "/a/x/y=1", &Cause::NoElement);
    check_refused(r#"{"a":[1]}"#, "/a/x=1", &Cause::InArray);
}

#[test]
fn indices_reach_into_arrays_that_exist() {
    let document = r#"{"items":[{"n":1},{"n":2},[{"n":3}]]}"#;
    check(document, "/items/1/n=9", r#"{"items":[{"n":1},{"n":9},[{"n":3}]]}"#);
    check(document, "items.2.0.n++", r#"{"items":[{"n":1},{"n":2},[{"n":4}]]}"#);
    check(document, "rm:/items/0/n", r#"{"items":[{},{"n":2},[{"n":3}]]}"#);
    check(document, "rm:/items/7/n", document);
    check(document, "rm:/items/x", document);
    check_refused(document, "/items/3/n=1", &Cause::NoElement);
    check_refused(document, "/items/01/n=1", &Cause::NoElement);
    check_refused(document, "/items/-1/n=1", &Cause::NoElement);
    check_refused(document, "/items/99999999999999999999/n=1", &Cause::NoElement);
    check_refused(document, "/items/0=1", &Cause::InArray);
    check_refused(document, "/items/0++", &Cause::InArray);
    check_refused(document, "rm:/items/0", &Cause::InArray);
    check(r#"{"0":{"1":5}}"#, "/0/1=6", r#"{"0":{"1":6}}"#);
    check(r#"{"a":[5]}"#, "/a/0/n=6", r#"{"a":[{"n":6}]}"#);
}

#[test]
fn both_path_styles_name_any_member() {
    check(r#"{"a/b":{"c~d":1}}"#, "/a~1b/c~0d=2", r#"{"a/b":{"c~d":2}}"#);
    check(r#"{"~1":1}"#, "/~01=2", r#"{"~1":2}"#);
    check(r#"{"a.b":{"c\\d":1}}"#, r"a\.b.c\\d=2", r#"{"a.b":{"c\\d":2}}"#);
    check(r#"{"a.b":1}"#, "/a.b=2", r#"{"a.b":2}"#);
    check("{}", "a/b=1", r#"{"a/b":1}"#);
    check(r#"{"a":{"":1}}"#, "/a/=2", r#"{"a":{"":2}}"#);
    check("{}", "/é\"\\\n=1", r#"{"é\"\\":1}"#);
    check_refused("{}", "/=1", &Cause::Root);
    check_refused("{}", "rm:/", &Cause::Root);
    check_refused("{}", "=1", &Cause::NoPath);
    check_refused("{}", "++", &Cause::NoPath);
    check_refused("{}", "rm:", &Cause::NoPath);
    check_refused("{}", "a..b=1", &Cause::EmptyName);
    check_refused("{}", ".a=1", &Cause::EmptyName);
    check_refused("{}", "a.=1", &Cause::EmptyName);
    check_refused("{}", "/a~2=1", &Cause::Escape);
    check_refused("{}", "/a~=1", &Cause::Escape);
    check_refused("{}", r"a\b=1", &Cause::Escape);
    check_refused("{}", r"a\=1", &Cause::Escape);
}

#[test]
fn names_are_compared_by_what_they_say() {
    check(r#"{"\u0061\u00e9":1}"#, "/aé=2", r#"{"\u0061\u00e9":2}"#);
    check(r#"{"\ud83d\ude00":1}"#, "/😀=2", r#"{"\ud83d\ude00":2}"#);
    check(r#"{"\"\\\/\b\f\n\r\t.":1}"#, "rm:/\"\\~1\u{8}\u{c}\n\r\t.", "{}");
    check(r#"{"\ud83d":1}"#, "/\u{fffd}=2", r#"{"\ud83d":1,"�":2}"#);
    check(r#"{"\ud83d\u0061":1}"#, "rm:/a", r#"{"\ud83d\u0061":1}"#);
    check(r#"{"a\\":1}"#, "/a=2", r#"{"a\\":1,"a":2}"#);
}

#[test]
fn of_repeated_names_the_last_is_set_and_all_are_removed() {
    check(r#"{"a":1,"b":2,"a":3}"#, "/a=9", r#"{"a":1,"b":2,"a":9}"#);
    check(r#"{"a":{"x":1},"a":{"y":2}}"#, "/a/x=9", r#"{"a":{"x":1},"a":{"y":2,"x":9}}"#);
    check(r#"{"a":[],"a":{"x":1}}"#, "/a/x=9", r#"{"a":[],"a":{"x":9}}"#);
    check(r#"{"a":1,"b":2,"\u0061":3}"#, "rm:/a", r#"{"b":2}"#);
}

#[test]
fn remove_takes_one_comma_along() {
    let document = r#"{"a":1,"b":{"x":[2]},"c":3}"#;
    check(document, "rm:/a", r#"{"b":{"x":[2]},"c":3}"#);
    check(document, "remove:/b", r#"{"a":1,"c":3}"#);
    check(document, "delete:c", r#"{"a":1,"b":{"x":[2]}}"#);
    check(document, "del:b.x", r#"{"a":1,"b":{},"c":3}"#);
    check(r#"{"a":1}"#, "rm:a", "{}");
    check(r#"{"a":1,"a":2}"#, "rm:a", "{}");
    check(r#"{"a=b":1}"#, "rm:a=b", "{}");
    for missing in ["rm:/x", "rm:/a/x", "rm:/b/y/z", "rm:/x/y"] {
        check(document, missing, document);
    }
}

#[test]
fn values_are_read_by_their_looks_and_quotes_mean_text() {
    for (written, json) in [
        ("true", "true"),
        ("FALSE", "false"),
        ("Null", "null"),
        ("yes", "\"yes\""),
        ("0", "0"),
        ("42", "42"),
        ("007", "7"),
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", "9223372036854775808"),
        ("00123456789012345678901234567890", "123456789012345678901234567890"),
        ("1.50", "1.50"),
        ("1E5", "1E5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("1_000", "\"1_000\""),
        ("0x10", "\"0x10\""),
        ("1 2", "\"1 2\""),
        ("", "\"\""),
        ("-", "\"-\""),
        ("+", "\"+\""),
        ("+46 70", "\"+46 70\""),
        ("--5", "\"--5\""),
        ("[1]", "\"[1]\""),
        ("{}", "\"{}\""),
        ("\"5\"", "\"5\""),
        ("\"true\"", "\"true\""),
        ("\"\"", "\"\""),
        ("\" x \"", "\" x \""),
        ("\"-5\"", "-5"),
        ("\"-1.50\"", "-1.50"),
        ("\"-0\"", "0"),
        ("\"-05\"", "\"-05\""),
        ("\"-x\"", "\"-x\""),
        ("\"+5\"", "\"+5\""),
        ("\"-inf\"", "\"-inf\""),
        ("'5'", "\"5\""),
        ("'-5'", "\"-5\""),
        ("'null'", "\"null\""),
        ("''", "\"\""),
        ("'say \"hi\"'", r#""say \"hi\"""#),
        ("\"a\"b\"", r#""a\"b""#),
        ("\"open", r#""\"open""#),
        ("'inf'", "\"inf\""),
        ("a\\nb", r#""a\\nb""#),
        ("a\tb\u{1}", r#""a\tb\u0001""#),
    ] {
        check("{}", &format!("/p={written}"), &format!("{{\"p\":{json}}}"));
    }
    for endless in ["inf", "NaN", "Infinity", "1e999", "+inf", "-nan", "+1e999", "\"-1e999\""] {
        check_refused("{}", &format!("/p={endless}"), &Cause::NotFinite);
    }
}

#[test]
fn adding_is_exact_for_integers() {
    check(r#"{"n":1}"#, "/n++", r#"{"n":2}"#);
    check(r#"{"n":1}"#, "n--", r#"{"n":0}"#);
    check(r#"{"n":10}"#, "/n=+5", r#"{"n":15}"#);
    check(r#"{"n":10}"#, "/n=-15", r#"{"n":-5}"#);
    check(r#"{"n":9007199254740993}"#, "/n=+2.0", r#"{"n":9007199254740995}"#);
    check(r#"{"n":9223372036854775806}"#, "/n++", r#"{"n":9223372036854775807}"#);
    check("{}", "/n++", r#"{"n":1}"#);
    check("{}", "a.n=-7", r#"{"a":{"n":-7}}"#);
    check_refused(r#"{"n":9223372036854775807}"#, "/n++", &Cause::Overflow);
    check_refused(r#"{"n":-9223372036854775808}"#, "/n--", &Cause::Overflow);
    check_refused(r#"{"n":9223372036854775808}"#, "/n--", &Cause::IntegerRange);
    check_refused("{}", "/n=+9223372036854775808", &Cause::IntegerRange);
    for zero in ["+0", "-0", "+0.0", "-0e5", "+1e-400"] {
        check_refused("{}", &format!("/n={zero}"), &Cause::ZeroDelta);
    }
}

#[test]
fn adding_fractions_gives_integers_where_they_meet() {
    check(r#"{"n":1.5}"#, "/n=+0.5", r#"{"n":2}"#);
    check(r#"{"n":0.1}"#, "/n=+0.2", r#"{"n":0.30000000000000004}"#);
    check(r#"{"n":1}"#, "/n=+0.25", r#"{"n":1.25}"#);
    check(r#"{"n":0.3}"#, "/n=-0.3", r#"{"n":0}"#);
    check(r#"{"n":-0.0}"#, "/n=-1e-12", r#"{"n":0}"#);
    check(r#"{"n":2.0}"#, "/n++", r#"{"n":3}"#);
    check(r#"{"n":1e300}"#, "/n++", r#"{"n":1e300}"#);
    check(r#"{"n":1e18}"#, "/n++", r#"{"n":1000000000000000000}"#);
    check("{}", "/n=+1e20", r#"{"n":1e20}"#);
    check("{}", "/n=+2.5", r#"{"n":2.5}"#);
    check_refused(r#"{"n":1.7e308}"#, "/n=+1.7e308", &Cause::NotFinite);
    check_refused(r#"{"n":1e999}"#, "/n++", &Cause::NotFinite);
}

#[test]
fn only_numbers_can_be_added_to() {
    for (value, found) in [
        ("\"5\"", "text"),
        ("null", "null"),
        ("true", "a boolean"),
        ("{}", "an object"),
        ("[1]", "an array"),
    ] {
        check_refused(&format!("{{\"n\":{value}}}"), "/n++", &Cause::NotNumeric { found });
    }
}

#[test]
fn times_are_moved_to_utc_and_trimmed() {
    for (written, time) in [
        ("NOW", NOW),
        ("now", NOW),
        ("\"NOW\"", NOW),
        ("2025-01-31T12:00:00Z", "2025-01-31T12:00:00Z"),
        ("2025-01-31t12:00:00z", "2025-01-31T12:00:00Z"),
        ("'2025-01-31T12:00:00.120000000Z'", "2025-01-31T12:00:00.12Z"),
        ("2025-01-31T12:00:00.000Z", "2025-01-31T12:00:00Z"),
        ("2025-01-01T00:30:00.123456789+01:00", "2024-12-31T23:30:00.123456789Z"),
        ("2024-02-28T23:00:00-05:30", "2024-02-29T04:30:00Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
        ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
    ] {
        check("{}", &format!("time:/t={written}"), &format!("{{\"t\":\"{time}\"}}"));
    }
    check(r#"{"p":{"u":1}}"#, "time:p.u=NOW", &format!(r#"{{"p":{{"u":"{NOW}"}}}}"#));
    for wrong in [
        "",
        "tomorrow",
        "2025-01-31",
        "2025-01-31T12:00:00",
        "2025-01-31 12:00:00Z",
        "2025-02-30T12:00:00Z",
        "2025-01-31T24:00:00Z",
        "2025-01-31T12:60:00Z",
        "2025-06-30T23:59:60Z",
        "2025-01-31T12:00:00.Z",
        "2025-01-31T12:00:00.1234567890Z",
        "2025-01-31T12:00:00+1:00",
        "2025-01-31T12:00:00+24:00",
        "2025-01-31T12:00:00+01:60",
        "2025-01-31T12:00:00,5Z",
        "2025-01-31T12:00:00Z[UTC]",
        "2025-01-31T12:00Z",
        "0000-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "+2025-01-31T12:00:00Z",
        "2025-01-31T12:00:0éZ",
    ] {
        check_refused("{}", &format!("time:/t={wrong}"), &Cause::Time);
    }
    let now = parse("time:/t=NOW", Source::Server).unwrap();
    let out = apply(None, &now, "2025-11-15T19:56:00.120+01:00", &NoFiles).unwrap();
    assert_eq!(out, b"{\"t\":\"2025-11-15T18:56:00.12Z\"}");
    assert!(apply(None, &now, "soon", &NoFiles).is_err());
}

#[test]
fn files_become_text_or_base64() {
    check("{}", "file:/f=note.txt", r#"{"f":"say \"hi\"\n"}"#);
    check("{}", "file:f='photo.png'", r#"{"f":"//4AAQ=="}"#);
    check("{}", "textfile:/f=note.txt", r#"{"f":"say \"hi\"\n"}"#);
    check("{}", "base64file:/f=\"note.txt\"", r#"{"f":"c2F5ICJoaSIK"}"#);
    check("{}", "/p{file:/f=note.txt}", r#"{"p":{"f":"say \"hi\"\n"}}"#);
    let path = "photo.png".to_owned();
    check_refused("{}", "textfile:/f=photo.png", &Cause::FileNotText { path });
    let (path, reason) = ("gone".to_owned(), "no such file".to_owned());
    check_refused("{}", "file:/f=gone", &Cause::File { path, reason });
    check_refused("{}", "file:/f=", &Cause::NoFile);
    check_refused("{}", "file:/f", &Cause::NoOperation);
}

#[test]
fn a_server_reads_no_files() {
    for expression in ["file:/a=x", "textfile:a=x", "base64file:/a=x", "/p{file:/a=x}", "file:"] {
        let refused = parse(expression, Source::Server).unwrap_err();
        let MutationError::Expression { cause, .. } = refused else { panic!("{expression}") };
        assert_eq!(cause, Cause::FileRefused, "{expression}");
    }
    let local = parse("file:/a=note.txt", Source::Local).unwrap();
    assert!(apply(None, &local, NOW, &NoFiles).is_err());
}

#[test]
fn base64_pads_each_length() {
    struct Prefix;
    impl FileValues for Prefix {
        fn read(&self, path: &str) -> Result<Vec<u8>, String> {
            Ok(b"foobar"[..path.parse().unwrap()].to_vec())
        }
    }
    let encoded = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
    for (length, expected) in encoded.iter().enumerate() {
        let mutations = parse(&format!("base64file:/f={length}"), Source::Local).unwrap();
        let out = apply(None, &mutations, NOW, &Prefix).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("{{\"f\":\"{expected}\"}}"));
    }
}

#[test]
fn groups_stand_for_several_mutations() {
    check("{}", "/p{/a=1,/b=2}", r#"{"p":{"a":1,"b":2}}"#);
    check("{}", "p{a=1,b=2}", r#"{"p":{"a":1,"b":2}}"#);
    check("{}", "p.q{a.x=1,/b/y=2}", r#"{"p":{"q":{"a":{"x":1},"b":{"y":2}}}}"#);
    check(r#"{"p":{"n":1,"o":2}}"#, "/p{/n++,rm:/o,/m=+2}", r#"{"p":{"n":2,"m":2}}"#);
    check("{}", "/p{\n  /a = \"x, y\"\n  /b = 'it''s',\n}", r#"{"p":{"a":"x, y","b":"it''s"}}"#);
    check("{}", "/p{/a=it's,/b=2}", r#"{"p":{"a":"it's","b":2}}"#);
    check("{}", "/p{/a=\"}\",/b='{'}", r#"{"p":{"a":"}","b":"{"}}"#);
    check("{}", "/p{/a{/b{/c=1},/d=2}}", r#"{"p":{"a":{"b":{"c":1},"d":2}}}"#);
    check("{}", "/p{/t=${x},/u=1}", r#"{"p":{"t":"${x}","u":1}}"#);
    check("{}", "/p{time:/t=NOW}", &format!(r#"{{"p":{{"t":"{NOW}"}}}}"#));
    check_refused("{}", "/p{}", &Cause::EmptyGroup);
    check_refused("{}", "/p{ , \n}", &Cause::EmptyGroup);
    check_refused("{}", "{/a=1}", &Cause::NoPath);
    check_refused("{}", "/{/a=1}", &Cause::Root);
    check_refused("{}", "/p{/a=\"x}", &Cause::OpenQuote);
    check_refused("{}", "rm:/p{/a,/b}", &Cause::PrefixBeforeGroup);
    check_refused("{}", "time:/p{/a=NOW}", &Cause::PrefixBeforeGroup);
    for open in
        ["/p{/a=1", "/p{/a=1}x", "/p{/a=1},/q{/b=2}", "/p{/a=}}", "/p}=1", "/p{{/a=1}", "/p{a++"]
    {
        check_refused("{}", open, &Cause::Braces);
    }
}

#[test]
fn wildcards_touch_what_exists_and_create_nothing() {
    let document = r#"{"m":{"a":{"n":1},"b":{"n":2},"c":{}},"l":[{"n":3},{"x":4},5]}"#;
    for (expression, expected) in [
        ("/m/*/n++", r#"{"m":{"a":{"n":2},"b":{"n":3},"c":{}},"l":[{"n":3},{"x":4},5]}"#),
        ("m.*.n++", r#"{"m":{"a":{"n":2},"b":{"n":3},"c":{}},"l":[{"n":3},{"x":4},5]}"#),
        ("/m/[]/n++", document),
        ("/l/[]/n=9", r#"{"m":{"a":{"n":1},"b":{"n":2},"c":{}},"l":[{"n":9},{"x":4},5]}"#),
        ("/l[]/n=9", r#"{"m":{"a":{"n":1},"b":{"n":2},"c":{}},"l":[{"n":9},{"x":4},5]}"#),
        ("l[].n=9", r#"{"m":{"a":{"n":1},"b":{"n":2},"c":{}},"l":[{"n":9},{"x":4},5]}"#),
        ("/**/**/n=9", r#"{"m":{"a":{"n":9},"b":{"n":9},"c":{}},"l":[{"n":9},{"x":4},5]}"#),
        ("/.../n=9", r#"{"m":{"a":{"n":9},"b":{"n":9},"c":{}},"l":[{"n":9},{"x":4},5]}"#),
        ("/.../.../.../n++", r#"{"m":{"a":{"n":2},"b":{"n":3},"c":{}},"l":[{"n":4},{"x":4},5]}"#),
        ("rm:/.../n", r#"{"m":{"a":{},"b":{},"c":{}},"l":[{},{"x":4},5]}"#),
        ("rm:/m/*", r#"{"m":{},"l":[{"n":3},{"x":4},5]}"#),
        ("rm:/l/[]", r#"{"m":{"a":{"n":1},"b":{"n":2},"c":{}},"l":[]}"#),
        ("/l/[]=0", r#"{"m":{"a":{"n":1},"b":{"n":2},"c":{}},"l":[0,0,0]}"#),
        ("/m/...=0", r#"{"m":{"a":0,"b":0,"c":0},"l":[{"n":3},{"x":4},5]}"#),
        ("rm:/...", "{}"),
        ("/*=1", r#"{"m":1,"l":1}"#),
        ("/x/*/n=1", document),
        ("/m/*/new=1", document),
        ("/.../1/x++", r#"{"m":{"a":{"n":1},"b":{"n":2},"c":{}},"l":[{"n":3},{"x":5},5]}"#),
        ("/*{/a/n=7}", r#"{"m":{"a":{"n":7},"b":{"n":2},"c":{}},"l":[{"n":3},{"x":4},5]}"#),
    ] {
        check(document, expression, expected);
    }
    check_refused(document, "/l/[]++", &Cause::NotNumeric { found: "an object" });
    check_refused(document, "/*/0=1", &Cause::InArray);
    check(r#"{"a":1,"a":2}"#, "/*++", r#"{"a":2,"a":3}"#);
    check(r#"{"n":1,"s":{"n":{"n":2}}}"#, "/.../n=0", r#"{"n":0,"s":{"n":0}}"#);
    check(r#"{"l":[[1,2],[3]]}"#, "/l[][]++", r#"{"l":[[2,3],[4]]}"#);
}

#[test]
fn wildcard_removal_keeps_commas_right_in_every_pattern() {
    // Each of four members is kept or removed, in every combination, with edits deeper down.
    for pattern in 0..16 {
        let member = |index: usize| match pattern >> index & 1 {
            0 => format!("\"k{index}\":{{\"x\":1,\"y\":{{\"x\":2,\"z\":3}}}}"),
            _ => "\"x\":0".to_owned(),
        };
        let kept = |index: usize| match pattern >> index & 1 {
            0 => Some(format!("\"k{index}\":{{\"y\":{{\"z\":3}}}}")),
            _ => None,
        };
        let document: Vec<String> = (0..4).map(member).collect();
        let expected: Vec<String> = (0..4).filter_map(kept).collect();
        let document = format!("{{{}}}", document.join(","));
        check(&document, "rm:/.../x", &format!("{{{}}}", expected.join(",")));
    }
}

#[test]
fn mutations_see_what_those_before_them_did() {
    let steps = ["/a/b=1", "/a/b++", "/a{/c=x,rm:/b}", "/a=+1"];
    assert_eq!(mutate("{}", &steps[..3]).as_deref(), Ok(r#"{"a":{"c":"x"}}"#));
    assert!(mutate("{}", &steps).is_err());
}

#[test]
fn layout_of_what_is_not_touched_stays() {
    let document = "{ \"a\" : 1 ,\n  \"b\" : [ 1 , 2 ] }\n";
    check(document, "/a=5", "{ \"a\" : 5 ,\n  \"b\" : [ 1 , 2 ] }\n");
    check(document, "/c=5", "{ \"a\" : 1 ,\n  \"b\" : [ 1 , 2 ],\"c\":5 }\n");
    check(document, "rm:/a", "{ \"b\" : [ 1 , 2 ] }\n");
    check(document, "rm:/b", "{ \"a\" : 1  }\n");
    check("{ }", "/c=5", "{\"c\":5 }");
}

#[test]
fn documents_are_checked_before_they_are_touched() {
    let set = parse("/a=1", Source::Server).unwrap();
    let try_on = |document: &[u8]| apply(Some(document), &set, NOW, &NoFiles);
    for wrong in ["[1]", "1", "null", "\"a\"", " [ ] "] {
        assert_eq!(try_on(wrong.as_bytes()), Err(MutationError::NotAnObject), "{wrong}");
    }
    for torn in ["{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"b\":\"", "{\"b\":[{]}", " ", "{} {}"] {
        assert!(matches!(try_on(torn.as_bytes()), Err(MutationError::Document(_))), "{torn}");
    }
    let utf8 = try_on(b"{\"b\":\"\xff\"}");
    assert_eq!(utf8, Err(MutationError::Document(JsonError::NotUtf8 { offset: 6 })));
    let deep = format!("{{\"b\":{}{}}}", "[".repeat(512), "]".repeat(512));
    assert!(matches!(try_on(deep.as_bytes()), Err(MutationError::Document(_))));
}

#[test]
fn the_search_stops_at_torn_text_that_was_not_checked() {
    let mutation = &parse("/a/b=1", Source::Server).unwrap()[0];
    for torn in [
        "",
        "{",
        "{\"a",
        "{\"a\\",
        "{\"a\":",
        "{\"a\":}",
        "{\"x\":[",
        "{\"x\":1 2}",
        "{x",
        "{\"a\" 1}",
    ] {
        assert!(find::find(torn.as_bytes(), &mutation.path, false).is_err(), "{torn}");
        assert!(wild::find_all(torn.as_bytes(), &mutation.path, false).is_err(), "{torn}");
    }
}

#[test]
fn every_bound_is_enforced() {
    let expression = |length: usize| format!("/a={}", "x".repeat(length - 3));
    assert!(parse(&expression(64 * 1024), Source::Server).is_ok());
    check_refused("{}", &expression(64 * 1024 + 1), &Cause::TooLong);

    let path = |segments: usize| format!("{}=1", "/a".repeat(segments));
    let nested = format!("{}1{}", "{\"a\":".repeat(128), "}".repeat(128));
    check("{}", &path(128), &nested);
    check(&nested, &format!("rm:/a{}/a", "/...".repeat(126)), r#"{"a":{}}"#);
    check_refused("{}", &path(129), &Cause::TooManySegments);
    check_refused("{}", &format!("{}{{{}}}", "/a".repeat(64), path(65)), &Cause::TooManySegments);
    check_refused("{}", &format!("/a{}=1", "[]".repeat(128)), &Cause::TooManySegments);

    let groups = |depth: usize| format!("{}/x=1{}", "/a{".repeat(depth), "}".repeat(depth));
    assert!(parse(&groups(16), Source::Server).is_ok());
    check_refused("{}", &groups(17), &Cause::GroupTooDeep);

    let members = |count: usize| format!("/a{{{}}}", "x++,".repeat(count));
    assert_eq!(parse(&members(4096), Source::Server).unwrap().len(), 4096);
    check_refused("{}", &members(4097), &Cause::TooManyMutations);

    let list = |count: usize| format!("{{\"l\":[0{}]}}", ",0".repeat(count - 1));
    assert!(mutate(&list(MATCHES_MAX), &["/l/[]++"]).is_ok());
    check_refused(&list(MATCHES_MAX + 1), "/l/[]++", &Cause::TooManyMatches);
    check_refused(&list(MATCHES_MAX + 1), "rm:/l/[]", &Cause::TooManyMatches);
}

#[test]
fn the_deepest_document_can_be_searched() {
    let nested = |inner: &str| format!("{}{inner}{}", "{\"a\":".repeat(511), "}".repeat(511));
    check(&nested(r#"{"x":1}"#), "rm:/.../x", &nested("{}"));
    check(&nested(r#"{"x":1}"#), "/a/.../x++", &nested(r#"{"x":2}"#));
}

#[test]
fn results_and_work_are_bounded() {
    let within = |expression: &str, bytes_max: u64| {
        let mutations = parse(expression, Source::Server).unwrap();
        apply_within(Some(b"{\"l\":[0,0]}"), &mutations, NOW, &NoFiles, bytes_max)
    };
    assert_eq!(within("/l[]=xyz", 19), Ok(b"{\"l\":[\"xyz\",\"xyz\"]}".to_vec()));
    assert_eq!(within("/l[]=xyz", 18), Err(MutationError::TooLarge { max: 18 }));
    assert_eq!(within("rm:/l", 10), Err(MutationError::TooLarge { max: 10 }));

    let document = format!("{{\"a\":\"{}\"}}", "x".repeat(2 << 20));
    let expression = format!("/n{{{}}}", "rm:x,".repeat(2048));
    let mutations = parse(&expression, Source::Server).unwrap();
    let refused = apply(Some(document.as_bytes()), &mutations, NOW, &NoFiles);
    assert!(matches!(refused, Err(MutationError::TooMuchWork { at_most: 2047 })));
    let wild = format!("/n{{{}}}", "rm:/*/a/b/c/d/e/f/g,".repeat(1024));
    let mutations = parse(&wild, Source::Server).unwrap();
    let refused = apply(Some(document.as_bytes()), &mutations, NOW, &NoFiles);
    assert!(matches!(refused, Err(MutationError::TooMuchWork { at_most: 1023 })));
}

#[test]
fn everything_behind_the_first_equals_sign_is_the_value() {
    for source in [Source::Server, Source::Local] {
        assert!(parse("a=b=c=(", source).is_ok());
    }
    check("{}", "a=b=c=(", r#"{"a":"b=c=("}"#);
    check("{}", "/a=b=c=(", r#"{"a":"b=c=("}"#);
    check("{}", "/a==1", r#"{"a":"=1"}"#);
    check_refused("{}", "a(b", &Cause::NoOperation);
}

#[test]
fn keys_are_told_from_expressions() {
    for key in ["orders", "jobs/7", "/orders", "a.b", "a-b", "", " ", "q/x/state/1", "rm", "a{b"] {
        assert!(!is_expression(key), "{key}");
    }
    for expression in [
        "/a=1",
        "a.b++",
        "a--",
        "rm:x",
        "remove:x",
        "delete:x",
        "del:x",
        "time:x=NOW",
        "file:a=b",
        "textfile:a=b",
        "base64file:a=b",
        "/p{/a=1}",
        "p{a++}",
        "a=",
        "=1",
        "/n=+0",
        " a=1 ",
    ] {
        assert!(is_expression(expression), "{expression}");
    }
}

#[test]
fn refusals_name_the_expression_and_the_remedy() {
    let message =
        |document: &str, expression: &str| mutate(document, &[expression]).unwrap_err().to_string();
    check_refused("{}", "", &Cause::Blank);
    check_refused("{}", " \n", &Cause::Blank);
    check_refused("{}", "orders", &Cause::NoOperation);
    check_refused("{}", "rm:time:/a", &Cause::TwoPrefixes);
    assert_eq!(
        message(r#"{"a":"x"}"#, "/a++"),
        "mutation \"/a++\": cannot add to text: set a number first"
    );
    assert_eq!(
        message("{}", "/p{"),
        "mutation \"/p{\": unbalanced braces: a group is written /path{/a=1,/b=2}, \
         other braces need quotes"
    );
    assert!(message("{}", &format!("/{}", "é".repeat(500))).len() < 500);
    assert_eq!(parse("/p{/a=1}", Source::Server).unwrap()[0].expression(), "/p{/a=1}");
}
