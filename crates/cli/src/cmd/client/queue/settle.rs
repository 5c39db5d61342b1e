//! `ack`, `nack`, `extend`: what is said about a message that was taken.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;

use super::super::Session;
use super::super::arguments::{Fence, duration, ttl};
use super::taken::MessageFlags;
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Acknowledge a message: the work is done
///
/// The message is removed. Under a transaction the whole of it is committed.
#[derive(Debug, Args)]
#[command(after_help = ACK_EXAMPLES)]
pub(super) struct AckArgs {
    #[command(flatten)]
    message: MessageFlags,
    /// Only if that key's token is still this one: namespace/key=TOKEN; may be repeated
    #[arg(long = "fence", value_name = "NS/KEY=TOKEN")]
    fences: Vec<Fence>,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Give a message back: the work is not done
///
/// It goes to the next consumer, or to the dead ones when it has failed too often. Under a
/// transaction the whole of it is rolled back.
#[derive(Debug, Args)]
#[command(after_help = NACK_EXAMPLES)]
pub(super) struct NackArgs {
    #[command(flatten)]
    message: MessageFlags,
    /// Do not deliver it again before so much time has passed
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    delay: Option<Duration>,
    /// Whether it counts as a failure
    #[arg(long, short, value_enum, default_value_t = Intent::Failure)]
    intent: Intent,
    /// Why it failed
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Intent {
    /// It failed; after a number of failures it is dead
    Failure,
    /// It only has to be done later, or by somebody else
    Defer,
}

/// Give a message more time, counted from now
///
/// Prints when it goes to somebody else, in seconds since 1970.
#[derive(Debug, Args)]
#[command(after_help = EXTEND_EXAMPLES)]
pub(super) struct ExtendArgs {
    #[command(flatten)]
    message: MessageFlags,
    /// How much time (default: as much as the delivery was for)
    #[arg(long = "extend", value_name = "DURATION", value_parser = ttl)]
    by: Option<Duration>,
    /// How to print the expiry
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const ACK_EXAMPLES: &str = "\
Examples:
  lockd client queue ack
  lockd client queue ack --fence default/leader=12
  lockd client queue ack -q jobs --message ID --lease ID --fencing-token 3

Exits with 76 when the message is with somebody else by now.";

const NACK_EXAMPLES: &str = "\
Examples:
  lockd client queue nack --reason 'no space left'
  lockd client queue nack --intent defer --delay 10m";

const EXTEND_EXAMPLES: &str = "\
Examples:
  lockd client queue extend --extend 5m
  while sleep 10; do lockd client queue extend || break; done";

pub(super) async fn ack(session: &Session, args: AckArgs) -> Done {
    let receipt = args.message.receipt(session)?;
    let mut ack = session.client.raw_message(receipt).ack();
    for fence in args.fences {
        ack = ack.fence(fence.full_name, fence.token);
    }
    ack.await?;
    ui::print(args.output, &json!({ "acked": true }), || "acknowledged".to_owned())
}

pub(super) async fn nack(session: &Session, args: NackArgs) -> Done {
    let mut nack = session.client.raw_message(args.message.receipt(session)?).nack();
    if let Some(delay) = args.delay {
        nack = nack.delay(delay);
    }
    nack = match (args.intent, &args.reason) {
        (Intent::Defer, Some(_)) => {
            return Err(Problem::usage("what is only deferred did not fail")
                .hint("leave out --reason, or --intent defer"));
        }
        (Intent::Defer, None) => nack.defer(),
        (Intent::Failure, Some(reason)) => nack.error(reason),
        (Intent::Failure, None) => nack,
    };
    let dead = nack.await?.dead;
    let shown = json!({ "requeued": !dead, "dead": dead });
    ui::print(args.output, &shown, || if dead { "dead" } else { "given back" }.to_owned())
}

#[derive(Serialize)]
struct Shown<'a> {
    lease_expires_at_unix: u64,
    lease_expires_at_unix_ms: u64,
    visibility_timeout_ms: u64,
    meta_etag: &'a str,
}

pub(super) async fn extend(session: &Session, args: ExtendArgs) -> Done {
    let receipt = args.message.receipt(session)?;
    let extended = session.client.raw_message(receipt).extend(args.by).await?;
    let shown = Shown {
        lease_expires_at_unix: extended.expires_at_unix,
        lease_expires_at_unix_ms: extended.expires_at_unix_ms,
        visibility_timeout_ms: u64::try_from(extended.visibility.as_millis()).unwrap_or(u64::MAX),
        meta_etag: &extended.meta_etag,
    };
    ui::print(args.output, &shown, || shown.lease_expires_at_unix.to_string())
}
