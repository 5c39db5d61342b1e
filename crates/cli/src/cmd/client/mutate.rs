//! `mutate`: sends expressions to the server, which changes the state there.

use clap::Args;
use lockd_json::mutate::Source;

use super::arguments::with_conditions;
use super::set::{ChangeArgs, change, lease_and_expressions};
use super::update::Then;
use super::{Session, edit, update};
use crate::exit::{Done, Problem};

/// Change parts of the state on the server, without sending the rest
///
/// What no expression names keeps its bytes. Values cannot come from files; use --local, or `set`,
/// for that.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MutateArgs {
    #[command(flatten)]
    change: ChangeArgs,
    /// Change it here instead, as `set` does
    #[arg(long, short)]
    local: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockd client mutate orders /progress/count++ /progress/step=fetch
  lockd client mutate orders '/progress{/step=done,time:/at=NOW}' --commit
  lockd client mutate rm:/old --key orders";

pub(super) async fn run(session: &Session, args: MutateArgs) -> Done {
    let (context, expressions) = lease_and_expressions(session, &args.change)?;
    if args.local {
        let updated = change(session, context, &expressions, &args.change).await?;
        return update::print(args.change.output, &updated);
    }
    // A wrong expression is told here, in the same words, before anything is sent.
    edit::parse(&expressions, Source::Server)?;
    let mut write = session.client.raw(context).mutate(expressions);
    match args.change.after.then() {
        None => {}
        Some(Then::Commit) => write = write.then_commit(),
        Some(Then::Release) => {
            return Err(Problem::usage("mutate cannot release the lease")
                .hint("use --commit and then `lockd client release`, or --local"));
        }
    }
    let updated = with_conditions!(write, &args.change.conditions).await?;
    update::print(args.change.output, &updated)
}
