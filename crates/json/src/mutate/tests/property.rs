//! Properties of mutations over random documents and expressions.
//!
//! The model is a list of members held as text, changed the obvious way; what it does not touch it
//! cannot alter, so equality with it shows that nothing else was altered either.

use proptest::prelude::*;

use super::{NOW, NoFiles, mutate};
use crate::compact::{Limits, compact};
use crate::mutate::find::find;
use crate::mutate::wild::find_all;
use crate::mutate::{Source, apply, parse};

/// Values whose text a reader that rewrites would change.
fn raw_value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        "\"([ -!#-\\[\\]-~é中]|\\\\u[0-9a-f]{4}|\\\\[/bn\"]){0,8}\"",
        "true|false|null",
    ];
    scalar.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec(("[ab]", inner), 0..4).prop_map(|items| {
                let items: Vec<_> = items.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
                format!("{{{}}}", items.join(","))
            }),
        ]
    })
}

/// Members with names that may repeat.
fn members() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[a-e]", raw_value()), 0..7)
}

fn written(members: &[(String, String)]) -> String {
    let members: Vec<_> = members.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
    format!("{{{}}}", members.join(","))
}

fn expression() -> impl Strategy<Value = String> {
    const PARTS: [&str; 34] = [
        "/",
        "a",
        "b",
        ".",
        "..",
        "...",
        "*",
        "**",
        "[]",
        "0",
        "1",
        "~0",
        "~",
        "\\",
        "=",
        "+",
        "-",
        "++",
        "--",
        "{",
        "}",
        ",",
        "\"",
        "'",
        "rm:",
        "time:",
        "NOW",
        "file:",
        "1e5",
        "9223372036854775807",
        " ",
        "\n",
        "é",
        "2025-01-31T12:00:00+01:00",
    ];
    prop::collection::vec(prop::sample::select(&PARTS[..]), 0..10).prop_map(|parts| parts.concat())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn setting_one_member_leaves_all_others_as_they_were(
        outer in members(), inner in members(), name in "[a-f]",
    ) {
        let mut expected = inner.clone();
        match expected.iter_mut().rev().find(|(k, _)| *k == name) {
            Some((_, value)) => *value = "\"new\"".to_owned(),
            None => expected.push((name.clone(), "\"new\"".to_owned())),
        }
        let nest = |inner: &[(String, String)]| {
            let mut outer = outer.clone();
            outer.insert(outer.len() / 2, ("in".to_owned(), written(inner)));
            written(&outer)
        };
        for path in [format!("/in/{name}=new"), format!("in.{name}='new'")] {
            prop_assert_eq!(mutate(&nest(&inner), &[&path]), Ok(nest(&expected)));
        }
    }

    #[test]
    fn removing_one_name_leaves_all_others_as_they_were(members in members(), name in "[a-f]") {
        let kept: Vec<_> = members.iter().filter(|(k, _)| *k != name).cloned().collect();
        let remove = format!("rm:/{name}");
        prop_assert_eq!(mutate(&written(&members), &[&remove]), Ok(written(&kept)));
    }

    #[test]
    fn wildcards_agree_with_the_model_on_members(members in members()) {
        let set: Vec<_> = members.iter().map(|(k, _)| (k.clone(), "7".to_owned())).collect();
        prop_assert_eq!(mutate(&written(&members), &["/*=7"]), Ok(written(&set)));
        prop_assert_eq!(mutate(&written(&members), &["rm:/**"]), Ok("{}".to_owned()));
    }

    #[test]
    fn nothing_panics_and_what_comes_out_is_a_document(
        members in members(), expressions in prop::collection::vec(expression(), 1..4),
    ) {
        let document = written(&members);
        for expression in &expressions {
            if let Ok(mutations) = parse(expression, Source::Local)
                && let Ok(out) = apply(Some(document.as_bytes()), &mutations, NOW, &NoFiles)
            {
                let out_again = compact(&out, Limits::default());
                prop_assert_eq!(out_again.as_ref(), Ok(&out), "{} {}", document, expression);
            }
        }
    }

    #[test]
    fn nothing_panics_on_damaged_documents(
        members in members(), place in any::<prop::sample::Index>(), byte in any::<u8>(),
        expression in expression(),
    ) {
        let mut document = written(&members).into_bytes();
        let at = place.index(document.len());
        document[at] = byte;
        if let Ok(mutations) = parse(&expression, Source::Local) {
            apply(Some(&document), &mutations, NOW, &NoFiles).ok();
            // The search holds its own even if a document were not checked first.
            for mutation in &mutations {
                for removing in [false, true] {
                    find(&document, &mutation.path, removing).ok();
                    find_all(&document, &mutation.path, removing).ok();
                }
            }
        }
    }
}
