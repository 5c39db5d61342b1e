//! Whatever way a path is written, a change is not taken for a read.

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;

fn rules(mutates: &[&str], reads: &[&str]) -> Rules {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    Rules::new(&owned(mutates), &owned(reads)).unwrap()
}

fn changes(rules: &Rules, method: &str, uri: &str, headers: &[(&str, &str)]) -> bool {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        map.append(name, HeaderValue::from_str(value).unwrap());
    }
    rules.changes(&method, &uri.parse().unwrap(), &map)
}

#[test]
fn by_default_the_method_decides() {
    let rules = Rules::default();
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert!(!changes(&rules, method, "/v1/jobs?a=b", &[]), "{method}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE", "PROPFIND", "get", "Get"] {
        assert!(changes(&rules, method, "/v1/jobs", &[]), "{method}");
    }
}

#[test]
fn exceptions_are_made_both_ways_and_a_change_wins() {
    let rules = rules(
        &["GET /admin/flush", "/purge/**", "OPTIONS *", "POST /v1/search/all"],
        &["POST /v1/search", "POST /v1/search/*", "PROPFIND *", "* /calc"],
    );
    assert!(changes(&rules, "GET", "/admin/flush", &[]));
    assert!(changes(&rules, "HEAD", "/admin/flush", &[]), "a server may take it for a GET");
    assert!(changes(&rules, "GET", "/ADMIN/Flush/", &[]));
    assert!(changes(&rules, "GET", "/purge", &[]) && changes(&rules, "GET", "/purge/a/b", &[]));
    assert!(changes(&rules, "OPTIONS", "*", &[]) && changes(&rules, "OPTIONS", "/a", &[]));
    assert!(!changes(&rules, "GET", "/admin/flushed", &[]));

    assert!(!changes(&rules, "POST", "/v1/search", &[]));
    assert!(!changes(&rules, "POST", "/v1/search/jobs", &[]));
    assert!(!changes(&rules, "PROPFIND", "/a/b", &[]));
    assert!(!changes(&rules, "DELETE", "/calc", &[]));
    assert!(changes(&rules, "POST", "/v1/search/all", &[]));
    for not_excepted in
        ["/V1/search", "/v1/search/", "//v1/search", "/v1/search/a%2Fb", "/v1/search/.."]
    {
        assert!(changes(&rules, "POST", not_excepted, &[]), "{not_excepted}");
    }
}

#[test]
fn a_pattern_may_be_written_with_escapes_or_without() {
    let rules = rules(&["GET /caf%c3%a9/*"], &["POST /s%C3%BCche", "POST /find/"]);
    assert!(changes(&rules, "GET", "/caf%C3%A9/x", &[]) && changes(&rules, "GET", "/café/x", &[]));
    assert!(
        !changes(&rules, "POST", "/s%C3%BCche", &[]) && !changes(&rules, "POST", "/süche", &[])
    );
    assert!(!changes(&rules, "POST", "/find/", &[]) && !changes(&rules, "POST", "/find", &[]));
}

#[test]
fn what_is_no_pattern_is_refused() {
    let refused = |text: &str| Rules::new(&[], &[text.to_owned()]).unwrap_err();
    for wrong in
        ["", "POST", "POST a", "P(ST /a", "POST /a b", "/a/**/b", "/a?b", "/a%2Fb", "/a%2A"]
    {
        assert_eq!(refused(wrong).pattern, wrong);
    }
    assert!(Rules::new(&["GET /a%2Fb".to_owned()], &[]).is_ok());
    let error = refused("POST").to_string();
    assert!(error.starts_with("the pattern \"POST\" cannot be used: "), "{error}");
}

#[test]
fn a_request_that_may_stand_for_another_is_a_change() {
    let plain = Rules::default();
    for header in
        ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X_HTTP_Method_Override"]
    {
        assert!(changes(&plain, "GET", "/a", &[(header, "DELETE")]), "{header}");
    }
    for query in
        ["_method=DELETE", "a=b&_METHOD=x", "a;%5Fmethod=x", "%255fmethod=x", "_method[]=x"]
    {
        assert!(changes(&plain, "GET", &format!("/a?{query}"), &[]), "{query}");
    }
    assert!(!changes(&plain, "GET", "/a?my_method=x&a=_method", &[]));
    let rules = rules(&["GET /flush"], &["POST /find"]);
    assert!(changes(&rules, "POST", "/find?_method=DELETE", &[]));
    assert!(changes(&rules, "GET", "/a", &[("x-original-url", "/x/../flush")]));
    assert!(changes(&rules, "POST", "/find", &[("x-rewrite-url", "/other")]));
    assert!(!changes(&rules, "GET", "/a", &[("x-original-url", "/b")]));
}

/// A server that decodes twice and takes what comes out for UTF-8 without looking.
#[test]
fn an_overlong_slash_behind_two_encodings_is_a_change() {
    let rules = rules(&["GET /admin/flush"], &["POST /find/*"]);
    for path in ["/admin%25c0%25afflush", "/x/%25c0%25ae%25c0%25ae/admin/flush"] {
        assert!(changes(&rules, "GET", path, &[]), "{path}");
    }
    assert!(changes(&rules, "POST", "/find/%25c0%25ae%25c0%25ae", &[]));
    assert!(changes(&rules, "GET", "/a", &[("x-original-url", "/admin%c0%afflush")]));
    assert!(!changes(&rules, "GET", "/caf%25C3%25A9", &[]));
}

/// Ways to write a path differently.
#[derive(Clone, Copy, Debug)]
enum Disguise {
    /// The byte at this place is escaped, with digits of this case.
    Escape(usize, bool),
    DoubleSlash(usize),
    Dot(usize),
    UpAgain(usize),
    Parameter(usize),
    Backslash(usize),
    Case(usize),
    SlashAtEnd,
    NulAtEnd,
    SpaceAtEnd,
}

fn disguise() -> impl Strategy<Value = Disguise> {
    prop_oneof![
        (any::<usize>(), any::<bool>()).prop_map(|(at, upper)| Disguise::Escape(at, upper)),
        any::<usize>().prop_map(Disguise::DoubleSlash),
        any::<usize>().prop_map(Disguise::Dot),
        any::<usize>().prop_map(Disguise::UpAgain),
        any::<usize>().prop_map(Disguise::Parameter),
        any::<usize>().prop_map(Disguise::Backslash),
        any::<usize>().prop_map(Disguise::Case),
        Just(Disguise::SlashAtEnd),
        Just(Disguise::NulAtEnd),
        Just(Disguise::SpaceAtEnd),
    ]
}

/// Puts `with` in the place of the slash of that number, counted around.
fn at_slash(path: &str, number: usize, with: &str) -> String {
    let slashes: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
    match slashes.get(number % slashes.len().max(1)) {
        Some(at) => format!("{}{with}{}", &path[..*at], &path[at + 1..]),
        None => path.to_owned(),
    }
}

impl Disguise {
    fn wear(self, path: &str) -> String {
        match self {
            Self::Escape(number, upper) => {
                // The first slash makes it a path.
                let at = 1 + number % (path.len() - 1);
                let byte = path.as_bytes()[at];
                let escaped = if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
                format!("{}{escaped}{}", &path[..at], &path[at + 1..])
            }
            Self::DoubleSlash(number) => at_slash(path, number, "//"),
            Self::Dot(number) => at_slash(path, number, "/./"),
            Self::UpAgain(number) => at_slash(path, number, "/x/../"),
            Self::Parameter(number) => {
                let slashes = path.matches('/').count();
                match number % (slashes + 1) {
                    0 => format!("{path};v=1"),
                    one if slashes > 1 => at_slash(path, one.max(1) % slashes.max(1), ";v=1/"),
                    _ => path.to_owned(),
                }
            }
            Self::Backslash(number) => {
                let slashes = path.matches('/').count();
                let one = 1 + number % slashes.max(2).saturating_sub(1);
                if slashes > 1 { at_slash(path, one, "%5c") } else { path.to_owned() }
            }
            Self::Case(number) => {
                let at = 1 + number % (path.len() - 1);
                let letter = path[at..=at].to_ascii_uppercase();
                format!("{}{letter}{}", &path[..at], &path[at + 1..])
            }
            Self::SlashAtEnd => format!("{path}/"),
            Self::NulAtEnd => format!("{path}%00.png"),
            Self::SpaceAtEnd => format!("{path}%20"),
        }
    }
}

/// What a server makes of a path that decodes it that often, then merges slashes, then resolves
/// dots.
fn understood(path: &str, times: usize) -> Vec<String> {
    let mut text = path.as_bytes().to_vec();
    for _ in 0..times {
        text = percent_decode(&text).collect();
    }
    let mut segments = Vec::new();
    for segment in String::from_utf8_lossy(&text).split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name.to_owned()),
        }
    }
    segments
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_disguise_gets_a_change_through(disguises in prop::collection::vec(disguise(), 0..7)) {
        let rules = rules(&["GET /admin/*/flush"], &["POST /**"]);
        let mut path = "/admin/cache/flush".to_owned();
        for disguise in &disguises {
            path = disguise.wear(&path);
        }
        prop_assert!(rules.mutates(&Method::GET, &path), "{path}");
        prop_assert!(readings(&path).is_some(), "judged by its readings: {path}");
        prop_assert!(!rules.mutates(&Method::GET, "/admin/cache/show"));
    }

    #[test]
    fn nothing_is_excepted_that_a_server_could_take_for_something_else(
        path in "/(a|find|\\.|/|\\.\\.|%2e|%2F|%252f|%25|2f|;|b|%5C){0,8}"
    ) {
        let rules = rules(&[], &["POST /find/*"]);
        if !rules.mutates(&Method::POST, &path) {
            for times in 0..3 {
                let segments = understood(&path, times);
                prop_assert_eq!(segments.len(), 2, "{}", &path);
                prop_assert_eq!(&segments[0], "find", "{}", &path);
            }
        }
    }

    #[test]
    fn any_text_is_judged_without_a_panic(path in "\\PC{0,200}") {
        let rules = rules(&["GET /a/*b*/**"], &["POST /c/*"]);
        let _judged = (rules.mutates(&Method::GET, &path), rules.mutates(&Method::POST, &path));
    }
}
