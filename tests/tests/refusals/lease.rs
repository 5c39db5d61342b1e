//! Acquire, keepalive and release, and the conditions on tokens that writes carry.

use lockd_tests::{Ask, Held, Request};
use lockd_wire::{ErrorCode, header, path};
use serde_json::{Value, json};

use super::{
    BAD_KEYS, BAD_NAMESPACES, BAD_TOKENS, BAD_TXNS, COMMAND_MAX, DECIDED, Make, Table, World,
    wrong_proofs,
};

pub(super) fn acquire_rows(table: &mut Table, world: &World) {
    let ask = || Ask::new("new", "tester");
    let of = |field: &str, value: Value| ask().field(field, value).request();
    for body in [
        "",
        " ",
        "{",
        "null",
        "[]",
        "7",
        "\"x\"",
        "{}{}",
        "{} x",
        r#"{"owner":"o","extra":1}"#,
        r#"[null,"new",null,null,"o"]"#,
        r#"{"owner":"o","owner":"o"}"#,
        r#"{"owner":7}"#,
        r#"{"owner":"o","ttl_ms":-1}"#,
        r#"{"owner":"o","ttl_seconds":1e3}"#,
        r#"{"owner":"o","block_seconds":99999999999999999999}"#,
        r#"{"owner":"\ud800"}"#,
    ] {
        let request = Request::post(path::ACQUIRE).body(body);
        table.bad(format!("acquire {body}"), request, ErrorCode::InvalidBody);
    }
    let request = Request::post(path::ACQUIRE).body(&b"{\"owner\":\"\xff\"}"[..]);
    table.bad("acquire: not UTF-8", request, ErrorCode::InvalidBody);
    table.row(
        "acquire: huge",
        of("owner", "x".repeat(COMMAND_MAX).into()),
        413,
        ErrorCode::BodyTooLarge,
    );
    for owner in ["", "  "] {
        table.bad("acquire: no owner", of("owner", owner.into()), ErrorCode::MissingOwner);
    }
    for owner in ["a\nb".to_owned(), "\u{7f}a".to_owned(), "o".repeat(513)] {
        table.bad("acquire: bad owner", of("owner", owner.into()), ErrorCode::InvalidOwner);
    }
    for ttl in [1, 9] {
        table.bad("acquire: short ttl", of("ttl_ms", ttl.into()), ErrorCode::InvalidTtl);
    }
    for txn in BAD_TXNS {
        table.bad("acquire: bad txn", of("txn_id", (*txn).into()), ErrorCode::InvalidTxn);
    }
    let request = ask().request().header(header::TXN_ID, "short");
    table.bad("acquire: bad txn header", request, ErrorCode::InvalidTxn);
    table.bad("acquire: no key", of("key", "/".into()), ErrorCode::MissingKey);
    for key in BAD_KEYS {
        table.bad("acquire: bad key", of("key", (*key).into()), ErrorCode::InvalidKey);
    }
    for namespace in BAD_NAMESPACES {
        let request = of("namespace", (*namespace).into());
        table.bad("acquire: bad namespace", request, ErrorCode::InvalidNamespace);
    }
    for stamp in ["", "  ", &"s".repeat(257)] {
        let request = ask().request().header(header::IDEMPOTENCY_KEY, stamp);
        table.bad("acquire: bad stamp", request, ErrorCode::InvalidIdempotencyKey);
    }
    acquire_conflict_rows(table, world);
}

pub(super) fn acquire_conflict_rows(table: &mut Table, world: &World) {
    let taken = |key: &str| Ask::new(key, "tester");
    table.row("acquire: held", taken("live").request(), 409, ErrorCode::Waiting);
    let request = taken("default/live").request();
    table.row("acquire: held, long name", request, 409, ErrorCode::Waiting);
    for key in ["live", "released", "lapsed"] {
        let request = taken(key).field("if_not_exists", true).request();
        table.row(format!("acquire: {key} exists"), request, 409, ErrorCode::AlreadyExists);
    }
    let request = taken("new").field("txn_id", DECIDED).request();
    table.row("acquire: txn is decided", request, 409, ErrorCode::TxnConflict);
    // It would wait for itself.
    let ask = taken("live").block(60).field("txn_id", world.live.txn.as_str());
    table.row("acquire: deadlock", ask.request(), 409, ErrorCode::Waiting);
    let request = taken("stamped").ttl_ms(5000).repeatable("once").request();
    table.row("acquire: stamp used before", request, 409, ErrorCode::IdempotencyKeyReused);
}

pub(super) fn keepalive_and_release_rows(table: &mut Table, world: &World) {
    let make: [(&str, Make); 2] =
        [("keepalive", |held| held.keepalive(5000)), ("release", |held| held.rollback())];
    for (what, make) in make {
        let good = make(&world.live);
        let change = |field: &str, value: Value| {
            let mut body: Value =
                serde_json::from_slice(good.body.as_deref().unwrap_or_default()).expect("JSON");
            body[field] = value;
            good.clone().json(&body)
        };
        for body in ["", "[]", "{", r#"{"lease":1}"#, "{} {}", r#"{"lease_id":null}"#] {
            let request = good.clone().body(body);
            table.bad(format!("{what} {body}"), request, ErrorCode::InvalidBody);
        }
        let request = change("lease_id", "l".repeat(COMMAND_MAX).into());
        table.row(format!("{what}: huge"), request, 413, ErrorCode::BodyTooLarge);
        for lease in ["", "  ", &"l".repeat(129)] {
            table.bad(what, change("lease_id", lease.into()), ErrorCode::MissingLease);
        }
        let request = good.clone().without(header::FENCING_TOKEN);
        table.bad(format!("{what}: no token"), request, ErrorCode::MissingFencingToken);
        for token in BAD_TOKENS {
            let request = good.clone().with(header::FENCING_TOKEN, token);
            table.bad(format!("{what}: token {token:?}"), request, ErrorCode::InvalidFencingToken);
        }
        table.bad(what, change("txn_id", Value::Null), ErrorCode::MissingTxn);
        for txn in BAD_TXNS {
            table.bad(what, change("txn_id", (*txn).into()), ErrorCode::InvalidTxn);
        }
        table.bad(what, change("key", "a//b".into()), ErrorCode::InvalidKey);
        table.bad(what, change("key", "/".into()), ErrorCode::MissingKey);
        table.bad(what, change("namespace", ".ha".into()), ErrorCode::InvalidNamespace);
        wrong_proofs(table, world, what, make);
        table.row(format!("{what}: revoked"), make(&world.revoked), 403, ErrorCode::Revoked);
    }
    let request = world.live.keepalive(5);
    table.bad("keepalive: short ttl", request, ErrorCode::InvalidTtl);
    table.row("keepalive: expired", world.lapsed.keepalive(5000), 403, ErrorCode::LeaseExpired);
    let required = ErrorCode::LeaseRequired;
    table.row("keepalive: released", world.released.keepalive(5000), 403, required);
    release_rows(table, world);
    let unnamed = json!({"lease_id": "nobody"});
    let request = Request::post(path::KEEPALIVE).json(&unnamed);
    table.row("keepalive: unknown lease alone", request, 403, required);
    let request = Request::post(path::RELEASE).json(&unnamed);
    table.row("release: unknown lease alone", request, 403, ErrorCode::FencingMismatch);
}

pub(super) fn release_rows(table: &mut Table, world: &World) {
    // A lost document must not look like a success, an unheld key not like one's own.
    table.row("release: expired", world.lapsed.release(), 403, ErrorCode::LeaseExpired);
    let nobody = Held { lease: "nobody".into(), ..world.live.clone() };
    table.row("release: unknown", nobody.release(), 403, ErrorCode::FencingMismatch);
    let opposite = world.released.rollback();
    table.row("release: the other way", opposite, 409, ErrorCode::TxnConflict);
    let reused = world.stamped_release.rollback().header(header::IDEMPOTENCY_KEY, "once");
    table.row("release: stamp", reused, 409, ErrorCode::IdempotencyKeyReused);
    let request = world.live.release().header(header::IDEMPOTENCY_KEY, "");
    table.bad("release: empty stamp", request, ErrorCode::InvalidIdempotencyKey);
    fence_rows(table, world, "release", &world.live.release());
}

pub(super) fn fence_rows(table: &mut Table, world: &World, what: &str, request: &Request) {
    for (keys, tokens) in [
        ("default/other", ""),
        ("", "1"),
        ("other", "1"),
        ("default/other", "x"),
        ("default/other", "-1"),
        ("default/other,default/live", "1"),
        (".ha/x", "1"),
    ] {
        let mut request = request.clone();
        if !keys.is_empty() {
            request = request.header(header::FENCE_KEY, keys);
        }
        if !tokens.is_empty() {
            request = request.header(header::FENCE_TOKEN, tokens);
        }
        table.bad(format!("{what}: fence {keys} {tokens}"), request, ErrorCode::InvalidFence);
    }
    let many = |one: &str| vec![one; 17].join(",");
    let request = request.clone();
    let too_many = request.clone().header(header::FENCE_KEY, many("default/other"));
    let too_many = too_many.header(header::FENCE_TOKEN, many("1"));
    table.bad(format!("{what}: 17 fences"), too_many, ErrorCode::InvalidFence);
    let wrong = request.header(header::FENCE_KEY, "default/other");
    let wrong = wrong.header(header::FENCE_TOKEN, world.other.token + 1);
    table.row(format!("{what}: fence fails"), wrong, 409, ErrorCode::FenceFailed);
}
