//! How a job is run: its input, its variables, its output, its end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod double;

use double::{Controller, Leader, agent, agent_with, shell};
use serde_json::json;

/// Long enough that no lease has to be renewed.
const TTL: u64 = 60_000;

#[tokio::test]
async fn a_job_gets_its_input_and_its_variables_and_its_output_is_kept() {
    let controller = Controller::new(TTL);
    let port = controller.port(Leader::This).await;
    let script = "cat; echo; echo \"$LOCKD_JOB_ID $LOCKD_JOB_EPOCH $LOCKD_LEADER_EPOCH \
        $LOCKD_JOB_ATTEMPT $LOCKD_AGENT $COLOUR ${CARGO_PKG_NAME-none}\" >&2; printf 'e\\tnd'";
    let mut spec = shell(script);
    spec["env"] = json!({"COLOUR": "red", "LOCKD_AGENT": "somebody"});
    spec["input"] = json!({"a": [1, 2.50, "\u{e9}"]});
    controller.queue("j1", &spec);
    let hide = |settings: &mut lockd_agent::AgentSettings| {
        settings.hidden.push("CARGO_PKG_NAME".into());
    };
    let _agent = agent_with(&[&port], hide);
    let result = controller.result().await;
    let wanted = "{\"a\":[1,2.5,\"\u{e9}\"]}\nj1 7 1 1 worker red none\ne\tnd";
    assert_eq!(result.output, wanted);
    assert_eq!((result.success, result.exit_code, result.error), (true, Some(0), None));
    assert!(!result.truncated);
    let names = (result.lease_id.as_str(), result.job_id.as_str(), result.agent.as_str());
    assert_eq!(names, ("lease-j1", "j1", "worker"));
    assert_eq!((result.job_epoch, result.leader_epoch), (7, 1));
}

#[tokio::test]
async fn it_is_told_how_a_job_ended() {
    let controller = Controller::new(TTL);
    let port = controller.port(Leader::This).await;
    controller.queue("code", &shell("exit 3"));
    controller.queue("signal", &shell("kill -9 $$"));
    controller.queue("missing", &json!({"command": ["/no/such/program"]}));
    let _agent = agent(&[&port]);
    let three = |book: &double::Book| (book.results.len() == 3).then(|| book.results.clone());
    let results = controller.until("three results", three).await;
    let told: Vec<_> = results.iter().map(|one| (one.exit_code, one.error.as_deref())).collect();
    assert_eq!(told[0], (Some(3), None));
    assert_eq!(told[1], (None, Some("killed by signal 9")));
    assert_eq!(told[2].0, None);
    assert!(told[2].1.unwrap().starts_with("could not be started: "), "{told:?}");
    assert!(results.iter().all(|one| !one.success));
}

#[tokio::test]
async fn large_input_arrives_and_need_not_be_read() {
    let controller = Controller::new(TTL);
    let port = controller.port(Leader::This).await;
    let mut reads = shell("wc -c");
    reads["input"] = json!("x".repeat(900_000));
    let mut ignores = shell("exit 0");
    ignores["input"] = reads["input"].clone();
    controller.queue("reads", &reads);
    controller.queue("ignores", &ignores);
    let _agent = agent(&[&port]);
    let two = |book: &double::Book| (book.results.len() == 2).then(|| book.results.clone());
    let results = controller.until("two results", two).await;
    assert_eq!(results[0].output.trim(), "900002");
    assert!(results[1].success);
}

#[tokio::test]
async fn of_a_large_output_the_beginning_and_the_end_are_kept() {
    let controller = Controller::new(TTL);
    let port = controller.port(Leader::This).await;
    let script = "echo first; head -c 300000 /dev/zero | tr '\\0' x; echo; echo last >&2";
    controller.queue("j", &shell(script));
    let _agent = agent_with(&[&port], |settings| settings.output_max = 1_000);
    let result = controller.result().await;
    assert!(result.success && result.truncated);
    assert!(result.output.starts_with("first\nxxx"), "{}", result.output);
    assert!(result.output.ends_with("xxx\nlast\n"), "{}", result.output);
    assert!(result.output.contains("bytes are left out"));
    assert!(result.output.len() < 1_100);
}

#[tokio::test]
async fn a_result_that_is_too_large_for_the_controller_is_cut() {
    let controller = Controller::new(TTL);
    let port = controller.port(Leader::This).await;
    controller.change(|book| book.output_max = Some(10_000));
    controller.queue("j", &shell("head -c 20000 /dev/zero | tr '\\0' x; echo last"));
    let _agent = agent(&[&port]);
    let result = controller.result().await;
    assert!(result.success && result.truncated);
    assert!(result.output.len() <= 10_000 && result.output.ends_with("xlast\n"));
}

#[tokio::test]
async fn one_that_takes_too_long_is_asked_then_killed_and_that_is_reported() {
    let controller = Controller::new(TTL);
    let port = controller.port(Leader::This).await;
    let asked = "trap 'echo asked; exit 0' TERM; echo began; while :; do sleep 0.02; done";
    controller.queue_for("asked", &shell(asked), 3_000);
    let deaf = "trap '' TERM; echo began; while :; do sleep 0.02; done";
    controller.queue_for("deaf", &shell(deaf), 3_000);
    let _agent = agent_with(&[&port], |settings| settings.slots = 2);
    let two = |book: &double::Book| (book.results.len() == 2).then(|| book.results.clone());
    let results = controller.until("two results", two).await;
    for result in &results {
        assert_eq!((result.success, result.error.as_deref()), (false, Some("timed out")));
        assert!(result.output.starts_with("began\n"), "{}", result.output);
        assert_eq!(result.output.ends_with("asked\n"), result.job_id == "asked");
    }
}

#[tokio::test]
async fn jobs_run_at_once_but_no_more_than_there_are_slots() {
    let controller = Controller::new(TTL);
    let port = controller.port(Leader::This).await;
    for id in 0..5 {
        controller.queue(&format!("j{id}"), &shell("sleep 0.3"));
    }
    let agent = agent_with(&[&port], |settings| settings.slots = 3);
    controller.until("three are held", |book| (book.held.len() == 3).then_some(())).await;
    assert!(agent.busy() <= 3 && controller.book.lock().results.is_empty());
    controller.until("all are done", |book| (book.results.len() == 5).then_some(())).await;
    assert!(controller.book.lock().releases.is_empty());
}
