//! The command line, and the plan that it becomes: every size and duration of a run, settled once
//! before anything starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Load driver and comparisons of lockd.
#[derive(Debug, Parser)]
#[command(name = "lockd-bench", version)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the bare server that lockd is compared with
    Floor(FloorOptions),
    /// Measure lockd against the floor and print one table
    Run(RunOptions),
}

#[derive(Debug, Args)]
pub(crate) struct FloorOptions {
    /// Where to listen; port 0 picks a free one, which is printed
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// Directory for the log and the streamed bodies
    #[arg(long)]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// The lockd binary; by default the one beside this program
    #[arg(long)]
    pub(crate) lockd: Option<PathBuf>,
    /// Compare with this older build of lockd instead of the floor: cycles, reads, messages and
    /// hand-offs, which may not be slower
    #[arg(long, value_name = "LOCKD", conflicts_with = "only")]
    pub(crate) against: Option<PathBuf>,
    /// Measure only these, for example `cycle,read`
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Measure>,
    /// Length of one slot of load [default: 5, quick: 1]
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// Rounds per measure, of which the median is shown [default: 3, quick: 1]
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Small sizes and one short round: does it work, not how fast is it
    #[arg(long)]
    pub(crate) quick: bool,
    /// Exit with code 2 if a target is missed
    #[arg(long)]
    pub(crate) strict: bool,
    /// Where the stores are kept while the run lasts; a real disk, not a memory file system
    /// [default: the system's temporary directory]
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// Durable acquire, update of 1 KiB, release
    Cycle,
    /// Public read of 1 KiB
    Read,
    /// Cycle and read with many existing keys
    Scale,
    /// Time to readiness and memory after a kill
    Restart,
    /// From release to the next waiter's grant
    Handoff,
    /// Memory per blocked waiter
    Waiters,
    /// Large JSON documents
    Large,
    /// Cycle and read over mutual TLS, by the same without
    Tls,
    /// Transactions over several keys
    Txn,
    /// Messages through queues
    Queue,
}

/// What a run does, with nothing left open.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) measures: Vec<Measure>,
    pub(crate) slot: Duration,
    pub(crate) rounds: usize,
    /// Numbers of existing keys for `scale`, smallest first; the last is also that of `restart`.
    pub(crate) key_counts: Vec<u64>,
    pub(crate) waiters_many: usize,
    pub(crate) large_bytes: usize,
    /// Queues that are full of messages, and how many each has.
    pub(crate) waiting_messages: (u64, u64),
}

impl Plan {
    pub(crate) fn new(options: &RunOptions, files_max: u64) -> Self {
        let quick = options.quick;
        let measures = if options.only.is_empty() {
            Measure::value_variants().to_vec()
        } else {
            options.only.clone()
        };
        // A connection is one descriptor here and one in the server; some are needed for the rest.
        let connections_max = usize::try_from(files_max.saturating_sub(256)).unwrap_or(usize::MAX);
        Self {
            measures,
            slot: Duration::from_secs(options.seconds.unwrap_or(if quick { 1 } else { 5 }).max(1)),
            rounds: options.rounds.unwrap_or(if quick { 1 } else { 3 }).max(1),
            key_counts: if quick {
                vec![1_000, 5_000, 20_000]
            } else {
                vec![1_000, 100_000, 1_000_000]
            },
            waiters_many: if quick { 1_000 } else { 10_000 }.min(connections_max),
            waiting_messages: if quick { (100, 20) } else { (10_000, 100) },
            large_bytes: if quick { 10_000_000 } else { 50_000_000 },
        }
    }

    pub(crate) fn wants(&self, measure: Measure) -> bool {
        self.measures.contains(&measure)
    }

    /// Load that runs before a slot is counted.
    pub(crate) fn warm_up(&self) -> Duration {
        (self.slot / 5).min(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str, files_max: u64) -> Plan {
        let options = Options::try_parse_from(line.split(' ')).unwrap();
        let Command::Run(run) = options.command else { panic!("not a run") };
        Plan::new(&run, files_max)
    }

    #[test]
    fn without_a_choice_everything_is_measured() {
        let plan = plan("lockd-bench run", 20_000);
        assert_eq!(plan.measures.len(), 10);
        assert_eq!(plan.rounds, 3);
        assert_eq!(plan.waiters_many, 10_000);
    }

    #[test]
    fn a_choice_is_a_list_with_commas() {
        let plan = plan("lockd-bench run --only cycle,waiters --quick --rounds 2", 20_000);
        assert_eq!(plan.measures, [Measure::Cycle, Measure::Waiters]);
        assert_eq!(plan.rounds, 2);
        assert_eq!(plan.slot, Duration::from_secs(1));
    }

    #[test]
    fn waiters_fit_the_file_limit() {
        assert_eq!(plan("lockd-bench run", 1_024).waiters_many, 768);
    }
}
