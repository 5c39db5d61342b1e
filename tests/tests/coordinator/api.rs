//! The HTTP API of the sidecar: every answer field by field, and who may ask.

use lockd_tests::{Request, within};
use serde_json::{Value, json};

use super::sidecar::Sidecar;
use super::site::SOON;
use lockd_cloud::Redis as RedisServer;

/// The numbers that are times, checked and taken out, so that the rest can be compared.
fn without_times(mut value: Value) -> Value {
    fn clean(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if ["since", "started_at", "last_heartbeat"].contains(&name.as_str()) {
                        assert!(value.as_u64().is_some_and(|at| at > 1_700_000_000), "{name}");
                        *value = json!("a time");
                    } else {
                        clean(value);
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(clean),
            _ => {}
        }
    }
    clean(&mut value);
    value
}

/// A leader and a follower, who know of each other.
fn two(redis: &RedisServer) -> (Sidecar, Sidecar) {
    let first = Sidecar::start(redis, "forms-waf-0", &["--worker-count", "4"]);
    first.log_has("acquired leadership");
    let mut second = Sidecar::start(redis, "forms-waf-1", &["--worker-count", "4"]);
    within(SOON, "both are there, and the second knows who leads", || {
        second.get("/api/cluster/status").json()["active_instances"] == 2
            && second.get("/api/cluster/leader").json()["leader"] == "forms-waf-0"
    });
    (first, second)
}

#[test]
fn the_cluster_is_shown_with_the_fields_that_others_have() {
    let redis = RedisServer::start_now();
    let (_first, mut second) = two(&redis);
    let mut seen = |path: &str| without_times(second.get(path).ok().json());
    assert_eq!(
        seen("/api/cluster/status"),
        json!({
            "cluster_healthy": true,
            "instance_count": 2,
            "active_instances": 2,
            "drifted_instances": 0,
            "leader": {"instance_id": "forms-waf-0", "since": "a time"},
            "this_instance": {"id": "forms-waf-1", "is_leader": false},
        })
    );
    let instance = |id: &str, is_leader: bool| {
        json!({
            "instance_id": id,
            "status": "active",
            "is_leader": is_leader,
            "started_at": "a time",
            "last_heartbeat": "a time",
            "worker_count": 4,
        })
    };
    assert_eq!(
        seen("/api/cluster/instances"),
        json!({
            "total": 2,
            "current_leader": "forms-waf-0",
            "instances": [instance("forms-waf-0", true), instance("forms-waf-1", false)],
        })
    );
    assert_eq!(
        seen("/api/cluster/leader"),
        json!({
            "leader": "forms-waf-0",
            "this_instance": {"id": "forms-waf-1", "is_leader": false},
        })
    );
    // What others find in Redis.
    let entry = redis.ask(&["HGET", "waf:cluster:instances", "forms-waf-0"]);
    let entry = without_times(serde_json::from_str(&entry).expect("JSON"));
    assert_eq!(
        entry,
        json!({
            "instance_id": "forms-waf-0",
            "started_at": "a time",
            "last_heartbeat": "a time",
            "status": "active",
            "worker_count": 4,
        })
    );
}

#[test]
fn an_instance_is_shown_with_the_fields_that_others_have() {
    let redis = RedisServer::start_now();
    let (mut first, mut second) = two(&redis);
    let mut seen = |path: &str| without_times(second.get(path).ok().json());
    assert_eq!(
        seen("/api/cluster/config"),
        json!({
            "instance_id": "forms-waf-1",
            "heartbeat_interval": 15,
            "heartbeat_ttl": 90,
            "leader_ttl": 30,
            "leader_renew_interval": 10,
            "drift_threshold": 60,
            "stale_threshold": 300,
            "redis_host": "127.0.0.1",
            "redis_port": redis.address().port(),
        })
    );
    assert_eq!(
        seen("/api/cluster/this"),
        json!({
            "instance_id": "forms-waf-1",
            "is_leader": false,
            "worker_id": 0,
            "worker_count": 4,
            "config": {
                "heartbeat_interval": 15,
                "leader_ttl": 30,
                "drift_threshold": 60,
                "stale_threshold": 300,
            },
        })
    );
    assert_eq!(seen("/api/cluster/tasks"), json!({"total": 0, "tasks": []}));
    assert_eq!((first.get("/leader").status, second.get("/leader").status), (200, 503));
    assert_eq!((first.get("/healthz").status, first.get("/readyz").status), (200, 200));
    let metrics = second.get("/metrics").ok().text();
    for line in [
        "lockd_coordinator_cluster_healthy 1",
        "lockd_coordinator_instances{state=\"active\"} 2",
        "lockd_coordinator_instances{state=\"drifted\"} 0",
        "lockd_coordinator_registry_reachable 1",
        "lockd_coordinator_epoch 1",
        "lockd_tls_certificate_end_seconds 0",
        "process_open_fds ",
        "lockd_coordinator_leader_changes_total 1",
        "lockd_coordinator_heartbeat_age_seconds ",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    first.get("/api/cluster/nothing").refused(404, "not_found");
    first.call(&Request::post("/api/cluster/status")).refused(405, "method_not_allowed");
    first.call(&Request::post("/api/cluster/tasks/none/run")).refused(404, "not_found");
}

#[test]
fn numbers_are_set_and_added_up() {
    let redis = RedisServer::start_now();
    let short = ["--metrics-push-interval", "0.2", "--leader-renew-interval", "0.3"];
    let mut all = [Sidecar::start(&redis, "a", &short), Sidecar::start(&redis, "b", &short)];
    let put = |body: &str| Request::new("PUT", "/api/cluster/metrics").body(body);
    for (number, one) in all.iter_mut().enumerate() {
        let set = one.call(&put(&format!(r#"{{"rps": {}}}"#, number + 1)));
        assert_eq!(set.status, 204);
    }
    within(SOON, "added up", || {
        let answer = all[0].get("/api/cluster/metrics");
        answer.status == 200
            && answer.json()["metrics"]["rps"] == json!({"sum": 3, "min": 1, "max": 2})
    });
    all[0].call(&put("[1]")).refused(400, "invalid_body");
    all[0].call(&put(r#"{"rps": "many"}"#)).refused(400, "invalid_body");
    // A page in a browser must not act through a port that trusts this machine.
    let page = put(r#"{"rps": 9}"#).header("origin", "https://example.org");
    all[0].call(&page).refused(403, "not_allowed");
}

const TOKENS: &str = "\
tokens:
  - token: a-token-that-may-look
    roles: [metrics:read]
  - token: a-token-that-may-run
    roles: [metrics:read, tasks:run]
tasks:
  - name: yearly
    every: 365d
    initial_delay: 365d
    command: ['true']
";

#[test]
fn tokens_may_what_their_roles_say() {
    let redis = RedisServer::start_now();
    let flags = ["--listen", "0.0.0.0:0", "--leader-ttl", "1s", "--leader-renew-interval", "0.3"];
    let mut sidecar = Sidecar::configured(
        &redis,
        "a",
        TOKENS,
        &[flags.as_slice(), &["--heartbeat-interval", "0.5"]].concat(),
    );
    let with =
        |request: Request, token: &str| request.header("authorization", format!("Bearer {token}"));
    let status = || Request::get("/api/cluster/status");
    let run = || Request::post("/api/cluster/tasks/yearly/run");
    let refused = sidecar.call(&status());
    refused.refused(401, "token_required");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    sidecar.call(&with(status(), "a-token-that-may-loo")).refused(401, "token_required");
    sidecar.call(&with(status(), "a-token-that-may-look")).ok();
    sidecar.call(&with(run(), "a-token-that-may-look")).refused(403, "not_allowed");
    sidecar.call(&Request::get("/metrics")).refused(401, "token_required");
    // Probes have no tokens.
    assert_eq!(sidecar.get("/healthz").status, 200);
    within(SOON, "the task is known to a leader", || {
        sidecar.call(&with(run(), "a-token-that-may-run")).status == 202
    });
    within(SOON, "it ran", || {
        let runs = Request::get("/api/cluster/tasks/yearly/runs");
        sidecar.call(&with(runs, "a-token-that-may-look")).json()["runs"][0]["outcome"] == "ok"
    });
}
