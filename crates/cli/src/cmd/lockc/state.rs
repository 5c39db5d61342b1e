//! `lockc state`: the state of the key that is held, to a file and back, as JSON or YAML.

use std::path::Path;

use clap::{Args, Subcommand};

use super::{held, is_over, reopen};
use crate::cmd::client::arguments::Conditions;
use crate::cmd::client::document::Type;
use crate::cmd::client::update::{After, Then, Write};
use crate::cmd::client::{Manner, get, update};
use crate::exit::Done;
use crate::ui::{self, Format};

#[derive(Debug, Subcommand)]
pub(super) enum StateCommand {
    Get(GetArgs),
    Update(UpdateArgs),
}

/// Read the state, with what is staged under the lease
#[derive(Debug, Args)]
#[command(after_help = GET_EXAMPLES)]
pub(super) struct GetArgs {
    /// Where to write it; - is standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: String,
    /// How to write it; auto goes by the name of the file: .json, .yaml, .yml
    #[arg(long = "type", value_enum, default_value_t = Type::Auto)]
    kind: Type,
    /// The key, when several are held
    #[arg(long, short, value_name = "KEY", value_parser = crate::context::name)]
    key: Option<String>,
    /// Read what is committed
    #[arg(long)]
    public: bool,
}

const GET_EXAMPLES: &str = "\
Examples:
  lockc state get
  lockc state get -o dump.yaml
  lockc state get -o - --type yaml";

/// Write a new state
///
/// It is staged: others see it when the lease is released. --commit publishes it at once and keeps
/// the lease, --then release publishes it and ends the lease.
#[derive(Debug, Args)]
#[command(after_help = UPDATE_EXAMPLES)]
pub(super) struct UpdateArgs {
    /// Where to read it; - is standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    input: String,
    /// What is read; auto goes by the name of the file: .json, .yaml, .yml
    #[arg(long = "type", value_enum, default_value_t = Type::Auto)]
    kind: Type,
    /// The key, when several are held
    #[arg(long, short, value_name = "KEY", value_parser = crate::context::name)]
    key: Option<String>,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    after: After,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const UPDATE_EXAMPLES: &str = "\
Examples:
  lockc state update -i dump.yaml
  lockc state get | jq -c '.count += 1' | lockc state update
  lockc state update -i dump.json --commit";

pub(super) async fn run(command: StateCommand, manner: Manner) -> Done {
    match command {
        StateCommand::Get(args) => read(args, manner).await,
        StateCommand::Update(args) => write(args, manner).await,
    }
}

async fn read(args: GetArgs, manner: Manner) -> Done {
    let (_, held) = held(args.key.as_deref())?;
    let (session, context) = reopen(&held, manner)?;
    let context = (!args.public).then_some(context);
    let Some(stream) = get::open(&session, &held.key, context).await? else { return Ok(()) };
    get::write(stream, kind_of(args.kind, &args.output), &args.output).await
}

async fn write(args: UpdateArgs, manner: Manner) -> Done {
    let (memory, held) = held(args.key.as_deref())?;
    let (session, context) = reopen(&held, manner)?;
    let source = update::source(&args.input, kind_of(args.kind, &args.input))?;
    let ends = args.after.then() == Some(Then::Release);
    let write = Write { conditions: args.conditions, after: args.after, hidden: None };
    let updated = update::send(&session, context, source, &write).await;
    let over = updated.as_ref().err().is_some_and(is_over);
    if over || (ends && updated.is_ok()) {
        memory.forget(&held.lease_id).await?;
    }
    if over {
        ui::note(&format!("{} is not held any more", held.key));
    }
    update::print(args.output, &updated?)
}

/// A .json file is written to be edited; otherwise as for `lockd client get`.
fn kind_of(kind: Type, file: &str) -> Type {
    let is_json = Path::new(file).extension().is_some_and(|name| name.eq_ignore_ascii_case("json"));
    if kind == Type::Auto && is_json { Type::Json } else { kind.resolve(file) }
}
