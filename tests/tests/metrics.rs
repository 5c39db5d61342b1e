//! What a server measures, as its operator scrapes it: how queues stand, under names only where the
//! operator asked for them, and what the process uses.

use lockd_tests::queue::{Enqueue, dequeue, messages};
use lockd_tests::{Options, Request, Server, eventually};
use serde_json::json;

fn page(server: &Server) -> String {
    server.metrics_client().call(&Request::get("/metrics")).ok().text()
}

/// The value of one sample.
fn sample(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

fn count(page: &str, labels: &str, state: &str) -> Option<f64> {
    sample(page, &format!("lockd_queue_messages{{{labels},state=\"{state}\"}}"))
}

const MAIL: &str = r#"namespace="default",queue="mail""#;
const OTHER: &str = r#"queue="other""#;

#[test]
fn a_queue_that_may_be_named_is_counted_and_all_others_are_summed_up() {
    let mut server = Server::start(Options::new().variable("LOCKD_METRICS_QUEUES", "default/mail"));
    let mut client = server.client();
    for queue in ["mail", "mail", "mail", "secret", "secret2"] {
        client.call(&Enqueue::new(queue, "x").request()).ok();
    }
    let later = Enqueue::new("mail", "x").field("delay_seconds", 600);
    client.call(&later.request()).ok();
    let taken = messages(&client.call(&dequeue("mail", &json!({})))).remove(0);
    // A queue that no request has looked into is not in memory.
    assert_eq!(messages(&client.call(&dequeue("secret", &json!({})))).len(), 1);

    eventually("the oldest one ages", || {
        let oldest = format!("lockd_queue_oldest_ready_seconds{{{MAIL}}}");
        sample(&page(&server), &oldest).is_some_and(|age| age > 0.0)
    });
    let now = page(&server);
    let states = ["ready", "delayed", "in_flight", "dead"];
    assert_eq!(
        states.map(|state| count(&now, MAIL, state)),
        [2.0, 1.0, 1.0, 0.0].map(Some),
        "{now}"
    );
    assert_eq!(count(&now, OTHER, "in_flight"), Some(1.0), "{now}");
    assert!(!now.contains("secret"), "names of other queues stay with their tenants: {now}");

    client.call(&taken.ack()).ok();
    server.kill();
    server.start_again();
    eventually("it is counted after a restart, though no client has asked for it", || {
        count(&page(&server), MAIL, "ready") == Some(2.0)
    });
}

#[test]
fn without_a_setting_no_queue_is_named() {
    let server = Server::start(Options::in_memory());
    let mut client = server.client();
    client.call(&Enqueue::new("jobs", "x").request()).ok();
    client.call(&dequeue("jobs", &json!({}))).ok();
    let page = page(&server);
    assert_eq!(count(&page, OTHER, "in_flight"), Some(1.0), "{page}");
    assert!(!page.contains("jobs"), "{page}");
}

#[test]
fn the_process_tells_what_it_uses() {
    let server = Server::start(Options::in_memory());
    let page = page(&server);
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
    ] {
        assert!(sample(&page, name).is_some(), "{name}: {page}");
    }
    assert_eq!(page.matches("# EOF").count(), 1, "{page}");
    assert!(page.ends_with("# EOF\n"), "{page}");
}
