//! What people are shown: everything that matters and no secret.

use serde_json::{Value, json};

use super::inspect;
use crate::bundle::{Bundle, CaBundle, ClientBundle};
use crate::fixture::{CHEAP, Odd, authority, client, day, now, server};
use crate::seal::Password;
use crate::serial::Serial;

fn shown(bundle: &Bundle) -> Value {
    serde_json::to_value(inspect(bundle, now())).unwrap()
}

#[test]
fn a_server_is_described() {
    let ours = authority();
    let mut bundle = server(&ours);
    bundle.revoke(Serial::parse("0ABC").unwrap());
    let node_id = bundle.node_id().to_owned();
    let value = shown(&Bundle::Server(bundle.clone()));
    assert_eq!(value["kind"], "server");
    assert_eq!(value["name"], "lockd-server");
    assert_eq!(value["role"], "server");
    assert_eq!(value["identity"], format!("spiffe://lockd/server/{node_id}"));
    assert_eq!(value["claims"], json!(["ALL=rw"]));
    assert_eq!(value["hosts"], json!(["localhost", "127.0.0.1", "::1"]));
    assert_eq!(value["revoked"], json!(["abc"]));
    assert_eq!(value["ca_key"], "absent");
    assert_eq!(value["problems"], json!([]));
    assert_eq!(value["issuer_fingerprint"], ours.certificate().fingerprint());
    assert_eq!(value["authorities"][0]["name"], "lockd-ca");
    assert!(value["days_left"] == 364 || value["days_left"] == 365, "{value}");
    assert!(value["not_after"].as_str().unwrap().ends_with('Z'), "{value}");
    assert!(!value.to_string().contains("PRIVATE"));
}

#[test]
fn a_ca_is_described() {
    let password = Password::new("x".to_owned()).unwrap();
    let bundle = CaBundle::new(&authority(), Some(&password), CHEAP).unwrap();
    let value = shown(&Bundle::Ca(bundle));
    assert_eq!(value["kind"], "CA");
    assert_eq!(value["ca_key"], "sealed");
    assert_eq!(value["name"], "lockd-ca");
    assert!(value.get("role").is_none());
    assert!(value["days_left"].as_i64().unwrap() > 3600, "{value}");
}

#[test]
fn problems_are_told() {
    let (ours, theirs) = (authority(), authority());
    let problems = |bundle: ClientBundle| {
        let summary = inspect(&Bundle::Client(bundle), now());
        (summary.problems.join(" "), summary.issuer_fingerprint.is_some(), summary.days_left)
    };
    assert_eq!(problems(client(&ours, "a")).0, "");
    let late = Odd { at: day(-3), days: 2, ..Odd::client() }.leaf(&ours);
    let (told, signed, days) = problems(ClientBundle::new(&ours, late));
    assert!(told.contains("expired") && signed && days < 0, "{told} {days}");
    let foreign = Odd::client().leaf(&theirs);
    let (told, signed, _) = problems(ClientBundle::new(&ours, foreign));
    assert!(told.contains("not issued by a CA") && !signed, "{told}");
    let uris = vec!["spiffe://lockd/sdk/a", "lockd://ns/a?perm=x"];
    let malformed = Odd { uris, ..Odd::client() }.leaf(&ours);
    let (told, ..) = problems(ClientBundle::new(&ours, malformed));
    assert!(told.contains("closes every namespace"), "{told}");
}
