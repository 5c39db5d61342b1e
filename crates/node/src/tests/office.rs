//! Taking and leaving office.

use super::*;
use crate::actor::Note;

#[tokio::test]
async fn taking_office_ends_the_agent_first_and_losing_it_starts_it_last() {
    let world = World::default();
    let mut first = Bench::new(&world, "first", RoleChange::Restart).await;
    let other = first.start().await;
    becomes(&other, Role::Leader).await;
    let mut bench = Bench::new(&world, "second", RoleChange::Restart).await.with_agent();
    let node = bench.start().await;
    bench.logged("agent begins").await;
    bench.logged("controller STANDBY").await;
    other.stop().await;
    becomes(&node, Role::Leader).await;
    let log = bench.log();
    let (ends, leads) = (bench.place("agent ends"), bench.place("controller LEADER"));
    assert!(ends.is_some() && ends < leads, "{log:?}");
    world.cut_off("second");
    becomes(&node, Role::Standby).await;
    until("the agent again", || bench.count("agent begins") == 2).await;
    let log = bench.log();
    let again = log.iter().rposition(|line| line.starts_with("agent begins"));
    let closed = log.iter().rposition(|line| line.starts_with("controller ends"));
    assert!(closed < again, "{log:?}");
    assert_eq!(bench.count("controller LEADER"), 1, "{log:?}");
}

#[tokio::test]
async fn a_lock_that_cannot_be_renewed_is_still_held_when_everything_is_closed() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Restart).await;
    // There is a fifth of it left to close, also on a machine that is busy.
    bench.ttl = Duration::from_secs(5);
    let node = bench.start().await;
    becomes(&node, Role::Leader).await;
    bench.logged("controller LEADER").await;
    let ended = bench.count("controller ends");
    world.cut_off("a");
    becomes(&node, Role::Standby).await;
    assert!(world.is_held_by("a"), "it says so before anybody else can lead");
    until("its end", || bench.count("controller ends") > ended).await;
    assert!(world.is_held_by("a"), "it is closed before anybody else can lead");
    until("why", || causes(&node).contains(&"LEADER>STANDBY lock_expired".into())).await;
    world.reconnect();
    becomes(&node, Role::Leader).await;
}

#[tokio::test]
async fn a_lock_that_vanishes_is_lost_and_can_be_had_again() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Follow).await;
    let node = bench.start().await;
    let first = becomes(&node, Role::Leader).await;
    world.vanish();
    until("again", || {
        let now = node.handle().standing().borrow().role.clone();
        now.role == Role::Leader && now.leader_epoch > first.role.leader_epoch
    })
    .await;
    assert!(first.gate.unwrap().enter().is_none(), "the old gate stays shut");
    assert!(causes(&node).contains(&"LEADER>STANDBY lock_lost".into()), "{:?}", causes(&node));
}

#[tokio::test]
async fn a_controller_that_does_not_close_is_killed() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Follow).await;
    let node = bench.start().await;
    becomes(&node, Role::Leader).await;
    let began = bench.count("controller ");
    bench.fake.obeys.store(false, Ordering::SeqCst);
    assert_eq!(bench.fake.last.lock().role, Role::Leader);
    world.cut_off("a");
    becomes(&node, Role::Standby).await;
    until("a new one", || {
        bench.count("controller STANDBY") > 0 && bench.count("controller ") > began
    })
    .await;
    assert_eq!(bench.count("controller ends"), 0, "killed, not asked: {:?}", bench.log());
}

#[tokio::test]
async fn a_store_that_is_ahead_has_the_lock_held_under_a_higher_epoch() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Follow).await.with_agent();
    *bench.fake.store_epoch.lock() = 9;
    let node = bench.start().await;
    let leads = becomes(&node, Role::Leader).await;
    assert_eq!(leads.role.leader_epoch, Some(10));
    assert_eq!(world.holder(), Some(("a".into(), 10)));
    assert_eq!(bench.count("agent"), 0, "not in between: {:?}", bench.log());
    assert!(causes(&node).contains(&"STANDBY>STANDBY behind".into()), "{:?}", causes(&node));
}

#[tokio::test]
async fn a_store_that_goes_ahead_of_its_leader_ends_the_office() {
    let world = World::default();
    for mode in [RoleChange::Follow, RoleChange::Restart] {
        let mut bench = Bench::new(&world, "a", mode).await;
        let node = bench.start().await;
        let first = becomes(&node, Role::Leader).await;
        let ahead = first.role.leader_epoch.unwrap() + 40;
        *bench.fake.store_epoch.lock() = ahead;
        until("a later office", || {
            let now = node.handle().standing().borrow().role.clone();
            now.role == Role::Leader && now.leader_epoch == Some(ahead + 1)
        })
        .await;
        assert!(first.gate.unwrap().enter().is_none(), "the old gate stays shut");
        let causes = causes(&node);
        assert!(causes.contains(&"LEADER>STANDBY behind".into()), "{causes:?}");
        node.stop().await;
    }
}

#[tokio::test]
async fn a_lock_that_has_forgotten_is_taken_when_whoever_led_has_ended() {
    let world = World::default();
    world.forget();
    let mut bench = Bench::new(&world, "a", RoleChange::Restart).await;
    let began = lockd_client::clock::Clock::Boot.now();
    let node = bench.start().await;
    until("the lock", || world.is_held_by("a")).await;
    becomes(&node, Role::Leader).await;
    let took = lockd_client::clock::Clock::Boot.now().since(began);
    assert!(took >= TTL, "{took:?}");
    node.stop().await;
    // One that is stopped meanwhile has begun nothing.
    let mut bench = Bench::new(&world, "b", RoleChange::Restart).await;
    let node = bench.start().await;
    until("the lock", || world.is_held_by("b")).await;
    node.stop().await;
    assert_eq!((world.holder(), bench.count("controller LEADER")), (None, 0));
    // Where the store keeps leaders apart nobody waits.
    let mut bench = Bench::new(&world, "c", RoleChange::Follow).await;
    bench.ttl = LIMIT * 2;
    let node = bench.start().await;
    becomes(&node, Role::Leader).await;
}

#[tokio::test]
async fn nobody_is_let_in_to_a_controller_that_has_died() {
    let world = World::default();
    let script = "while [ ! -e $D/dead ]; do sleep 0.02; done; rm $D/dead; exit 3";
    let mut bench = Bench::new(&world, "a", RoleChange::None)
        .await
        .with(|settings| settings.controller = shell(script));
    let node = bench.start().await;
    assert!(becomes(&node, Role::Leader).await.gate.is_some());
    let mut standing = node.handle().standing();
    std::fs::write(bench.folder.path().join("dead"), "").unwrap();
    let shut = standing.wait_for(|it| it.role.role == Role::Leader && it.gate.is_none());
    drop(tokio::time::timeout(LIMIT, shut).await.expect("it leads, and is shut").unwrap());
    let open = |it: &Standing| it.gate.as_ref().is_some_and(|gate| gate.is_open());
    let again = standing.wait_for(open);
    drop(tokio::time::timeout(LIMIT, again).await.expect("it is open again").unwrap());
    assert_eq!(bench.post("/v1/things", "{}").await.0, 200);
    assert_eq!(node.handle().history().transitions.len(), 2, "it began, and leads");
}

#[tokio::test]
async fn a_preparation_that_is_taken_back_leaves_nothing() {
    let world = World::default();
    let mut first = Bench::new(&world, "first", RoleChange::Follow).await;
    let other = first.start().await;
    becomes(&other, Role::Leader).await;
    let mut bench = Bench::new(&world, "second", RoleChange::Follow).await.with_agent();
    let node = bench.start().await;
    bench.logged("agent begins").await;
    for _ in 0..20 {
        let answer = bench.post("/ha/prepare", r#"{"successor":"second","for_ms":0}"#).await;
        assert_eq!(answer.0, 200, "{answer:?}");
    }
    until("the leader knows it", || {
        let nodes = other.handle().status().nodes;
        nodes.iter().any(|node| node.node_id == "second" && node.controller != "down")
    })
    .await;
    let answer = first.post("/ha/switchover", "{}").await;
    assert_eq!(answer.0, 200, "{answer:?}");
    becomes(&node, Role::Leader).await;
}

#[tokio::test]
async fn a_controller_that_keeps_dying_makes_its_node_resign() {
    let world = World::default();
    let script = "[ $LOCKD_HA_ROLE = LEADER ] && exit 3; while :; do sleep 0.02; done";
    let mut bench = Bench::new(&world, "a", RoleChange::Restart)
        .await
        .with(|settings| settings.controller = shell(script));
    bench.fake.knows_roles.store(false, Ordering::SeqCst);
    let node = bench.start().await;
    let failed = |cause: &String| cause.ends_with("STANDBY controller_failed");
    until("its resignation", || causes(&node).iter().any(failed)).await;
    until("the lock free", || world.holder().is_none()).await;
    assert!(node.handle().metrics().contains("lockd_ha_restarts_total{program=\"controller\"}"));
}

#[tokio::test]
async fn a_controller_that_does_not_open_makes_its_node_resign() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Follow)
        .await
        .with(|settings| settings.open_timeout = Some(Duration::from_millis(200)));
    bench.fake.obeys.store(false, Ordering::SeqCst);
    let node = bench.start().await;
    let failed = "STANDBY>STANDBY controller_failed".to_owned();
    bench.logged("controller STANDBY").await;
    // It says that it is closed, and nothing else.
    until("its resignation", || causes(&node).contains(&failed)).await;
    until("the lock free", || world.holder().is_none()).await;
}

#[tokio::test]
async fn a_stop_hands_over_at_once() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Restart).await.with_agent();
    let node = bench.start().await;
    becomes(&node, Role::Leader).await;
    node.stop().await;
    assert_eq!(world.holder(), None, "released, not run out");
    assert_eq!(bench.count("agent"), 0, "{:?}", bench.log());
    let causes = causes(&node);
    assert!(
        causes.ends_with(&["LEADER>DRAINING stopping".into(), "DRAINING>STANDBY stopping".into()])
    );
    node.stop().await;
}

#[tokio::test]
async fn what_is_on_its_way_is_finished_before_the_lock_is_released() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::None).await;
    let node = Arc::new(bench.start().await);
    becomes(&node, Role::Leader).await;
    bench.fake.slow.store(true, Ordering::SeqCst);
    let changing = bench.post("/v1/things", "{}");
    tokio::pin!(changing);
    tokio::select! {
        _ = changing.as_mut() => panic!("too early"),
        () = bench.fake.entered.notified() => {}
    }
    let stopping = {
        let node = Arc::clone(&node);
        async move { node.stop().await }
    };
    tokio::pin!(stopping);
    tokio::select! {
        () = stopping.as_mut() => panic!("a change is on its way"),
        _ = changing.as_mut() => panic!("nobody answers it yet"),
        _ = becomes(&node, Role::Draining) => {}
    }
    assert!(world.is_held_by("a"));
    bench.fake.go_on.notify_one();
    let (answer, ()) = tokio::join!(changing, stopping);
    assert_eq!(answer.0, 200, "{answer:?}");
    assert_eq!(world.holder(), None);
    assert_eq!(bench.count("controller"), 1 + bench.count("controller ends"), "never restarted");
}

#[tokio::test]
async fn what_is_on_its_way_when_the_lock_is_gone_is_given_up() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::None).await;
    let node = bench.start().await;
    becomes(&node, Role::Leader).await;
    bench.logged("controller STANDBY").await;
    bench.fake.slow.store(true, Ordering::SeqCst);
    let changing = bench.post("/v1/things", "{}");
    tokio::pin!(changing);
    tokio::select! {
        _ = changing.as_mut() => panic!("too early"),
        () = bench.fake.entered.notified() => {}
    }
    world.cut_off("a");
    let answer = tokio::time::timeout(LIMIT, changing).await.unwrap();
    assert_eq!(answer.0, 503, "{answer:?}");
    assert!(answer.1.contains("unknown"), "{answer:?}");
    // Nobody can tell whether it still writes, so it does not live on.
    until("another process", || bench.count("controller STANDBY") == 2).await;
    assert_eq!(node.handle().standing().borrow().role.role, Role::Standby);
}

#[tokio::test]
async fn a_rule_that_does_not_hold_closes_everything() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Restart).await;
    let node = bench.start().await;
    let standing = becomes(&node, Role::Leader).await;
    node.handle().shared.notes.send(Note::Corrupt).await.unwrap();
    becomes(&node, Role::Standby).await;
    assert!(standing.gate.unwrap().enter().is_none());
    until("the lock free", || world.holder().is_none()).await;
    until("why", || causes(&node).contains(&"LEADER>STANDBY broken".into())).await;
}
