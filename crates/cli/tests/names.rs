//! Names that are empty, as an unset variable of a script leaves them. Nothing runs, nothing is
//! held, and the message says which flag or variable it was.

mod server;

use server::{Server, text};

/// Exits with 2, and says what is wrong in these words.
#[track_caller]
fn refused(server: &Server, arguments: &[&str], words: &str) {
    let (code, said) = server.fails(arguments);
    assert_eq!(code, 2, "{arguments:?}: {said}");
    assert!(said.contains(words), "{arguments:?}: {said}");
}

#[test]
fn two_runs_under_an_unset_variable_do_not_both_run() {
    let server = Server::start();
    let ran = server.home.path().join("ran");
    let script = format!(
        r#"
        JOB= pids=
        for one in 1 2; do
          lockd client run --key "$JOB" -- sh -c 'echo run >> {0}' &
          pids="$pids $!"
        done
        for pid in $pids; do wait "$pid" && echo "exit 0" || echo "exit $?"; done
        "#,
        ran.display()
    );
    let output = server.shell(&script);
    assert!(!ran.exists(), "both ran: {}", text(&output.stdout));
    assert_eq!(text(&output.stdout), "exit 2\nexit 2\n", "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("'--key <KEY>'"), "{}", text(&output.stderr));
}

#[test]
fn an_empty_flag_or_argument_is_named() {
    let server = Server::start();
    for blank in ["", " "] {
        for (arguments, words) in [
            (&["acquire", blank][..], "[KEY]"),
            (&["acquire", "--key", blank], "--key"),
            (&["acquire", "k", "--namespace", blank], "--namespace"),
            (&["acquire", "k", "--owner", blank], "--owner"),
            (&["acquire", "k", "--txn-id", blank], "--txn-id"),
            (&["run", blank, "--", "true"], "[KEY]"),
            (&["release", "k", "--lease", blank], "--lease"),
            (&["release", "k", "--lease", "l", "--txn-id", blank], "--txn-id"),
            (&["get", blank], "[KEY]"),
            (&["update", blank, "file.json"], "key is"),
            (&["set", blank, "a=1"], "key is"),
            (&["mutate", blank, "a=1"], "key is"),
            (&["remove", blank], "[KEY]"),
            (&["describe", blank], "[KEY]"),
            (&["watch", blank], "[KEY]"),
            (&["watch", "--key", blank], "--key"),
            (&["attachments", "list", blank], "[KEY]"),
            (&["leases", "revoke", blank, "--reason", "x"], "KEY"),
            (&["queue", "enqueue", blank, "--data", "x"], "QUEUE"),
            (&["queue", "enqueue", "--queue", blank, "--data", "x"], "--queue"),
            (&["queue", "enqueue", "q", "--data", "x", "--txn-id", blank], "--txn-id"),
            (&["queue", "dequeue", blank], "QUEUE"),
            (&["queue", "dequeue", "q", "--owner", blank], "--owner"),
            (&["queue", "ack", "--message", blank], "--message"),
        ] {
            refused(&server, arguments, words);
        }
    }
    assert_eq!(server.ok(&["leases"]), "");
}

#[test]
fn a_variable_that_is_set_but_empty_is_named() {
    let server = Server::start();
    for (variable, command) in [
        ("LOCKD_CLIENT_KEY", "acquire"),
        ("LOCKD_CLIENT_KEY", "run -- true"),
        ("LOCKD_CLIENT_NAMESPACE", "acquire k"),
        ("LOCKD_CLIENT_OWNER", "acquire k"),
        ("LOCKD_CLIENT_LEASE", "get k"),
        ("LOCKD_QUEUE_NAME", "queue stats"),
        ("LOCKD_QUEUE_MESSAGE_ID", "queue ack --queue q"),
    ] {
        let script = format!("{variable}= lockd client {command} && echo ran || echo \"exit $?\"");
        let output = server.shell(&script);
        let said = text(&output.stderr);
        assert_eq!(text(&output.stdout), "exit 2\n", "{variable}, {command}: {said}");
        assert!(said.contains(&format!("{variable} is set but empty")), "{command}: {said}");
    }
    // A flag needs no variable.
    let output = server.shell("LOCKD_CLIENT_KEY= lockd client acquire --key k --output json");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_key_is_generated_when_it_is_asked_for() {
    let server = Server::start();
    refused(&server, &["acquire"], "--generate");
    refused(&server, &["acquire", "k", "--generate"], "--generate");
    let key = || {
        let lease = server.ok(&["acquire", "--generate", "--output", "json"]);
        let lease: serde_json::Value = serde_json::from_str(&lease).unwrap();
        lease["key"].as_str().unwrap().to_owned()
    };
    assert_ne!(key(), key());
}
