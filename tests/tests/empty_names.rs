//! Names that are empty: what an unset variable leaves behind. A server that filled in something
//! else would lock, join or decide something that the caller did not mean.

use std::time::Duration;

use lockd_server::Settings;
use lockd_tests::inside::{Inside, ask, to_http};
use lockd_tests::lease::public_get;
use lockd_tests::queue::{Enqueue, Message, dequeue, messages, stats, take};
use lockd_tests::{Ask, Held, Request};
use lockd_wire::ErrorCode::{
    self, InvalidFence, InvalidNamespace, InvalidTxn, MissingAttachment, MissingFields, MissingKey,
    MissingLease, MissingOwner, MissingParams, MissingQueue, MissingTxn, MissingTxnId,
};
use lockd_wire::{header, path};
use serde_json::{Value, json};

/// How an empty name arrives: nothing, or only white space.
const BLANKS: [&str; 3] = ["", "  ", "\t"];
const TXN: &str = "0123456789abcdefghi0";

#[derive(Default)]
struct Table(Vec<(String, Request, ErrorCode)>);

impl Table {
    fn row(&mut self, what: &str, request: Request, code: ErrorCode) {
        self.0.push((what.to_owned(), request, code));
    }

    /// The request with a blank in a field of its JSON body.
    fn field(&mut self, what: &str, request: &Request, field: &str, code: ErrorCode) {
        for blank in BLANKS {
            let request = with(request, field, blank.into());
            self.row(&format!("{what}: {field} {blank:?}"), request, code);
        }
    }

    /// The request with a blank in its query string.
    fn param(&mut self, what: &str, request: &Request, name: &str, code: ErrorCode) {
        for blank in BLANKS {
            let mut request = request.clone();
            request.query.retain(|(known, _)| known != name);
            let request = request.query(name, blank);
            self.row(&format!("{what}: ?{name}={blank:?}"), request, code);
        }
    }

    fn header(&mut self, what: &str, request: &Request, name: &str, code: ErrorCode) {
        for blank in BLANKS {
            let request = request.clone().with(name, blank);
            self.row(&format!("{what}: {name}: {blank:?}"), request, code);
        }
    }
}

fn with(request: &Request, field: &str, value: Value) -> Request {
    let text = request.body.as_deref().filter(|text| !text.is_empty()).unwrap_or(b"{}");
    let mut body: Value = serde_json::from_slice(text).expect("JSON");
    body[field] = value;
    request.clone().json(&body)
}

fn lease_rows(table: &mut Table, held: &Held) {
    let acquire = Ask::new("new", "tester").request();
    let mut unnamed: Value = json!({"owner": "tester", "block_seconds": -1});
    table.row("acquire: no key", Request::post(path::ACQUIRE).json(&unnamed), MissingKey);
    unnamed["key"] = Value::Null;
    let unnamed = Request::post(path::ACQUIRE).json(&unnamed);
    table.row("acquire: null", unnamed.clone(), MissingKey);
    table.field("acquire", &acquire, "key", MissingKey);
    table.param("acquire", &unnamed, "key", MissingKey);
    table.field("acquire", &acquire, "owner", MissingOwner);
    table.field("acquire", &acquire, "txn_id", InvalidTxn);
    table.header("acquire", &acquire, header::TXN_ID, InvalidTxn);
    table.field("acquire", &acquire, "namespace", InvalidNamespace);
    table.param("acquire", &acquire, "namespace", InvalidNamespace);
    for (what, request) in [("keepalive", held.keepalive(5_000)), ("release", held.release())] {
        table.field(what, &request, "key", MissingKey);
        table.field(what, &request, "namespace", InvalidNamespace);
        table.field(what, &request, "lease_id", MissingLease);
        table.field(what, &request, "txn_id", MissingTxn);
        table.header(what, &request, header::TXN_ID, MissingTxn);
        let alone = json!({"lease_id": held.lease, "txn_id": held.txn});
        let alone = Request { body: Some(alone.to_string().into()), ..request };
        table.param(what, &alone, "key", MissingKey);
        table.field(what, &alone, "txn_id", MissingTxn);
    }
    let revoke = Request::post(path::LEASES_REVOKE).json(&json!({"key": "k", "reason": "r"}));
    table.field("revoke", &revoke, "key", MissingKey);
    table.field("revoke", &revoke, "namespace", InvalidNamespace);
}

fn state_rows(table: &mut Table, held: &Held) {
    let attach = held.state(path::ATTACHMENTS).query("name", "a").body("x");
    for (what, request) in [
        ("update", held.update("1")),
        ("mutate", held.mutate(&["/n=1"])),
        ("metadata", held.state(path::METADATA).body(r#"{"query_hidden":true}"#)),
        ("remove", held.remove()),
        ("attach", attach.clone()),
        ("detach", Request { method: "DELETE".into(), ..attach.clone() }),
    ] {
        table.param(what, &request, "key", MissingKey);
        table.param(what, &request, "namespace", InvalidNamespace);
        table.header(what, &request, header::LEASE_ID, MissingLease);
        table.header(what, &request, header::TXN_ID, MissingTxn);
    }
    let mut mutate = held.mutate(&["/n=1"]);
    mutate.query.retain(|(name, _)| name != "namespace");
    table.field("mutate", &mutate, "namespace", InvalidNamespace);
    table.param("attach", &attach, "name", MissingAttachment);
    let download = Request { method: "GET".into(), path: path::ATTACHMENT.into(), ..attach };
    table.param("download", &download, "id", MissingAttachment);
    table.param("get", &held.get(), "key", MissingParams);
    table.param("get", &public_get("held"), "namespace", InvalidNamespace);
    table.header("public get", &public_get("held"), header::LEASE_ID, MissingLease);
    for path in [path::GET_STATE, path::UPDATE_STATE] {
        let request = Request::post(path).header(header::LEASE_ID, &held.lease).body("1");
        table.param(path, &request, "key", MissingKey);
        table.header(path, &request, header::LEASE_ID, MissingLease);
        table.header(path, &request, header::TXN_ID, InvalidTxn);
        let by_query = request.clone().query("lease_id", &held.lease);
        table.header(path, &by_query, header::LEASE_ID, MissingLease);
    }
    let describe = Request::get(path::DESCRIBE).query("key", "held");
    table.param("describe", &describe, "key", MissingKey);
    table.param("describe", &describe, "namespace", InvalidNamespace);
    let read = Request::post(path::READ).json(&json!({"keys": ["held"]}));
    table.field("read", &read, "namespace", InvalidNamespace);
    for blank in BLANKS {
        let read = Request::post(path::READ).json(&json!({"keys": ["held", blank]}));
        table.row("read: an empty key of two", read, MissingKey);
        // What `"$NAMESPACE/jobs/held"` is without its variable: never key `held` of `jobs`.
        let full = json!({"keys": [format!("{blank}/jobs/held")], "full_names": true});
        table.row("read: no namespace", Request::post(path::READ).json(&full), InvalidNamespace);
        let fenced = held.release().header(header::FENCE_TOKEN, 1);
        let name = format!("{blank}/jobs/held");
        table.row(
            "fence: no namespace",
            fenced.clone().header(header::FENCE_KEY, name),
            InvalidFence,
        );
        let name = format!("default/{blank}");
        table.row("fence: no key", fenced.header(header::FENCE_KEY, name), InvalidFence);
    }
}

fn listing_rows(table: &mut Table, message: &Message) {
    let watch = Request::get(path::WATCH).query("prefix", "");
    table.param("watch", &watch, "key", MissingKey);
    for path in [path::WATCH, path::LEASES, path::KEYS, path::QUEUES] {
        table.param(path, &Request::get(path), "namespace", InvalidNamespace);
    }
    let payload = Request::get(path::QUEUE_PAYLOAD).query("queue", "jobs");
    let payload = payload.query("message_id", &message.id());
    table.param("payload", &payload, "queue", MissingQueue);
    table.param("payload", &payload, "namespace", InvalidNamespace);
}

fn queue_rows(table: &mut Table, message: &Message) {
    for blank in BLANKS {
        let enqueue = |field: &str| Enqueue::new("jobs", "x").field(field, blank).request();
        table.row("enqueue: queue", enqueue("queue"), MissingQueue);
        table.row("enqueue: namespace", enqueue("namespace"), InvalidNamespace);
        table.row("enqueue: txn_id", enqueue("txn_id"), InvalidTxn);
        let acks = json!({"queue": "jobs", "messages": [
            {"message_id": message.id(), "lease_id": message.text("lease_id"), "txn_id": blank},
        ]});
        table.row("ack several: txn_id", Request::post(path::QUEUE_ACK).json(&acks), InvalidTxn);
        let dead = json!({"queue": "jobs", "message_ids": [blank]});
        let request = Request::post(path::QUEUE_DLQ_DELETE).json(&dead);
        table.row("dead letters: message_ids", request, ErrorCode::InvalidMessageId);
    }
    let enqueue = Enqueue::new("jobs", "x").request();
    table.header("enqueue", &enqueue, header::TXN_ID, InvalidTxn);
    table.param("enqueue", &enqueue, "namespace", InvalidNamespace);
    for path in [
        path::QUEUE_DEQUEUE,
        path::QUEUE_DEQUEUE_STATE,
        path::QUEUE_SUBSCRIBE,
        path::QUEUE_SUBSCRIBE_STATE,
    ] {
        let request = take(path, "empty", &json!({}));
        for (field, code) in [
            ("queue", MissingQueue),
            ("namespace", InvalidNamespace),
            ("owner", MissingOwner),
            ("txn_id", InvalidTxn),
        ] {
            table.field(path, &request, field, code);
        }
        table.header(path, &request, header::TXN_ID, InvalidTxn);
    }
    for (what, request) in [
        ("ack", message.ack()),
        ("nack", message.nack(&json!({}))),
        ("extend", message.extend(&json!({}))),
    ] {
        for field in ["queue", "message_id", "lease_id"] {
            table.field(what, &request, field, MissingFields);
        }
        table.field(what, &request, "namespace", InvalidNamespace);
        table.field(what, &request, "txn_id", InvalidTxn);
        table.field(what, &request, "state_lease_id", MissingLease);
    }
    for path in [path::QUEUE_WATCH, path::QUEUE_PEEK, path::QUEUE_DLQ, path::QUEUE_PURGE] {
        let request = Request { path: path.into(), ..stats("empty") };
        table.field(path, &request, "queue", MissingQueue);
        table.field(path, &request, "namespace", InvalidNamespace);
    }
    table.field("stats", &stats("empty"), "queue", MissingQueue);
    table.field("stats", &stats("empty"), "namespace", InvalidNamespace);
}

fn txn_rows(table: &mut Table) {
    for path in [path::TXN_DECIDE, path::TXN_COMMIT, path::TXN_ROLLBACK] {
        for blank in BLANKS {
            let ask = |namespace: &str, key: &str| {
                let one = json!({"namespace": namespace, "key": key});
                let body = json!({"txn_id": TXN, "state": "rollback", "participants": [one]});
                Request::post(path).json(&body)
            };
            table.row(&format!("{path}: namespace"), ask(blank, "k"), InvalidNamespace);
            table.row(&format!("{path}: key"), ask("default", blank), MissingKey);
        }
        let request = Request::post(path).json(&json!({"state": "rollback"}));
        table.field(path, &request, "txn_id", MissingTxnId);
    }
}

/// What the server says; nothing when its answer does not come to an end.
fn call(server: &Inside, request: &Request) -> Option<(u16, String)> {
    let answer = ask(&server.handler, to_http(request));
    let reply = server
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(5), answer).await.ok() });
    reply.map(|reply| reply.says())
}

#[test]
fn an_empty_name_is_refused_wherever_it_can_stand() {
    let server = Inside::default();
    let held = server.acquire(&Ask::new("held", "tester").ttl_ms(1_000_000));
    server.done(&held.commit("1"));
    server.done(&Enqueue::new("jobs", "x").request());
    let long = json!({"visibility_timeout_seconds": 1_000});
    let message = messages(&server.call(&dequeue("jobs", &long))).remove(0);
    let mut table = Table::default();
    lease_rows(&mut table, &held);
    state_rows(&mut table, &held);
    listing_rows(&mut table, &message);
    queue_rows(&mut table, &message);
    txn_rows(&mut table);
    let leases = || server.look(&Request::get(path::LEASES))["leases"].as_array().map(Vec::len);
    let keys = || server.look(&Request::get(path::KEYS))["keys"].clone();
    let (leases_before, keys_before) = (leases(), keys());
    let mut wrong = Vec::new();
    for (what, request, code) in &table.0 {
        match call(&server, request) {
            Some(said) if said == (400, code.as_str().to_owned()) => {}
            said => wrong.push(format!("{what}: {said:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), table.0.len(), wrong.join("\n"));
    assert_eq!((leases(), keys()), (leases_before, keys_before), "something was changed");
    server.stop();
}

#[test]
fn an_empty_key_is_not_granted_to_two() {
    let server = Inside::default();
    for key in BLANKS {
        let both = ["one", "two"].map(|owner| server.call(&Ask::new(key, owner).request()));
        let granted = both.iter().filter(|reply| reply.status == 200).count();
        assert_eq!(granted, 0, "key {key:?} was granted to {granted} of two at once");
        for reply in both {
            assert_eq!(reply.says(), (400, "missing_key".to_owned()), "{}", reply.text());
        }
    }
    server.stop();
}

fn generating(key: Option<&str>) -> Request {
    let mut body = json!({"owner": "tester", "block_seconds": -1, "generate_key": true});
    if let Some(key) = key {
        body["key"] = key.into();
    }
    Request::post(path::ACQUIRE).json(&body)
}

#[test]
fn a_key_is_generated_only_for_who_asks_for_one() {
    let server = Inside::default();
    let (one, two) =
        (Held::of(&server.call(&generating(None))), Held::of(&server.call(&generating(None))));
    assert_ne!(one.key, two.key);
    assert_eq!(one.key.len(), 36, "a UUID: {}", one.key);
    // Which of the two is meant cannot be known.
    for key in ["k", "", " "] {
        let reply = server.call(&generating(Some(key)));
        assert_eq!(reply.says(), (400, "invalid_params".to_owned()), "{}", reply.text());
    }
    let by_query = server.call(&generating(None).query("key", "k"));
    assert_eq!(by_query.says(), (400, "invalid_params".to_owned()), "{}", by_query.text());
    server.stop();
}

#[test]
fn a_setting_gives_go_clients_the_keys_that_they_expect() {
    let server = Inside::new(Settings { generate_keys: true, ..Settings::embedded_defaults() });
    let absent = json!({"owner": "tester", "block_seconds": -1});
    let absent = Held::of(&server.call(&Request::post(path::ACQUIRE).json(&absent)));
    let empty = server.acquire(&Ask::new("", "tester"));
    assert_ne!(absent.key, empty.key);
    // It is about keys of an acquire, and about nothing else.
    let reply = server.call(&absent.keepalive(5_000).json(&json!({
        "key": "", "lease_id": absent.lease, "txn_id": absent.txn,
    })));
    assert_eq!(reply.says(), (400, "missing_key".to_owned()), "{}", reply.text());
    let reply = server.call(&Ask::new("", "tester").field("namespace", "").request());
    assert_eq!(reply.says(), (400, "invalid_namespace".to_owned()), "{}", reply.text());
    server.stop();
}
