//! Ten thousand histories, one seed each: nothing that a client saw may break a promise.

use lockd_sim::check::judge;
use lockd_sim::soak::soak;
use lockd_sim::world::{Edges, Plan, play};

/// What the histories must have come through often enough for their silence to mean something.
const REACHED: &[(&str, u64)] = &[
    ("acquire done", 50_000),
    ("acquire waiting", 30_000),
    ("acquire store_unavailable unknown", 500),
    ("acquire shutdown_draining", 1_000),
    ("commit done", 10_000),
    ("commit fence_failed", 200),
    ("commit store_unavailable unknown", 80),
    ("commit version_conflict", 200),
    ("finish done", 4_000),
    ("finish unanswered", 300),
    ("keepalive done", 5_000),
    ("keepalive lease_expired", 1_000),
    ("release done", 20_000),
    ("release lease_expired", 400),
    ("release store_unavailable unknown", 80),
    ("remove done", 2_000),
    ("revoke done", 2_000),
    ("rollback done", 4_000),
    ("server crashed", 15_000),
    ("server draining", 2_000),
    ("server in line", 15_000),
    ("server rebooted", 2_000),
    ("server wall stepped", 5_000),
    ("stage done", 10_000),
    ("stage fencing_mismatch", 1_000),
    ("stage revoked", 200),
    ("watch", 30_000),
    ("watch resumed", 20_000),
];

#[test]
fn ten_thousand_histories_keep_every_promise() {
    let soaked = soak(0..10_000, 2, &|_| {});
    let told: Vec<String> = soaked.failed.iter().map(ToString::to_string).collect();
    assert!(told.is_empty(), "{}", told.join("\n\n"));
    assert_eq!(soaked.histories, 10_000);
    let missed: Vec<_> =
        REACHED.iter().filter(|(name, least)| soaked.tally.of(name) < *least).collect();
    assert!(missed.is_empty(), "too seldom: {missed:?}\n{}", soaked.tally);
}

/// Documents that live beside their records, while the collector goes round all the time.
#[test]
fn histories_of_large_documents_keep_every_promise() {
    for seed in 0..300 {
        let mut plan = Plan::of(seed);
        (plan.large, plan.tidies) = (600, true);
        plan.delays = plan.delays.max(400);
        plan.advances = plan.advances.max(60);
        let history = play(&plan, &Edges::default()).unwrap();
        let violations = judge(&history);
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}\n{history}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..150 {
        let trace = || play(&Plan::of(seed), &Edges::default()).unwrap().to_string();
        let (once, again) = (trace(), trace());
        assert_eq!(once, again, "seed {seed}");
    }
}
