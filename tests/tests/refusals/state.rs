//! Reading and writing documents.

use lockd_tests::Request;
use lockd_wire::{ErrorCode, header, path};

use super::lease::fence_rows;
use super::{
    BAD_KEYS, BAD_TOKENS, COMMAND_MAX, JSON_MAX, MUTATE_MAX, Make, Table, World, lease_conditions,
    names, namespaces, query, tokens_and_txns,
};

pub(super) fn state_rows(table: &mut Table, world: &World) {
    let writes: [(&str, Make); 4] = [
        ("update", |held| held.update("{}")),
        ("mutate", |held| held.mutate(&["/n=1"])),
        ("metadata", |held| held.state(path::METADATA).body(r#"{"query_hidden":false}"#)),
        ("remove", |held| held.remove()),
    ];
    for (what, make) in writes {
        let good = make(&world.live);
        names(table, what, &good);
        tokens_and_txns(table, what, &good);
        for (name, code) in [
            (header::LEASE_ID, ErrorCode::MissingLease),
            (header::FENCING_TOKEN, ErrorCode::MissingFencingToken),
            (header::TXN_ID, ErrorCode::MissingTxn),
        ] {
            table.bad(format!("{what}: no {name}"), good.clone().without(name), code);
        }
        lease_conditions(table, world, what, make);
        fence_rows(table, world, what, &good);
        for bad in ["x", "", "1.0", "99999999999999999999"] {
            let request = good.clone().header(header::IF_VERSION, bad);
            table.bad(format!("{what}: if version {bad:?}"), request, ErrorCode::InvalidVersion);
        }
        for version in ["0", "1", "3", "-1"] {
            let request = good.clone().header(header::IF_VERSION, version);
            table.row(what, request, 409, ErrorCode::VersionConflict);
        }
        for etag in ["x", "", "\"\""] {
            let request = good.clone().header(header::IF_STATE_ETAG, etag);
            table.row(format!("{what}: etag {etag:?}"), request, 409, ErrorCode::EtagMismatch);
        }
        table.bad(what, good.clone().query("then", "later"), ErrorCode::InvalidParams);
        let stamp = good.clone().header(header::IDEMPOTENCY_KEY, "s".repeat(257));
        table.bad(what, stamp, ErrorCode::InvalidIdempotencyKey);
        let hidden = good.header(header::QUERY_HIDDEN, "maybe");
        table.bad(format!("{what}: hidden"), hidden, ErrorCode::InvalidMetadata);
        let again = make(&world.stamped).query("then", "commit");
        let again = again.header(header::IDEMPOTENCY_KEY, "once");
        table.row(format!("{what}: stamp"), again, 409, ErrorCode::IdempotencyKeyReused);
    }
}

pub(super) fn update_rows(table: &mut Table, world: &World) {
    let deep = "[".repeat(600) + &"]".repeat(600);
    let makes: [(&str, Make); 2] = [
        ("update", |held| held.update("{}")),
        ("update_state", |held| {
            Request::post(path::UPDATE_STATE).header(header::LEASE_ID, &held.lease).body("{}")
        }),
    ];
    for (what, make) in makes {
        let good = make(&world.live);
        for body in ["", " ", "{", "{}{}", "nul", "[1,]", "01", "\"a", "{\"a\"}", "\u{0}", &deep] {
            let request = good.clone().body(body);
            let shown: String = body.chars().take(12).collect();
            table.bad(format!("{what} {shown:?}"), request, ErrorCode::InvalidBody);
        }
        let request = good.clone().body(&b"\"\xff\xfe\""[..]);
        table.bad(format!("{what}: not UTF-8"), request, ErrorCode::InvalidBody);
        let large = format!("\"{}\"", "x".repeat(JSON_MAX as usize));
        let large = good.clone().body(large);
        table.row(format!("{what}: too large"), large, 413, ErrorCode::DocumentTooLarge);
        for bad in ["x", "-1", "", "1.0", "99999999999999999999"] {
            let request = good.clone().header(header::EXPECTED_BYTES, bad);
            table.bad(format!("{what}: bytes {bad:?}"), request, ErrorCode::InvalidExpectedBytes);
        }
        for bad in ["x", "", &"g".repeat(64), &"a".repeat(63)] {
            let request = good.clone().header(header::EXPECTED_SHA256, bad);
            table.bad(format!("{what}: sha {bad:?}"), request, ErrorCode::InvalidExpectedSha256);
        }
        let request = good.clone().header(header::EXPECTED_BYTES, 3);
        table.row(what, request, 409, ErrorCode::ExpectedBytesMismatch);
        let request = good.header(header::EXPECTED_SHA256, "a".repeat(64));
        table.row(what, request, 409, ErrorCode::ExpectedSha256Mismatch);
    }
}

/// The endpoints that need nothing but a lease id.
pub(super) fn by_lease_rows(table: &mut Table, world: &World) {
    let makes: [(&str, Make); 2] = [
        ("get_state", |held| Request::post(path::GET_STATE).header(header::LEASE_ID, &held.lease)),
        ("update_state", |held| {
            Request::post(path::UPDATE_STATE).header(header::LEASE_ID, &held.lease).body("{}")
        }),
    ];
    for (what, make) in makes {
        let good = make(&world.live);
        let none = good.clone().without(header::LEASE_ID);
        table.bad(format!("{what}: no lease"), none, ErrorCode::MissingLease);
        let nobody = good.clone().with(header::LEASE_ID, "nobody");
        table.row(format!("{what}: unknown"), nobody, 403, ErrorCode::LeaseRequired);
        table.row(
            format!("{what}: released"),
            make(&world.released),
            403,
            ErrorCode::LeaseRequired,
        );
        table.row(format!("{what}: expired"), make(&world.lapsed), 403, ErrorCode::LeaseExpired);
        table.row(format!("{what}: revoked"), make(&world.revoked), 403, ErrorCode::Revoked);
        for bad in BAD_TOKENS {
            let request = good.clone().header(header::FENCING_TOKEN, bad);
            table.bad(format!("{what}: {bad:?}"), request, ErrorCode::InvalidFencingToken);
        }
        let wrong = good.clone().header(header::FENCING_TOKEN, 77);
        table.row(what, wrong, 403, ErrorCode::FencingMismatch);
        let crossed = good.clone().header(header::TXN_ID, &world.other.txn);
        table.row(what, crossed, 409, ErrorCode::TxnMismatch);
        table.bad(what, good.clone().header(header::TXN_ID, "short"), ErrorCode::InvalidTxn);
        table.bad(what, good.clone().query("key", "a//b"), ErrorCode::InvalidKey);
        let elsewhere = good.query("key", "live").query("namespace", ".ha");
        table.bad(what, elsewhere, ErrorCode::InvalidNamespace);
    }
}

pub(super) fn mutate_rows(table: &mut Table, world: &World) {
    let live = &world.live;
    for body in ["", "[]", "{", r#"{"mutations":"x"}"#, r#"{"mutations":[1]}"#, r#"{"x":1}"#, "{}"]
    {
        let request = live.state(path::MUTATE).body(body);
        table.bad(format!("mutate {body}"), request, ErrorCode::InvalidBody);
    }
    table.bad("mutate: blanks only", live.mutate(&["", "  "]), ErrorCode::InvalidBody);
    for expression in [
        "nonsense",
        "/",
        "/=1",
        "rm:",
        "rm:/",
        "/n",
        "file:/a=/etc/passwd",
        "textfile:/a=x",
        "base64file:/a=x",
        "time:/t=yesterday",
        "/n=+0",
        "/n{/a=1",
    ] {
        let request = live.mutate(&["/ok=1", expression]);
        table.bad(format!("mutate {expression}"), request, ErrorCode::InvalidMutations);
    }
    let list = world.list.mutate(&["/n=1"]);
    table.bad("mutate: a list", list, ErrorCode::InvalidMutations);
    let text = live.mutate(&["/n=text", "/n++"]);
    table.bad("mutate: not a number", text, ErrorCode::InvalidMutations);
    let large = world.large.mutate(&["/n=1"]);
    table.row("mutate: large document", large, 413, ErrorCode::DocumentTooLarge);
    let long = format!("/n={}", "x".repeat(MUTATE_MAX as usize));
    table.row("mutate: huge body", live.mutate(&[&long]), 413, ErrorCode::BodyTooLarge);
    for body in ["", "{}", "{", "[true]", r#"{"x":1}"#, r#"{"query_hidden":"yes"}"#, "{}{}"] {
        let request = live.state(path::METADATA).body(body);
        table.bad(format!("metadata {body}"), request, ErrorCode::InvalidMetadata);
    }
    let request = live.state(path::METADATA).body(" ".repeat(COMMAND_MAX + 1));
    table.row("metadata: huge", request, 413, ErrorCode::BodyTooLarge);
}

pub(super) fn get_rows(table: &mut Table, world: &World) {
    let good = world.live.get();
    let params = ErrorCode::MissingParams;
    table.bad("get: no key", query(&good, "key", None), params);
    table.bad("get: blank key", query(&good, "key", Some(" ")), params);
    table.bad("get: no lease", good.clone().without(header::LEASE_ID), params);
    let none = good.clone().without(header::FENCING_TOKEN);
    table.bad("get: no token", none, ErrorCode::MissingFencingToken);
    let long = good.clone().with(header::LEASE_ID, "l".repeat(129));
    table.bad("get: long lease", long, ErrorCode::MissingLease);
    tokens_and_txns(table, "get", &good);
    lease_conditions(table, world, "get", |held| held.get());
    let public = lockd_tests::lease::public_get("live");
    for (what, request) in [("get", &good), ("public get", &public)] {
        for bad in BAD_KEYS {
            table.bad(what, query(request, "key", Some(bad)), ErrorCode::InvalidKey);
        }
        table.bad(what, query(request, "key", Some("/")), ErrorCode::MissingKey);
        namespaces(table, what, request);
    }
    let no = query(&public, "public", Some("no"));
    table.bad("get: public=no", no, ErrorCode::MissingFencingToken);
    names(table, "describe", &Request::get(path::DESCRIBE).query("key", "live"));
}
