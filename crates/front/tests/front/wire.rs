//! What reaches the controller and comes back, byte for byte.

use futures_util::FutureExt as _;
use http::Method;

use crate::controller::Script;
use crate::stand::Stand;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

#[tokio::test]
async fn paths_are_carried_as_they_are_written() {
    let (address, mut heads) = Script::start().await.always(OK);
    let stand = Stand::before(address).await;
    stand.lead();
    for target in [
        "/",
        "/?",
        "/a?b=c&d=%20+e?/",
        "//a//b/",
        "/a/../b/./c/..",
        "/%2F%2f%2e%2E/%25zz/%25",
        "/a;v=1/b;w?x;y",
        "/a\\b|c^d",
        "/role/../role",
        "/caf\u{e9}",
        "/a?'{}|`\\",
        "//evil.example/x",
    ] {
        for method in ["GET", "POST", "DELETE", "PROPFIND"] {
            let mut line = stand.connect().await;
            line.write(&format!("{method} {target} HTTP/1.1\r\nHost: far.example:81\r\n\r\n"))
                .await;
            let answer = line.head().await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{target}: {answer}");
            let head = heads.recv().await.unwrap();
            assert_eq!(head.lines().next().unwrap(), format!("{method} {target} HTTP/1.1"));
            assert!(head.contains("\r\nhost: far.example:81\r\n"), "{head}");
        }
    }
    let mut line = stand.connect().await;
    line.write("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(line.head().await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(heads.recv().await.unwrap().starts_with("OPTIONS * HTTP/1.1\r\n"));
    let mut line = stand.connect().await;
    line.write("GET http://named.example/a//b HTTP/1.1\r\nHost: other\r\n\r\n").await;
    assert!(line.head().await.starts_with("HTTP/1.1 200 OK\r\n"));
    let head = heads.recv().await.unwrap();
    assert!(head.starts_with("GET /a//b HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nhost: named.example\r\n"), "{head}");
}

#[tokio::test]
async fn headers_end_where_they_are_meant_to() {
    let answer = "HTTP/1.1 200 Fine\r\ncontent-length: 2\r\nconnection: close, x-inner\r\n\
        x-inner: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: Basic\r\nupgrade: h3\r\n\
        set-cookie: a=1\r\nset-cookie: b=2\r\nx-role: LEADER\r\nx-node-id: fake\r\n\
        x-leader-epoch: 99\r\nx-leader-id: fake\r\netag: \"e\"\r\n\r\nok";
    let (address, mut heads) = Script::start().await.always(answer);
    let stand = Stand::before(address).await;
    let mut line = stand.connect().await;
    line.write(
        "GET /a HTTP/1.1\r\nHost: far.example\r\nConnection: keep-alive, X-Private\r\n\
         X-Private: 1\r\nX-Public: 2\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Connection: x\r\n\
         Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\
         X-Forwarded-For: 10.0.0.1\r\nAuthorization: Bearer x\r\n\r\n",
    )
    .await;
    let answer = line.until("\r\n\r\nok").await.to_lowercase();
    let head = heads.recv().await.unwrap();
    for kept in [
        "host: far.example",
        "x-public: 2",
        "authorization: Bearer x",
        "x-forwarded-for: 10.0.0.1, 192.0.2.7",
        "x-forwarded-proto: http",
        "x-forwarded-host: far.example",
        "te: trailers",
    ] {
        assert!(head.contains(&format!("\r\n{kept}\r\n")), "{kept}: {head}");
    }
    for gone in
        ["x-private", "keep-alive", "proxy-", "upgrade:", "http2-settings", "content-length"]
    {
        assert!(!head.contains(gone), "{gone}: {head}");
    }
    for kept in
        ["set-cookie: a=1", "set-cookie: b=2", "etag: \"e\"", "x-role: standby", "x-node-id: n1"]
    {
        assert!(answer.contains(&format!("\r\n{kept}\r\n")), "{kept}: {answer}");
    }
    for gone in ["x-inner", "keep-alive", "proxy-", "upgrade", "fake", "99", "close"] {
        assert!(!answer.contains(gone), "{gone}: {answer}");
    }
}

#[tokio::test]
async fn an_answer_without_a_body_keeps_the_length_it_speaks_of() {
    for (method, answer, length) in [
        ("HEAD", "200 OK\r\ncontent-length: 5", Some("content-length: 5")),
        ("HEAD", "200 OK\r\ntransfer-encoding: chunked", None),
        ("HEAD", "200 OK", None),
        ("GET", "304 Not Modified\r\netag: \"e\"", None),
        ("DELETE", "204 No Content", None),
        ("GET", "200 OK\r\ncontent-length: 0", Some("content-length: 0")),
    ] {
        let script = Script::start().await;
        let stand = Stand::before(script.address).await;
        stand.lead();
        let mut line = stand.connect().await;
        line.write(&format!("{method} /a HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        let mut inner = script.accept().await;
        inner.head().await;
        inner.write(&format!("HTTP/1.1 {answer}\r\n\r\n")).await;
        let head = line.head().await;
        let said = head.lines().find(|line| line.starts_with("content-length"));
        assert_eq!(said, length, "{method} {answer}: {head}");
        assert!(!head.contains("transfer-encoding"), "{head}");
    }
}

#[tokio::test]
async fn bodies_of_any_framing_arrive_whole() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    stand.lead();
    for (method, sent, arrives) in [
        ("POST", "content-length: 5\r\n\r\nabcde", "abcde"),
        (
            "POST",
            "transfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
            "5\r\nabcde\r\n0\r\n\r\n",
        ),
        (
            "GET",
            "transfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
            "5\r\nabcde\r\n0\r\n\r\n",
        ),
        ("GET", "content-length: 5\r\n\r\nabcde", "abcde"),
    ] {
        let mut line = stand.connect().await;
        line.write(&format!("{method} /a HTTP/1.1\r\nHost: h\r\n{sent}")).await;
        let mut inner = script.accept().await;
        let head = inner.head().await;
        assert_eq!(inner.until(arrives).await, arrives, "{method} {sent}: {head}");
        // Programs of before HTTP/1.1 end an answer by closing.
        inner.write("HTTP/1.0 200 OK\r\n\r\nhello").await;
        drop(inner);
        assert!(line.head().await.starts_with("HTTP/1.1 200 OK\r\n"));
        assert_eq!(line.until("0\r\n\r\n").await, "5\r\nhello\r\n0\r\n\r\n");
    }
}

#[tokio::test]
async fn what_a_client_sends_wrongly_is_its_own_fault() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    stand.lead();
    let mut line = stand.connect().await;
    line.write("POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n").await;
    let mut inner = script.accept().await;
    inner.head().await;
    line.write("not a length\r\n").await;
    let head = line.head().await;
    assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
    let body = line.until("}").await;
    assert!(body.contains("invalid_body") && body.contains("body of the request"), "{body}");
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    stand.lead();
    let mut line = stand.connect().await;
    line.write(
        "POST /a HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nTrailer: x-sum\r\n\
         Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-sum: 1\r\n\r\n",
    )
    .await;
    let mut inner = script.accept().await;
    inner.head().await;
    assert_eq!(inner.until("x-sum: 1\r\n\r\n").await, "1\r\na\r\n0\r\nx-sum: 1\r\n\r\n");
    inner
        .write(
            "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
             1\r\nb\r\n0\r\nx-sum: 2\r\n\r\n",
        )
        .await;
    line.head().await;
    assert_eq!(line.until("x-sum: 2\r\n\r\n").await, "1\r\nb\r\n0\r\nx-sum: 2\r\n\r\n");
}

#[tokio::test]
async fn a_client_is_asked_for_its_body_only_when_it_may_pass() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    let request =
        "POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    let mut line = stand.connect().await;
    line.write(request).await;
    let refused = line.head().await;
    assert!(refused.starts_with("HTTP/1.1 409 Conflict\r\n"), "{refused}");

    stand.lead();
    let mut line = stand.connect().await;
    line.write(request).await;
    let mut inner = script.accept().await;
    let head = inner.head().await;
    assert!(!head.contains("expect"), "{head}");
    assert_eq!(line.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    line.write("abc").await;
    assert_eq!(inner.until("abc").await, "abc");
    inner.write("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n").await;
    inner.write("HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await;
    assert!(line.head().await.starts_with("HTTP/1.1 201 Created\r\n"));
}

#[tokio::test]
async fn connections_are_not_turned_into_something_else() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    stand.lead();
    for request in [
        "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: WebSocket\r\n\r\n",
    ] {
        let mut line = stand.connect().await;
        line.write(request).await;
        assert!(line.head().await.starts_with("HTTP/1.1 501 Not Implemented\r\n"));
        assert!(line.until("}").await.contains("\"error\":\"upgrade_unsupported\""));
    }
    for request in [
        "TRACE /a HTTP/1.1\r\nHost: h\r\n\r\n",
        "CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n",
    ] {
        let mut line = stand.connect().await;
        line.write(request).await;
        let head = line.head().await;
        assert!(head.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"), "{head}");
        assert!(head.contains("x-node-id: n1"), "{head}");
    }

    let mut line = stand.connect().await;
    line.write("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let mut inner = script.accept().await;
    inner.head().await;
    inner
        .write("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")
        .await;
    let head = line.head().await;
    assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{head}");
    assert_eq!(stand.ask(Method::GET, "/role").await.status, 200);
}

/// A slash, a dot and a line end as decoders have read them that did not check what they read.
#[tokio::test]
async fn a_path_that_does_not_decode_is_refused_and_not_passed_on() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    stand.lead();
    for path in [
        "/a%c0%af..%c0%afadmin",
        "/a/%c0%ae%c0%ae/admin",
        "/a/%e0%80%af",
        "/a/%f0%80%80%af",
        "/a/%ff",
        "/a/%c3",
        "/a/%ed%a0%80",
        "/a/%f5%80%80%80",
        "/a/%",
        "/a/%4",
        "/a/%zz",
        "/a/%u002e",
        "/a/x%00.png",
        "/ha/%c0%af",
    ] {
        for method in ["GET", "POST"] {
            let mut line = stand.connect().await;
            let request =
                format!("{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
            line.write(&request).await;
            let head = line.head().await;
            assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{path}: {head}");
            assert!(head.contains("x-node-id: n1"), "{path}: {head}");
            let body = line.until("}").await;
            assert!(body.contains("\"error\":\"invalid_path\""), "{path}: {body}");
        }
    }
    assert!(script.accept().now_or_never().is_none(), "the controller has heard of none of it");
    let answer = stand.ask(Method::GET, "/ha/caf%C3%A9%2F%25").await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"other"[..]));
}
