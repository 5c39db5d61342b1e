//! `acquire`: takes a lease and prints what later commands need to act under it.

use clap::Args;
use lockd_client::{AcquireKind, Error, Grant};
use serde::Serialize;

use super::Session;
use super::arguments::Wish;
use crate::context::{export_lines, exports, plain};
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Acquire a lease on a key
///
/// Prints `export` lines for the shell, so that later commands act under the lease. Nothing renews
/// it: use `keepalive` before it runs out, or `run` to hold a key while a command runs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AcquireArgs {
    /// The key [env: LOCKD_CLIENT_KEY]
    #[arg(value_name = "KEY", value_parser = crate::context::name)]
    argument: Option<String>,
    /// The key
    #[arg(long, short, value_name = "KEY", conflicts_with = "argument",
          value_parser = crate::context::name)]
    key: Option<String>,
    /// Let the server generate a key that no other caller has
    #[arg(long, conflicts_with_all = ["argument", "key"])]
    generate: bool,
    #[command(flatten)]
    pub(crate) wish: Wish,
    /// How to print the lease
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  eval \"$(lockd client acquire orders)\"
  lease=$(lockd client acquire orders --ttl 1m --block nowait) && eval \"$lease\" || exit
  lockd client acquire orders --owner worker-1 --block 30s --output json

Exits with 75 when the key is held by another, and says by whom. eval itself does not fail when
there is nothing to eval; the second example does.";

const NO_KEY: &str = "name one, set LOCKD_CLIENT_KEY, or let the server generate one: --generate";

/// The lease, as JSON and YAML have it.
#[derive(Serialize)]
struct Shown<'a> {
    server: &'a str,
    namespace: Option<&'a str>,
    /// As it is stored, in lower case.
    key: String,
    lease_id: &'a str,
    fencing_token: Option<u64>,
    txn_id: Option<&'a str>,
    owner: &'a str,
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_etag: Option<&'a str>,
    ttl_ms: u64,
    expires_at_unix: u64,
    expires_at_unix_ms: u64,
    correlation_id: &'a str,
}

pub(crate) async fn run(session: &Session, args: AcquireArgs) -> Done {
    let key = if args.generate {
        None
    } else {
        let key = session.environment.need_key(args.key.or(args.argument));
        Some(key.map_err(|problem| problem.hint(NO_KEY))?)
    };
    let mut wish = args.wish;
    wish.owner = wish.owner.or_else(|| session.lasting_owner());
    let grant = match wish.acquire(&session.client, key.clone()).detached().await {
        Ok(grant) => grant,
        Err(error) => return Err(refused(session, key.as_deref(), error).await),
    };
    let shown = shown(&grant, &session.server);
    ui::print(args.output, &shown, || {
        export_lines(&exports(&grant, &session.server, session.bundle.as_deref()))
    })
}

/// The problem with an acquire; when the key is held it says by whom and for how long.
pub(crate) async fn refused(
    session: &Session,
    key: Option<&str>,
    error: Error<AcquireKind>,
) -> Problem {
    let busy = error.kind() == AcquireKind::Busy;
    let problem = Problem::from(error);
    let Some(key) = key.filter(|_| busy) else { return problem };
    let held = match session.client.describe(session.namespace(), key).await {
        Ok(known) => known.owner.map(|owner| (owner, known.expires_at_unix_ms)),
        Err(_) => None,
    };
    let wait = "wait longer with --block, or see `lockd client leases`";
    match held {
        Some((owner, Some(until))) => {
            let left = until.saturating_sub(now_unix_ms()).div_ceil(1_000);
            problem.hint(format!("{owner:?} holds it for {left}s more, unless renewed; {wait}"))
        }
        Some((owner, None)) => problem.hint(format!("{owner:?} holds it; {wait}")),
        None => problem.hint(wait),
    }
}

/// Only to show how long others have left.
fn now_unix_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

fn shown<'a>(grant: &'a Grant, server: &'a str) -> Shown<'a> {
    let context = &grant.context;
    Shown {
        server,
        namespace: context.namespace.as_deref(),
        key: plain(&context.key),
        lease_id: &context.lease_id,
        fencing_token: context.token,
        txn_id: context.txn_id.as_deref(),
        owner: &grant.owner,
        version: grant.version,
        state_etag: grant.etag.as_deref(),
        ttl_ms: u64::try_from(grant.ttl.as_millis()).unwrap_or(u64::MAX),
        expires_at_unix: grant.expires_at_unix,
        expires_at_unix_ms: grant.expires_at_unix_ms,
        correlation_id: &grant.correlation_id,
    }
}
