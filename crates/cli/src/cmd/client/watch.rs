//! `watch`: events as they happen, one a line, until interrupted.

use clap::Args;
use lockd_client::{Change, Event};
use lockd_wire::watch::{LeaseChange, LeaseEvent, StateEvent};
use serde::Serialize;

use super::Session;
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Follow what happens to keys
///
/// Starts with what is there now, then tells every change, one a line. Interruptions are bridged;
/// a `reset` tells that a fresh snapshot follows.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchArgs {
    /// The key; one that ends in / stands for all keys that begin with it; without one, all keys
    /// of the namespace
    #[arg(value_name = "KEY", value_parser = crate::context::name)]
    argument: Option<String>,
    /// The key
    #[arg(long, short, value_name = "KEY", conflicts_with_all = ["argument", "prefix"],
          value_parser = crate::context::name)]
    key: Option<String>,
    /// All keys that begin with this
    #[arg(long, value_name = "PREFIX", conflicts_with = "argument")]
    prefix: Option<String>,
    /// Go on after the event with this id
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// How to print events; JSON has one line for each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd client watch orders
  lockd client watch jobs/
  lockd client watch --output json | jq -c 'select(.event == \"lease\")'";

#[derive(Serialize)]
struct Shown<'a, T: Serialize> {
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(flatten)]
    data: &'a T,
}

pub(super) async fn run(session: &Session, args: WatchArgs) -> Done {
    let named = args.key.or(args.argument);
    let mut watch = match (named, args.prefix) {
        (_, Some(prefix)) => session.client.watch_prefix(prefix),
        (Some(key), None) if key.ends_with('/') => session.client.watch_prefix(key),
        (Some(key), None) => session.client.watch(key),
        (None, None) => session.client.watch_prefix(""),
    };
    if let Some(id) = args.resume {
        watch = watch.resume_from(id);
    }
    let mut heard = false;
    loop {
        match watch.next().await {
            Ok(event) => {
                heard = true;
                print(args.output, &event)?;
            }
            // A server that was there may come back; one that never was is probably misspelt.
            Err(error) if heard && error.retryable() => ui::note(&format!("{error}; still trying")),
            Err(error) => return Err(Problem::from(error)),
        }
    }
}

fn print(format: Format, event: &Event) -> Done {
    let id = event.id.as_deref();
    match &event.change {
        Change::State(data) => {
            let shown = Shown { event: "state", id, data };
            ui::print_one(format, &shown, || state("state", data))
        }
        Change::Removed(data) => {
            let shown = Shown { event: "removed", id, data };
            ui::print_one(format, &shown, || state("removed", data))
        }
        Change::Lease(data) => {
            let shown = Shown { event: "lease", id, data };
            ui::print_one(format, &shown, || lease(data))
        }
        Change::Reset(data) => {
            let shown = Shown { event: "reset", id, data };
            let part = if data.complete { "complete" } else { "begins" };
            ui::print_one(format, &shown, || format!("reset {part} reason={}", data.reason))
        }
        _ => Ok(()),
    }
}

fn state(kind: &str, event: &StateEvent) -> String {
    let mut text = format!("{kind} {}/{} version={}", event.namespace, event.key, event.version);
    if let Some(bytes) = event.bytes {
        text.push_str(&format!(" bytes={bytes}"));
    }
    if let Some(etag) = &event.state_etag {
        text.push_str(&format!(" etag={etag}"));
    }
    marked(text, event.snapshot)
}

fn lease(event: &LeaseEvent) -> String {
    let change = match event.change {
        LeaseChange::Granted => "granted",
        LeaseChange::Released => "released",
        LeaseChange::Expired => "expired",
        LeaseChange::Revoked => "revoked",
    };
    let text = format!(
        "lease {}/{} {change} owner={} token={}",
        event.namespace, event.key, event.owner, event.fencing_token
    );
    marked(text, event.snapshot)
}

fn marked(mut text: String, snapshot: bool) -> String {
    if snapshot {
        text.push_str(" snapshot");
    }
    text
}
