//! The long run: plays and judges as many histories as wanted. See the README of this crate.

#![expect(clippy::print_stdout, reason = "this is what the command is for")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use lockd_sim::check;
use lockd_sim::soak::soak;
use lockd_sim::world::{Edges, Plan, play};

/// Plays simulated histories of lockd and checks every one of them.
#[derive(Parser)]
#[command(name = "lockd-sim")]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many at a time; by default one per processor.
    #[arg(long)]
    threads: Option<usize>,
    /// Play only this seed and show what happened.
    #[arg(long)]
    show: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.show {
        Some(seed) => show(seed),
        None => run(&args),
    }
}

fn show(seed: u64) -> ExitCode {
    let plan = Plan::of(seed);
    println!("{plan:#?}");
    let history = match play(&plan, &Edges::default()) {
        Ok(history) => history,
        Err(error) => {
            println!("the server did not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{history}");
    let violations = check::judge(&history);
    violations.iter().for_each(|violation| println!("{violation}"));
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(args: &Args) -> ExitCode {
    let threads =
        args.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    #[expect(clippy::disallowed_methods, reason = "a measurement decides nothing")]
    let started = Instant::now();
    let done = AtomicU64::new(0);
    let every = (args.seeds / 100).clamp(1_000, 100_000);
    let progress = |_seed| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(every) {
            let seconds = started.elapsed().as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
            let rate = done as f64 / seconds;
            println!("{done} of {} histories, {rate:.0} a second", args.seeds);
        }
    };
    let seeds = args.from..args.from.saturating_add(args.seeds);
    let soaked = soak(seeds, threads.unwrap_or(1), &progress);
    println!("{}", soaked.tally);
    soaked.failed.iter().for_each(|failed| println!("{failed}"));
    let (histories, asks) = (soaked.histories, soaked.asks);
    println!("{histories} histories with {asks} asks in {:?}", started.elapsed());
    match soaked.failed.first() {
        None => ExitCode::SUCCESS,
        Some(first) => {
            println!("seed {} breaks a promise; `--show {}` shows it", first.seed, first.seed);
            ExitCode::FAILURE
        }
    }
}
