//! Programs: what they are told, and that none is left behind.

use rustix::process::{Pid, Signal, test_kill_process};

use super::*;

/// The process that wrote a line of the log.
fn written_by(bench: &Bench, begins: &str) -> Pid {
    let log = bench.log();
    let line = log.iter().rev().find(|line| line.starts_with(begins)).expect("a line");
    Pid::from_raw(line.rsplit(' ').next().unwrap().parse().unwrap()).unwrap()
}

#[tokio::test]
async fn a_controller_that_is_restarted_learns_its_role_from_its_variables() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Restart)
        .await
        .with(|settings| settings.environment.push(("LOCKD_HA_ROLE".into(), "KING".into())));
    bench.fake.knows_roles.store(false, Ordering::SeqCst);
    let node = bench.start().await;
    let leads = becomes(&node, Role::Leader).await;
    assert_eq!(leads.role.leader_epoch, Some(1));
    let url = format!("http://{}", bench.address);
    assert_eq!(leads.role.leader_url, Some(url));
    bench.logged("controller LEADER 1 ").await;
    let assignment = bench.fake.assignment("").await.unwrap();
    assert_eq!((assignment.role, assignment.leader_epoch), (Role::Leader, Some(1)));
    let lease = assignment.lease_ms.unwrap();
    assert!((1..=2_000).contains(&lease), "{lease}");
}

#[tokio::test]
async fn a_signal_tells_a_controller_to_ask() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Signal(Signal::HUP)).await;
    world.cut_off("a");
    let node = bench.start().await;
    bench.logged("controller STANDBY").await;
    world.reconnect();
    becomes(&node, Role::Leader).await;
    bench.logged("controller hears").await;
    assert_eq!(bench.count("controller STANDBY"), 1, "the same process: {:?}", bench.log());
    assert_eq!(bench.count("controller LEADER"), 0, "the same process: {:?}", bench.log());
}

#[test]
fn a_signal_tells_a_controller_to_ask_also_under_nohup() {
    let mut again = std::process::Command::new("nohup");
    again.arg(std::env::current_exe().unwrap()).arg("--exact");
    again.arg("tests::programs::a_signal_tells_a_controller_to_ask");
    let done = again.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn a_controller_without_roles_stays_the_same_process() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::None).await;
    bench.fake.knows_roles.store(false, Ordering::SeqCst);
    world.cut_off("a");
    let node = bench.start().await;
    bench.logged("controller STANDBY").await;
    let refused = bench.post("/v1/things", "{}").await;
    assert_eq!(refused.0, 409, "{refused:?}");
    assert!(refused.1.contains("NOT_LEADER"), "{refused:?}");
    world.reconnect();
    becomes(&node, Role::Leader).await;
    let changed = bench.post("/v1/things", "{}").await;
    assert_eq!(changed, (200, "changed".into()));
    world.cut_off("a");
    becomes(&node, Role::Standby).await;
    assert_eq!(bench.post("/v1/things", "{}").await.0, 409);
    until("its closing", || causes(&node).last().is_some_and(|it| it.ends_with("expired"))).await;
    assert_eq!(bench.count("controller "), 1, "{:?}", bench.log());
}

#[tokio::test]
async fn programs_die_with_their_node() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Restart).await.with_agent();
    world.cut_off("a");
    let node = bench.start().await;
    bench.logged("controller STANDBY").await;
    bench.logged("agent begins").await;
    let programs = [written_by(&bench, "controller"), written_by(&bench, "agent")];
    assert!(programs.iter().all(|id| test_kill_process(*id).is_ok()));
    drop(node);
    until("their end", || programs.iter().all(|id| test_kill_process(*id).is_err())).await;
}

#[tokio::test]
async fn an_agent_that_does_not_end_is_killed_before_the_controller_opens() {
    let world = World::default();
    let script = "trap '' TERM; echo \"agent begins $$\" >> $D/log; while :; do sleep 0.02; done";
    let mut bench = Bench::new(&world, "a", RoleChange::Restart).await.with(|settings| {
        settings.agent = Some(shell(script));
        settings.stop_grace = Duration::from_millis(200);
    });
    world.cut_off("a");
    let node = bench.start().await;
    bench.logged("agent begins").await;
    let agent = written_by(&bench, "agent");
    world.reconnect();
    bench.logged("controller LEADER").await;
    assert!(test_kill_process(agent).is_err(), "it is gone");
    becomes(&node, Role::Leader).await;
}

#[tokio::test]
async fn a_controller_that_is_not_well_is_replaced() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Follow).await;
    let node = bench.start().await;
    becomes(&node, Role::Leader).await;
    let began = bench.count("controller ");
    bench.fake.healthy.store(false, Ordering::SeqCst);
    let mut healthy = node.handle().healthy();
    healthy.wait_for(|well| !well).await.unwrap();
    bench.fake.healthy.store(true, Ordering::SeqCst);
    until("another one", || bench.count("controller ") > began).await;
    healthy.wait_for(|well| *well).await.unwrap();
    becomes(&node, Role::Leader).await;
}

#[tokio::test]
async fn the_local_endpoint_waits_for_news_and_asks_for_its_token() {
    let world = World::default();
    let mut bench = Bench::new(&world, "a", RoleChange::Follow).await;
    world.cut_off("a");
    let node = bench.start().await;
    bench.logged("controller STANDBY").await;
    let now = bench.fake.assignment("").await.unwrap();
    assert_eq!((now.role, now.lease_ms), (Role::Standby, None));
    let query = format!("?after={}&wait_ms=1", now.version);
    assert_eq!(bench.fake.assignment(&query).await.unwrap().version, now.version);
    let query = format!("?after={}&wait_ms=30000", now.version);
    let (next, ()) = tokio::join!(bench.fake.assignment(&query), async { world.reconnect() });
    assert!(next.unwrap().version > now.version);
    let (endpoint, token) = bench.fake.told().unwrap();
    assert_eq!(token.len(), 32);
    let unknown = http_client().get(format!("{endpoint}/assignment")).send().await.unwrap();
    assert_eq!(unknown.status(), 401);
    becomes(&node, Role::Leader).await;
}
