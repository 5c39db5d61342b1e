//! Several nodes, and their operators.

use lockd_wire::node::{HaStatus, History, SwitchoverAsk, SwitchoverDone};

use super::*;
use crate::{StartError, Token};

/// Two nodes that know each other; the first leads.
async fn two(world: &World, change: impl Fn(&mut NodeSettings)) -> ((Bench, Node), (Bench, Node)) {
    let mut a = Bench::new(world, "a", RoleChange::Follow).await.with_agent().with(&change);
    let first = a.start().await;
    becomes(&first, Role::Leader).await;
    let mut b = Bench::new(world, "b", RoleChange::Follow).await.with_agent().with(&change);
    let second = b.start().await;
    knows(&first, "b").await;
    knows(&second, "a").await;
    ((a, first), (b, second))
}

async fn knows(node: &Node, other: &str) {
    let handle = node.handle();
    until("they know each other", || {
        let nodes = handle.status().nodes;
        nodes.iter().any(|it| it.node_id == other && it.controller != "down")
    })
    .await;
}

fn to(id: &str) -> SwitchoverAsk {
    SwitchoverAsk { to: Some(id.into()), reason: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_office_is_handed_over_faster_than_it_would_run_out() {
    let world = World::default();
    let ((a, first), (b, second)) = two(&world, |_| {}).await;
    b.logged("agent begins").await;
    // Asked of the one that does not lead.
    let (status, body) = b.post("/ha/switchover", r#"{"to":"b","reason":"for a test"}"#).await;
    assert_eq!(status, 200, "{body}");
    let done: SwitchoverDone = serde_json::from_str(&body).unwrap();
    assert_eq!((done.from.as_str(), done.to.as_str()), ("a", "b"));
    assert!(done.leader_epoch > Some(1), "{done:?}");
    assert!(done.took_ms < 2_000, "{done:?}");
    println!("handed over within {} ms", done.took_ms);
    let now = second.handle().standing().borrow().role.clone();
    assert_eq!((now.role, now.leader_epoch), (Role::Leader, done.leader_epoch));
    assert!(b.place("agent ends").is_some(), "{:?}", b.log());
    a.logged("agent begins").await;
    let drained = ["LEADER>DRAINING resigned", "DRAINING>STANDBY resigned"].map(String::from);
    assert!(causes(&first).ends_with(&drained), "{:?}", causes(&first));
    let role = first.handle().standing().borrow().role.clone();
    assert_eq!((role.role, role.leader_id.as_deref()), (Role::Standby, Some("b")));
    // And back.
    knows(&second, "a").await;
    let done = second.handle().switchover(SwitchoverAsk::default()).await.unwrap();
    assert_eq!(done.to, "a");
    becomes(&first, Role::Leader).await;
    let text = a.get("/ha/history?all=1").await;
    let all: History = serde_json::from_str(&text).unwrap();
    for node in ["a", "b"] {
        let led = all.transitions.iter().find(|it| it.node_id == node && it.to == Role::Leader);
        let led = led.unwrap_or_else(|| panic!("{node} in {text}"));
        assert!(led.cause == "elected" && led.took_ms < 20_000 && led.leader_epoch.is_some());
    }
    let metrics = b.get("/ha/metrics").await;
    assert!(metrics.contains("cause=\"elected\"} 1"), "{metrics}");
}

#[tokio::test]
async fn a_hand_over_that_cannot_be_is_refused_with_the_reason() {
    let world = World::default();
    let ((a, first), (_b, second)) = two(&world, |settings| {
        settings.never_lead = settings.node_id == "b";
    })
    .await;
    let handle = first.handle();
    for (ask, reason) in [
        (to("a"), "leads already"),
        (to("nobody"), "no node nobody is known"),
        (to("b"), "it never leads"),
        (SwitchoverAsk::default(), "no other node"),
    ] {
        let refusal = handle.switchover(ask).await.unwrap_err();
        assert_eq!((refusal.status.as_u16(), refusal.code.as_str()), (409, "switchover_refused"));
        assert!(refusal.detail.contains(reason), "{refusal:?}");
    }
    let refusal = second.handle().switchover(to("a")).await.unwrap_err();
    assert!(refusal.detail.contains("does not lead"), "{refusal:?}");
    let (status, body) = a.post("/ha/switchover", r#"{"two":"b"}"#).await;
    assert_eq!((status, body.contains("invalid_body")), (400, true), "{body}");
    first.stop().await;
    until("the lock free", || world.holder().is_none()).await;
    assert!(!world.has_tried("b"), "one that never leads does not even try");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_paused_nobody_takes_over() {
    let world = World::default();
    let ((a, first), (b, second)) = two(&world, |_| {}).await;
    let (status, body) = b.post("/ha/pause", "").await;
    assert_eq!(status, 200, "{body}");
    assert!(first.handle().status().paused && second.handle().status().paused);
    assert!(first.handle().switchover(to("b")).await.unwrap_err().detail.contains("paused"));
    // Whoever comes later hears of it.
    let mut c = Bench::new(&world, "c", RoleChange::Follow).await;
    let third = c.start().await;
    until("the third hears of it", || third.handle().status().paused).await;
    assert!(world.is_held_by("a"), "a leader goes on");
    first.stop().await;
    until("nobody leads", || third.handle().status().leader_id.is_none()).await;
    assert_eq!(world.holder(), None);
    let (status, body) = c.post("/ha/resume", "{}").await;
    assert_eq!(status, 200, "{body}");
    until("a new leader", || world.holder().is_some()).await;
    let all: HaStatus = serde_json::from_str(&b.get("/ha/status").await).unwrap();
    assert!(!all.paused);
    drop((a, second));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_leader_leads_again_while_paused_also_after_a_restart() {
    let world = World::default();
    let place = tempfile::tempdir().unwrap();
    let folder = Some(place.path().to_owned());
    let mut a = Bench::new(&world, "a", RoleChange::Follow).await;
    a = a.with(|settings| settings.folder.clone_from(&folder));
    let first = a.start().await;
    becomes(&first, Role::Leader).await;
    first.handle().pause(true).await.unwrap();
    first.stop().await;
    let kept = first.handle().history().transitions;
    drop(first);
    let mut a = Bench::new(&world, "a", RoleChange::Follow).await;
    a = a.with(|settings| settings.folder = folder);
    let again = a.start().await;
    assert_eq!(again.handle().history().transitions[..kept.len()], kept);
    becomes(&again, Role::Leader).await;
    assert!(again.handle().status().paused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preferred_node_takes_over_when_it_is_well() {
    let world = World::default();
    let ((_a, first), (_b, second)) = two(&world, |settings| {
        settings.preferred = settings.node_id == "b";
        settings.preferred_after = Duration::from_millis(300);
    })
    .await;
    becomes(&second, Role::Leader).await;
    until("why", || causes(&first).contains(&"DRAINING>STANDBY preferred".into())).await;
    assert!(world.is_held_by("b"));
}

#[tokio::test]
async fn changes_are_asked_for_with_the_token_and_an_open_port_is_for_this_machine() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Follow)
        .await
        .with(|settings| settings.token = Some(Token::new("0123456789abcdef").unwrap()));
    let node = bench.start().await;
    let (status, body) = bench.post("/ha/pause", "").await;
    assert_eq!((status, body.contains("token_required")), (401, true), "{body}");
    let status: HaStatus = serde_json::from_str(&bench.get("/ha/status").await).unwrap();
    assert_eq!(status.nodes.len(), 1);
    let url = format!("http://{}/ha/pause", bench.address);
    let sent = http_client().post(url).bearer_auth("0123456789abcdef").send().await.unwrap();
    assert_eq!(sent.status(), 200);
    assert!(node.handle().status().paused);
    let mut open = Bench::new(&world, "b", RoleChange::Follow).await;
    let mut settings = open.settings.take().unwrap();
    settings.listen = "0.0.0.0:0".into();
    let lock = world.lock(&settings.candidate_id(), TTL);
    let error = Node::start(settings, lock).await.unwrap_err();
    assert!(matches!(error, StartError::Open(_)), "{error}");
}
