//! What operators ask, and paths that are none.

use lockd_tests::Request;
use lockd_wire::{ErrorCode, path};
use serde_json::{Value, json};

use super::{BAD_KEYS, COMMAND_MAX, Table, namespaces};

pub(super) fn operator_rows(table: &mut Table) {
    let (body, params) = (ErrorCode::InvalidBody, ErrorCode::InvalidParams);
    let post = |path: &str, body: &Value| Request::post(path).json(body);
    for wrong in [
        "",
        "{}",
        "[]",
        r#"[null,["live"]]"#,
        r#"{"keys":[]}"#,
        r#"{"keys":[1]}"#,
        "{\"keys\":[\"a\"],\"x\":1}",
    ] {
        table.bad(format!("read {wrong}"), Request::post(path::READ).body(wrong), body);
    }
    table.bad("read: 1001 keys", post(path::READ, &json!({"keys": vec!["a"; 1001]})), body);
    let keys = json!({"keys": ["a//b"]});
    table.bad("read: bad key", post(path::READ, &keys), ErrorCode::InvalidKey);
    let keys = json!({"keys": ["alone"], "full_names": true});
    table.bad("read: half a name", post(path::READ, &keys), ErrorCode::MissingKey);
    let keys = json!({"keys": ["a"], "namespace": ".ha"});
    table.bad("read: reserved", post(path::READ, &keys), ErrorCode::InvalidNamespace);
    let huge = json!({"keys": ["k".repeat(COMMAND_MAX)]});
    table.row("read: huge", post(path::READ, &huge), 413, ErrorCode::BodyTooLarge);
    let revoke = |body: Value| post(path::LEASES_REVOKE, &body);
    let long = "r".repeat(513);
    for wrong in [
        json!({"key": "live"}),
        json!({"key": "live", "reason": " "}),
        json!([]),
        json!({"key": "live", "reason": long}),
        json!({"key": "live", "reason": "r", "force": true}),
        json!([null, "live", "reason"]),
    ] {
        table.bad("revoke: body", revoke(wrong), body);
    }
    table.bad("revoke: no key", revoke(json!({"reason": "r"})), ErrorCode::MissingKey);
    let bad = revoke(json!({"reason": "r", "key": "a b"}));
    table.bad("revoke: bad key", bad, ErrorCode::InvalidKey);
    let bad = revoke(json!({"reason": "r", "key": "a", "namespace": ".ha"}));
    table.bad("revoke: reserved", bad, ErrorCode::InvalidNamespace);
    for listing in [path::LEASES, path::KEYS, path::NAMESPACES] {
        for limit in ["0", "-1", "x", "1.5", "99999999999999999999"] {
            let request = Request::get(listing).query("limit", limit);
            table.bad(format!("{listing} limit {limit}"), request, params);
        }
        if listing != path::NAMESPACES {
            namespaces(table, listing, &Request::get(listing));
        }
    }
    for listing in [path::LEASES, path::KEYS, path::NAMESPACES, path::QUEUES, path::TXNS] {
        for cursor in ["alone", "default/k", "a/b//c", ".ha/x", "AQ"] {
            let request = Request::get(listing).query("cursor", cursor);
            table.bad(format!("{listing}: cursor {cursor}"), request, ErrorCode::InvalidCursor);
        }
    }
    namespaces(table, "watch", &Request::get(path::WATCH));
    for key in BAD_KEYS {
        let request = Request::get(path::WATCH).query("key", key);
        table.bad("watch: bad key", request, ErrorCode::InvalidKey);
    }
}

pub(super) fn path_rows(table: &mut Table) {
    for (path, code) in [
        (path::QUERY, ErrorCode::QueryDisabled),
        (path::INDEX_FLUSH, ErrorCode::IndexUnavailable),
        (path::NAMESPACE, ErrorCode::NamespaceConfigUnavailable),
        (path::BACKUP, ErrorCode::StoreUnsupported),
    ] {
        table.row(path, Request::post(path), 501, code);
    }
    table.row(
        "read a namespace",
        Request::get(path::NAMESPACE),
        501,
        ErrorCode::NamespaceConfigUnavailable,
    );
    for path in path::ALL {
        for method in ["PUT", "PATCH", "TRACE", "BREW"] {
            let request = Request::new(method, path);
            table.row(format!("{method} {path}"), request, 405, ErrorCode::MethodNotAllowed);
        }
    }
    for path in [path::ACQUIRE, path::UPDATE, path::REMOVE, path::INDEX_FLUSH] {
        table.row(path, Request::get(path), 405, ErrorCode::MethodNotAllowed);
    }
    for path in
        ["/", "/v1", "/v1/", "/v2/acquire", "/v1/acquire/", "/V1/ACQUIRE", "//v1/get", "/metrics"]
    {
        table.row(path, Request::post(path), 404, ErrorCode::NotFound);
    }
    let huge = Request::get(path::LEASES).header("x-filler", "f".repeat(70_000));
    table.row("huge header", huge, 431, ErrorCode::HeadersTooLarge);
}
