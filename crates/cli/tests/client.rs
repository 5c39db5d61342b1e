//! The client commands against a real server, as a shell would use them.

mod server;

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};
use server::{Running, Server, text};

#[test]
fn the_whole_walk_works_in_a_shell() {
    let server = Server::start();
    let output = server.shell(
        r#"
        eval "$(lockd client acquire --owner 'worker "1" $x' --ttl 30s orders)"
        lockd client keepalive --ttl 45s orders >/dev/null
        echo '{"status":{"counter":1}}' | lockd client update orders >/dev/null
        lockd client get orders -o - \
          | lockd client edit status.counter++ \
          | lockd client update orders >/dev/null
        lockd client set orders progress.step=fetch progress.count++ >/dev/null
        lockd client mutate orders /progress/count=+5 >/dev/null
        lockd client mutate --local rm:/nothing /progress/count++ >/dev/null
        lockd client get --public orders
        lockd client get
        lockd client describe | grep holder
        lockd client release orders
        unset LOCKD_CLIENT_LEASE
        lockd client get orders
        lockd client describe | grep holder
        "#,
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let lines: Vec<_> = out.lines().collect();
    let state = r#"{"status":{"counter":2},"progress":{"step":"fetch","count":7}}"#;
    assert_eq!(lines[0], state, "public reads show nothing before the release");
    assert!(lines[1].starts_with(r#"holder:   worker "1" $x until "#), "{}", lines[1]);
    assert_eq!(lines[2..], [state, "holder:   nobody"]);
    assert!(text(&output.stderr).contains("orders has no state"), "the public read");
}

#[test]
fn a_busy_key_exits_with_75_and_names_its_holder() {
    let server = Server::start();
    server.acquire("orders", &["--owner", "worker-1"]);
    for block in ["nowait", "-1", "1s"] {
        let (code, said) = server.fails(&["acquire", "orders", "--block", block]);
        assert_eq!(code, 75, "{said}");
        assert!(said.contains("\"worker-1\" holds it for"), "{said}");
    }
    let (code, _) = server.fails(&["acquire", "orders", "--if-not-exists"]);
    assert_eq!(code, 73);
}

#[test]
fn a_lost_lease_exits_with_76_and_says_why() {
    let server = Server::start();
    let lease = server.acquire("orders", &[]);
    let said = server.ok(&["leases", "revoke", "orders", "--reason", "host is gone"]);
    assert!(said.starts_with("revoked orders from "), "{said}");
    for arguments in [&["update"][..], &["keepalive"], &["get"], &["release"], &["set", "a=1"]] {
        let output = server.under(&lease, arguments, "{}");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(76), "{arguments:?}: {said}");
        assert!(said.contains("host is gone"), "{said}");
    }
    let (code, said) = server.fails(&["leases", "revoke", "orders"]);
    assert_eq!(code, 2, "a reason is needed: {said}");
    assert_eq!(
        server.ok(&["leases", "revoke", "orders", "--reason", "x"]).trim(),
        "nobody holds orders"
    );
}

#[test]
fn a_command_without_its_lease_says_how_to_get_one() {
    let server = Server::start();
    let (code, said) = server.fails(&["release", "orders"]);
    assert_eq!(code, 2);
    assert!(said.contains("eval \"$(lockd client acquire orders)\""), "{said}");
    let lease = server.acquire("orders", &[]);
    let output = server.under(&lease, &["update", "other"], "{}");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is for \"orders\""), "{}", text(&output.stderr));
    let (code, said) = server.fails(&["update"]);
    assert_eq!((code, said.contains("LOCKD_CLIENT_KEY")), (2, true), "{said}");
}

#[test]
fn conditions_that_do_not_hold_exit_with_79_and_change_nothing() {
    let server = Server::start();
    let lease = server.acquire("orders", &[]);
    server.acquire("leader", &["--ttl", "1m"]);
    let done = server.under(&lease, &["update", "--commit", "--output", "json"], r#"{"n":1}"#);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let done: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&done["new_version"], &done["bytes"]), (&json!(1), &json!(7)));

    for arguments in [
        &["update", "--if-version", "7"][..],
        &["update", "--if-etag", "no"],
        &["update", "--fence", "default/leader=9"],
        &["remove", "--if-version", "7"],
        &["mutate", "n++", "--if-version", "7"],
        &["set", "n++", "--if-version", "7"],
        &["release", "--fence", "default/leader=9"],
    ] {
        let output = server.under(&lease, arguments, "{}");
        assert_eq!(output.status.code(), Some(79), "{arguments:?}: {}", text(&output.stderr));
    }
    let right = ["update", "--if-version", "1", "--fence", "default/leader=1", "--then", "release"];
    let output = server.under(&lease, &right, r#"{"n":2}"#);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(server.ok(&["get", "orders"]), "{\"n\":2}\n");
    assert!(server.ok(&["describe", "orders"]).contains("holder:   nobody"));
}

#[test]
fn yaml_goes_in_and_out() {
    let server = Server::start();
    let lease = server.acquire("orders", &[]);
    let folder = server.home.path();
    std::fs::write(folder.join("in.yaml"), "step: fetch\nitems:\n  - 1\n  - two\n").unwrap();
    let file = folder.join("in.yaml");
    let output =
        server.under(&lease, &["update", "orders", file.to_str().unwrap(), "--commit"], "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(server.ok(&["get", "orders"]), "{\"step\":\"fetch\",\"items\":[1,\"two\"]}\n");
    let out = folder.join("out.yaml");
    server.ok(&["get", "orders", "-o", out.to_str().unwrap()]);
    let written = std::fs::read_to_string(&out).unwrap();
    assert!(written.starts_with("step: fetch\n"), "{written}");
    assert!(server.ok(&["get", "orders", "--type", "json"]).contains("  \"step\": \"fetch\",\n"));
}

#[test]
fn a_document_larger_than_what_is_kept_passes_through() {
    let server = Server::start();
    let lease = server.acquire("orders", &[]);
    let document = format!("[\"{}\"]", "x".repeat(3 << 20));
    let output = server.under(&lease, &["update", "--commit"], &document);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(server.ok(&["get", "orders"]), format!("{document}\n"));
}

#[test]
fn what_is_not_json_is_refused_and_changes_nothing() {
    let server = Server::start();
    let lease = server.acquire("orders", &[]);
    let output = server.under(&lease, &["update", "--commit"], "{oops");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("invalid_body"), "{}", text(&output.stderr));
    let output = server.under(&lease, &["update", "orders", "/no/such/file"], "");
    assert!(text(&output.stderr).contains("cannot read /no/such/file"));
    assert_eq!(server.ok(&["get", "orders"]), "");
}

#[test]
fn listings_show_keys_namespaces_and_holders() {
    let server = Server::start();
    for key in ["jobs/1", "jobs/2", "other"] {
        let lease = server.acquire(key, &["--owner", "me"]);
        server.under(&lease, &["update", "--commit"], "1");
    }
    server.acquire("elsewhere", &["--namespace", "team"]);
    assert_eq!(server.ok(&["ls"]), "jobs/1\njobs/2\nother\n");
    assert_eq!(server.ok(&["ls", "jobs/"]), "jobs/1\njobs/2\n");
    assert_eq!(server.ok(&["ls", "--namespaces"]), "default\nteam\n");
    assert_eq!(server.ok(&["ls", "-n", "team"]), "elsewhere\n");
    let long = server.ok(&["ls", "--long", "other"]);
    assert!(long.starts_with("held\tversion=1\ttoken=1\tbytes=1\t"), "{long}");
    let rows = server.ok(&["ls", "--output", "json"]);
    let first: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert_eq!((&first["key"], &first["held"]), (&json!("jobs/1"), &json!(true)));
    for arguments in
        [&["leases", "list", "--prefix", "default/jobs/"][..], &["leases", "-n", "team"]]
    {
        assert!(!server.ok(arguments).contains("other"), "{arguments:?}");
    }
    let leases = server.ok(&["leases", "-n", "default", "--prefix", "jobs/"]);
    assert_eq!(leases.lines().count(), 2, "{leases}");
    assert!(leases.contains("owner=me"), "{leases}");
}

#[test]
fn many_keys_come_in_many_pages() {
    let server = Server::start();
    let output = server.shell(
        "i=0; while [ $i -lt 130 ]; do lockd client acquire k$i >/dev/null; i=$((i+1)); done",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(server.ok(&["ls"]).lines().count(), 130);
    assert_eq!(server.ok(&["leases"]).lines().count(), 130);
}

#[test]
fn a_watch_tells_what_happens() {
    let server = Server::start();
    let mut watch = Running::start(server.client(["watch", "jobs/"]));
    assert_eq!(watch.line(), "reset begins reason=start");
    assert!(watch.line().starts_with("reset complete"));
    let lease = server.acquire("jobs/7", &["--owner", "me"]);
    assert_eq!(watch.line(), "lease default/jobs/7 granted owner=me token=1");
    server.under(&lease, &["update", "--commit"], "1");
    assert!(watch.line().starts_with("state default/jobs/7 version=1 bytes=1 etag="));
    server.acquire("other", &[]);
    server.under(&lease, &["release"], "");
    assert_eq!(watch.line(), "lease default/jobs/7 released owner=me token=1");

    let mut json = Running::start(server.client(["watch", "jobs/7", "--output", "json"]));
    let event: Value = serde_json::from_str(&json.line()).unwrap();
    assert_eq!(event, json!({ "event": "reset", "reason": "start", "complete": false }));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let server = Server::start();
    let lease = server.acquire("orders", &[]);
    let document = format!("[\"{}\"]", "x".repeat(1 << 20));
    server.under(&lease, &["update", "--commit"], &document);
    for arguments in [&["get", "orders"][..], &["ls"], &["describe", "orders"]] {
        let mut child =
            server.client(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {:?}", output.status);
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
}

#[test]
fn no_server_exits_with_69() {
    let mut server = Server::start();
    server.stop();
    for arguments in
        [&["get", "k"][..], &["acquire", "k", "--retries", "0", "--block", "nowait"], &["watch"]]
    {
        let (code, said) = server.fails(arguments);
        assert_eq!(code, 69, "{said}");
        assert!(said.contains("--server"), "{said}");
    }
    let (code, said) = server.fails(&["get", "k", "--server", "https://h"]);
    assert_eq!((code, said.contains("no client bundle")), (2, true), "{said}");
}

#[test]
fn a_pipe_of_edits_needs_no_server() {
    let server = Server::start();
    let mut child = server
        .client(["edit", "a.b=1", "--server", "http://127.0.0.1:1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{\"keep\":1.0}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "{\"keep\":1.0,\"a\":{\"b\":1}}\n");
}

#[test]
fn attachments_are_put_listed_read_and_deleted() {
    let server = Server::start();
    let script = r#"
        eval "$(lockd client acquire reports/7)"
        printf 'all is well' > summary.txt
        lockd client attachments put reports/7 --file summary.txt --content-type text/plain
        printf 'more' | lockd client attachments put --name more
        lockd client attachments list | cut -f 1,2,3
        lockd client attachments list --public
        lockd client release
        unset LOCKD_CLIENT_LEASE
        lockd client attachments get reports/7 --name summary.txt -o copy.txt
        cmp summary.txt copy.txt
        lockd client attachments get reports/7 --name more; echo
        eval "$(lockd client acquire reports/7)"
        lockd client attachments delete --name more
        lockd client attachments delete-all
        lockd client release
    "#;
    let output = server.shell(script);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let sha = "f70579cce37a17bd1c4c4061b0beff0fbf58853a2f0c72a14f";
    let said = text(&output.stdout);
    assert!(said.starts_with(&format!("attached summary.txt bytes=11 sha256={sha}")), "{said}");
    let rest: Vec<&str> = said.lines().skip(2).collect();
    let expected = [
        "more\t4\tapplication/octet-stream",
        "summary.txt\t11\ttext/plain",
        "more",
        "deleted",
        "deleted 1",
    ];
    assert_eq!(rest, expected, "{said}");
    let (code, why) = server.fails(&["attachments", "get", "reports/7", "--name", "more"]);
    assert!(code == 1 && why.contains("has no attachment"), "{code}: {why}");
}

#[test]
fn transactions_are_shown_and_decided() {
    let server = Server::start();
    let script = r#"
        txn=0123456789abcdefghi0
        lockd client acquire a --txn-id $txn > a.env
        lockd client acquire b --txn-id $txn > b.env
        (eval "$(cat a.env)"; echo '{"n":1}' | lockd client update a > /dev/null)
        (eval "$(cat b.env)"; echo '{"n":2}' | lockd client update b > /dev/null)
        lockd txn list --server $LOCKD_CLIENT_SERVER | cut -f 1,2,3
        lockd txn commit $txn --server $LOCKD_CLIENT_SERVER
        lockd txn show $txn --server $LOCKD_CLIENT_SERVER | grep '^state\|^key'
        lockd client get a
        lockd client get b
        lockd txn replay --txn-id $txn --server $LOCKD_CLIENT_SERVER --output json
        lockd txn rollback $txn --server $LOCKD_CLIENT_SERVER || echo $?
    "#;
    let output = server.shell(script);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = "\
0123456789abcdefghi0\tpending\t2
0123456789abcdefghi0 commit
state:       commit
key:         default/a
key:         default/b
{\"n\":1}
{\"n\":2}
{\"txn_id\":\"0123456789abcdefghi0\",\"state\":\"commit\"}
1
";
    assert_eq!(text(&output.stdout), expected);
    assert!(text(&output.stderr).contains("the transaction is committed"));
}
