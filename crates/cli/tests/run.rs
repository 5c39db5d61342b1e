//! Commands that run while a key is held.

mod server;

use rustix::process::Signal;
use server::{Running, Server, text};

#[test]
fn the_command_finds_its_lease_and_its_code_is_ours() {
    let server = Server::start();
    server.acquire("jobs/7", &["--ttl", "20ms"]);
    let script = "echo $LOCKD_CLIENT_KEY $LOCKD_CLIENT_FENCING_TOKEN; exit 7";
    let output =
        server.client(["run", "--key", "jobs/7", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "jobs/7 2\n");
    assert!(server.ok(&["describe", "jobs/7"]).contains("holder:   nobody"));
}

#[test]
fn what_the_command_staged_is_committed_only_if_it_succeeds() {
    let server = Server::start();
    let run = |script: &str| server.shell(&format!("lockd client run jobs/7 -- sh -c '{script}'"));
    let failed = run("echo 1 | lockd client update >/dev/null; exit 3");
    assert_eq!(failed.status.code(), Some(3), "{}", text(&failed.stderr));
    assert_eq!(server.ok(&["get", "jobs/7"]), "");
    let done = run("echo 2 | lockd client update >/dev/null");
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(server.ok(&["get", "jobs/7"]), "2\n");
}

#[test]
fn a_busy_key_exits_with_75_and_the_command_does_not_run() {
    let server = Server::start();
    server.acquire("jobs/7", &["--owner", "worker-1"]);
    let arguments = ["run", "jobs/7", "--block", "nowait", "--", "echo", "ran"];
    let (code, said) = server.fails(&arguments);
    assert_eq!(code, 75);
    assert!(said.contains("worker-1"), "{said}");
}

#[test]
fn the_lease_is_renewed_while_the_command_runs() {
    let server = Server::start();
    let mut watch = Running::start(server.client(["watch", "jobs/7"]));
    watch.line();
    watch.line();
    let output = server
        .client(["run", "jobs/7", "--ttl", "300ms", "--owner", "me", "--", "sleep", "1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(watch.line(), "lease default/jobs/7 granted owner=me token=1");
    assert_eq!(watch.line(), "lease default/jobs/7 released owner=me token=1");
}

#[test]
fn a_revoked_lease_stops_the_command_and_all_it_started() {
    let server = Server::start();
    // The child in the background does not listen, so telling it is not enough.
    let script = "(trap '' TERM; sleep 1000) & trap 'echo told; exit 0' TERM; echo up; wait";
    let mut run = Running::start(
        server.client(["run", "jobs/7", "--ttl", "300ms", "--", "sh", "-c", script]),
    );
    assert_eq!(run.line(), "up");
    server.ok(&["leases", "revoke", "jobs/7", "--reason", "host is gone"]);
    // The output ends only when everybody who has it open is gone.
    let (code, out, said) = run.end();
    assert_eq!(code, 76, "{said}");
    assert_eq!(out, "told\n");
    assert!(said.contains("host is gone"), "{said}");
}

#[test]
fn a_command_that_does_not_listen_is_killed() {
    let server = Server::start();
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let mut run =
        Running::start(server.client([
            "run", "jobs/7", "--ttl", "300ms", "--grace", "200ms", "--", "sh", "-c", script,
        ]));
    assert_eq!(run.line(), "up");
    server.ok(&["leases", "revoke", "jobs/7", "--reason", "x"]);
    let (code, _, said) = run.end();
    assert_eq!(code, 76, "{said}");
}

#[test]
fn a_server_that_is_gone_stops_the_command_in_time() {
    let mut server = Server::start();
    let mut run = Running::start(server.client([
        "run",
        "jobs/7",
        "--ttl",
        "3s",
        "--",
        "sh",
        "-c",
        "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.02; done",
    ]));
    assert_eq!(run.line(), "up");
    server.stop();
    let (ended, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(run.end()));
    // The lease lives for three seconds; more than that is allowed only for slow machines.
    let (code, out, said) = ends.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
    assert_eq!((code, out.as_str()), (76, "told\n"), "{said}");
    assert!(said.contains("could not be renewed"), "told before the end: {said}");
}

#[test]
fn signals_are_passed_on_and_their_number_is_the_code() {
    let server = Server::start();
    let start = |script: &str| {
        let mut run = Running::start(server.client(["run", "jobs/7", "--", "sh", "-c", script]));
        assert_eq!(run.line(), "up");
        run
    };
    let handled = start("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done");
    handled.signal(Signal::TERM);
    assert_eq!(handled.end().0, 5);

    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let run = start("echo up; exec sleep 1000");
        run.signal(signal);
        assert_eq!(run.end().0, code);
    }
    assert!(server.ok(&["describe", "jobs/7"]).contains("holder:   nobody"));
}

#[test]
fn a_signal_while_waiting_for_the_key_gives_up_the_wait() {
    let server = Server::start();
    let lease = server.acquire("jobs/7", &["--ttl", "1m"]);
    let waiting =
        Running::start(server.client(["run", "jobs/7", "--block", "forever", "--", "echo", "ran"]));
    // It waits once the server counts it.
    while !server.ok(&["leases"]).contains("waiting=1") {}
    waiting.signal(Signal::TERM);
    let (code, out, _) = waiting.end();
    assert_eq!((code, out.as_str()), (143, ""));
    server.under(&lease, &["release"], "");
    assert_eq!(server.ok(&["acquire", "jobs/7", "--block", "nowait"]).lines().count(), 11);
}

#[test]
fn a_command_that_cannot_run_lets_the_key_go() {
    let server = Server::start();
    let (code, said) = server.fails(&["run", "jobs/7", "--", "no-such-command"]);
    assert_eq!(code, 127, "{said}");
    let (code, said) = server.fails(&["run", "jobs/7", "--block", "nowait", "--", "/etc/passwd"]);
    assert_eq!(code, 126, "{said}");
    assert!(server.ok(&["describe", "jobs/7"]).contains("holder:   nobody"));
}
