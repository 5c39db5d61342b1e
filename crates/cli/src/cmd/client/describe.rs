//! `describe`: what is known about a key, without its state.

use clap::Args;
use lockd_wire::state::DescribeReply;

use super::Session;
use crate::exit::Done;
use crate::ui::{self, Format};

/// Show what is known about a key: holder, token, version, size
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DescribeArgs {
    /// The key [env: LOCKD_CLIENT_KEY]
    #[arg(value_name = "KEY", value_parser = crate::context::name)]
    argument: Option<String>,
    /// The key
    #[arg(long, short, value_name = "KEY", conflicts_with = "argument",
          value_parser = crate::context::name)]
    key: Option<String>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd client describe orders
  lockd client describe orders --output json";

pub(crate) async fn run(session: &Session, args: DescribeArgs) -> Done {
    let key = session.environment.need_key(args.key.or(args.argument))?;
    let known = session.client.describe(session.namespace(), &key).await?;
    ui::print(args.output, &known, || text(&known))
}

fn text(known: &DescribeReply) -> String {
    let mut lines = vec![format!("key:      {}/{}", known.namespace, known.key)];
    // Servers of the other implementation say whole seconds only.
    let seconds = |at: Option<u64>| at.map(|seconds| seconds.saturating_mul(1_000));
    lines.push(match (&known.owner, known.expires_at_unix_ms.or(seconds(known.expires_at_unix))) {
        (Some(owner), Some(until)) => format!("holder:   {owner} until {}", time(until)),
        (Some(owner), None) => format!("holder:   {owner}"),
        (None, _) => "holder:   nobody".to_owned(),
    });
    lines.push(format!("token:    {}", or_unknown(known.fencing_token)));
    lines.push(format!("version:  {}", known.version));
    if let Some(etag) = &known.state_etag {
        lines.push(format!("etag:     {etag}"));
    }
    if let Some(bytes) = known.bytes {
        lines.push(format!("bytes:    {bytes}"));
    }
    if let Some(updated) = known.updated_at_unix_ms.or(seconds(known.updated_at_unix)) {
        lines.push(format!("updated:  {}", time(updated)));
    }
    if known.metadata.query_hidden == Some(true) {
        lines.push("hidden:   yes".to_owned());
    }
    lines.join("\n")
}

/// A number that not every server tells.
pub(crate) fn or_unknown(number: Option<u64>) -> String {
    number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
}

/// A time in UTC.
pub(crate) fn time(unix_ms: u64) -> String {
    i64::try_from(unix_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| unix_ms.to_string(), |at| at.to_string())
}
