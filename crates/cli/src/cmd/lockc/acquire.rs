//! `lockc acquire`: takes a lease and remembers it.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::remembered::{Held, Memory};
use super::told;
use crate::bundle::BundleArgs;
use crate::cmd::client::arguments::Wish;
use crate::cmd::client::{Global, Manner, SERVER, Session, acquire};
use crate::context::{Environment, plain};
use crate::exit::Done;
use crate::ui::{self, Format};

/// Acquire a lease on a key and remember it
///
/// Nothing renews it: use `lockc keepalive` before it runs out.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AcquireArgs {
    /// The key
    #[arg(value_name = "KEY", value_parser = crate::context::name)]
    key: String,
    /// Servers of one store, separated by commas: https://host:port, http://host:port, host[:port]
    /// or unix:///path
    #[arg(long, short, value_name = "ADDRESS", env = "LOCKD_CLIENT_SERVER",
          default_value = SERVER)]
    server: String,
    /// The bundle to show to them (default: the one client*.pem in this folder, else in the
    /// configuration folder)
    #[arg(
        long,
        short = 'i',
        visible_short_alias = 'b',
        value_name = "FILE",
        env = "LOCKD_CLIENT_BUNDLE"
    )]
    bundle: Option<PathBuf>,
    /// Speak plain HTTP to servers that are named without a scheme
    #[arg(long, env = "LOCKD_CLIENT_DISABLE_MTLS", value_name = "BOOL", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, action = clap::ArgAction::Set,
          value_parser = clap::builder::BoolishValueParser::new())]
    disable_mtls: bool,
    /// Namespace of the key; otherwise the server's default
    #[arg(long, short, value_name = "NAME", env = "LOCKD_CLIENT_NAMESPACE",
          value_parser = crate::context::name)]
    namespace: Option<String>,
    #[command(flatten)]
    wish: Wish,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockc acquire -s lock.example.com -i client.pem orders
  lockc acquire -s http://127.0.0.1:9341 orders --ttl 5m --block nowait

Exits with 75 when the key is held by another, and says by whom.";

#[derive(Serialize)]
struct Shown<'a> {
    server: &'a str,
    namespace: Option<&'a str>,
    key: String,
    owner: &'a str,
    fencing_token: Option<u64>,
    version: u64,
    ttl_ms: u64,
    expires_at_unix_ms: u64,
    context: String,
}

pub(super) async fn run(args: AcquireArgs, manner: Manner) -> Done {
    let memory = Memory::find()?;
    // Asked before the key is taken: a lease that cannot be remembered would be of no use.
    memory.load()?;
    let tls = BundleArgs { bundle: args.bundle, disable_mtls: args.disable_mtls, mtls: None };
    let global = Global { server: args.server, namespace: args.namespace, tls, manner };
    let session = Session::open(global, Environment::default(), Some(args.wish.attempts()))?;
    let key = Some(args.key.clone());
    let mut wish = args.wish;
    wish.owner = wish.owner.or_else(|| session.lasting_owner());
    let grant = match wish.acquire(&session.client, key).detached().await {
        Ok(grant) => grant,
        Err(error) => return Err(acquire::refused(&session, Some(&args.key), error).await),
    };
    let context = &grant.context;
    let held = Held {
        server: session.server.clone(),
        bundle: session.bundle.as_ref().and_then(|path| std::path::absolute(path).ok()),
        namespace: context.namespace.clone(),
        key: plain(&context.key),
        lease_id: context.lease_id.clone(),
        fencing_token: context.token,
        txn_id: context.txn_id.clone(),
        owner: grant.owner.clone(),
        expires_at_unix_ms: grant.expires_at_unix_ms,
    };
    if let Err(problem) = memory.remember(held).await {
        // Nobody could act on it or give it back later.
        let given_back = session.client.raw(context.clone()).rollback().await;
        let hint = if given_back.is_ok() { "the key was released" } else { "the key runs out" };
        return Err(problem.hint(hint));
    }
    let shown = Shown {
        server: &session.server,
        namespace: context.namespace.as_deref(),
        key: plain(&context.key),
        owner: &grant.owner,
        fencing_token: context.token,
        version: grant.version,
        ttl_ms: u64::try_from(grant.ttl.as_millis()).unwrap_or(u64::MAX),
        expires_at_unix_ms: grant.expires_at_unix_ms,
        context: memory.path().display().to_string(),
    };
    ui::print(args.output, &shown, || {
        let token = context.token.map(|token| token.to_string()).unwrap_or_default();
        format!("acquired {} token={token} ttl={}", plain(&context.key), told(grant.ttl))
    })
}
