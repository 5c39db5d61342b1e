#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test fails loudly"
)]
fn main() {
    let seed: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let count: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let start = std::time::Instant::now();
    let (mut ops, mut bad) = (0, 0);
    let mut tally = lockd_sim::tally::Tally::default();
    let mut judging = std::time::Duration::ZERO;
    for seed in seed..seed + count {
        let plan = lockd_sim::world::Plan::of(seed);
        let history = lockd_sim::world::play(&plan, &Default::default()).unwrap();
        ops += history.ops.len();
        tally.add(&history);
        if count == 1 {
            println!("{plan:?}\n{history}");
        }
        if std::env::var("TWICE").is_ok() {
            let again = lockd_sim::world::play(&plan, &Default::default()).unwrap();
            if again.to_string() != history.to_string() {
                println!("seed {seed}: another trace");
            }
        }
        let t = std::time::Instant::now();
        let v = lockd_sim::check::judge(&history);
        judging += t.elapsed();
        if !v.is_empty() {
            bad += 1;
        }
        for v in v {
            println!("seed {seed}: {v}");
        }
    }
    if count > 1 {
        println!("{tally}");
    }
    println!(
        "{count} histories {ops} ops {bad} bad {:?} of which judging {judging:?}",
        start.elapsed()
    );
}
