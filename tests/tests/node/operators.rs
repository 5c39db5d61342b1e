//! What operators do: look, hand over, pause, and prefer one node to another.

use std::process::Output;
use std::time::{Duration, Instant};

use lockd_tests::{eventually, server, within};
use serde_json::Value;

use super::site::{Kind, Node, Plan, SOON, Site, until_state};

fn ha(node: &Node, words: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    let url = format!("http://{}", node.front);
    let words: Vec<&str> = ["ha", "--url", &url].into_iter().chain(words.iter().copied()).collect();
    server::run(home.path(), &words, &[])
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn status(node: &Node) -> Value {
    let output = ha(node, &["status", "--output", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

#[test]
fn a_cluster_is_looked_at_handed_over_and_paused() {
    let mut site = Site::start(Kind::Lockd, Kind::Postgres, 3, &Plan::default());
    let first = site.leader();
    let node = &site.nodes[(first + 1) % 3];
    within(SOON, "all are known", || {
        let nodes = status(node)["nodes"].as_array().cloned().unwrap_or_default();
        let agents = nodes.iter().filter(|one| one["agent"] == "on").count();
        // A switchover to a node whose controller is still starting is refused.
        nodes.len() == 3 && agents == 2 && nodes.iter().all(|one| one["controller"] != "down")
    });
    let text = said(&ha(node, &["status"]));
    let leads = format!("{} leads under epoch {}", site.nodes[first].id, site.nodes[first].epoch());
    assert!(text.contains(&leads), "{text}");
    let second = (first + 2) % 3;
    let to = site.nodes[second].id.clone();
    let done = said(&ha(node, &["switchover", "--to", &to, "--reason", "a new kernel"]));
    assert!(done.contains(&format!("{to} leads")), "{done}");
    assert_eq!(site.leader(), second);
    for (words, exit, part) in [
        (vec!["switchover", "--to", to.as_str()], 1, "leads already"),
        (vec!["switchover", "--to", "nobody"], 1, "nobody"),
    ] {
        let refused = ha(node, &words);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(exit), "{told}");
        assert!(told.contains(part) && told.contains("switchover_refused"), "{told}");
    }
    // Only one is shown as leader, although it is not long ago that another was.
    let nodes = status(node)["nodes"].as_array().cloned().unwrap_or_default();
    let leads = |one: &&Value| one["role"] == "LEADER" || one["role"] == "DRAINING";
    assert_eq!(nodes.iter().filter(leads).count(), 1, "{nodes:?}");
    within(SOON, "the others say that they are standbys", || {
        let nodes = status(node)["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().filter(|one| one["role"] == "STANDBY").count() == 2
    });
    let history = said(&ha(node, &["history"]));
    assert!(history.contains("a new kernel") && history.contains("elected"), "{history}");
    // Paused, nobody takes over but the one that led.
    said(&ha(node, &["pause", "--reason", "maintenance"]));
    eventually("all have heard", || site.nodes.iter().all(|node| status(node)["paused"] == true));
    let epoch = site.nodes[second].epoch();
    site.nodes[second].kill();
    let alone = Instant::now();
    while alone.elapsed() < Duration::from_secs(5) {
        let leads = site.nodes.iter().any(|node| node.runs() && node.leads());
        assert!(!leads, "somebody takes over in spite of the pause");
        std::thread::sleep(Duration::from_millis(50));
    }
    let nobody = ha(&site.nodes[first], &["status"]);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
    site.nodes[second].start();
    assert_eq!(site.leader(), second);
    assert!(site.nodes[second].epoch() > epoch);
    said(&ha(&site.nodes[first], &["resume"]));
    site.nodes[second].kill();
    site.leader_after(second);
}

#[test]
fn the_preferred_one_leads_and_another_never() {
    let plan = Plan { moonlight: false, ..Plan::default() };
    let mut site = Site::prepare(Kind::Redis, Kind::Lockd, 3, &plan);
    site.nodes[0].add("--preferred");
    site.nodes[0].add("--preferred-after=1s");
    site.nodes[2].add("--never-lead");
    site.nodes[2].start();
    site.nodes[1].start();
    assert_eq!(site.leader(), 1);
    site.nodes[0].start();
    within(SOON, "the preferred one leads", || site.nodes[0].leads());
    assert!(!site.nodes[1].leads());
    site.nodes[0].kill();
    assert_eq!(site.leader_after(0), 1, "not the one that never leads");
    let refused = ha(&site.nodes[1], &["switchover", "--to", "c"]);
    assert_eq!(refused.status.code(), Some(1));
    site.nodes[1].kill();
    std::thread::sleep(Duration::from_secs(4));
    assert!(!site.nodes[2].leads());
}

/// The agent of a standby works on a job when its node is to lead: it gives the job back, and the
/// agent of the other one has it.
#[test]
fn work_is_passed_on_when_its_node_is_to_lead() {
    let site = Site::start(Kind::Etcd, Kind::Lockd, 2, &Plan::default());
    let before = site.leader();
    let job = serde_json::json!({"command": ["sh", "-c", "cat; sleep 3; echo done"],
        "input": {"n": 12_345_678_901_234_567_890_u64}});
    let kept = site.nodes[before].submit(&job);
    let id = kept["id"].as_str().expect("an id").to_owned();
    let leased = until_state(&site.nodes[before], &id, "leased");
    assert_eq!(leased["agent"], format!("{}-worker", site.nodes[1 - before].id));
    site.all_known();
    said(&ha(&site.nodes[before], &["switchover"]));
    let after = site.leader_after(before);
    let job = until_state(&site.nodes[after], &id, "succeeded");
    let output = job["result"]["output"].as_str().expect("an output");
    assert!(output.contains("12345678901234567890") && output.ends_with("done\n"), "{output}");
    assert_eq!(job["result"]["agent"], format!("{}-worker", site.nodes[before].id));
    assert_eq!(job["attempts"], 1, "given back is not failed: {job}");
    assert_eq!(job["leader_epoch"], site.nodes[after].epoch());
}

#[test]
fn wrong_settings_are_told_and_nothing_is_started() {
    let home = tempfile::tempdir().expect("a folder");
    let usual = [
        "node-controller",
        "--node-id=a",
        "--controller=true",
        "--controller-url=http://127.0.0.1:1",
        "--lock=lockd://127.0.0.1:1?insecure=1",
    ];
    for (wrong, part) in [
        ("--lock=consul://a", "begins with lockd://"),
        ("--node-id=a@b", "no name of a node"),
        ("--listen=0.0.0.0:0", "token"),
        ("--lock-ttl=0", "lock-ttl"),
        ("--role-change=sometimes", "sometimes"),
        ("--controller-url=ftp://a", "http://"),
        ("--reads=POST /a b c", "/a b c"),
        ("--state=/proc/nothing", "/proc/nothing"),
    ] {
        let name = wrong.split('=').next().expect("a name");
        let words: Vec<&str> = usual
            .iter()
            .copied()
            .filter(|word| !word.starts_with(&format!("{name}=")))
            .chain([wrong])
            .collect();
        let refused = server::run(home.path(), &words, &[]);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(matches!(refused.status.code(), Some(1 | 2)), "{wrong}: {told}");
        assert!(told.contains(part), "{wrong}: {told}");
    }
    let missing = server::run(home.path(), &["node-controller"], &[]);
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
}
