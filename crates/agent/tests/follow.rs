//! Leaders come and go, answers get lost, leases run out: the job is run once or not at all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod double;

use std::time::Duration;

use double::{Controller, IN_TIME, Leader, Port, agent, agent_with, nobody, shell};

const LONG: u64 = 60_000;

/// Writes its number into a file in a fresh folder, then goes on for ever.
fn endless(name: &str) -> (std::path::PathBuf, serde_json::Value) {
    let file = std::env::temp_dir().join(format!("lockd-agent-{name}-{}", std::process::id()));
    let _old = std::fs::remove_file(&file).is_ok();
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    (file, shell(&script))
}

async fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let looked = tokio::time::timeout(IN_TIME, async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    looked.await.map_err(|_| format!("never: {what}")).unwrap()
}

async fn begun(file: &std::path::Path) -> String {
    let id = until("the job has begun", || std::fs::read_to_string(file).ok()).await;
    std::fs::remove_file(file).unwrap();
    id.trim().to_owned()
}

fn runs(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).is_some_and(|c| c != 'Z')
}

async fn gone(id: &str) {
    until("the job is gone", || (!runs(id)).then_some(())).await;
}

fn leads(port: &Port, leader: Leader) {
    *port.leader.lock() = leader;
}

#[tokio::test]
async fn a_lost_answer_to_a_question_for_work_costs_nothing() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    controller.change(|book| book.lose_asks = 2);
    controller.queue("j", &shell("true"));
    let _agent = agent(&[&port]);
    controller.result().await;
    let book = controller.book.lock();
    let asks = &book.asks[..3];
    assert!(asks.iter().all(|ask| ask.request_id == asks[0].request_id), "{asks:?}");
    assert!(!asks[0].request_id.is_empty() && !asks[0].incarnation.is_empty());
    assert_ne!(book.asks.get(3).map(|ask| &ask.request_id), Some(&asks[0].request_id));
}

#[tokio::test]
async fn a_lost_answer_to_a_result_is_asked_for_again_with_the_same_result() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    controller.change(|book| book.lose_results = 2);
    controller.queue("j", &shell("echo x"));
    let agent = agent(&[&port]);
    let three = |book: &double::Book| (book.results.len() == 3).then(|| book.results.clone());
    let results = controller.until("three reports", three).await;
    assert!(results.iter().all(|one| one == &results[0]));
    until("the slot is free", || (agent.busy() == 0).then_some(())).await;
}

#[tokio::test]
async fn the_leader_that_a_standby_names_is_asked() {
    let controller = Controller::new(LONG);
    let leader = controller.port(Leader::This).await;
    let standby = controller.port(Leader::Other(Some(format!("{}/", leader.url)))).await;
    controller.queue("j", &shell("true"));
    let _agent = agent(&[&standby]);
    assert!(controller.result().await.success);
}

#[tokio::test]
async fn a_named_leader_that_is_not_there_is_left_again() {
    let controller = Controller::new(LONG);
    let standby = controller.port(Leader::Other(Some(nobody().await))).await;
    let leader = controller.port(Leader::This).await;
    controller.queue("j", &shell("true"));
    let began = tokio::time::Instant::now();
    let _agent = agent(&[&standby, &leader]);
    assert!(controller.result().await.success);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_job_goes_on_under_the_next_leader() {
    let controller = Controller::new(600);
    let first = controller.port(Leader::This).await;
    let second = controller.port(Leader::Other(None)).await;
    controller.queue("j", &shell("sleep 1; echo done"));
    let _agent = agent(&[&first, &second]);
    controller.until("it is held", |book| (!book.held.is_empty()).then_some(())).await;
    // Nobody leads for a moment.
    leads(&first, Leader::Other(None));
    controller.change(|_| ());
    tokio::time::sleep(Duration::from_millis(150)).await;
    controller.change(|book| book.leader_epoch = 2);
    leads(&second, Leader::This);
    let result = controller.result().await;
    assert_eq!((result.success, result.leader_epoch, result.job_epoch), (true, 2, 7));
    let book = controller.book.lock();
    assert_eq!((book.results.len(), book.releases.len()), (1, 0));
    assert!(book.renewals.iter().any(|claim| claim.leader_epoch == 1));
    assert!(book.renewals.iter().any(|claim| claim.leader_epoch == 2));
}

#[tokio::test]
async fn a_result_is_adopted_by_the_next_leader_even_without_a_renewal() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    let (file, _) = endless("adopted");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", file.display());
    controller.queue("j", &shell(&wait));
    let _agent = agent(&[&port]);
    controller.until("it is held", |book| (!book.held.is_empty()).then_some(())).await;
    controller.change(|book| book.leader_epoch = 4);
    std::fs::write(&file, "").unwrap();
    let result = controller.result().await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!((result.success, result.leader_epoch), (true, 4));
}

#[tokio::test]
async fn a_cancelled_job_is_killed_and_has_no_result() {
    let controller = Controller::new(300);
    let port = controller.port(Leader::This).await;
    let (file, job) = endless("cancelled");
    controller.queue("j", &job);
    let agent = agent(&[&port]);
    let id = begun(&file).await;
    controller.change(|book| book.held.clear());
    gone(&id).await;
    until("the slot asks again", || (controller.book.lock().asks.len() > 1).then_some(())).await;
    agent.stop().await;
    let book = controller.book.lock();
    assert!(book.results.is_empty() && book.releases.is_empty());
}

#[tokio::test]
async fn a_job_whose_lease_cannot_be_renewed_is_killed_before_it_runs_out() {
    let controller = Controller::new(700);
    let port = controller.port(Leader::This).await;
    let (file, job) = endless("cut-off");
    controller.queue("j", &job);
    let _agent = agent(&[&port]);
    let id = begun(&file).await;
    controller.change(|book| book.is_down = true);
    let cut_off = tokio::time::Instant::now();
    gone(&id).await;
    assert!(cut_off.elapsed() < Duration::from_millis(900), "{:?}", cut_off.elapsed());
    controller.change(|book| book.is_down = false);
    controller.until("it asks again", |book| (book.asks.len() > 2).then_some(())).await;
    assert!(controller.book.lock().results.is_empty());
}

#[tokio::test]
async fn work_that_was_long_in_coming_is_confirmed_before_it_is_begun() {
    let controller = Controller::new(300);
    let port = controller.port(Leader::This).await;
    controller.change(|book| book.delay = Duration::from_millis(500));
    controller.queue("j", &shell("true"));
    let _agent = agent(&[&port]);
    assert!(controller.result().await.success);
    assert!(!controller.book.lock().renewals.is_empty());
}

#[tokio::test]
async fn an_agent_that_stops_lets_jobs_end_and_asks_for_no_more() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    let (file, _) = endless("ends");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 0.3; echo done", file.display());
    controller.queue("j", &shell(&script));
    let agent = agent(&[&port]);
    begun(&file).await;
    assert_eq!(agent.busy(), 1);
    controller.queue("later", &shell("true"));
    agent.stop().await;
    assert_eq!(agent.busy(), 0);
    let book = controller.book.lock();
    assert_eq!(book.results.len(), 1);
    assert_eq!(book.results[0].output, "done\n");
    assert_eq!((book.asks.len(), book.releases.len()), (1, 0));
}

#[tokio::test]
async fn what_does_not_end_in_time_is_given_back() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    let (file, job) = endless("asked");
    controller.queue("asked", &job);
    let (deaf_file, _) = endless("deaf");
    let deaf = format!(
        "trap '' TERM; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.02; done",
        deaf_file.display()
    );
    controller.queue("deaf", &shell(&deaf));
    let agent = agent_with(&[&port], |settings| {
        (settings.slots, settings.grace) = (2, Duration::from_millis(600));
    });
    let ids = [begun(&file).await, begun(&deaf_file).await];
    // Another leader has taken over by then.
    controller.change(|book| book.leader_epoch = 2);
    let began = tokio::time::Instant::now();
    agent.stop().await;
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(ids.iter().all(|id| !runs(id)));
    let book = controller.book.lock();
    let mut given: Vec<&str> = book.releases.iter().map(|(lease, _)| lease.as_str()).collect();
    given.sort_unstable();
    assert_eq!(given, ["lease-asked", "lease-deaf"]);
    assert!(book.results.is_empty());
}

#[tokio::test]
async fn one_that_succeeds_when_it_is_asked_to_end_has_a_result() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    let (file, _) = endless("saves");
    let saves = format!(
        "trap 'echo saved; exit 0' TERM; echo $$ > {0}.new; mv {0}.new {0}; \
            while :; do sleep 0.02; done",
        file.display()
    );
    controller.queue("j", &shell(&saves));
    let agent = agent_with(&[&port], |settings| settings.grace = Duration::from_millis(900));
    begun(&file).await;
    agent.stop().await;
    let book = controller.book.lock();
    assert_eq!(
        book.results.first().map(|one| (one.success, one.output.ends_with("saved\n"))),
        Some((true, true))
    );
    assert!(book.releases.is_empty());
}

#[tokio::test]
async fn an_idle_agent_stops_at_once() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    let agent = agent(&[&port]);
    controller.until("it asks", |book| (!book.asks.is_empty()).then_some(())).await;
    let began = tokio::time::Instant::now();
    agent.stop().await;
    assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
}

#[tokio::test]
async fn work_that_was_granted_to_an_agent_that_leaves_is_given_back() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    // Granted, but the answer never comes.
    controller.change(|book| book.lose_asks = 1_000_000);
    controller.queue("j", &shell("true"));
    let agent = agent(&[&port]);
    controller.until("it is granted", |book| (!book.held.is_empty()).then_some(())).await;
    controller.change(|book| book.lose_asks = 0);
    agent.stop().await;
    let book = controller.book.lock();
    // Whichever comes first: it is run to its end, or given back. It is not left lying.
    assert_eq!(book.results.len() + book.releases.len(), 1, "{book:?}");
    assert!(book.held.is_empty());
}

#[tokio::test]
async fn a_dropped_agent_kills_its_jobs() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    let (file, job) = endless("dropped");
    controller.queue("j", &job);
    let agent = agent(&[&port]);
    let id = begun(&file).await;
    drop(agent);
    gone(&id).await;
}

#[tokio::test]
async fn a_deleted_agent_asks_for_no_more_work() {
    let controller = Controller::new(LONG);
    let port = controller.port(Leader::This).await;
    controller.change(|book| book.refuses_asks_with = Some("agent_deleted"));
    let agent = agent(&[&port]);
    tokio::time::timeout(IN_TIME, agent.dismissed()).await.unwrap();
    agent.stop().await;
    assert!(controller.book.lock().asks.len() <= 2);
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let start = |change: &dyn Fn(&mut lockd_agent::AgentSettings)| {
        let mut settings = lockd_agent::AgentSettings::new("a", vec!["http://127.0.0.1:1".into()]);
        change(&mut settings);
        lockd_agent::Agent::start(settings).map(drop).map_err(|error| error.to_string())
    };
    assert!(start(&|_| {}).is_ok());
    assert!(start(&|settings| settings.slots = 0).unwrap_err().contains("at once"));
    assert!(start(&|settings| settings.name.clear()).unwrap_err().contains("name"));
    assert!(start(&|settings| settings.controllers.clear()).unwrap_err().contains("URL"));
    let wrong = |settings: &mut lockd_agent::AgentSettings| settings.controllers = vec!["x".into()];
    assert!(start(&wrong).unwrap_err().contains("\"x\""));
    let secret = "a\nb".to_owned();
    let told = start(&|settings| settings.token = Some(secret.clone())).unwrap_err();
    assert!(told.contains("token") && !told.contains(&secret));
}
