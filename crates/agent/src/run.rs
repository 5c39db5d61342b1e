//! Runs the program of a job to its end, whoever ends it: itself, its time, the loss of its lease,
//! or the agent that leaves.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use lockd_child::{Child, Program};
use lockd_client::clock::{Clock, Moment};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::agent::{Phase, reached};
use crate::output::{Output, Text};

/// An attempt is ended this long before its time is over, if it is long enough, so that its result
/// is still heard: in the first half of it the program is asked to end, then it is killed.
const EARLY_MAX: Duration = Duration::from_secs(2);

/// Why a program was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    TimedOut,
    /// The agent leaves.
    Leaving,
    /// The lease is lost.
    Lost,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) ended: Result<ExitStatus, String>,
    pub(crate) output: Text,
    /// Why it was asked to end first, or killed.
    pub(crate) why: Option<Why>,
}

/// When it has to end.
pub(crate) struct Ends<'a> {
    pub(crate) clock: &'a Clock,
    ask_at: Moment,
    kill_at: Moment,
    pub(crate) lost: &'a CancellationToken,
    pub(crate) phase: watch::Receiver<Phase>,
}

enum Order {
    Ask(Why),
    Kill(Why),
}

impl<'a> Ends<'a> {
    /// For an attempt that begins now and may take so long.
    pub(crate) fn new(
        (clock, now): (&'a Clock, Moment),
        longest: Duration,
        lost: &'a CancellationToken,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        let early = (longest / 10).min(EARLY_MAX);
        let at = |early| now.plus(longest.saturating_sub(early));
        Self { clock, ask_at: at(early), kill_at: at(early / 2), lost, phase }
    }

    async fn next(&self, is_asked: bool) -> Order {
        tokio::select! {
            biased;
            () = self.lost.cancelled() => Order::Kill(Why::Lost),
            () = reached(self.phase.clone(), Phase::Over) => Order::Kill(Why::Leaving),
            () = self.clock.sleep_until(self.kill_at) => Order::Kill(Why::TimedOut),
            () = reached(self.phase.clone(), Phase::Ending), if !is_asked => Order::Ask(Why::Leaving),
            () = self.clock.sleep_until(self.ask_at), if !is_asked => Order::Ask(Why::TimedOut),
        }
    }
}

/// Never takes much longer than the order to kill.
pub(crate) async fn run(program: &Program, input: &[u8], keep: usize, ends: &Ends<'_>) -> Ran {
    let output = Arc::new(Mutex::new(Output::new(keep)));
    let into = Arc::clone(&output);
    let started = Child::start_with_input(program, input, move |piece| into.lock().add(piece));
    let mut why = None;
    let ended = match started {
        Ok(mut child) => {
            let ended = until_ended(&mut child, ends, &mut why).await;
            ended.map_err(|error| match error.kind() == std::io::ErrorKind::TimedOut {
                true => "could not be ended".to_owned(),
                false => format!("could not be started: {error}"),
            })
        }
        Err(error) => Err(format!("could not be started: {error}")),
    };
    let output = output.lock().text();
    Ran { ended, output, why }
}

async fn until_ended(
    child: &mut Child,
    ends: &Ends<'_>,
    why: &mut Option<Why>,
) -> std::io::Result<ExitStatus> {
    loop {
        let order = tokio::select! {
            biased;
            ended = child.wait() => return ended,
            order = ends.next(why.is_some()) => order,
        };
        match order {
            Order::Ask(because) => {
                why.get_or_insert(because);
                child.terminate().await;
            }
            Order::Kill(because) => {
                // Whatever it was asked for before: one whose lease is lost has no result.
                if why.is_none() || because == Why::Lost {
                    *why = Some(because);
                }
                child.kill();
                return child.wait().await;
            }
        }
    }
}
