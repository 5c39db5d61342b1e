//! `remove`: takes the state away; the key and its token stay.

use clap::Args;
use lockd_wire::state::RemoveReply;

use super::Session;
use super::arguments::{Conditions, with_conditions};
use crate::context::LeaseFlags;
use crate::exit::Done;
use crate::ui::{self, Format};

/// Remove the state of a key
///
/// It is staged: others see it when the lease is released, or at once with --commit. The key and
/// its fencing token stay.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RemoveArgs {
    /// The key [env: LOCKD_CLIENT_KEY]
    #[arg(value_name = "KEY", conflicts_with = "key", value_parser = crate::context::name)]
    argument: Option<String>,
    #[command(flatten)]
    lease: LeaseFlags,
    #[command(flatten)]
    conditions: Conditions,
    /// Publish at once and keep the lease
    #[arg(long)]
    commit: bool,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd client remove orders
  lockd client remove orders --if-version 7 --commit";

pub(super) async fn run(session: &Session, args: RemoveArgs) -> Done {
    let environment = &session.environment;
    let key = environment.need_key(args.lease.key.clone().or(args.argument))?;
    let context = environment.need_lease(&key, session.namespace(), &args.lease)?;
    let mut remove = session.client.raw(context).remove();
    if args.commit {
        remove = remove.then_commit();
    }
    let removed = with_conditions!(remove, &args.conditions).await?;
    let shown = RemoveReply { removed: removed.removed, new_version: removed.version };
    ui::print(args.output, &shown, || match (removed.removed, removed.version) {
        (true, Some(version)) => format!("removed version={version}"),
        (true, None) => "removed".to_owned(),
        (false, _) => "nothing to remove".to_owned(),
    })
}
