//! What a leader does in office: who gets work, what lapses, what is forgotten.

use super::memory::Mishap;
use super::*;
use crate::job::{JobState, Taker};

#[tokio::test(start_paused = true)]
async fn those_who_wait_get_work_in_the_order_in_which_they_came() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    let mut waiting = Vec::new();
    for agent in ["a1", "a2", "a3"] {
        let office = Arc::clone(&office);
        let asks = async move { office.ask(&ask(agent, "", 20)).await };
        waiting.push(begun(asks));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The second goes away.
    waiting.remove(1).abort();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let began = tokio::time::Instant::now();
    let first = submit(&office, "k1").await.unwrap().submitted.id;
    let second = submit(&office, "k2").await.unwrap().submitted.id;
    for (asked, id) in waiting.into_iter().zip([first, second]) {
        assert_eq!(asked.await.unwrap().unwrap().unwrap().job_id, id);
    }
    assert!(began.elapsed() < Duration::from_millis(10), "woken, not asked after a while");
    let began = tokio::time::Instant::now();
    assert_eq!(office.ask(&ask("a4", "", 7)).await, Ok(None));
    assert_eq!(began.elapsed().as_secs(), 7);
}

/// Work is on its way to somebody who goes away at that moment.
#[tokio::test(start_paused = true)]
async fn nobody_swallows_a_job() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    let mut asked = Box::pin({
        let office = Arc::clone(&office);
        async move { office.ask(&ask("gone", "", 20)).await }
    });
    assert!(futures_util::poll!(asked.as_mut()).is_pending());
    submit(&office, "k").await.unwrap();
    // It was woken, has not looked yet, and is dropped.
    drop(asked);
    assert_eq!(granted(&office, "b").await.attempt, 1);
}

/// The client is gone while its grant is written, or was told that nobody knows; it has no question
/// that it could repeat.
#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_home_and_nobody_can_ask_for_again_is_given_back() {
    for mishap in [Mishap::Slow(Duration::from_millis(500)), Mishap::LostAfter] {
        let memory = Arc::new(Memory::default());
        let node = Node::start(&memory, "a");
        let office = node.lead(1).await;
        let once = spec(r#"{"command": ["true"], "max_attempts": 1}"#);
        let id = office.submit(None, once, None).await.unwrap().submitted.id;
        node.reach.next([mishap]);
        let asked = ask("x", "", 20);
        let gone = tokio::time::timeout(Duration::from_millis(100), office.ask(&asked)).await;
        assert!(matches!(gone, Err(_) | Ok(Err(Refusal::Unknown))), "{gone:?}");
        let grant = office.ask(&ask("y", "", 5)).await.unwrap().expect("it is there again");
        assert_eq!((grant.job_id.as_str(), grant.attempt), (id.as_str(), 1), "{mishap:?}");
        office.renew(&grant.lease_id, &claim(&grant)).await.unwrap();
    }
}

/// The client is gone while its grant is written: the same question gets it; else it lapses.
#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_home_is_there_for_the_same_question() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    let id = submit(&office, "k").await.unwrap().submitted.id;
    node.reach.next([Mishap::Slow(Duration::from_millis(500))]);
    let asked = ask("x", "r", 20);
    let gone = tokio::time::timeout(Duration::from_millis(100), office.ask(&asked)).await;
    assert!(gone.is_err());
    let grant = office.ask(&ask("x", "r", 0)).await.unwrap().unwrap();
    assert_eq!((grant.job_id.as_str(), grant.attempt), (id.as_str(), 1));
    tokio::time::sleep(Duration::from_secs(17)).await;
    let again = office.ask(&ask("y", "", 5)).await.unwrap().unwrap();
    assert_eq!((again.job_id.as_str(), again.attempt), (id.as_str(), 2));
}

/// The same question waits twice, for its first client has given up.
#[tokio::test(start_paused = true)]
async fn a_question_that_is_repeated_takes_over_its_place() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    let mut waiting = Vec::new();
    for agent in ["x", "y", "x"] {
        let office = Arc::clone(&office);
        waiting.push(begun(async move { office.ask(&ask(agent, "r", 20)).await }));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let first = submit(&office, "k1").await.unwrap().submitted.id;
    let repeated = waiting.pop().unwrap().await.unwrap().unwrap().unwrap();
    assert_eq!(repeated.job_id, first, "it is still the first in line");
    assert_eq!(waiting.remove(0).await.unwrap(), Ok(None));
}

#[tokio::test(start_paused = true)]
async fn work_lapses_is_given_back_and_cancelled() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    let id = submit(&office, "k").await.unwrap().submitted.id;
    let first = granted(&office, "x").await;
    tokio::time::sleep(Duration::from_millis(15_100)).await;
    let job = kept_job(&memory, &id);
    assert_eq!((job.state, job.attempts), (JobState::Queued, 1));
    let refused = office.renew(&first.lease_id, &claim(&first)).await.unwrap_err();
    assert_eq!(stale_numbers(&refused), (Some(1), None));
    // Whoever waits is woken when the pause is over.
    let second = office.ask(&ask("x", "", 5)).await.unwrap().unwrap();
    office.release(&second.lease_id, &claim(&second)).await.unwrap();
    let third = granted(&office, "y").await;
    assert_eq!((third.job_epoch, third.attempt), (3, 2), "what is given back does not count");
    let cancelled = office.cancel(&id).await.unwrap();
    assert_eq!(cancelled.state, JobState::Cancelled);
    assert_eq!(office.cancel(&id).await.unwrap().version, cancelled.version, "again");
    let refused = office.conclude(report(&third, true)).await.unwrap_err();
    assert_eq!(stale_numbers(&refused), (Some(1), None));
    let done = submit(&office, "k2").await.unwrap().submitted.id;
    let grant = granted(&office, "x").await;
    office.conclude(report(&grant, true)).await.unwrap();
    assert_eq!(office.cancel(&done).await, Err(Refusal::JobOver));
    assert_eq!(office.cancel("none").await, Err(Refusal::NotFound("no such job")));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_job_that_runs() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    let job = spec(r#"{"command": ["true"], "deadline_seconds": 8}"#);
    let id = office.submit(None, job.clone(), None).await.unwrap().submitted.id;
    let waits = office.submit(None, job, None).await.unwrap().submitted.id;
    let grant = granted(&office, "x").await;
    assert!(grant.ends_in_ms <= 8_000);
    tokio::time::sleep(Duration::from_millis(8_100)).await;
    for id in [&id, &waits] {
        assert_eq!(kept_job(&memory, id).state, JobState::Failed);
    }
    assert!(office.renew(&grant.lease_id, &claim(&grant)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn there_are_bounds() {
    let memory = Arc::new(Memory::default());
    let node = Node::start_with(&memory, "a", 0, |settings| {
        (settings.unfinished_max, settings.waiters_max, settings.agents_max) = (2, 1, 2);
    });
    let office = node.lead(1).await;
    submit(&office, "k1").await.unwrap();
    submit(&office, "k2").await.unwrap();
    assert_eq!(submit(&office, "k3").await, Err(Refusal::TooManyJobs));
    assert!(submit(&office, "k1").await.unwrap().again, "one that is there needs no room");
    granted(&office, "x").await;
    granted(&office, "y").await;
    assert_eq!(office.ask(&ask("z", "", 0)).await, Err(Refusal::TooManyAgents));
    let waiting = {
        let office = Arc::clone(&office);
        begun(async move { office.ask(&ask("x", "", 5)).await })
    };
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(office.ask(&ask("y", "", 1)).await, Err(Refusal::TooManyWaiters));
    waiting.await.unwrap().unwrap();
    // An agent that was not seen for long makes room.
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert!(office.ask(&ask("z", "", 0)).await.is_ok());
    for wrong in ["", "a b"] {
        assert!(matches!(office.ask(&ask(wrong, "", 0)).await, Err(Refusal::Invalid(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_over_is_forgotten_after_a_while_the_oldest_first() {
    let memory = Arc::new(Memory::default());
    let node = Node::start_with(&memory, "a", 0, |settings| {
        (settings.finished_max, settings.finished_age_min) = (2, Duration::from_secs(60));
    });
    let office = node.lead(1).await;
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(submit(&office, &format!("k{number}")).await.unwrap().submitted.id);
        office.cancel(&ids[number]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(memory.ids(Kind::Job).len(), 5, "young enough");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut kept = ids[3..].to_vec();
    kept.sort();
    assert_eq!(memory.ids(Kind::Job), kept);
    // A key is remembered as long as its job.
    assert!(!submit(&office, "k0").await.unwrap().again);
}

/// Whoever takes office reads what is over, so there is a bound to its bytes, however young it is.
#[tokio::test(start_paused = true)]
async fn what_is_over_is_forgotten_when_it_is_too_large_the_oldest_first() {
    const BYTES_MAX: usize = 8_000;
    let memory = Arc::new(Memory::default());
    let node = Node::start_with(&memory, "a", 0, |settings| {
        settings.finished_bytes_max = BYTES_MAX;
    });
    let office = node.lead(1).await;
    let kept_bytes = || -> usize {
        let ids = memory.ids(Kind::Job);
        ids.iter().filter_map(|id| memory.record(Kind::Job, id)).map(|kept| kept.body.len()).sum()
    };
    let mut ids = Vec::new();
    for number in 0..6 {
        ids.push(submit(&office, &format!("k{number}")).await.unwrap().submitted.id);
        let grant = granted(&office, "x").await;
        let output = "x".repeat(3_000);
        office.conclude(ResultReport { output, ..report(&grant, true) }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(kept_bytes() <= BYTES_MAX, "{}", kept_bytes());
    }
    let mut latest = ids[4..].to_vec();
    latest.sort();
    assert_eq!(memory.ids(Kind::Job), latest);
    // The next leader knows their sizes from reading them.
    let b =
        Node::start_with(&memory, "b", A_DAY_MS, |settings| settings.finished_bytes_max = 5_000);
    b.lead(2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(memory.ids(Kind::Job), ids[5..]);
}

/// Whoever deletes an agent goes away before that is kept.
#[tokio::test(start_paused = true)]
async fn a_deleted_agent_that_waits_gets_no_work_even_if_nobody_waits_for_its_deletion() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    let waiting = {
        let office = Arc::clone(&office);
        begun(async move { office.ask(&ask("x", "", 30)).await })
    };
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut deleting = Box::pin({
        let office = Arc::clone(&office);
        async move { office.delete_agent("x").await }
    });
    assert!(futures_util::poll!(deleting.as_mut()).is_pending());
    drop(deleting);
    tokio::time::sleep(Duration::from_millis(1)).await;
    submit(&office, "k").await.unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(None));
    assert_eq!(office.ask(&ask("x", "", 0)).await, Err(Refusal::AgentDeleted));
    // It had passed the question whether it is deleted, and got in line afterwards.
    let taker = Taker { agent: "x".into(), incarnation: "i".into(), ..Taker::default() };
    let mut late = office.desk.lock().line.join(&taker, 9).unwrap();
    office.dispatch();
    assert!(late.try_recv().is_err(), "work for an agent that was deleted");
    assert_eq!(granted(&office, "y").await.attempt, 1);
    // Work was on its way to it when it was deleted.
    let mut asked = Box::pin({
        let office = Arc::clone(&office);
        async move { office.ask(&ask("z", "", 20)).await }
    });
    assert!(futures_util::poll!(asked.as_mut()).is_pending());
    submit(&office, "k2").await.unwrap();
    office.delete_agent("z").await.unwrap();
    assert_eq!(asked.await, Err(Refusal::AgentDeleted));
    granted(&office, "y").await;
}

#[tokio::test(start_paused = true)]
async fn whoever_drains_does_not_look_for_what_it_does_not_give_out() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    node.order(Role::Draining, 1);
    node.settled().await;
    submit(&office, "k").await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(office.desk.lock().board.look_at(), None, "it is looked for all the time");
    node.order(Role::Leader, 1);
    node.settled().await;
    granted(&office, "x").await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_agent_gets_no_work_until_it_is_another_process() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    assert!(office.delete_agent("x").await.is_err());
    office.ask(&ask("x", "", 0)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(memory.ids(Kind::Agent).len(), 1, "written at the first contact");
    let waiting = {
        let office = Arc::clone(&office);
        begun(async move { office.ask(&ask("x", "", 30)).await })
    };
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(office.delete_agent("x").await.unwrap().kept.is_deleted());
    assert_eq!(waiting.await.unwrap(), Ok(None));
    assert_eq!(office.ask(&ask("x", "", 0)).await, Err(Refusal::AgentDeleted));
    assert!(office.delete_agent("x").await.is_ok(), "again");
    // The next leader knows of it.
    let b = Node::start(&memory, "b");
    let office = b.lead(2).await;
    assert_eq!(office.ask(&ask("x", "", 0)).await, Err(Refusal::AgentDeleted));
    let new = LeaseAsk { incarnation: "j".into(), ..ask("x", "", 0) };
    assert_eq!(office.ask(&new).await, Ok(None));
    assert_eq!(office.ask(&ask("x", "", 0)).await, Err(Refusal::AgentDeleted));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_asks_all_the_time_is_written_now_and_then() {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    for _ in 0..70 {
        office.ask(&ask("x", "", 0)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(memory.writes(), 3);
}

/// What cannot be read of an agent does not make it unwritable.
#[tokio::test(start_paused = true)]
async fn an_agent_whose_record_cannot_be_read_is_written_above_it() {
    let memory = Arc::new(Memory::default());
    let id = agents::agent_id("x");
    memory.put(Kind::Agent, &id, 7, "{");
    let node = Node::start(&memory, "a");
    let office = node.lead(1).await;
    for _ in 0..3 {
        office.ask(&ask("x", "", 0)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(31)).await;
    }
    assert!(memory.record(Kind::Agent, &id).unwrap().version > 7);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_an_office_is_its_own() {
    let clock = Clock::Runtime(tokio::time::Instant::now());
    let mut time = Time { clock, ahead_ms: 1_000_000 };
    let office = time.begin();
    assert_eq!(office.now(), 1_000_000);
    time.ahead_ms = 0;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((office.now(), time.begin().now()), (1_001_000, 1_000));
}
