//! `release`: commits what is staged, or forgets it, and lets the next holder in.

use clap::Args;
use lockd_wire::lease::ReleaseReply;

use super::Session;
use super::arguments::Fence;
use crate::context::LeaseFlags;
use crate::exit::Done;
use crate::ui::{self, Format};

/// Release a lease: what was staged becomes visible, or is forgotten with --rollback
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReleaseArgs {
    /// The key [env: LOCKD_CLIENT_KEY]
    #[arg(value_name = "KEY", conflicts_with = "key", value_parser = crate::context::name)]
    argument: Option<String>,
    #[command(flatten)]
    lease: LeaseFlags,
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
  lockd client release orders
  lockd client release orders --rollback
  lockd client release orders --fence default/leader=12

Exits with 76 when the lease was lost before: then nothing that was staged is committed.";

pub(super) async fn run(session: &Session, args: ReleaseArgs) -> Done {
    let environment = &session.environment;
    let key = environment.need_key(args.lease.key.clone().or(args.argument))?;
    let context = environment.need_lease(&key, session.namespace(), &args.lease)?;
    let raw = session.client.raw(context);
    let mut release = if args.rollback { raw.rollback() } else { raw.release() };
    for fence in &args.fences {
        release = release.fence(&fence.full_name, fence.token);
    }
    release.await?;
    if args.output == Format::Text {
        ui::note(&format!("released {key}"));
        return Ok(());
    }
    ui::print(args.output, &ReleaseReply { released: true }, String::new)
}
