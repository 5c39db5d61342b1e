//! A controller that knows nothing of nodes: etcd, as it comes from a package, behind the front.
//! It changes by POST and is asked by POST, so the front is told which is which.

use lockd_tests::{Client, Place, Request, eventually, within};
use serde_json::{Value, json};

use super::site::{Kind, Plan, SOON, Site};

fn etcd(port: u16) -> String {
    let clients = format!("http://127.0.0.1:{port}");
    format!(
        "etcd --name=one --data-dir=/tmp/lockd-test-foreign-{port}-{} --log-level=error \
         --listen-client-urls={clients} --advertise-client-urls={clients} \
         --listen-peer-urls=http://127.0.0.1:0 --initial-advertise-peer-urls=http://127.0.0.1:1 \
         --initial-cluster=one=http://127.0.0.1:1",
        std::process::id(),
    )
}

fn put(value: &str) -> Request {
    // "key", and the value, in Base64.
    Request::post("/v3/kv/put").json(&json!({"key": "a2V5", "value": value}))
}

fn kept(reply: &lockd_tests::Reply) -> Value {
    reply.json()["kvs"][0]["value"].clone()
}

#[test]
fn a_program_that_knows_no_roles_is_changed_on_the_leader_alone() {
    let more = ["--reads=POST /v3/kv/range", "--controller-health=/health", "--role-change=none"];
    let more = more.iter().map(ToString::to_string).collect();
    let plan = Plan { moonlight: false, controller: Some(etcd), more, ..Plan::default() };
    let mut site = Site::start(Kind::Lockd, Kind::Lockd, 2, &plan);
    let (leader, standby) = site.two();
    for node in [leader, standby] {
        eventually("its program answers", || node.get("/healthz").status == 200);
    }
    assert_eq!(leader.call(&put("b25l")).status, 200);
    let range = Request::post("/v3/kv/range").json(&json!({"key": "a2V5"}));
    let read = leader.call(&range).ok();
    assert_eq!(kept(&read), "b25l");
    assert_eq!(read.header("x-role"), Some("LEADER"));
    // The standby's own program is asked, and not changed.
    let read = standby.call(&range).ok();
    assert_eq!((kept(&read), read.header("x-role")), (Value::Null, Some("STANDBY")));
    let refused = standby.call(&put("dHdv"));
    assert_eq!(refused.says(), (409, "NOT_LEADER".into()));
    assert_eq!(refused.json()["leader_url"], format!("http://{}", leader.front));
    for evasion in ["/v3/kv/../kv/put", "/v3//kv/put", "/v3/kv/%70ut", "/v3/kv/range/../put"] {
        let body = json!({"key": "a2V5", "value": "dHdv"});
        let refused = standby.call(&Request::post(evasion).json(&body));
        assert_eq!(refused.status, 409, "{evasion}: {}", refused.text());
    }
    assert_eq!(kept(&standby.call(&range).ok()), Value::Null);
    // Without the front nothing protects it: that is what the documentation says.
    let behind = Place::Tcp(standby.controller);
    assert_eq!(Client::new(&behind).call(&put("dHdv")).status, 200);
    let before = site.leader();
    site.nodes[before].kill();
    let new = &site.nodes[site.leader_after(before)];
    within(SOON, "changes pass at the other one", || new.call(&put("dGhyZWU=")).status == 200);
    assert_eq!(kept(&new.call(&range).ok()), "dGhyZWU=");
    for node in &site.nodes {
        let folder =
            format!("/tmp/lockd-test-foreign-{}-{}", node.controller.port(), std::process::id());
        std::fs::remove_dir_all(folder).ok();
    }
}
