//! The measures of a run, one file for each, and what they share: the servers that they start, the
//! slots of load that they run, and the order in which floor and lockd take turns.

mod cycle;
mod fill;
mod handoff;
mod large;
mod queue;
mod read;
mod restart;
mod scale;
mod tls;
mod txn;
mod versions;
mod waiters;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::child::{Security, Server};
use crate::driver::{self, Load, Script};
use crate::latency::{Figures, Kind, Log};
use crate::options::{Measure, Plan, RunOptions};
use crate::table::{Row, Table};
use crate::workload::Documents;
use crate::{machine, process};

/// How long servers may still be busy with what came before, until the next slot begins anyway.
const REST_MAX: Duration = Duration::from_secs(10);

/// Everything that a measure needs to know.
#[derive(Debug)]
pub(crate) struct Bench {
    plan: Plan,
    lockd: PathBuf,
    /// An older build to compare with instead of the floor.
    older: Option<PathBuf>,
    base: PathBuf,
    documents: Arc<Documents>,
}

/// Runs the measures that were asked for and prints the table.
pub(crate) async fn run(options: RunOptions) -> Result<ExitCode> {
    let bench = Bench::new(&options)?;
    let facts = machine::facts(&bench.base)?;
    eprintln!("{facts}");
    let base = if bench.older.is_some() { "older" } else { "floor" };
    let mut table = Table::beside(base);
    let is_complete = tokio::select! {
        is_complete = bench.measure(&mut table) => is_complete,
        stop = tokio::signal::ctrl_c() => {
            stop?;
            eprintln!("stopped; the table has what was measured until now");
            false
        }
    };
    println!("{table}");
    println!("{facts}");
    println!(
        "{} round(s) of {} s, {} in turn; figures are medians, ratios the median of \
         each round's own.",
        bench.plan.rounds,
        bench.plan.slot.as_secs(),
        if bench.older.is_some() { "two builds of lockd" } else { "floor and lockd" }
    );
    println!("{} of {} targets missed.", table.missed(), table.judged());
    Ok(match (is_complete, table.missed()) {
        (false, _) => ExitCode::FAILURE,
        (true, 1..) if options.strict => ExitCode::from(2),
        (true, _) => ExitCode::SUCCESS,
    })
}

impl Bench {
    fn new(options: &RunOptions) -> Result<Self> {
        let lockd = match &options.lockd {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("lockd"),
        };
        for (program, option) in
            [(Some(&lockd), "--lockd"), (options.against.as_ref(), "--against")]
        {
            ensure!(
                program.is_none_or(|program| program.is_file()),
                "no lockd at {}: build it (cargo build --release -p lockd) or name it with {option}",
                program.map(|program| program.display().to_string()).unwrap_or_default()
            );
        }
        // A store is named by its absolute path.
        let base = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let base = base.canonicalize().with_context(|| format!("{}", base.display()))?;
        let plan = Plan::new(options, machine::files_max());
        let older = options.against.clone();
        Ok(Self { plan, lockd, older, base, documents: Arc::new(Documents::new()) })
    }

    /// Makes each measure; false if one of them could not be made.
    async fn measure(&self, table: &mut Table) -> bool {
        if let Some(older) = &self.older {
            let rows = Box::pin(versions::measure(self, older)).await;
            return add(table, "versions", rows);
        }
        let mut largest = None;
        let mut is_complete = true;
        let all = [
            Measure::Cycle,
            Measure::Read,
            Measure::Scale,
            Measure::Restart,
            Measure::Handoff,
            Measure::Waiters,
            Measure::Large,
            Measure::Tls,
            Measure::Txn,
            Measure::Queue,
        ];
        for measure in all.into_iter().filter(|measure| self.plan.wants(*measure)) {
            let rows = Box::pin(async {
                match measure {
                    Measure::Cycle => cycle::measure(self).await,
                    Measure::Read => read::measure(self).await,
                    Measure::Scale => scale::measure(self, &mut largest).await,
                    Measure::Restart => restart::measure(self, largest.take()).await,
                    Measure::Handoff => handoff::measure(self).await,
                    Measure::Waiters => waiters::measure(self).await,
                    Measure::Large => large::measure(self).await,
                    Measure::Tls => tls::measure(self).await,
                    Measure::Txn => txn::measure(self).await,
                    Measure::Queue => queue::measure(self).await,
                }
            });
            is_complete &= add(table, &format!("{measure:?}").to_lowercase(), rows.await);
        }
        is_complete
    }

    async fn start_floor(&self) -> Result<Server> {
        Server::floor(&self.base).await
    }

    async fn start_lockd(&self) -> Result<Server> {
        self.start(&self.lockd).await
    }

    /// Starts a build of lockd.
    async fn start(&self, program: &Path) -> Result<Server> {
        Server::lockd(program, &self.base, Security::Plain).await
    }

    async fn start_pair(&self) -> Result<Pair> {
        Ok(Pair { floor: self.start_floor().await?, lockd: self.start_lockd().await? })
    }

    /// Runs one slot of load and tells on standard error how it went.
    async fn slot(
        &self,
        label: &str,
        server: &Server,
        connections: u64,
        script: impl Fn(u64) -> Script,
    ) -> Result<Log> {
        let load = Load {
            place: server.place(),
            connections,
            warm_up: self.plan.warm_up(),
            length: self.plan.slot,
        };
        let before = used(server)?;
        let log = server.explain(driver::drive(load, script).await)?;
        let after = used(server)?;
        let each = |before: Duration, after: Duration| {
            let total = u32::try_from(log.total.max(1)).unwrap_or(u32::MAX);
            (after.saturating_sub(before) / total).as_secs_f64() * 1e6
        };
        eprintln!(
            "  {label}: {}; processor per request: server {:.1} µs, driver {:.1} µs",
            describe(&log)?,
            each(before.0, after.0),
            each(before.1, after.1)
        );
        Ok(log)
    }
}

/// Adds what was measured to the table; false if it could not be measured.
fn add(table: &mut Table, measure: &str, rows: Result<Vec<Row>>) -> bool {
    match rows {
        Ok(rows) => {
            table.extend(rows);
            true
        }
        Err(error) => {
            eprintln!("{measure} failed: {error:#}");
            table.extend([Row::failed(measure)]);
            false
        }
    }
}

/// Processor time of a server and of this process.
fn used(server: &Server) -> Result<(Duration, Duration)> {
    Ok((process::processor_time(server.pid())?, process::processor_time(std::process::id())?))
}

fn describe(log: &Log) -> Result<String> {
    let Figures { per_second, median, p99 } = log.all()?;
    let mut text =
        format!("{per_second:.0} /s, median {:.0} µs, p99 {:.0} µs", median * 1e6, p99 * 1e6);
    let kinds: Vec<_> = Kind::ALL
        .into_iter()
        .map(|kind| (kind, log.of(kind)))
        .filter(|(_, figures)| figures.per_second > 0.0)
        .map(|(kind, figures)| format!("{kind:?} {:.0}", figures.median * 1e6).to_lowercase())
        .collect();
    if kinds.len() > 1 {
        text.push_str(&format!(" (medians: {})", kinds.join(", ")));
    }
    Ok(text)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Floor,
    Lockd,
}

impl Side {
    /// Who goes first changes from round to round, so that neither always runs on the warmer disk.
    fn order(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) {
            [Self::Floor, Self::Lockd]
        } else {
            [Self::Lockd, Self::Floor]
        }
    }
}

/// A floor and a lockd that take turns.
struct Pair {
    floor: Server,
    lockd: Server,
}

impl Pair {
    fn side(&self, side: Side) -> &Server {
        match side {
            Side::Floor => &self.floor,
            Side::Lockd => &self.lockd,
        }
    }

    /// Lets both come to rest, so that what one still does is not paid by the other.
    async fn rest(&self) -> Result<()> {
        tokio::try_join!(self.floor.settle(REST_MAX), self.lockd.settle(REST_MAX))?;
        Ok(())
    }
}

/// What each side showed in each round.
#[derive(Debug, Default)]
struct Rounds {
    floor: Vec<Figures>,
    lockd: Vec<Figures>,
}

impl Rounds {
    fn push(&mut self, side: Side, figures: Figures) {
        match side {
            Side::Floor => self.floor.push(figures),
            Side::Lockd => self.lockd.push(figures),
        }
    }

    /// One figure of every round, the floor's first.
    fn each(&self, pick: impl Fn(&Figures) -> f64) -> (Vec<f64>, Vec<f64>) {
        (self.floor.iter().map(&pick).collect(), self.lockd.iter().map(&pick).collect())
    }

    fn row(
        &self,
        name: String,
        unit: crate::table::Unit,
        pick: impl Fn(&Figures) -> f64,
        target: crate::table::Target,
    ) -> Result<Row> {
        let (floor, lockd) = self.each(pick);
        let found = crate::table::Found::paired(&floor, &lockd).context("no rounds")?;
        Ok(Row::new(name, unit, found, target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sides_take_turns_in_going_first() {
        assert_eq!(Side::order(0), [Side::Floor, Side::Lockd]);
        assert_eq!(Side::order(1), [Side::Lockd, Side::Floor]);
        assert_eq!(Side::order(2), [Side::Floor, Side::Lockd]);
    }
}
