//! Nodes on a network that is not theirs alone: whoever comes, shows a certificate.

use std::time::Instant;

use lockd_tests::http::Connection;
use lockd_tests::{Place, Request, server};

use super::site::{Kind, Node, Plan, SOON, Site, bundle, nothing, until_state};

/// The events of a node, from now on.
struct Events(Connection);

impl Events {
    fn of(node: &Node) -> Self {
        let mut connection = Connection::open(&node.place()).expect("a connection");
        connection.send(&Request::get("/v1/events")).expect("sent");
        let head = connection.reply_head().expect("an answer");
        assert_eq!(head.status, 200);
        connection.socket.patience(SOON).expect("a socket");
        Self(connection)
    }

    /// Until this was told of that job.
    fn until(&mut self, id: &str, state: &str) {
        let mut heard = String::new();
        let state = format!("\"{state}\"");
        let start = Instant::now();
        while !heard.lines().any(|line| line.contains(id) && line.contains(&state)) {
            // Signs of life come all the time.
            assert!(start.elapsed() < SOON, "{state} of {id} is not told: {heard}");
            let piece = self.0.chunk().unwrap_or_else(|error| panic!("{error} after {heard}"));
            heard.push_str(&String::from_utf8_lossy(&piece.expect("it goes on")));
        }
    }
}

#[test]
fn nodes_that_show_certificates_forward_relay_work_and_hand_over() {
    let plan =
        Plan { secure: true, lock_ttl: "10s", more: vec!["--forward".into()], ..Plan::default() };
    let site = Site::start(Kind::Lockd, Kind::Postgres, 2, &plan);
    site.all_known();
    let before = site.leader();
    let (leader, standby) = site.two();
    for node in [leader, standby] {
        let plainly = Connection::open(&Place::Tcp(node.front))
            .and_then(|mut connection| connection.call(&Request::get("/role")));
        assert!(plainly.is_err(), "{} answers whoever comes: {plainly:?}", node.id);
    }
    let url = format!("https://{}", leader.front);
    assert_eq!(standby.role()["leader_url"], url.as_str());
    // What is told by the leader is heard at the other one, also of what that one has passed on.
    let mut events = Events::of(standby);
    let id = standby.submit(&nothing())["id"].as_str().expect("an id").to_owned();
    events.until(&id, "queued");
    events.until(&id, "succeeded");
    let done = until_state(leader, &id, "succeeded");
    assert_eq!(done["result"]["agent"], format!("{}-worker", standby.id));
    let client = bundle(site.home.path(), "client");
    let ha = |words: &[&str]| {
        let home = tempfile::tempdir().expect("a folder");
        let url = format!("https://{}", standby.front);
        let given = ["ha", "--url", &url, "--bundle", &client];
        server::run(home.path(), &[&given, words].concat(), &[])
    };
    let handed = ha(&["switchover"]);
    assert!(handed.status.success(), "{handed:?}");
    let (old, new) = (&site.nodes[before], &site.nodes[site.leader_after(before)]);
    let mut events = Events::of(old);
    let id = old.submit(&nothing())["id"].as_str().expect("an id").to_owned();
    events.until(&id, "succeeded");
    assert_eq!(until_state(new, &id, "succeeded")["result"]["agent"], format!("{}-worker", old.id));
}
