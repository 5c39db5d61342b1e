//! `dlq`: messages that failed too often, and what is done about them.

use clap::{Args, Subcommand};

use super::super::Session;
use super::look::{HowMany, counted, payload, show};
use super::{QueueFlag, WhichQueue};
use crate::exit::{Done, Problem};
use crate::ui::Format;

/// Look at dead messages, put them back, or delete them
///
/// A message is dead when it has failed as often as it may. It stays until somebody decides.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DlqArgs {
    #[command(subcommand)]
    command: DlqCommand,
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    /// List the dead messages of a queue, with their last errors
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Write the payload of a dead message
    Peek(PeekArgs),
    /// Put dead messages back into the queue, with all their attempts
    Redrive(RedriveArgs),
    /// Delete dead messages for good
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    which: WhichQueue,
    #[command(flatten)]
    how: HowMany,
}

#[derive(Debug, Args)]
struct PeekArgs {
    #[command(flatten)]
    which: QueueFlag,
    /// The message
    #[arg(value_name = "ID", value_parser = crate::context::name)]
    message: String,
    /// Where to write the payload; - is standard output
    #[arg(long, short = 'o', value_name = "FILE", default_value = "-")]
    payload_out: String,
}

/// Which dead messages.
#[derive(Debug, Args)]
struct Meant {
    #[command(flatten)]
    which: QueueFlag,
    /// The messages
    #[arg(value_name = "ID", required_unless_present = "all", value_parser = crate::context::name)]
    messages: Vec<String>,
    /// All dead messages of the queue
    #[arg(long, conflicts_with = "messages")]
    all: bool,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Args)]
struct RedriveArgs {
    #[command(flatten)]
    meant: Meant,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    #[command(flatten)]
    meant: Meant,
    /// Really, with --all
    #[arg(long)]
    yes: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockd client queue dlq list jobs
  lockd client queue dlq peek -q jobs 0190b3a4-7c1d-7000-8000-00000000abcd
  lockd client queue dlq redrive -q jobs --all
  lockd client queue dlq delete -q jobs 0190b3a4-7c1d-7000-8000-00000000abcd";

pub(super) async fn run(session: &Session, args: DlqArgs) -> Done {
    match args.command {
        DlqCommand::List(args) => show(args.which.open(session)?.dead_letters(), args.how).await,
        DlqCommand::Peek(args) => {
            payload(&args.which.open(session)?, &args.message, &args.payload_out).await
        }
        DlqCommand::Redrive(RedriveArgs { meant }) => {
            let queue = meant.which.open(session)?;
            let count = if meant.all {
                queue.redrive_all().await?
            } else {
                queue.redrive(&meant.messages).await?
            };
            counted(meant.output, "put back", count)
        }
        DlqCommand::Delete(DeleteArgs { meant, yes }) => {
            let queue = meant.which.open(session)?;
            let count = if !meant.all {
                queue.delete_dead(&meant.messages).await?
            } else if yes {
                queue.delete_all_dead().await?
            } else {
                let message = format!("all dead messages of {} would be deleted", queue.name());
                return Err(Problem::usage(message).hint(
                    "see them with `lockd client queue dlq list`; if you mean it, add --yes",
                ));
            };
            counted(meant.output, "deleted", count)
        }
    }
}
