//! `queue`: messages in, messages out, and what operators do about those that are stuck. One
//! command per file; here is what they share.

mod dequeue;
mod dlq;
mod enqueue;
mod look;
mod settle;
mod taken;
mod work;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use lockd_client::Queue;
use serde::Serialize;

use super::Session;
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Put messages into queues, take them, and look after what waits
///
/// A message is delivered at least once, to one consumer at a time. Whoever takes it acknowledges
/// it, gives it back, or extends its time; otherwise it goes to somebody else.
#[derive(Debug, Args)]
#[command(visible_alias = "q", after_help = AFTER_HELP)]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    Enqueue(enqueue::EnqueueArgs),
    Dequeue(dequeue::DequeueArgs),
    Ack(settle::AckArgs),
    Nack(settle::NackArgs),
    Extend(settle::ExtendArgs),
    Work(work::WorkArgs),
    Stats(look::StatsArgs),
    Peek(look::PeekArgs),
    Watch(look::WatchArgs),
    List(look::ListArgs),
    Purge(look::PurgeArgs),
    Dlq(dlq::DlqArgs),
}

const AFTER_HELP: &str = "\
Examples:
  echo 'resize cat.png' | lockd client queue enqueue jobs
  eval \"$(lockd client queue dequeue jobs --visibility 1m)\"
  ./resize < \"$LOCKD_QUEUE_PAYLOAD_PATH\" && lockd client queue ack || lockd client queue nack
  lockd client queue work jobs --concurrency 4 -- ./resize
  lockd client queue dlq list jobs

Environment, set by dequeue and work:
  LOCKD_QUEUE_NAME, LOCKD_QUEUE_NAMESPACE    the queue
  LOCKD_QUEUE_MESSAGE_ID, LOCKD_QUEUE_LEASE, LOCKD_QUEUE_FENCING_TOKEN, LOCKD_QUEUE_TXN_ID
                                             the message, read by ack, nack and extend
  LOCKD_QUEUE_STATE_LEASE, LOCKD_QUEUE_STATE_FENCING_TOKEN, LOCKD_QUEUE_STATE_ETAG,
  LOCKD_QUEUE_STATE_TXN_ID, LOCKD_QUEUE_STATE_KEY
                                             its state, with --stateful
  LOCKD_QUEUE_PAYLOAD_PATH                   the file with the payload (dequeue)
  LOCKD_QUEUE_META_ETAG, LOCKD_QUEUE_ATTEMPTS, LOCKD_QUEUE_FAILURES, LOCKD_QUEUE_CONTENT_TYPE,
  LOCKD_QUEUE_ATTRIBUTES, LOCKD_QUEUE_CORRELATION_ID
                                             for scripts, read by nobody";

/// Which queue, where it can be an argument.
#[derive(Clone, Debug, Args)]
struct WhichQueue {
    /// The queue [env: LOCKD_QUEUE_NAME]
    #[arg(value_name = "QUEUE", conflicts_with = "queue", value_parser = crate::context::name)]
    argument: Option<String>,
    #[command(flatten)]
    flag: QueueFlag,
}

/// Which queue, where the arguments are something else.
#[derive(Clone, Debug, Args)]
struct QueueFlag {
    /// The queue [env: LOCKD_QUEUE_NAME]
    #[arg(long, short, value_name = "QUEUE", value_parser = crate::context::name)]
    queue: Option<String>,
}

impl WhichQueue {
    fn open(self, session: &Session) -> Done<Queue> {
        let queue = self.argument.or(self.flag.queue);
        QueueFlag { queue }.open(session)
    }
}

impl QueueFlag {
    /// The named queue, else that of the environment.
    fn open(self, session: &Session) -> Done<Queue> {
        if let Some(queue) = self.queue {
            return Ok(session.client.queue(queue));
        }
        let Some(queue) = session.environment.named_of_queue("NAME")? else {
            return Err(Problem::usage("no queue").hint("name one, or set LOCKD_QUEUE_NAME"));
        };
        let queue = session.client.queue(queue);
        // The name in the environment goes with its namespace.
        Ok(match session.queue_namespace()? {
            Some(namespace) => queue.namespace(namespace),
            None => queue,
        })
    }
}

pub(super) async fn run(session: &Session, args: QueueArgs) -> Done<ExitCode> {
    let done = match args.command {
        QueueCommand::Work(args) => return Box::pin(work::run(session, args)).await,
        QueueCommand::Enqueue(args) => enqueue::run(session, args).await,
        QueueCommand::Dequeue(args) => Box::pin(dequeue::run(session, args)).await,
        QueueCommand::Ack(args) => settle::ack(session, args).await,
        QueueCommand::Nack(args) => settle::nack(session, args).await,
        QueueCommand::Extend(args) => settle::extend(session, args).await,
        QueueCommand::Stats(args) => look::stats(session, args).await,
        QueueCommand::Peek(args) => look::peek(session, args).await,
        QueueCommand::Watch(args) => look::watch(session, args).await,
        QueueCommand::List(args) => look::list(session, args).await,
        QueueCommand::Purge(args) => look::purge(session, args).await,
        QueueCommand::Dlq(args) => dlq::run(session, args).await,
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Prints one of several values that hold JSON of others; YAML has no form for that as it is.
fn print_one<T: Serialize>(format: Format, value: &T, text: impl FnOnce() -> String) -> Done {
    if format == Format::Yaml {
        let value = serde_json::to_value(value).map_err(|error| Problem::failed(error.to_string()));
        return ui::print_one(format, &value?, text);
    }
    ui::print_one(format, value, text)
}
