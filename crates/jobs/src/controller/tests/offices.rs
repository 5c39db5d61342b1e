//! Taking office, keeping it, and handing it over.

use super::memory::Mishap;
use super::*;
use crate::job::JobState;

#[tokio::test(start_paused = true)]
async fn a_new_leader_confirms_attempts_and_tells_old_claims_its_epoch() {
    // The clock of the second is a day behind, and then a day ahead.
    for ahead in [0, 2 * A_DAY_MS] {
        let memory = Arc::new(Memory::default());
        let a = Node::start(&memory, "a");
        let office = a.lead(4).await;
        submit(&office, "k").await.unwrap();
        let grant = granted(&office, "x").await;

        let b = Node::start_with(&memory, "b", ahead, |_| {});
        let office = b.lead(9).await;
        let kept = kept_job(&memory, &grant.job_id);
        assert_eq!((kept.leader_epoch, kept.job_epoch), (9, 1));
        assert_eq!(kept.lease.unwrap().id, grant.lease_id);
        // Under the old epoch it is told the new one, and that its attempt is the job's.
        let old = claim(&grant);
        let refused = office.renew(&grant.lease_id, &old).await.unwrap_err();
        assert_eq!(stale_numbers(&refused), (Some(9), Some(1)));
        let refused = office.conclude(report(&grant, true)).await.unwrap_err();
        assert_eq!(stale_numbers(&refused), (Some(9), Some(1)));
        // It has its whole time again.
        let new = LeaseGrant { leader_epoch: 9, ..grant.clone() };
        let renewed = office.renew(&grant.lease_id, &claim(&new)).await.unwrap();
        assert_eq!(renewed.ttl_ms, 15_000);
        tokio::time::sleep(Duration::from_secs(14)).await;
        office.conclude(report(&new, true)).await.unwrap();
        assert_eq!(kept_job(&memory, &grant.job_id).state, JobState::Succeeded);
        // And the leader of before is refused by the store.
        let office = a.office().unwrap();
        let refused = office.conclude(report(&grant, false)).await.unwrap_err();
        assert_eq!(stale_numbers(&refused), (Some(9), None));
    }
}

/// One page is late: what was read before it is not read again.
#[tokio::test(start_paused = true)]
async fn taking_office_goes_on_after_a_page_that_did_not_come() {
    let memory = Arc::new(Memory::default());
    let a = Node::start(&memory, "a");
    let office = a.lead(1).await;
    for number in 0..10 {
        submit(&office, &format!("k{number}")).await.unwrap();
    }
    let b = Node::start(&memory, "b");
    b.reach.unanswered.store(2, std::sync::atomic::Ordering::SeqCst);
    let office = b.lead(2).await;
    assert_eq!(office.desk.lock().board.len(), 10);
    let loads = b.reach.loads.lock().clone();
    assert_eq!(loads.len(), 7, "{loads:?}");
    assert!(loads.is_sorted() && loads[1] == loads[3] && loads[3] < loads[4], "{loads:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_is_overtaken_while_it_takes_office_says_by_whom() {
    let memory = Arc::new(Memory::default());
    let a = Node::start(&memory, "a");
    let office = a.lead(4).await;
    submit(&office, "k").await.unwrap();
    granted(&office, "x").await;
    let b = Node::start(&memory, "b");
    b.reach.next([Mishap::Slow(Duration::from_secs(1))]);
    b.order(Role::Leader, 5);
    tokio::time::sleep(Duration::from_millis(100)).await;
    memory.open(9, "c");
    let role = b.settled().await;
    assert_eq!((role.role, role.store_epoch), (Role::Standby, Some(9)));
}

#[tokio::test(start_paused = true)]
async fn nothing_that_another_clock_wrote_holds_up_work_or_ends_it() {
    for ahead in [0, 2 * A_DAY_MS] {
        let memory = Arc::new(Memory::default());
        let a = Node::start(&memory, "a");
        let office = a.lead(4).await;
        let job = spec(r#"{"command": ["true"], "deadline_seconds": 600, "max_attempts": 9}"#);
        let id = office.submit(None, job, None).await.unwrap().submitted.id;
        let grant = granted(&office, "x").await;
        office.conclude(report(&grant, false)).await.unwrap();

        let b = Node::start_with(&memory, "b", ahead, |_| {});
        let office = b.lead(9).await;
        let grant = office.ask(&ask("x", "r", 5)).await.unwrap().expect("after its pause");
        assert_eq!((grant.job_id.as_str(), grant.attempt), (id.as_str(), 2));
        office.conclude(report(&grant, false)).await.unwrap();
        // Its deadline comes when its time has passed, not when a clock says so.
        tokio::time::sleep(Duration::from_secs(590)).await;
        assert_ne!(kept_job(&memory, &id).state, JobState::Failed);
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(kept_job(&memory, &id).state, JobState::Failed);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_behind_stays_a_standby_and_says_what_the_store_knows() {
    let memory = Arc::new(Memory::default());
    memory.open(7, "b");
    let node = Node::start(&memory, "a");
    node.order(Role::Leader, 7);
    let role = node.settled().await;
    assert_eq!((role.role, role.store_epoch), (Role::Standby, Some(7)));
    node.lead(8).await;
    assert_eq!(node.controller.role().store_epoch, None);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_asked_is_asked_again_while_it_is_wanted() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    node.reach.down.store(true, std::sync::atomic::Ordering::SeqCst);
    node.order(Role::Leader, 3);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(node.controller.role().role, Role::Standby);
    assert_ne!(node.controller.role().assignment, Some(1), "not acted upon yet");
    // What changes nothing does not hold it up.
    node.orders.send_modify(|_| {});
    node.reach.down.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(node.settled().await.role, Role::Leader);
    // It is not wanted any more.
    node.reach.down.store(true, std::sync::atomic::Ordering::SeqCst);
    node.order(Role::Leader, 4);
    tokio::time::sleep(Duration::from_secs(3)).await;
    node.order(Role::Standby, 5);
    assert_eq!(node.settled().await.role, Role::Standby);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_is_kept_keeps_a_leader_from_office() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    let ids: Vec<String> = {
        let mut ids = Vec::new();
        for key in ["k1", "k2", "k3"] {
            ids.push(submit(&office, key).await.unwrap().submitted.id);
        }
        ids
    };
    drop(node);
    let whole = memory.record(Kind::Job, &ids[1]).unwrap().body;
    memory.put(Kind::Job, &ids[0], 1, "{");
    memory.put(Kind::Job, &ids[1], 1, &whole.replace("queued", "leased"));
    memory.put(Kind::Job, "zz", 1, &whole);
    memory.put(Kind::Job, "zy", u64::MAX, &whole);
    memory.put(Kind::Agent, "q", 1, "nonsense");
    let node = Node::start(&memory, "a");
    let office = node.lead(2).await;
    assert_eq!(granted(&office, "x").await.job_id, ids[2], "all else goes on");
    assert_eq!(submit(&office, "k1").await, Err(Refusal::Damaged));
    assert_eq!(office.cancel(&ids[1]).await, Err(Refusal::Damaged));
    assert_eq!(memory.record(Kind::Job, &ids[0]).unwrap().body, "{", "it is left alone");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_ends_changes_until_more_is_heard() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    submit(&office, "k").await.unwrap();
    let clock = node.controller.shared().time.clock.clone();
    let lease = |span| {
        let until = Some(clock.now().plus(Duration::from_secs(span)));
        node.orders.send_modify(|orders| orders.until = until);
    };
    lease(5);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(node.controller.role().role, Role::Leader);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(node.controller.role().role, Role::Standby);
    assert!(node.office().is_err());
    assert_eq!(submit(&office, "k2").await, Err(Refusal::NotLeader));
    assert_eq!(office.ask(&ask("x", "", 0)).await, Err(Refusal::NotLeader));
    lease(5);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(node.controller.role().role, Role::Leader);
    granted(&office, "x").await;
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_office_ends_its_writes_first() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    node.reach.next([Mishap::Slow(Duration::from_secs(2))]);
    let waiting = {
        let office = Arc::clone(&office);
        begun(async move { office.ask(&ask("x", "", 30)).await })
    };
    let writing = {
        let office = Arc::clone(&office);
        begun(async move { submit(&office, "k").await })
    };
    tokio::time::sleep(Duration::from_millis(10)).await;
    let before = memory.writes();
    node.order(Role::Standby, 2);
    node.settled().await;
    assert!(memory.writes() > before, "the write has ended");
    assert!(writing.await.unwrap().is_ok());
    assert_eq!(waiting.await.unwrap(), Err(Refusal::NotLeader));
    assert_eq!(submit(&office, "k2").await, Err(Refusal::NotLeader));
}

#[tokio::test(start_paused = true)]
async fn draining_gives_out_no_work_and_takes_everything_else() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    submit(&office, "k1").await.unwrap();
    let grant = granted(&office, "x").await;
    let waiting = {
        let office = Arc::clone(&office);
        begun(async move { office.ask(&ask("y", "", 30)).await })
    };
    tokio::time::sleep(Duration::from_millis(10)).await;
    let began = tokio::time::Instant::now();
    node.order(Role::Draining, 1);
    assert_eq!(node.settled().await.role, Role::Draining);
    assert_eq!(waiting.await.unwrap(), Ok(None), "those who wait are told at once");
    submit(&office, "k2").await.unwrap();
    assert_eq!(office.ask(&ask("x", "", 30)).await, Ok(None));
    assert!(began.elapsed() < Duration::from_secs(1));
    office.conclude(report(&grant, true)).await.unwrap();
    node.order(Role::Leader, 1);
    node.settled().await;
    granted(&office, "x").await;
}

#[tokio::test(start_paused = true)]
async fn alone_it_leads_above_all_that_the_store_knows_until_another_does() {
    let memory = Arc::new(Memory::default());
    memory.open(41, "b");
    let mut nodes = Vec::new();
    for name in ["a", "c"] {
        let reach = Arc::new(Reach::new(&memory));
        let clock = Clock::Runtime(tokio::time::Instant::now());
        let settings = Settings::new(name, Source::Alone);
        let time = Time { clock, ahead_ms: 0 };
        nodes.push(Controller::start_at(settings, reach, time));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(nodes[1].role().leader_epoch, Some(43));
    let first = nodes[0].shared().office().unwrap();
    assert_eq!(first.epoch, 42, "it does not know yet");
    let refused = submit(&first, "k").await.unwrap_err();
    assert_eq!(stale_numbers(&refused), (Some(43), None));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let role = nodes[0].role();
    assert_eq!((role.role, role.store_epoch), (Role::Standby, Some(43)), "for good");
    assert_eq!(nodes[1].role().role, Role::Leader);
    nodes[1].stop().await;
    assert_eq!(nodes[1].role().role, Role::Standby);
}

#[tokio::test(start_paused = true)]
async fn a_role_that_is_fixed_stays() {
    let memory = Arc::new(Memory::default());
    let start = |role, epoch| {
        let settings = Settings::new("a", Source::Fixed { role, epoch });
        let time = Time { clock: Clock::Runtime(tokio::time::Instant::now()), ahead_ms: 0 };
        Controller::start_at(settings, Arc::new(Reach::new(&memory)), time)
    };
    let standby = start(Role::Standby, None);
    let leader = start(Role::Leader, Some(6));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(standby.role().role, Role::Standby);
    assert_eq!((leader.role().role, leader.role().leader_epoch), (Role::Leader, Some(6)));
}
