//! `lockc status`: what is held, as far as it is remembered and the servers agree. It shows no
//! secret, and changes nothing.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::remembered::{Held, Memory};
use super::{reopen, told};
use crate::cmd::client::Manner;
use crate::exit::{Done, Exit, Problem};
use crate::ui::{self, Format};

/// Show what is held
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StatusArgs {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockc status
  lockc status --output json

Exits with 76 when the key that was acquired last is not held any more.";

#[derive(Serialize)]
struct Shown<'a> {
    key: &'a str,
    namespace: Option<&'a str>,
    server: &'a str,
    bundle: Option<String>,
    owner: &'a str,
    fencing_token: Option<u64>,
    txn_id: Option<&'a str>,
    state: Standing,
    /// Time that is left of the lease.
    left_ms: u64,
}

/// What the server says to what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    Held,
    Lost,
    /// The server could not be asked.
    Unknown,
}

impl Standing {
    fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }
}

const HEADINGS: [&str; 5] = ["KEY", "STATE", "TOKEN", "LEFT", "SERVER"];

pub(super) async fn run(args: StatusArgs, manner: Manner) -> Done {
    let memory = Memory::find()?;
    let contents = memory.load()?;
    if contents.held.is_empty() {
        ui::note(&format!("nothing is held, as far as {} knows", memory.path().display()));
    }
    let mut last = None;
    let mut rows = Vec::new();
    for held in &contents.held {
        let (state, left) = ask(held, manner).await;
        last = Some((&held.key, state));
        let shown = Shown {
            key: &held.key,
            namespace: held.namespace.as_deref(),
            server: &held.server,
            bundle: held.bundle.as_ref().map(|path| path.display().to_string()),
            owner: &held.owner,
            fencing_token: held.fencing_token,
            txn_id: held.txn_id.as_deref(),
            state,
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        };
        if args.output == Format::Text {
            rows.push(row(&shown, left));
        } else {
            ui::print_one(args.output, &shown, String::new)?;
        }
    }
    if !rows.is_empty() {
        ui::data(&ui::table(Some(&HEADINGS), rows))?;
    }
    match last {
        Some((key, Standing::Lost)) => {
            Err(Problem::new(Exit::Lost, format!("{key} is not held any more"))
                .hint("acquire it again and read its state before going on"))
        }
        Some((_, Standing::Held | Standing::Unknown)) | None => Ok(()),
    }
}

fn row(shown: &Shown<'_>, left: Duration) -> Vec<String> {
    let token = shown.fencing_token.map(|token| token.to_string());
    vec![
        shown.key.to_owned(),
        shown.state.word().to_owned(),
        token.unwrap_or_default(),
        told(left),
        shown.server.to_owned(),
    ]
}

/// Asks the server who holds the key: a token is given once, so the same one is the same lease.
async fn ask(held: &Held, manner: Manner) -> (Standing, Duration) {
    let Ok((session, _)) = reopen(held, manner) else {
        return (Standing::Unknown, Duration::ZERO);
    };
    let Ok(known) = session.client.describe(held.namespace.as_deref(), &held.key).await else {
        return (Standing::Unknown, Duration::ZERO);
    };
    // Some servers do not tell the token: then nothing is known.
    let Some(token) = known.fencing_token else { return (Standing::Unknown, Duration::ZERO) };
    let is_ours = Some(token) == held.fencing_token && known.owner.is_some();
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let left = known.expires_at_unix_ms.unwrap_or_default().saturating_sub(now);
    if is_ours {
        (Standing::Held, Duration::from_millis(left))
    } else {
        (Standing::Lost, Duration::ZERO)
    }
}
