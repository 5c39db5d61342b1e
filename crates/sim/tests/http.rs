//! Two hundred histories over real connections, every other one over mutual TLS, in real time and
//! with the embedded store: judged like the simulated ones.

use std::sync::Arc;

use lockd_sim::check::judge;
use lockd_sim::real;
use lockd_sim::security::Security;
use lockd_sim::tally::Tally;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const HISTORIES: u64 = 200;
/// Most of a history's time is waiting: for the disk, and for leases to end.
const AT_ONCE: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_histories_over_http_keep_every_promise() {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut playing = JoinSet::new();
    for seed in 0..HISTORIES {
        let room = Arc::clone(&room);
        playing.spawn(async move {
            let _place = room.acquire().await.unwrap();
            let folder = tempfile::tempdir().unwrap();
            let plan = real::plan(seed);
            let security = match seed % 2 {
                0 => Security::Plain,
                _ => Security::Mtls(folder.path().join("bundles")),
            };
            let data = folder.path().join("data");
            let history = real::play(&plan, &data, &security).await.unwrap();
            (seed, history)
        });
    }
    let mut tally = Tally::default();
    let mut told = Vec::new();
    while let Some(played) = playing.join_next().await {
        let (seed, history) = played.unwrap();
        tally.add(&history);
        let violations: Vec<String> = judge(&history).iter().map(ToString::to_string).collect();
        if !violations.is_empty() {
            told.push(format!("seed {seed}\n{}\n{history}", violations.join("\n")));
        }
    }
    assert!(told.is_empty(), "{}", told.join("\n\n"));
    for (name, least) in [
        ("acquire done", 1_000),
        ("acquire waiting", 500),
        ("commit done", 200),
        ("release done", 500),
        ("keepalive lease_expired", 1),
        ("server crashed", HISTORIES),
        ("watch", 500),
    ] {
        assert!(tally.of(name) >= least, "{name} too seldom\n{tally}");
    }
}
