//! `set`: reads the state, applies expressions here, and writes it back if nobody was faster.

use clap::Args;
use lockd_client::{LeaseContext, UpdateKind, Updated};
use lockd_json::mutate::{Mutation, Source};

use super::arguments::{Conditions, key_and_expressions, with_conditions};
use super::update::{After, Then};
use super::{Session, edit, update};
use crate::context::LeaseFlags;
use crate::exit::Done;
use crate::ui::Format;

/// Change parts of the state from here: read, change, write back
///
/// Values may come from local files. The write fails when the state has changed since it was read;
/// it is then read and changed again, a few times. See `mutate` for the same on the server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// What `set` and `mutate` have in common.
#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// The key, unless it is an expression; then expressions: path=value, path++, path--, path=+N,
    /// rm:path, time:path=NOW
    #[arg(value_name = "[KEY] EXPRESSION", required = true)]
    pub(super) arguments: Vec<String>,
    #[command(flatten)]
    pub(super) lease: LeaseFlags,
    #[command(flatten)]
    pub(super) conditions: Conditions,
    /// Write back even if the state has changed since it was read
    #[arg(long)]
    pub(super) no_cas: bool,
    #[command(flatten)]
    pub(super) after: After,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd client set orders progress.step=fetch progress.count++ time:progress.updated=NOW
  lockd client set orders file:/certificate=ca.pem
  lockd client set rm:/old --key orders";

/// How often the state may change under our hands.
const ATTEMPTS: u32 = 4;

pub(super) async fn run(session: &Session, args: SetArgs) -> Done {
    let (context, expressions) = lease_and_expressions(session, &args.change)?;
    let updated = change(session, context, &expressions, &args.change).await?;
    update::print(args.change.output, &updated)
}

pub(super) fn lease_and_expressions(
    session: &Session,
    args: &ChangeArgs,
) -> Done<(LeaseContext, Vec<String>)> {
    let named = args.lease.key.clone();
    let (key, expressions) = key_and_expressions(named, args.arguments.clone())?;
    let key = session.environment.need_key(key)?;
    let context = session.environment.need_lease(&key, session.namespace(), &args.lease)?;
    Ok((context, expressions))
}

/// Reads, changes and writes back, again while the state changes in between.
pub(super) async fn change(
    session: &Session,
    context: LeaseContext,
    expressions: &[String],
    args: &ChangeArgs,
) -> Done<Updated> {
    let mutations = edit::parse(expressions, Source::Local)?;
    let given = args.conditions.if_version.is_some() || args.conditions.if_etag.is_some();
    let mut left = if given || args.no_cas { 1 } else { ATTEMPTS };
    loop {
        left -= 1;
        match once(session, context.clone(), &mutations, args).await? {
            Ok(updated) => return Ok(updated),
            Err(error) if error.kind() == UpdateKind::Conflict && left > 0 => {}
            Err(error) => return Err(error.into()),
        }
    }
}

type Written = Result<Updated, lockd_client::Error<UpdateKind>>;

async fn once(
    session: &Session,
    context: LeaseContext,
    mutations: &[Mutation],
    args: &ChangeArgs,
) -> Done<Written> {
    let raw = session.client.raw(context);
    let document = raw.get().await?;
    let changed = edit::apply(document.as_ref().map(|document| &document.bytes[..]), mutations)?;
    let mut conditions: Conditions = args.conditions.clone();
    if let Some(document) = document
        && !args.no_cas
        && conditions.if_version.is_none()
        && conditions.if_etag.is_none()
    {
        conditions.if_version = Some(document.version);
        conditions.if_etag = document.etag;
    }
    let write = match args.after.then() {
        None => raw.update_stream(changed),
        Some(Then::Commit) => raw.update_stream(changed).then_commit(),
        Some(Then::Release) => raw.finish_stream(changed),
    };
    Ok(with_conditions!(write, &conditions).await)
}
