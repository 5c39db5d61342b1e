//! The layers of settings and the problems they can have.

use std::time::Duration;

use super::{Layers, Loaded, Problems, load};
use crate::config::{SETTINGS, Settings, example};

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn run(
    flags: &[(&str, &str)],
    environment: &[(&str, &str)],
    file: &str,
) -> Result<Loaded, Problems> {
    let mut flags = pairs(flags);
    flags.push(("disable-mtls".into(), "true".into()));
    let file = Some(("lockd.yaml".to_owned(), file.to_owned()));
    load(&Layers { flags, file, home: Some("/home/u".into()) }, &pairs(environment))
}

#[test]
fn flags_beat_the_environment_which_beats_the_file_which_beats_defaults() {
    let ttl = |flags: &[_], environment: &[_], file| {
        run(flags, environment, file).unwrap().settings.default_ttl.as_secs()
    };
    assert_eq!(ttl(&[], &[], ""), 30);
    assert_eq!(ttl(&[], &[], "default-ttl: 11s"), 11);
    assert_eq!(ttl(&[], &[("LOCKD_DEFAULT_TTL", "12s")], "default-ttl: 11s"), 12);
    assert_eq!(
        ttl(&[("default-ttl", "13s")], &[("LOCKD_DEFAULT_TTL", "12s")], "default-ttl: 11s"),
        13
    );
}

#[test]
fn every_problem_of_every_layer_is_reported_at_once() {
    let Problems(problems) = run(
        &[("max-ttl", "never"), ("listen", "0.0.0.0:80")],
        &[("LOCKD_JSON_MAX", "lots")],
        "no-such-thing: 1\nmax-waiters: 0",
    )
    .unwrap_err();
    let all = problems.join("\n");
    for part in ["--max-ttl", "LOCKD_JSON_MAX", "lockd.yaml: no-such-thing", "max-waiters"] {
        assert!(all.contains(part), "{part} is missing in:\n{all}");
    }
}

#[test]
fn plain_http_is_for_loopback_unless_told_otherwise() {
    let open = [("listen", "0.0.0.0:80")];
    assert!(run(&open, &[], "").unwrap_err().to_string().contains("--insecure-bind"));
    assert!(run(&[open[0], ("insecure-bind", "true")], &[], "").is_ok());
    assert!(run(&[("listen", "[::1]:80,unix:///tmp/x")], &[], "").is_ok());
}

#[test]
fn mutual_tls_is_the_default_and_bundles_are_at_home() {
    let layers = Layers { home: Some("/h".into()), ..Layers::default() };
    let settings = load(&layers, &pairs(&[])).unwrap().settings;
    assert!(settings.mtls);
    assert_eq!(settings.identity.config_dir, Some("/h/.lockd".into()));
    let moved = load(&layers, &pairs(&[("LOCKD_CONFIG_DIR", "/c"), ("LOCKD_BUNDLE", "/b.pem")]));
    let identity = moved.unwrap().settings.identity;
    assert_eq!(identity.config_dir, Some("/c".into()));
    assert_eq!(identity.bundle, Some("/b.pem".into()));
}

#[test]
fn unknown_variables_are_told_but_other_programs_may_have_theirs() {
    let environment = [("LOCKD_DEFALT_TTL", "1s"), ("LOCKD_CLIENT_KEY", "k")];
    let warnings = run(&[], &environment, "").unwrap().warnings;
    assert_eq!(warnings, ["LOCKD_DEFALT_TTL is set but is no setting of lockd"]);
}

#[test]
fn limits_must_fit_together() {
    let Problems(problems) = run(&[("max-ttl", "1s")], &[], "").unwrap_err();
    assert_eq!(problems, ["max-ttl is below default-ttl"]);
}

#[test]
fn the_example_file_names_every_setting_and_its_lines_are_valid() {
    let text = example();
    let uncommented: String = text
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| SETTINGS.iter().any(|s| line.starts_with(&format!("{}:", s.name))))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(uncommented.lines().count(), SETTINGS.len());
    let plain = run(&[], &[], "").unwrap().settings;
    assert_eq!(run(&[], &[], &uncommented).unwrap().settings, plain);
}

#[test]
fn a_server_inside_another_program_has_harmless_defaults() {
    let settings = Settings::embedded_defaults();
    assert_eq!(settings.default_ttl, Duration::from_secs(30));
    assert!(!settings.mtls);
}
