fn main() {
    let seed: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let count: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let start = std::time::Instant::now();
    let mut ops = 0;
    for seed in seed..seed + count {
        let plan = lockd_sim::world::Plan::of(seed);
        let history = lockd_sim::world::play(&plan, &Default::default()).unwrap();
        ops += history.ops.len();
        if count == 1 { println!("{plan:?}\n{history}"); }
    }
    println!("{count} histories {ops} ops {:?}", start.elapsed());
}
