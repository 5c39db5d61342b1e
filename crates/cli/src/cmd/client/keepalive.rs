//! `keepalive`: gives the lease a new time to live.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{Session, arguments};
use crate::context::LeaseFlags;
use crate::exit::Done;
use crate::ui::{self, Format};

/// Give a lease a new time to live, counted from now
///
/// Prints when the lease runs out, in seconds since 1970.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeepaliveArgs {
    /// The key [env: LOCKD_CLIENT_KEY]
    #[arg(value_name = "KEY", conflicts_with = "key", value_parser = crate::context::name)]
    argument: Option<String>,
    #[command(flatten)]
    lease: LeaseFlags,
    /// How long the lease lives from now on
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = arguments::ttl)]
    ttl: Duration,
    /// How to print the expiry
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd client keepalive --ttl 45s orders
  while sleep 10; do lockd client keepalive || break; done";

#[derive(Serialize)]
struct Shown {
    expires_at_unix: u64,
    expires_at_unix_ms: u64,
    ttl_ms: u64,
}

pub(super) async fn run(session: &Session, args: KeepaliveArgs) -> Done {
    let environment = &session.environment;
    let key = environment.need_key(args.lease.key.clone().or(args.argument))?;
    let context = environment.need_lease(&key, session.namespace(), &args.lease)?;
    let renewed = session.client.raw(context).keepalive(Some(args.ttl)).await?;
    let shown = Shown {
        expires_at_unix: renewed.expires_at_unix,
        expires_at_unix_ms: renewed.expires_at_unix_ms,
        ttl_ms: u64::try_from(renewed.ttl.as_millis()).unwrap_or(u64::MAX),
    };
    ui::print(args.output, &shown, || shown.expires_at_unix.to_string())
}
