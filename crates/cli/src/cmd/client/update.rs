//! `update`: a new state from a file or standard input, sent as it is read.

use std::io::Read as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lockd_client::{LeaseContext, Source, Update, Updated};
use serde::Serialize;

use super::Session;
use super::arguments::{Conditions, key_and_input, with_conditions};
use super::document::Type;
use crate::context::LeaseFlags;
use crate::exit::{Done, Problem};
use crate::ui::{self, Format, Progress};

/// Write a new state from a file or standard input
///
/// It is staged: others see it when the lease is released. --commit publishes it at once and keeps
/// the lease, --then release publishes it and ends the lease.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UpdateArgs {
    /// The key (unless --key is given), then a file; - or nothing is standard input
    #[arg(value_name = "KEY [FILE]", num_args = 0..=2)]
    arguments: Vec<String>,
    #[command(flatten)]
    lease: LeaseFlags,
    /// Read the state from this file
    #[arg(long, short, value_name = "FILE")]
    file: Option<String>,
    /// What is read; auto goes by the name of the file
    #[arg(long = "type", value_enum, default_value_t = Type::Auto)]
    kind: Type,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    after: After,
    /// Keep the key out of query results, or not
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    hidden: Option<bool>,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd client update orders state.json
  lockd client get orders | lockd client edit step=done | lockd client update orders
  lockd client update orders state.yaml --if-version 3
  lockd client update orders state.json --commit
  lockd client update orders state.json --fence default/leader=12";

/// What follows a write.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct After {
    /// Publish at once and keep the lease
    #[arg(long, conflicts_with = "then")]
    commit: bool,
    /// Publish at once, and keep the lease or end it
    #[arg(long, value_enum)]
    then: Option<Then>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Then {
    Commit,
    Release,
}

impl After {
    pub(crate) fn then(self) -> Option<Then> {
        self.then.or(self.commit.then_some(Then::Commit))
    }
}

/// Standard input up to this size is kept, so that it can be sent again.
const KEPT_BYTES_MAX: u64 = 1024 * 1024;

pub(crate) async fn run(session: &Session, args: UpdateArgs) -> Done {
    let (key, input) = key_and_input(args.lease.key.clone(), args.arguments)?;
    let input = match (args.file, input) {
        (Some(_), Some(extra)) => {
            return Err(Problem::usage(format!("both --file and {extra:?} name an input")));
        }
        (Some(file), None) | (None, Some(file)) => file,
        (None, None) => "-".to_owned(),
    };
    let environment = &session.environment;
    let key = environment.need_key(key)?;
    let context = environment.need_lease(&key, session.namespace(), &args.lease)?;
    let source = source(&input, args.kind.resolve(&input))?;
    let write = Write { conditions: args.conditions, after: args.after, hidden: args.hidden };
    let updated = send(session, context, source, &write).await?;
    print(args.output, &updated)
}

/// How a new state is written.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) conditions: Conditions,
    pub(crate) after: After,
    pub(crate) hidden: Option<bool>,
}

pub(crate) async fn send(
    session: &Session,
    context: LeaseContext,
    source: Source,
    write: &Write,
) -> Done<Updated> {
    let raw = session.client.raw(context);
    let mut update: Update = match write.after.then() {
        None => raw.update_stream(source),
        Some(Then::Commit) => raw.update_stream(source).then_commit(),
        Some(Then::Release) => raw.finish_stream(source),
    };
    if let Some(hidden) = write.hidden {
        update = update.hidden(hidden);
    }
    Ok(with_conditions!(update, &write.conditions).await?)
}

/// Opens an input. Only what has to be seen as a whole is read into memory.
pub(crate) fn source(input: &str, kind: Type) -> Done<Source> {
    let cannot = |error: std::io::Error| Problem::failed(format!("cannot read {input}: {error}"));
    if kind == Type::Yaml {
        let text = match input {
            "-" => {
                let mut text = Vec::new();
                std::io::stdin().lock().read_to_end(&mut text).map_err(cannot)?;
                text
            }
            path => std::fs::read(path).map_err(cannot)?,
        };
        return Ok(Source::bytes(kind.read(text)?));
    }
    if input != "-" {
        // Opened once here, so that a wrong name is told as such and not as a failed request.
        let length = std::fs::File::open(input).and_then(|file| file.metadata()).map_err(cannot)?;
        let (path, progress) = (PathBuf::from(input), Progress::new(Some(length.len())));
        return Ok(Source::reopen(move || {
            let (path, progress) = (path.clone(), progress.clone());
            async move { Ok(progress.count(tokio::fs::File::open(path).await?)) }
        }));
    }
    let mut start = Vec::new();
    std::io::stdin().lock().take(KEPT_BYTES_MAX).read_to_end(&mut start).map_err(cannot)?;
    if (start.len() as u64) < KEPT_BYTES_MAX {
        return Ok(Source::bytes(start));
    }
    let start = std::io::Cursor::new(start);
    let all = tokio::io::AsyncReadExt::chain(start, tokio::io::stdin());
    Ok(Source::once(Progress::new(None).count(all)))
}

#[derive(Serialize)]
struct Shown<'a> {
    new_version: u64,
    new_state_etag: &'a str,
    bytes: u64,
}

/// Prints what became of a write.
pub(crate) fn print(format: Format, updated: &Updated) -> Done {
    let shown =
        Shown { new_version: updated.version, new_state_etag: &updated.etag, bytes: updated.bytes };
    ui::print(format, &shown, || {
        format!("version={} bytes={} etag={}", updated.version, updated.bytes, updated.etag)
    })
}
