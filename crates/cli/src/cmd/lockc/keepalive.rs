//! `lockc keepalive`: gives the lease that is held a new time to live.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{held, is_over, reopen, told};
use crate::cmd::client::{Manner, arguments};
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Give the lease a new time to live, counted from now
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct KeepaliveArgs {
    /// The key, when several are held
    #[arg(value_name = "KEY", value_parser = crate::context::name)]
    key: Option<String>,
    /// How long the lease lives from now on
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = arguments::ttl)]
    ttl: Duration,
    /// How to print the expiry
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockc keepalive --ttl 30s
  while sleep 10; do lockc keepalive || break; done";

pub(super) async fn run(args: KeepaliveArgs, manner: Manner) -> Done {
    let (memory, held) = held(args.key.as_deref())?;
    let (session, context) = reopen(&held, manner)?;
    let renewed = match session.client.raw(context).keepalive(Some(args.ttl)).await {
        Ok(renewed) => renewed,
        Err(error) => {
            let problem = Problem::from(error);
            if is_over(&problem) {
                memory.forget(&held.lease_id).await?;
            }
            return Err(problem);
        }
    };
    memory.renewed(&held.lease_id, renewed.expires_at_unix_ms).await?;
    let ttl_ms = u64::try_from(renewed.ttl.as_millis()).unwrap_or(u64::MAX);
    let shown = json!({
        "key": held.key,
        "ttl_ms": ttl_ms,
        "expires_at_unix_ms": renewed.expires_at_unix_ms,
    });
    ui::print(args.output, &shown, || format!("{} ttl={}", held.key, told(renewed.ttl)))
}
