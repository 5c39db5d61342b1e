//! Attachments as their users meet them: staged with the lease, committed with the transaction,
//! streamed both ways in little memory.

use std::io::Write as _;

use lockd_server::Settings;
use lockd_tests::http::Connection;
use lockd_tests::inside::Inside;
use lockd_tests::{Ask, Held, Request, Server, eventually, process};
use lockd_wire::{header, path};
use serde_json::json;
use sha2::{Digest, Sha256};

fn put(held: &Held, name: &str, bytes: impl Into<Vec<u8>>) -> Request {
    held.state(path::ATTACHMENTS).query("name", name).body(bytes)
}

fn list(held: &Held) -> Request {
    Request { method: "GET".into(), ..held.state(path::ATTACHMENTS) }
}

fn delete(held: &Held, name: &str) -> Request {
    Request { method: "DELETE".into(), ..held.state(path::ATTACHMENT) }.query("name", name)
}

fn public(key: &str) -> Request {
    Request::get(path::ATTACHMENTS).query("key", key).query("public", "1")
}

fn public_one(key: &str, name: &str) -> Request {
    Request::get(path::ATTACHMENT).query("key", key).query("public", "1").query("name", name)
}

fn names(server: &Inside, request: &Request) -> Vec<String> {
    let reply = server.look(request);
    let all = reply["attachments"].as_array().expect("a list").clone();
    all.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_attachment_is_staged_committed_read_and_deleted() {
    let server = Inside::default();
    let held = server.acquire(&Ask::new("k", "o"));
    let picture = put(&held, "picture.png", vec![7; 100_000]).header("content-type", "image/png");
    let stored = server.call(&picture).ok();
    let info = stored.json();
    assert_eq!(stored.header(header::ATTACHMENT_ID), info["attachment"]["id"].as_str());
    assert_eq!(info["attachment"]["size"], 100_000);
    assert_eq!(info["attachment"]["plaintext_sha256"], hex(&[7; 100_000]));
    assert_eq!(info["attachment"]["content_type"], "image/png");
    assert_eq!(info["version"], 1);
    server.done(&put(&held, "empty", ""));
    server.done(&held.update(r#"{"n":1}"#));
    assert_eq!(names(&server, &list(&held)), ["empty", "picture.png"]);
    assert!(names(&server, &public("k")).is_empty(), "staged");
    server.call(&public_one("k", "empty")).refused(404, "attachment_not_found");
    server.done(&held.release());

    assert_eq!(names(&server, &public("k")), ["empty", "picture.png"]);
    let read = server.call(&public_one("k", "picture.png")).ok();
    assert_eq!(read.body, vec![7; 100_000]);
    assert_eq!(read.header("content-type"), Some("image/png"));
    assert_eq!(read.header("content-length"), Some("100000"));
    assert_eq!(read.header(header::ATTACHMENT_SHA256), Some(hex(&[7; 100_000]).as_str()));
    assert_eq!(server.call(&public_one("k", "empty")).ok().body, b"");

    let held = server.acquire(&Ask::new("k", "o"));
    assert_eq!(server.look(&delete(&held, "nothing"))["deleted"], false);
    assert_eq!(server.look(&delete(&held, "empty"))["deleted"], true);
    assert_eq!(names(&server, &public("k")).len(), 2, "staged");
    server.done(&held.rollback());
    assert_eq!(names(&server, &public("k")).len(), 2, "rolled back");
    let held = server.acquire(&Ask::new("k", "o"));
    let all = Request { method: "DELETE".into(), ..held.state(path::ATTACHMENTS) };
    assert_eq!(server.look(&all)["deleted"], 2);
    server.done(&held.release());
    assert!(names(&server, &public("k")).is_empty());
}

#[test]
fn what_is_there_may_stay_or_be_replaced() {
    let server = Inside::default();
    let held = server.acquire(&Ask::new("k", "o"));
    let first = server.look(&put(&held, "a", "one"));
    let kept = server.look(&put(&held, "a", "two").query("prevent_overwrite", "1"));
    assert_eq!((&kept["noop"], &kept["attachment"]), (&json!(true), &first["attachment"]));
    let second = server.look(&put(&held, "a", "two"));
    assert_eq!(second["attachment"]["id"], first["attachment"]["id"]);
    server.done(&held.release());
    assert_eq!(server.call(&public_one("k", "a")).ok().body, b"two");
}

#[test]
fn attachments_of_several_keys_are_one_transaction() {
    let server = Inside::default();
    let one = server.acquire(&Ask::new("a", "o"));
    let other = server.acquire(&Ask::new("b", "o").field("txn_id", one.txn.as_str()));
    server.done(&put(&one, "x", vec![1; 5_000]));
    server.done(&put(&other, "y", vec![2; 5_000]));
    assert!(names(&server, &public("a")).is_empty());
    server.done(&one.release());
    assert_eq!(
        (names(&server, &public("a")), names(&server, &public("b"))),
        (vec!["x".into()], vec!["y".into()])
    );
}

#[test]
fn refusals_change_nothing() {
    let server = Inside::new(Settings { attachment_max: 50, ..Settings::embedded_defaults() });
    let held = server.acquire(&Ask::new("k", "o"));
    for (request, status, code) in [
        (held.state(path::ATTACHMENTS).body("x"), 400, "missing_attachment"),
        (
            Request { method: "GET".into(), ..held.state(path::ATTACHMENT) },
            400,
            "missing_attachment",
        ),
        (put(&held, "a", "x").query("max_bytes", "many"), 400, "invalid_max_bytes"),
        (put(&held, "a", "xyz").query("max_bytes", "2"), 413, "attachment_too_large"),
        (put(&held, "a", vec![0; 51]), 413, "attachment_too_large"),
        (put(&held, "a", vec![0; 51]).query("max_bytes", "0"), 413, "attachment_too_large"),
        (put(&held, &"n".repeat(256), "x"), 400, "invalid_params"),
        (put(&held, "a", "x").with(header::LEASE_ID, "other"), 403, "lease_required"),
        (put(&held, "a", "x").without(header::FENCING_TOKEN), 400, "missing_fencing_token"),
        (put(&held, "a", "x").header(header::EXPECTED_BYTES, 2), 409, "expected_bytes_mismatch"),
        (
            put(&held, "a", "x").header(header::EXPECTED_SHA256, hex(b"y")),
            409,
            "expected_sha256_mismatch",
        ),
    ] {
        server.call(&request).refused(status, code);
    }
    let wrong = Request { method: "PUT".into(), ..put(&held, "a", "x") };
    let refused = server.call(&wrong);
    refused.refused(405, "method_not_allowed");
    assert_eq!(refused.header("allow"), Some("POST, GET, DELETE"));
    assert!(names(&server, &list(&held)).is_empty());
    for number in 0..256 {
        server.done(&put(&held, &number.to_string(), "x"));
    }
    server.call(&put(&held, "one more", "x")).refused(409, "too_many_attachments");
}

#[test]
fn what_is_replaced_or_given_up_leaves_no_file() {
    let server = Server::usual();
    let mut client = server.client();
    let mut hold = || Held::of(&client.call(&Ask::new("k", "o").request()));
    let held = hold();
    let mut client = server.client();
    client.call(&put(&held, "a", vec![1; 5_000])).ok();
    client.call(&put(&held, "a", vec![2; 5_000])).ok();
    client.call(&held.release()).ok();
    eventually("one file is left", || server.blobs().len() == 1);
    let held = Held::of(&client.call(&Ask::new("k", "o").request()));
    client.call(&put(&held, "a", vec![3; 5_000])).ok();
    client.call(&put(&held, "b", vec![4; 5_000])).ok();
    client.call(&held.rollback()).ok();
    eventually("the first is still the one", || server.blobs().len() == 1);
    assert_eq!(client.call(&public_one("k", "a")).ok().body, vec![2; 5_000]);
}

#[test]
fn the_sdk_attaches_and_reads() {
    let server = Server::start(lockd_tests::Options::in_memory());
    let lockd_tests::Place::Tcp(address) = server.place else { panic!("not over the network") };
    let client = lockd_client::Client::connect(&format!("http://{address}")).expect("a client");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let lease = client.lease("k").await.expect("free");
        let files = lease.attachments();
        let put = files.put("a.txt", "hello".to_owned().into_bytes()).content_type("text/plain");
        let attached = put.await.expect("attached");
        assert_eq!((attached.info.size, attached.version, attached.kept), (5, 1, false));
        let kept = files.put("a.txt", b"other".to_vec()).keep_existing().await.expect("kept");
        assert!(kept.kept);
        assert!(files.delete("none").await.is_ok_and(|deleted| !deleted));
        assert_eq!(files.list().await.expect("a list").len(), 1);
        let everybody = client.attachments("k");
        assert!(everybody.get("a.txt").await.expect("an answer").is_none(), "staged");
        lease.release().await.expect("released");
        let mut stream = everybody.get("a.txt").await.expect("an answer").expect("one");
        assert_eq!((stream.length(), stream.content_type()), (Some(5), Some("text/plain")));
        assert_eq!(stream.chunk().await.expect("bytes").as_deref(), Some(&b"hello"[..]));
    });
}

#[test]
fn a_gigabyte_goes_in_and_out_in_little_memory() {
    const PIECE: usize = 1 << 20;
    const PIECES: u64 = 1_000;
    const GROWTH_MAX: u64 = 48 << 20;
    let server = Server::usual();
    let mut client = server.client();
    let held = Held::of(&client.call(&Ask::new("k", "o").ttl_ms(600_000).request()));
    let before = process::resident(server.pid());
    let mut connection = Connection::open(&server.place).expect("a connection");
    let length = PIECES * PIECE as u64;
    let request = held.state(path::ATTACHMENTS).query("name", "large");
    connection
        .socket
        .write_all(&request.head(&format!("content-length: {length}\r\n")))
        .expect("sent");
    let (mut piece, mut sent) = (vec![0_u8; PIECE], Sha256::new());
    let mut peak = before;
    for number in 0..PIECES {
        piece[..8].copy_from_slice(&number.to_le_bytes());
        sent.update(&piece);
        connection.socket.write_all(&piece).expect("sent");
        if number % 50 == 0 {
            peak = peak.max(process::resident(server.pid()));
        }
    }
    let stored = connection.reply().expect("an answer").ok().json();
    assert_eq!(stored["attachment"]["size"], length);
    client.call(&held.release()).ok();
    let (mut read, mut bytes) = (Sha256::new(), 0_u64);
    connection.send(&public_one("k", "large")).expect("sent");
    let answer = connection.reply_to(|piece| {
        read.update(piece);
        bytes += piece.len() as u64;
        if bytes % (64 << 20) < 64 * 1024 {
            peak = peak.max(process::resident(server.pid()));
        }
    });
    assert_eq!(answer.expect("an answer").status, 200);
    assert_eq!((bytes, read.finalize()), (length, sent.finalize()));
    assert!(peak - before < GROWTH_MAX, "{} MiB", (peak - before) >> 20);
    println!("grew by {} MiB", (peak - before) >> 20);
}
