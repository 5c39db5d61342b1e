//! `lockc release`: commits what is staged, or forgets it, and lets the key go.

use clap::Args;
use serde_json::json;

use super::{held, is_over, reopen};
use crate::cmd::client::Manner;
use crate::cmd::client::arguments::Fence;
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Release the key: what was staged becomes visible, or is forgotten with --rollback
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ReleaseArgs {
    /// The key, when several are held
    #[arg(value_name = "KEY", value_parser = crate::context::name)]
    key: Option<String>,
    /// Forget what was staged
    #[arg(long)]
    rollback: bool,
    /// Only if that key's token is still this one: namespace/key=TOKEN; may be repeated
    #[arg(long = "fence", value_name = "NS/KEY=TOKEN")]
    fences: Vec<Fence>,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockc release
  lockc release orders --rollback

Exits with 76 when the lease was lost before: then nothing that was staged is committed.";

pub(super) async fn run(args: ReleaseArgs, manner: Manner) -> Done {
    let (memory, held) = held(args.key.as_deref())?;
    let (session, context) = reopen(&held, manner)?;
    let raw = session.client.raw(context);
    let mut release = if args.rollback { raw.rollback() } else { raw.release() };
    for fence in &args.fences {
        release = release.fence(&fence.full_name, fence.token);
    }
    let released = release.await.map_err(Problem::from);
    // A lease that is over is not worth remembering; one whose server is away is.
    if released.as_ref().err().is_none_or(is_over) {
        memory.forget(&held.lease_id).await?;
    }
    released?;
    let shown = json!({ "key": held.key, "released": true });
    ui::print(args.output, &shown, || format!("released {}", held.key))
}
