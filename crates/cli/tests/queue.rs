//! Queues on the command line, against a real server.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod server;

use rustix::process::Signal;
use serde_json::{Value, json};
use server::{Running, Server, text};

fn queue<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["queue"], arguments].concat()
}

/// Waits until the counts of a queue are these.
fn settled(server: &Server, name: &str, expected: &Value) {
    for _ in 0..500 {
        let stats = server.ok(&queue(&["stats", name, "--output", "json"]));
        let stats: Value = serde_json::from_str(&stats).unwrap();
        let same =
            expected.as_object().unwrap().iter().all(|(field, value)| &stats[field] == value);
        if same {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{name} does not come to {expected}: {}", server.ok(&queue(&["stats", name])));
}

#[test]
fn the_whole_walk_works_in_a_shell() {
    let server = Server::start();
    let output = server.shell(
        r#"
        printf 'resize cat.png' | lockd client queue enqueue jobs --content-type text/plain \
          --attr width=300 > id
        eval "$(lockd client queue dequeue jobs --owner me --visibility 20s)"
        [ "$LOCKD_QUEUE_MESSAGE_ID" = "$(cat id)" ] && echo same
        cat "$LOCKD_QUEUE_PAYLOAD_PATH"; echo
        echo "$LOCKD_QUEUE_NAME $LOCKD_QUEUE_NAMESPACE $LOCKD_QUEUE_ATTEMPTS $LOCKD_QUEUE_ATTRIBUTES"
        lockd client q extend --extend 1m > /dev/null
        lockd client q nack --reason 'no ink' --delay 0
        lockd client q peek jobs | cut -f 2,3,4,5,7
        eval "$(lockd client q dequeue -o payload.txt)"
        cat payload.txt; echo
        echo "$LOCKD_QUEUE_ATTEMPTS $LOCKD_QUEUE_FAILURES"
        lockd client q ack
        lockd client q ack
        lockd client q dequeue --block nowait || echo "nothing: $?"
        "#,
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = "\
same
resize cat.png
jobs default 1 {\"width\":\"300\"}
given back
ready\t1\t1/5\t14\t\"no ink\"
resize cat.png
2 1
acknowledged
acknowledged
nothing: 74
";
    assert_eq!(text(&output.stdout), expected);
    assert!(text(&output.stderr).contains("no message came from jobs"), "{}", text(&output.stderr));
}

#[test]
fn a_message_is_printed_as_json_with_its_payload_beside_it() {
    let server = Server::start();
    for number in ["1", "2", "3"] {
        let data = ["enqueue", "-q", "jobs", "-d", number, "--attributes", r#"{"size":1}"#];
        server.ok(&queue(&data));
    }
    let printed = server.ok(&queue(&["dequeue", "jobs", "--page-size", "2", "--output", "json"]));
    let messages: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(messages.len(), 2);
    for (message, payload) in messages.iter().zip(["1", "2"]) {
        let path = message["payload_path"].as_str().unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), payload);
        assert_eq!(message["attributes"], json!({ "size": 1 }));
        std::fs::remove_file(path).unwrap();
    }
    settled(&server, "jobs", &json!({ "ready": 1, "in_flight": 2 }));
    let yaml = server.ok(&queue(&["dequeue", "jobs", "--output", "yaml"]));
    assert!(yaml.contains("attributes:\n  size: 1\n"), "{yaml}");
    for arguments in [
        &["dequeue", "jobs", "--page-size", "2"][..],
        &["dequeue", "jobs", "-o", "-"],
        &["dequeue"],
    ] {
        let (code, said) = server.fails(&queue(arguments));
        assert_eq!(code, 2, "{said}");
        assert!(said.lines().count() > 1, "it says what to do: {said}");
    }
}

#[test]
fn a_message_of_another_is_refused_with_76() {
    let server = Server::start();
    let output = server.shell(
        r#"
        lockd client q enqueue jobs -d x > /dev/null
        eval "$(lockd client q dequeue jobs)"
        lockd client q nack -i defer
        lockd client q ack || echo $?
        lockd client q extend || echo $?
        lockd client q ack --message other || echo $?
        unset LOCKD_QUEUE_MESSAGE_ID
        lockd client q ack || echo $?
        lockd client q nack -i defer --reason x --message a --lease b || echo $?
        "#,
    );
    assert_eq!(text(&output.stdout), "given back\n76\n76\n2\n2\n2\n", "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("the one in the environment is for"), "{said}");
    assert!(said.contains("eval \"$(lockd client queue dequeue"), "{said}");
}

#[test]
fn fences_and_transactions_hold_for_messages() {
    let server = Server::start();
    let output = server.shell(
        r#"
        lockd client acquire leader > lease
        lockd client q enqueue jobs -d 1 --fence default/leader=9 || echo $?
        lockd client q enqueue jobs -d 1 --fence default/leader=1 > /dev/null
        eval "$(lockd client q dequeue jobs)"
        lockd client q ack --fence default/leader=9 || echo $?
        lockd client q ack --fence default/leader=1
        txn=0123456789abcdefghi0
        eval "$(lockd client acquire orders --txn-id $txn)"
        lockd client q enqueue out -d 2 --txn-id $txn > /dev/null
        lockd client q dequeue out --block nowait || echo $?
        echo '{"n":1}' | lockd client update orders > /dev/null
        lockd client release orders
        eval "$(lockd client q dequeue out --block 5s)"
        cat "$LOCKD_QUEUE_PAYLOAD_PATH"; echo
        "#,
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "79\n79\nacknowledged\n74\n2\n");
}

#[test]
fn a_message_keeps_its_state_from_one_consumer_to_the_next() {
    let server = Server::start();
    let output = server.shell(
        r#"
        lockd client q enqueue jobs -d x > /dev/null
        state() {
          lockd client "$@" --key "$LOCKD_QUEUE_STATE_KEY" --lease "$LOCKD_QUEUE_STATE_LEASE" \
            --fencing-token "$LOCKD_QUEUE_STATE_FENCING_TOKEN" --txn-id "$LOCKD_QUEUE_STATE_TXN_ID"
        }
        eval "$(lockd client q dequeue jobs --stateful)"
        echo '{"step":1}' | state update > /dev/null
        lockd client q nack
        eval "$(lockd client q dequeue jobs --stateful)"
        state get
        lockd client q ack
        "#,
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "given back\n{\"step\":1}\nacknowledged\n");
}

#[test]
fn queues_are_listed_counted_watched_and_purged() {
    let server = Server::start();
    let mut watch = Running::start(server.client(queue(&["watch", "jobs"])));
    assert_eq!(watch.line(), "default/jobs empty");
    let first = server.ok(&queue(&["enqueue", "jobs", "-d", "a"]));
    assert_eq!(watch.line(), format!("default/jobs available head={}", first.trim()));
    server.ok(&queue(&["enqueue", "jobs", "-d", "b", "--delay", "1h"]));
    server.ok(&queue(&["enqueue", "other", "-d", "c"]));
    assert_eq!(server.ok(&queue(&["list"])), "jobs\nother\n");
    let stats = server.ok(&queue(&["stats", "jobs"]));
    assert!(
        stats.contains("ready:      1\nin flight:  0\ndelayed:    1\ndead:       0"),
        "{stats}"
    );
    assert_eq!(server.ok(&queue(&["peek", "jobs", "--limit", "1"])).lines().count(), 1);
    assert_eq!(server.ok(&queue(&["peek", "jobs", "--message", first.trim()])), "a");
    let missing = "0190b3a4-7c1d-7000-8000-00000000abcd";
    let (code, said) = server.fails(&queue(&["peek", "jobs", "--message", missing]));
    assert!(code == 1 && said.contains("has no message"), "{said}");

    let (code, said) = server.fails(&queue(&["purge", "jobs"]));
    assert!(code == 2 && said.contains("--yes"), "{said}");
    assert_eq!(server.ok(&queue(&["purge", "jobs", "--yes"])), "removed 2\n");
    assert_eq!(watch.line(), "default/jobs empty");
}

#[test]
fn dead_messages_are_listed_read_put_back_and_deleted() {
    let server = Server::start();
    let dead = |data: &str| {
        let id = server.ok(&queue(&["enqueue", "jobs", "-d", data, "--max-attempts", "1"]));
        let script = r#"eval "$(lockd client q dequeue jobs)"; lockd client q nack --reason no"#;
        let output = server.shell(script);
        assert_eq!(text(&output.stdout), "dead\n", "{}", text(&output.stderr));
        id.trim().to_owned()
    };
    let (one, two) = (dead("one"), dead("two"));
    let listed = server.ok(&queue(&["dlq", "list", "jobs"]));
    assert!(listed.starts_with(&format!("{one}\tdead\t1\t1/1\t3\t")), "{listed}");
    assert!(listed.lines().all(|line| line.ends_with("\t\"no\"")), "{listed}");
    assert_eq!(server.ok(&queue(&["dlq", "peek", "-q", "jobs", &two])), "two");
    assert_eq!(server.ok(&queue(&["dlq", "redrive", "-q", "jobs", &one])), "put back 1\n");
    assert_eq!(server.ok(&queue(&["dlq", "delete", "-q", "jobs", &one])), "deleted 0\n");
    settled(&server, "jobs", &json!({ "ready": 1, "dead": 1 }));
    let (code, said) = server.fails(&queue(&["dlq", "delete", "-q", "jobs", "--all"]));
    assert!(code == 2 && said.contains("--yes"), "{said}");
    assert_eq!(
        server.ok(&queue(&["dlq", "delete", "-q", "jobs", "--all", "--yes"])),
        "deleted 1\n"
    );
    assert_eq!(server.ok(&queue(&["dlq", "redrive", "-q", "jobs", "--all"])), "put back 0\n");
    let (code, _) = server.fails(&queue(&["dlq", "redrive", "-q", "jobs"]));
    assert_eq!(code, 2, "some, or all");
}

#[test]
fn a_worker_runs_a_command_for_each_message_and_its_code_is_the_answer() {
    let server = Server::start();
    for data in ["good", "bad", "good"] {
        server.ok(&queue(&["enqueue", "jobs", "-d", data, "--max-attempts", "2"]));
    }
    let script = r#"data=$(cat); echo "$data $LOCKD_QUEUE_NAME $LOCKD_QUEUE_ATTEMPTS"
                    [ "$data" = good ]"#;
    let mut work =
        Running::start(server.client(queue(&["work", "jobs", "--", "sh", "-c", script])));
    let mut lines: Vec<String> = (0..4).map(|_| work.line()).collect();
    lines.sort();
    assert_eq!(lines, ["bad jobs 1", "bad jobs 2", "good jobs 1", "good jobs 1"]);
    settled(&server, "jobs", &json!({ "ready": 0, "in_flight": 0, "dead": 1 }));
    work.signal(Signal::INT);
    let (code, out, said) = work.end();
    assert_eq!((code, out.as_str()), (0, ""), "{said}");
    assert!(said.contains("the command exited with code 1"), "{said}");
    let dead = server.ok(&queue(&["dlq", "list", "jobs"]));
    assert!(dead.contains("\"the command exited with code 1\""), "{dead}");
}

#[test]
fn a_worker_keeps_a_message_while_its_command_runs() {
    let server = Server::start();
    server.ok(&queue(&["enqueue", "jobs", "-d", "x"]));
    let arguments =
        ["work", "jobs", "--visibility", "300ms", "--", "sh", "-c", "sleep 1; echo done"];
    let mut work = Running::start(server.client(queue(&arguments)));
    assert_eq!(work.line(), "done");
    settled(&server, "jobs", &json!({ "ready": 0, "in_flight": 0 }));
    work.signal(Signal::TERM);
    let (code, out, said) = work.end();
    assert_eq!((code, out.as_str()), (0, ""), "once is enough: {said}");
}

#[test]
fn a_large_payload_passes_through_a_worker_and_may_be_left_unread() {
    let server = Server::start();
    let file = server.home.path().join("large");
    std::fs::write(&file, vec![b'x'; 6 << 20]).unwrap();
    for _ in 0..2 {
        server.ok(&queue(&["enqueue", "jobs", "--file", file.to_str().unwrap()]));
    }
    let script = "if [ -e seen ]; then echo unread; else touch seen; wc -c; fi";
    let mut command = server.client(queue(&["work", "jobs", "--", "sh", "-c", script]));
    command.current_dir(server.home.path());
    let mut work = Running::start(command);
    assert_eq!(work.line(), (6 << 20).to_string());
    assert_eq!(work.line(), "unread");
    settled(&server, "jobs", &json!({ "ready": 0, "in_flight": 0, "dead": 0 }));
    work.signal(Signal::INT);
    assert_eq!(work.end().0, 0);
}

#[test]
fn the_first_signal_lets_commands_finish_and_the_second_does_not() {
    let server = Server::start();
    let start = |script: &str| {
        server.ok(&queue(&["enqueue", "jobs", "-d", "x"]));
        let command = server.client(queue(&["work", "jobs", "--", "sh", "-c", script]));
        let mut work = Running::start(command);
        assert_eq!(work.line(), "up");
        work
    };
    let work = start("echo up; while [ ! -e $HOME/go ]; do sleep 0.02; done; echo end");
    work.signal(Signal::INT);
    server.ok(&queue(&["enqueue", "jobs", "-d", "later"]));
    std::fs::write(server.home.path().join("go"), "").unwrap();
    let (code, out, said) = work.end();
    assert_eq!((code, out.as_str()), (0, "end\n"), "{said}");
    settled(&server, "jobs", &json!({ "ready": 1, "in_flight": 0 }));
    server.ok(&queue(&["purge", "jobs", "--yes"]));

    // The child in the background keeps the output open if it is left running.
    let mut work = start("echo up; sleep 1000 & sleep 1000");
    work.signal(Signal::TERM);
    assert!(work.said().contains("once more"));
    work.signal(Signal::TERM);
    let (code, _, said) = work.end();
    assert_eq!(code, 143, "{said}");
    settled(&server, "jobs", &json!({ "ready": 1, "in_flight": 0 }));
    let peeked = server.ok(&queue(&["peek", "jobs"]));
    assert!(peeked.contains("\t0/5\t"), "stopping is no failure: {peeked}");
}

#[test]
fn a_worker_whose_message_is_lost_stops_the_command() {
    let mut server = Server::start();
    server.ok(&queue(&["enqueue", "jobs", "-d", "x"]));
    let script = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let arguments = ["work", "jobs", "--visibility", "500ms", "--", "sh", "-c", script];
    let mut work = Running::start(server.client(queue(&arguments)));
    assert_eq!(work.line(), "up");
    server.stop();
    let (told, tells) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(work.line()));
    // The message is ours for half a second; more than that is allowed only for slow machines.
    assert_eq!(tells.recv_timeout(std::time::Duration::from_secs(20)).unwrap(), "told");
}

#[test]
fn a_command_that_cannot_run_fails_no_message() {
    let server = Server::start();
    server.ok(&queue(&["enqueue", "jobs", "-d", "x"]));
    let (code, said) = server.fails(&queue(&["work", "jobs", "--", "no-such-command"]));
    assert_eq!(code, 127, "{said}");
    settled(&server, "jobs", &json!({ "ready": 1, "in_flight": 0 }));
    assert!(server.ok(&queue(&["peek", "jobs"])).contains("\t0/5\t"));
}
