//! `enqueue`: a message from a text, a file or standard input, sent as it is read.

use std::time::Duration;

use clap::Args;
use lockd_client::Source;
use lockd_client::queue::Enqueue;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::Session;
use super::super::arguments::{Fence, duration};
use super::super::document::Type;
use super::super::update::source;
use super::WhichQueue;
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Put a message into a queue
///
/// The payload is --data, a file, or standard input. Prints the id of the message.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct EnqueueArgs {
    #[command(flatten)]
    which: WhichQueue,
    /// The payload itself
    #[arg(long, short, value_name = "TEXT", conflicts_with = "file")]
    data: Option<String>,
    /// A file with the payload; - or nothing is standard input
    #[arg(long, short, value_name = "FILE")]
    file: Option<String>,
    /// What kind of bytes the payload is (default: application/octet-stream)
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Something that the consumer gets before the payload; may be repeated
    #[arg(long = "attr", value_name = "NAME=TEXT", value_parser = attribute)]
    attrs: Vec<(String, String)>,
    /// The same as a whole, in JSON
    #[arg(long, value_name = "JSON", conflicts_with = "attrs")]
    attributes: Option<String>,
    #[command(flatten)]
    times: Times,
    /// Dead after so many failures (default: 5)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: Option<u32>,
    /// Deliver it only after this transaction is committed
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    txn_id: Option<String>,
    /// Only if that key's token is still this one: namespace/key=TOKEN; may be repeated
    #[arg(long = "fence", value_name = "NS/KEY=TOKEN")]
    fences: Vec<Fence>,
    /// Names the message, so that enqueuing it again does nothing
    #[arg(long, value_name = "TEXT")]
    idempotency_key: Option<String>,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Args)]
struct Times {
    /// Do not deliver it before so much time has passed
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    delay: Option<Duration>,
    /// How long a consumer has it, unless the consumer says otherwise (default: 30s)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    visibility: Option<Duration>,
    /// Remove it when it was not consumed for so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,
}

const EXAMPLES: &str = "\
Examples:
  lockd client queue enqueue jobs --data 'resize cat.png'
  lockd client queue enqueue jobs --file cat.png --content-type image/png --attr width=300
  tar c dir | lockd client queue enqueue archive --delay 10m --ttl 24h
  lockd client queue enqueue jobs -d x --idempotency-key order-7";

pub(super) async fn run(session: &Session, args: EnqueueArgs) -> Done {
    let queue = args.which.open(session)?;
    let payload = match (args.data, args.file) {
        (Some(text), _) => Source::bytes(text),
        (None, file) => source(file.as_deref().unwrap_or("-"), Type::Raw)?,
    };
    let mut enqueue = with_times(queue.enqueue(payload), &args.times);
    if let Some(content_type) = args.content_type {
        enqueue = enqueue.content_type(content_type);
    }
    if let Some(attributes) = args.attributes {
        let attributes = RawValue::from_string(attributes)
            .map_err(|error| Problem::usage(format!("--attributes is not JSON: {error}")))?;
        enqueue = enqueue.attributes(&attributes);
    } else if !args.attrs.is_empty() {
        let attributes: Map<String, Value> =
            args.attrs.into_iter().map(|(name, text)| (name, Value::String(text))).collect();
        enqueue = enqueue.attributes(&attributes);
    }
    if let Some(attempts) = args.max_attempts {
        enqueue = enqueue.max_attempts(attempts);
    }
    if let Some(txn_id) = args.txn_id {
        enqueue = enqueue.in_txn(txn_id);
    }
    if let Some(key) = args.idempotency_key {
        enqueue = enqueue.idempotency_key(key);
    }
    for fence in args.fences {
        enqueue = enqueue.fence(fence.full_name, fence.token);
    }
    let enqueued = enqueue.await?;
    ui::print(args.output, &enqueued, || enqueued.message_id.clone())
}

fn with_times(mut enqueue: Enqueue, times: &Times) -> Enqueue {
    if let Some(delay) = times.delay {
        enqueue = enqueue.delay(delay);
    }
    if let Some(visibility) = times.visibility {
        enqueue = enqueue.visibility(visibility);
    }
    if let Some(ttl) = times.ttl {
        enqueue = enqueue.ttl(ttl);
    }
    enqueue
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("write an attribute as name=text".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::attribute;

    #[test]
    fn an_attribute_has_a_name_and_any_text() {
        assert_eq!(attribute("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(attribute("a="), Ok(("a".to_owned(), String::new())));
        assert!(attribute("=b").is_err() && attribute("a").is_err());
    }
}
