//! `work`: a command for each message. Its exit code is the answer.
//!
//! The time of a message is extended while its command runs. When the message is lost all the
//! same, its command is stopped, since somebody else does the work now.

use std::ffi::OsString;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use lockd_client::{DequeueKind, Error, Message};
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;
use tokio::sync::watch;

use super::super::Session;
use super::super::arguments::{duration, ttl};
use super::super::job::{Job, Signals, code_of_signal, ending_of};
use super::WhichQueue;
use super::taken::exports;
use crate::exit::{Done, Problem};
use crate::ui;

/// Run a command for each message of a queue
///
/// The command finds the payload on its standard input and the message in LOCKD_QUEUE_* variables.
/// Exit code 0 acknowledges the message, any other gives it back as failed. The time of the message
/// is extended while the command runs; a command whose message is lost is stopped.
///
/// SIGINT, SIGTERM and SIGHUP stop taking messages and let running commands finish; the second
/// signal stops those too and gives their messages back.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct WorkArgs {
    #[command(flatten)]
    which: WhichQueue,
    /// How many commands run at a time
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
    /// Who consumes, for people to read (default: host and process) [env: LOCKD_CLIENT_OWNER]
    #[arg(long, value_name = "NAME", value_parser = crate::context::name)]
    owner: Option<String>,
    /// How long a message is kept when this program dies (default: as it was enqueued)
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    visibility: Option<Duration>,
    /// Take the state of each message with it
    #[arg(long)]
    stateful: bool,
    /// How long a failed message is not delivered again (default: 1s, twice as long each time)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    retry_delay: Option<Duration>,
    /// How long a command may take to end when it is told to
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  lockd client queue work jobs -- ./resize
  lockd client queue work --queue jobs --concurrency 4 --retry-delay 10s -- ./resize --fast
  lockd client queue work jobs -- sh -c 'cat > \"$LOCKD_QUEUE_MESSAGE_ID\"'

Exits with 0 when it was stopped, 126 or 127 when the command cannot be run, 128+n when signal n
came twice.";

/// When a message that a worker gives back at its end may be delivered again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What all commands of one worker have in common.
struct Workshop {
    command: Vec<OsString>,
    grace: Duration,
    /// What the commands of `lockd client` inside of the command need to reach the same servers.
    connection: Vec<(String, String)>,
    /// Why no command can be run at all.
    broken: Mutex<Option<Problem>>,
    /// How urgent it is to end.
    end: watch::Sender<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    NotYet,
    /// No new message is begun.
    Soon,
    /// Commands are stopped.
    Now,
}

/// Why a command was stopped.
enum Stopped {
    /// Its message is somebody else's, or could not be read.
    Because(String),
    /// The worker ends.
    Ending,
}

pub(super) async fn run(session: &Session, args: WorkArgs) -> Done<ExitCode> {
    let mut signals = Signals::new()?;
    let queue = args.which.open(session)?;
    let shop = Arc::new(Workshop {
        command: args.command,
        grace: args.grace,
        connection: connection(session),
        broken: Mutex::new(None),
        end: watch::Sender::new(End::NotYet),
    });
    let worker = Arc::clone(&shop);
    let mut subscribe = queue
        .subscribe(move |message: Message| {
            let shop = Arc::clone(&worker);
            async move { shop.attend(message).await }
        })
        .concurrency(usize::try_from(args.concurrency).unwrap_or(1))
        .stop_when_lost(false);
    if let Some(delay) = args.retry_delay {
        subscribe = subscribe.retry_delay(delay);
    }
    if let Some(owner) = args.owner {
        subscribe = subscribe.owner(owner);
    }
    if let Some(visibility) = args.visibility {
        subscribe = subscribe.visibility(visibility);
    }
    if args.stateful {
        subscribe = subscribe.with_state();
    }
    let ending = Arc::clone(&shop);
    let mut running = Box::pin(subscribe.run(async move { ending.ends(End::Soon).await }));
    let ended = watch(&mut running, &mut signals, &shop).await;
    drop(running);
    // What is still with us after the third signal goes back.
    session.client.close().await;
    match shop.broken.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(problem) => Err(problem),
        None => ended,
    }
}

/// Waits for the end of the work: the first signal asks for it, the second insists, the third does
/// not wait.
async fn watch(
    mut running: impl Future<Output = Result<(), Error<DequeueKind>>> + Unpin,
    signals: &mut Signals,
    shop: &Workshop,
) -> Done<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    loop {
        let signal = tokio::select! {
            biased;
            ended = &mut running => return Ok(ended.map(|()| code)?),
            signal = signals.next() => signal,
        };
        let end = *shop.end.borrow();
        match end {
            End::NotYet => {
                shop.end.send_replace(End::Soon);
                ui::note("taking no more messages; once more to stop what still runs");
            }
            End::Soon => {
                code = code_of_signal(signal);
                shop.end.send_replace(End::Now);
            }
            End::Now => return Ok(code),
        }
    }
}

/// Where the servers are, for commands inside of the command.
fn connection(session: &Session) -> Vec<(String, String)> {
    let mut variables = vec![("LOCKD_CLIENT_SERVER".to_owned(), session.server.clone())];
    let bundle = session.bundle.as_deref().and_then(|path| std::path::absolute(path).ok());
    variables.extend(
        bundle
            .and_then(|path| path.to_str().map(str::to_owned))
            .map(|path| ("LOCKD_CLIENT_BUNDLE".to_owned(), path)),
    );
    variables
}

impl Workshop {
    async fn attend(&self, mut message: Message) -> Result<(), String> {
        let variables = exports(&message, None);
        let job = Job::start(&self.command, true, |command| {
            command.stdin(Stdio::piped()).envs(self.connection.iter().cloned()).envs(variables);
        });
        let mut job = match job {
            Ok(job) => job,
            // No message can be worked on, so none has failed.
            Err(problem) => {
                *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
                self.end.send_replace(End::Soon);
                return give_back(&message).await;
            }
        };
        let stopped = match self.work(&mut job, &mut message).await {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => {
                let ending = ending_of(status);
                ui::note(&format!("message {}: {ending}", message.id()));
                return Err(ending);
            }
            Err(stopped) => stopped,
        };
        if let Stopped::Because(why) = &stopped {
            ui::note(&format!("message {}: {why}; its command is stopped", message.id()));
        }
        if let Err(problem) = job.stop(self.grace).await {
            ui::note(&problem.to_string());
        }
        match stopped {
            Stopped::Because(why) => Err(why),
            Stopped::Ending => give_back(&message).await,
        }
    }

    /// Hands the payload to the command and waits for its end.
    async fn work(&self, job: &mut Job, message: &mut Message) -> Result<ExitStatus, Stopped> {
        let (stdin, lost) = (job.take_stdin(), message.lost());
        let working = async {
            let (fed, ended) = tokio::join!(feed(stdin, message), job.wait());
            fed?;
            ended.map_err(|problem| problem.to_string())
        };
        tokio::select! {
            biased;
            ended = working => ended.map_err(Stopped::Because),
            lost = lost => Err(Stopped::Because(lost.to_string())),
            () = self.ends(End::Now) => Err(Stopped::Ending),
        }
    }

    /// Waits until it is as urgent as that.
    async fn ends(&self, urgency: End) {
        let mut end = self.end.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        drop(end.wait_for(|end| *end >= urgency).await);
    }
}

/// Not a failure: the worker ends.
async fn give_back(message: &Message) -> Result<(), String> {
    // A little later, or this very worker might get it once more.
    let given_back = message.nack().defer().delay(AGAIN_AFTER).await;
    given_back.map(|_| ()).map_err(|error| error.to_string())
}

/// Writes the payload to the command. One that does not want all of it is no error.
async fn feed(stdin: Option<ChildStdin>, message: &mut Message) -> Result<(), String> {
    let Some(mut stdin) = stdin else { return Ok(()) };
    loop {
        let piece = message.chunk().await.map_err(|error| error.to_string())?;
        let Some(piece) = piece else { return Ok(()) };
        if stdin.write_all(&piece).await.is_err() {
            return Ok(());
        }
    }
}
