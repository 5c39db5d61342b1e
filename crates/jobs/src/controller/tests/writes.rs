//! What is lost, and what is not: outcomes that nobody knows.

use super::memory::Mishap;
use super::*;
use crate::controller::submit::id_of_key;
use crate::job::JobState;

#[tokio::test(start_paused = true)]
async fn a_job_is_taken_in_given_out_and_its_result_kept_once() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(4).await;
    let taken_in = submit(&office, "k").await.unwrap();
    assert!(!taken_in.again);
    assert_eq!(submit(&office, "k").await.unwrap().submitted.id, taken_in.submitted.id);
    let other = office.submit(Some("k"), spec(r#"{"command": ["false"]}"#), None).await;
    assert_eq!(other, Err(Refusal::KeyReused));
    let grant = granted(&office, "a").await;
    assert_eq!((grant.job_epoch, grant.leader_epoch, grant.attempt), (1, 4, 1));
    assert_eq!(office.ask(&ask("b", "", 0)).await.unwrap(), None);
    office.renew(&grant.lease_id, &claim(&grant)).await.unwrap();
    let kept = office.conclude(report(&grant, true)).await.unwrap();
    assert_eq!((kept.state.as_str(), kept.job_epoch), ("succeeded", 1));
    // Told again: the same answer, and nothing is written.
    let writes = memory.writes();
    assert_eq!(office.conclude(report(&grant, true)).await.unwrap(), kept);
    assert_eq!(memory.writes(), writes);
    let odd = LeaseGrant { lease_id: "x".into(), ..grant.clone() };
    let stale = office.conclude(report(&odd, true)).await.unwrap_err();
    assert_eq!(stale_numbers(&stale), (Some(4), None));
    assert!(submit(&office, "k").await.unwrap().again, "when it is over");
    let events = node.events();
    let jobs = events.iter().filter(|event| event.starts_with("job")).count();
    assert_eq!(jobs, 3, "renewals are no news: {events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_repeated_until_it_is_certain() {
    for mishap in [Mishap::LostBefore, Mishap::LostAfter] {
        let memory = Arc::new(Memory::default());
        let node = Node::start(&memory, "a");
        let office = node.lead(4).await;
        node.reach.next([mishap, Mishap::LostBefore, Mishap::LostBefore]);
        assert_eq!(submit(&office, "k").await, Err(Refusal::Unknown), "{mishap:?}");
        // Nobody decides anything else about it meanwhile.
        let id = id_of_key("k");
        assert_eq!(office.cancel(&id).await, Err(Refusal::Unknown));
        // Whoever sends the same again waits for it.
        let again = submit(&office, "k").await.unwrap();
        assert!(again.again && again.submitted.id == id);
        assert_eq!(memory.history(&id).len(), 1, "{mishap:?}");
        assert_eq!(granted(&office, "a").await.job_id, id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_changes_nothing() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(4).await;
    node.reach.next([Mishap::Refused]);
    assert_eq!(submit(&office, "k").await, Err(Refusal::Unavailable));
    assert!(memory.ids(Kind::Job).is_empty());
    assert!(!submit(&office, "k").await.unwrap().again);
}

/// The answer to a grant was lost: the same question gets the same work, and no other.
#[tokio::test(start_paused = true)]
async fn a_grant_in_doubt_is_given_to_whoever_asked_for_it() {
    for mishap in [Mishap::LostBefore, Mishap::LostAfter] {
        let memory = Arc::new(Memory::default());
        let node = Node::start(&memory, "a");
        let office = node.lead(4).await;
        let id = submit(&office, "k").await.unwrap().submitted.id;
        submit(&office, "other").await.unwrap();
        node.reach.next([mishap]);
        assert_eq!(office.ask(&ask("a", "r1", 0)).await, Err(Refusal::Unknown));
        let grant = office.ask(&ask("a", "r1", 0)).await.unwrap().unwrap();
        assert_eq!(grant.job_id, id, "{mishap:?}");
        // And again, as long as it lasts.
        let again = office.ask(&ask("a", "r1", 0)).await.unwrap().unwrap();
        assert_eq!(again.lease_id, grant.lease_id);
        let second = office.ask(&ask("a", "r2", 0)).await.unwrap().unwrap();
        assert_ne!(second.job_id, id);
    }
}

/// A process is killed with a write under way, and its successor opens under the same epoch.
#[tokio::test(start_paused = true)]
async fn a_write_that_arrives_late_finds_another_opening() {
    let memory = Arc::new(Memory::default());
    let before = Node::start(&memory, "a");
    let office = before.lead(4).await;
    let taken_in = submit(&office, "k").await.unwrap();
    before.reach.next([Mishap::Late]);
    assert_eq!(office.cancel(&taken_in.submitted.id).await, Err(Refusal::Unknown));
    before.reach.down.store(true, std::sync::atomic::Ordering::SeqCst);
    drop(before);

    let after = Node::start(&memory, "a");
    let office = after.lead(4).await;
    let grant = granted(&office, "x").await;
    assert_eq!(memory.arrive(), 0, "nothing that is late is kept");
    office.conclude(report(&grant, true)).await.unwrap();
    assert_eq!(kept_job(&memory, &grant.job_id).state, JobState::Succeeded);
    assert!(submit(&office, "k").await.unwrap().again, "one job for the key");
}

/// Late within one office: the same write was repeated and confirmed, and others after it.
#[tokio::test(start_paused = true)]
async fn a_write_that_arrives_late_does_not_undo_later_ones() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(4).await;
    node.reach.next([Mishap::Late]);
    assert_eq!(submit(&office, "k").await, Err(Refusal::Unknown));
    assert!(submit(&office, "k").await.unwrap().again);
    let grant = granted(&office, "x").await;
    assert_eq!(memory.arrive(), 0);
    assert_eq!(kept_job(&memory, &grant.job_id).state, JobState::Leased);
}

#[tokio::test(start_paused = true)]
async fn whoever_leads_no_more_finds_out_at_its_next_write() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(4).await;
    let grant = {
        submit(&office, "k").await.unwrap();
        granted(&office, "x").await
    };
    memory.open(5, "b");
    let writes = memory.writes();
    let refused = office.conclude(report(&grant, true)).await.unwrap_err();
    assert_eq!(stale_numbers(&refused), (Some(5), None), "by the store");
    assert_eq!(memory.writes(), writes);
    assert_eq!(kept_job(&memory, &grant.job_id).state, JobState::Leased);
    // From now on it knows.
    assert_eq!(office.conclude(report(&grant, true)).await, Err(Refusal::NotLeader));
    assert_eq!(submit(&office, "k2").await, Err(Refusal::NotLeader));
    assert!(node.office().is_err());
    let role = node.settled().await;
    assert_eq!((role.role, role.store_epoch), (Role::Standby, Some(5)));
}

/// An agent that is told its own epoch takes its attempt for over, and it is not.
#[tokio::test(start_paused = true)]
async fn another_opening_under_the_same_epoch_is_not_named_as_a_leader() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(4).await;
    submit(&office, "k").await.unwrap();
    let grant = granted(&office, "x").await;
    memory.open(4, "a");
    let refused = office.conclude(report(&grant, true)).await.unwrap_err();
    assert_eq!(stale_numbers(&refused), (None, None));
    assert_eq!(node.settled().await.store_epoch, Some(4));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_to_be_repeated_is_not_sent_after_the_office() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(4).await;
    let all = u32::try_from(office::STORE_AT_ONCE).unwrap();
    let others = office.repeats.acquire_many(all).await.unwrap();
    node.reach.next([Mishap::LostBefore]);
    assert_eq!(submit(&office, "k").await, Err(Refusal::Unknown));
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.order(Role::Standby, 5);
    node.settled().await;
    drop(others);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(memory.ids(Kind::Job).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_does_not_stop_what_it_began() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(4).await;
    node.reach.next([Mishap::Slow(Duration::from_secs(2))]);
    let gone = tokio::time::timeout(Duration::from_millis(10), submit(&office, "k")).await;
    assert!(gone.is_err());
    assert!(submit(&office, "k").await.unwrap().again);
}

/// Several offices, answers that get lost, clients that insist: whatever was taken in is there,
/// once, and no attempt has two results.
#[tokio::test(start_paused = true)]
async fn nothing_taken_in_is_lost_and_nothing_is_done_twice() {
    use rand::{RngExt as _, SeedableRng as _};
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut dice = rand::rngs::StdRng::seed_from_u64(seed);
    let memory = Arc::new(Memory::default());
    let (mut taken_in, mut results) = (std::collections::BTreeMap::new(), 0);
    for epoch in 1..=12_u64 {
        let node = Node::start(&memory, ["a", "b"][usize::from(epoch % 2 == 0)]);
        let office = node.lead(epoch).await;
        let mut mishaps = Vec::new();
        for _ in 0..60 {
            mishaps.push(match dice.random_range(0..8) {
                0 => Mishap::LostBefore,
                1 => Mishap::LostAfter,
                2 => Mishap::Late,
                3 => Mishap::Slow(Duration::from_millis(dice.random_range(1..3_000))),
                _ => Mishap::None,
            });
        }
        node.reach.next(mishaps);
        for number in 0..20 {
            let key = format!("k{}", dice.random_range(0..60));
            match submit(&office, &key).await {
                Ok(done) => {
                    let id = taken_in.entry(key).or_insert_with(|| done.submitted.id.clone());
                    assert_eq!(*id, done.submitted.id);
                }
                Err(refusal) => assert_eq!(refusal, Refusal::Unknown),
            }
            let asked = ask("a", &format!("{epoch}-{number}"), 0);
            let mut grant = office.ask(&asked).await;
            while grant == Err(Refusal::Unknown) {
                grant = office.ask(&asked).await;
            }
            if let Some(grant) = grant.unwrap() {
                // Some give up before they know.
                for _ in 0..dice.random_range(1..4) {
                    let told = office.conclude(report(&grant, true)).await;
                    results += usize::from(told.is_ok());
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            }
            memory.arrive();
        }
    }
    assert!(taken_in.len() > 20 && results > 20, "{} {results}", taken_in.len());
    for id in taken_in.values() {
        let history = memory.history(id);
        assert!(!history.is_empty(), "lost");
        let jobs: Vec<Job> = history.iter().map(|record| read_job(record).unwrap()).collect();
        let created = jobs.iter().filter(|job| job.version == 1).count();
        assert_eq!(created, 1, "taken in twice");
        let ends = jobs.iter().filter(|job| job.state == JobState::Succeeded).count();
        assert!(ends <= 1, "two results");
        assert!(jobs.windows(2).all(|pair| pair[0].version < pair[1].version));
        assert!(jobs.windows(2).all(|pair| pair[0].leader_epoch <= pair[1].leader_epoch));
    }
}
