//! `dequeue`: takes a message and prints what later commands need to answer for it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockd_client::Message;
use lockd_client::queue::Dequeue;
use lockd_wire::queue::DeliveredMessage;
use serde::Serialize;
use tempfile::NamedTempFile;

use super::super::Session;
use super::super::arguments::{Block, ttl};
use super::taken::exports;
use super::{WhichQueue, print_one};
use crate::context::export_lines;
use crate::exit::{Done, Exit, Problem};
use crate::folder;
use crate::ui::{Format, Progress};

/// Take a message from a queue
///
/// Prints `export` lines for the shell, so that `ack`, `nack` and `extend` know the message. The
/// payload goes to a file, whose name is in LOCKD_QUEUE_PAYLOAD_PATH. Nothing extends its time: use
/// `extend` before it is over, or `work` to have a command run for each message.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DequeueArgs {
    #[command(flatten)]
    which: WhichQueue,
    /// Who takes it, for people to read (default: user and host) [env: LOCKD_CLIENT_OWNER]
    #[arg(long, value_name = "NAME", value_parser = crate::context::name)]
    owner: Option<String>,
    /// How long to wait for a message: a duration, seconds, nowait (-1) or forever (0)
    #[arg(long, value_name = "WAIT", default_value = "forever", allow_hyphen_values = true)]
    block: Block,
    /// How long the message is with this consumer (default: as it was enqueued)
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    visibility: Option<Duration>,
    /// Take up to so many messages at once, at most 64; with --output json or yaml
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    page_size: u32,
    /// Under this transaction: acknowledged when it is committed
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    txn_id: Option<String>,
    /// Take the state of the message with it
    #[arg(long)]
    stateful: bool,
    /// Write the payload to this file (default: a new file in the folder for temporary files)
    #[arg(long, short = 'o', value_name = "FILE")]
    payload_out: Option<PathBuf>,
    /// Taken for the sake of old scripts: messages come in the order of the queue
    #[arg(long, value_name = "CURSOR", hide = true)]
    start_after: Option<String>,
    /// How to print the message; JSON and YAML have one document for each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  eval \"$(lockd client queue dequeue jobs --visibility 1m)\"
  lockd client queue dequeue jobs --block nowait -o job.bin
  lockd client queue dequeue jobs --page-size 10 --output json | jq -r .payload_path

When nothing came in time it prints nothing and exits with 74. eval does not fail when there is
nothing to eval: message=$(lockd client queue dequeue jobs) && eval \"$message\" does.";

/// The message, as JSON and YAML have it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    message: &'a DeliveredMessage,
    payload_path: &'a str,
}

pub(super) async fn run(session: &Session, args: DequeueArgs) -> Done {
    if args.page_size > 1 && args.output == Format::Text {
        return Err(Problem::usage("a shell can hold one message in its environment")
            .hint("take several with --output json, one a line"));
    }
    if args.page_size > 1 && args.payload_out.is_some() {
        return Err(Problem::usage("--payload-out is for one message")
            .hint("without it each payload gets a file of its own"));
    }
    if args.payload_out.as_deref() == Some(Path::new("-")) {
        return Err(Problem::usage("standard output is for the message itself")
            .hint("name a file, or let `lockd client queue work` hand the payload to a command"));
    }
    let queue = args.which.clone().open(session)?;
    let mut wish = queue.dequeue();
    if let Some(owner) = args.owner.clone().or_else(|| session.lasting_owner()) {
        wish = wish.owner(owner);
    }
    if let Some(visibility) = args.visibility {
        wish = wish.visibility(visibility);
    }
    if let Some(txn_id) = &args.txn_id {
        wish = wish.in_txn(txn_id);
    }
    if args.stateful {
        wish = wish.with_state();
    }
    let wish = match args.block {
        Block::No => wish.no_wait(),
        Block::For(wait) => wish.wait(wait),
        Block::Forever => wish.wait_forever(),
    };
    let done = take(wish, &args, queue.name()).await;
    // What could not be handed on goes back.
    session.client.close().await;
    done
}

async fn take(wish: Dequeue, args: &DequeueArgs, queue: &str) -> Done {
    let mut none = true;
    if args.page_size == 1 {
        if let Some(message) = wish.await? {
            none = false;
            hand_on(message, args).await?;
        }
    } else {
        for message in wish.batch(args.page_size).await? {
            none = false;
            hand_on(message, args).await?;
        }
    }
    if none {
        return Err(Problem::new(Exit::Nothing, format!("no message came from {queue}")));
    }
    Ok(())
}

/// Writes the payload, then tells who the message is. From then on others answer for it.
async fn hand_on(mut message: Message, args: &DequeueArgs) -> Done {
    let path = write_payload(&mut message, args.payload_out.as_deref()).await?;
    let path = std::path::absolute(&path).unwrap_or(path);
    let path = path.to_str().ok_or_else(|| Problem::failed("the payload's file has no name"))?;
    let shown = Shown { message: message.delivered(), payload_path: path };
    print_one(args.output, &shown, || export_lines(&exports(&message, Some(path))))?;
    drop(message.detach());
    Ok(())
}

/// Writes next to the file and puts it in place when it is complete.
async fn write_payload(message: &mut Message, to: Option<&Path>) -> Done<PathBuf> {
    let cannot = |error: &dyn std::fmt::Display| {
        Problem::failed(format!("cannot write the payload: {error}"))
            .hint("name a file with --payload-out; the message was given back")
    };
    let file = match to {
        Some(path) => NamedTempFile::new_in(folder::of(path)),
        None => NamedTempFile::with_prefix("lockd-payload-"),
    };
    let mut file = file.map_err(|error| cannot(&error))?;
    let progress = Progress::new(Some(message.payload_bytes()));
    while let Some(piece) = message.chunk().await? {
        file.write_all(&piece).map_err(|error| cannot(&error))?;
        progress.add(piece.len());
    }
    progress.clear();
    file.flush().map_err(|error| cannot(&error))?;
    match to {
        Some(path) => {
            file.persist(path).map_err(|error| cannot(&error.error))?;
            Ok(path.to_owned())
        }
        None => {
            let (_, path) = file.keep().map_err(|error| cannot(&error.error))?;
            Ok(path)
        }
    }
}
