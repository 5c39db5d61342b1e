//! Many histories, one after the other, on several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::check::{self, Violation};
use crate::tally::Tally;
use crate::world::{Edges, Plan, play};

/// A seed whose history breaks a promise.
#[derive(Clone, Debug)]
pub struct Failed {
    pub seed: u64,
    pub violations: Vec<Violation>,
    /// The plan and everything that happened.
    pub trace: String,
}

/// What many histories came to.
#[derive(Clone, Debug, Default)]
pub struct Soaked {
    pub histories: u64,
    pub asks: u64,
    pub tally: Tally,
    pub failed: Vec<Failed>,
}

/// After so many failures there is enough to look at.
const FAILED_MAX: usize = 10;

/// Plays and judges the histories of all these seeds. `progress` is told of each one.
pub fn soak(seeds: Range<u64>, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Soaked {
    let next = AtomicU64::new(seeds.start);
    let all = Mutex::new(Soaked::default());
    let work = || {
        let mut mine = Soaked::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || all.lock().failed.len() >= FAILED_MAX {
                break;
            }
            if let Some(failed) = mine.play(seed) {
                all.lock().failed.push(failed);
            }
            progress(seed);
        }
        let mut all = all.lock();
        all.histories += mine.histories;
        all.asks += mine.asks;
        all.tally.join(mine.tally);
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut all = all.into_inner();
    all.failed.sort_by_key(|failed| failed.seed);
    all
}

impl Soaked {
    fn play(&mut self, seed: u64) -> Option<Failed> {
        let plan = Plan::of(seed);
        let history = match play(&plan, &Edges::default()) {
            Ok(history) => history,
            Err(error) => {
                let violation = Violation { invariant: "the_server_starts", detail: error };
                let trace = format!("{plan:?}");
                return Some(Failed { seed, violations: vec![violation], trace });
            }
        };
        self.histories += 1;
        self.asks += history.ops.len() as u64;
        self.tally.add(&history);
        let violations = check::judge(&history);
        let trace = || format!("{plan:?}\n{history}");
        (!violations.is_empty()).then(|| Failed { seed, violations, trace: trace() })
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  {violation}"))?;
        f.write_str(&self.trace)
    }
}
