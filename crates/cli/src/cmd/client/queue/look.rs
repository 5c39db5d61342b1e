//! `stats`, `peek`, `watch`, `list`, `purge`: what is in queues, without taking it.

use std::time::Duration;

use clap::Args;
use lockd_client::Queue;
use lockd_client::queue::MessagePages;
use lockd_wire::queue::{MessageView, StatsReply, WatchEvent};
use serde_json::json;

use super::super::Session;
use super::super::describe::{or_unknown, time};
use super::super::download;
use super::{WhichQueue, print_one};
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Show how many messages wait, are with consumers, and are dead
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lockd client queue stats jobs --output json")]
pub(super) struct StatsArgs {
    #[command(flatten)]
    which: WhichQueue,
    /// How to print them
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Look at the messages of a queue, or at the payload of one
///
/// Takes nothing. In the order of the queue, with those that are with consumers.
#[derive(Debug, Args)]
#[command(after_help = PEEK_EXAMPLES)]
pub(super) struct PeekArgs {
    #[command(flatten)]
    which: WhichQueue,
    /// Write the payload of this message instead
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    message: Option<String>,
    /// Where to write the payload; - is standard output
    #[arg(long, short = 'o', value_name = "FILE", default_value = "-", requires = "message")]
    payload_out: String,
    #[command(flatten)]
    how: HowMany,
}

/// How a list of messages is printed.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct HowMany {
    /// Show at most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// How to print them; JSON and YAML have one document for each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Follow whether a queue has something to deliver
///
/// Takes nothing. Starts with how things are, then tells every change, one a line.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lockd client queue watch jobs --output json")]
pub(super) struct WatchArgs {
    #[command(flatten)]
    which: WhichQueue,
    /// How to print events; JSON has one line for each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// List the queues of a namespace
#[derive(Debug, Args)]
#[command(visible_alias = "ls", after_help = "Examples:\n  lockd client queue list -n team")]
pub(super) struct ListArgs {
    /// How to print them; JSON and YAML have one document for each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Remove what waits in a queue
///
/// What is with a consumer stays, and so do the dead unless --dead is given. This cannot be undone,
/// so it has to be confirmed with --yes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lockd client queue purge jobs --yes")]
pub(super) struct PurgeArgs {
    #[command(flatten)]
    which: WhichQueue,
    /// The dead ones too
    #[arg(long)]
    dead: bool,
    /// Really
    #[arg(long)]
    yes: bool,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const PEEK_EXAMPLES: &str = "\
Examples:
  lockd client queue peek jobs
  lockd client queue peek jobs --message 0190b3a4-7c1d-7000-8000-00000000abcd -o job.bin
  lockd client queue peek jobs --output json | jq -c 'select(.status == \"in_flight\")'";

pub(super) async fn stats(session: &Session, args: StatsArgs) -> Done {
    let stats = args.which.open(session)?.stats().await?;
    ui::print(args.output, &stats, || told(&stats))
}

fn told(stats: &StatsReply) -> String {
    let mut lines = vec![
        format!("queue:      {}/{}", stats.namespace, stats.queue),
        format!("ready:      {}", or_unknown(stats.ready)),
        format!("in flight:  {}", or_unknown(stats.in_flight)),
        format!("delayed:    {}", or_unknown(stats.delayed)),
        format!("dead:       {}", or_unknown(stats.dead)),
        format!("consumers:  {} ({} waiting)", stats.total_consumers, stats.waiting_consumers),
    ];
    let oldest = stats.oldest_ready_age_seconds.map(Duration::from_secs);
    lines.extend(oldest.map(|age| format!("oldest:     {}", humantime::format_duration(age))));
    lines.extend(stats.head_message_id.as_ref().map(|id| format!("head:       {id}")));
    lines.join("\n")
}

pub(super) async fn peek(session: &Session, args: PeekArgs) -> Done {
    let queue = args.which.open(session)?;
    match args.message {
        Some(id) => payload(&queue, &id, &args.payload_out).await,
        None => show(queue.peek(), args.how).await,
    }
}

/// Prints messages, page by page.
pub(super) async fn show(pages: MessagePages, how: HowMany) -> Done {
    let (mut pages, mut left) = (pages, how.limit);
    let for_a_person = how.output == Format::Text && ui::is_read_by_a_person();
    let mut headings = Some(&HEADINGS[..]);
    while left > 0
        && let Some(mut messages) = pages.next_page().await?
    {
        messages.truncate(left);
        left -= messages.len();
        if for_a_person {
            ui::data(&ui::table(headings.take(), messages.iter().map(row).collect()))?;
            continue;
        }
        for message in messages {
            print_one(how.output, &message, || row(&message).join("\t"))?;
        }
    }
    Ok(())
}

const HEADINGS: [&str; 7] =
    ["MESSAGE", "STATUS", "DELIVERED", "FAILED", "BYTES", "ENQUEUED", "ERROR"];

fn row(message: &MessageView) -> Vec<String> {
    vec![
        message.message_id.clone(),
        message.status.clone(),
        message.attempts.to_string(),
        format!("{}/{}", message.failure_attempts, message.max_attempts),
        message.payload_bytes.to_string(),
        time(message.enqueued_at_unix_ms),
        message.last_error.as_ref().map_or("", |error| error.get()).to_owned(),
    ]
}

/// Writes the payload of a message that is not taken.
pub(super) async fn payload(queue: &Queue, id: &str, output: &str) -> Done {
    let Some(mut stream) = queue.payload(id).await? else {
        return Err(Problem::failed(format!("{} has no message {id}", queue.name())).hint(
            "it was acknowledged or removed; see what is there: queue peek, queue dlq list",
        ));
    };
    download::write(output, stream.length(), async || stream.chunk().await).await
}

pub(super) async fn watch(session: &Session, args: WatchArgs) -> Done {
    let mut watch = args.which.open(session)?.watch();
    let mut heard = false;
    loop {
        match watch.next().await {
            Ok(event) => {
                heard = true;
                ui::print_one(args.output, &event, || line(&event))?;
            }
            // A server that was there may come back; one that never was is probably misspelt.
            Err(error) if heard && error.retryable() => ui::note(&format!("{error}; still trying")),
            Err(error) => return Err(Problem::from(error)),
        }
    }
}

fn line(event: &WatchEvent) -> String {
    let name = format!("{}/{}", event.namespace, event.queue);
    match (event.available, &event.head_message_id) {
        (true, Some(head)) => format!("{name} available head={head}"),
        (true, None) => format!("{name} available"),
        (false, _) => format!("{name} empty"),
    }
}

pub(super) async fn list(session: &Session, args: ListArgs) -> Done {
    let mut pages = session.client.queues();
    while let Some(queues) = pages.next_page().await? {
        for queue in queues {
            let value = json!({ "queue": queue });
            ui::print_one(args.output, &value, || queue)?;
        }
    }
    Ok(())
}

pub(super) async fn purge(session: &Session, args: PurgeArgs) -> Done {
    let queue = args.which.open(session)?;
    if !args.yes {
        let message = format!("all that waits in {} would be removed", queue.name());
        return Err(Problem::usage(message)
            .hint("see it with `lockd client queue peek`; if you mean it, add --yes"));
    }
    let count = if args.dead { queue.purge_with_dead().await? } else { queue.purge().await? };
    counted(args.output, "removed", count)
}

/// Prints how many messages something was done to.
pub(super) fn counted(output: Format, done: &str, count: u64) -> Done {
    ui::print(output, &json!({ "count": count }), || format!("{done} {count}"))
}
