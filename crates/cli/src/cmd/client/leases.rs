//! `leases`: who holds what, and taking it away.

use std::time::Duration;

use clap::{Args, Subcommand};
use lockd_wire::lease::LeaseView;

use super::Session;
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// List the leases that are held, or revoke one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct LeasesArgs {
    #[command(subcommand)]
    command: Option<LeasesCommand>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Subcommand)]
enum LeasesCommand {
    /// List the leases that are held
    List(ListArgs),
    /// Take a key from its holder
    ///
    /// The fencing token grows, so whatever the holder has under way is refused; what it staged is
    /// forgotten, and its next call tells it the reason.
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only keys that begin with this; without a namespace, it is the beginning of namespace/key
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// How to print them; JSON and YAML have one document for each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Args)]
#[command(after_help = REVOKE_EXAMPLES)]
struct RevokeArgs {
    /// The key
    #[arg(value_name = "KEY", required_unless_present = "key", value_parser = crate::context::name)]
    argument: Option<String>,
    /// The key
    #[arg(long, short, value_name = "KEY", conflicts_with = "argument",
          value_parser = crate::context::name)]
    key: Option<String>,
    /// Why; told to the holder and written to the server's log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd client leases
  lockd client leases --prefix default/jobs/
  lockd client leases --namespace default --prefix jobs/ --output json
  lockd client leases revoke jobs/7 --reason 'host is gone'";

const REVOKE_EXAMPLES: &str = "\
Examples:
  lockd client leases revoke jobs/7 --reason 'host is gone'";

pub(super) async fn run(session: &Session, args: LeasesArgs) -> Done {
    match args.command {
        None => list(session, args.list).await,
        Some(LeasesCommand::List(args)) => list(session, args).await,
        Some(LeasesCommand::Revoke(args)) => revoke(session, args).await,
    }
}

async fn list(session: &Session, args: ListArgs) -> Done {
    let mut pages = session.client.leases();
    if let Some(prefix) = args.prefix {
        pages = pages.prefix(prefix);
    }
    let for_a_person = args.output == Format::Text && ui::is_read_by_a_person();
    let mut headings = Some(&HEADINGS[..]);
    while let Some(leases) = pages.next_page().await? {
        if for_a_person {
            // A table for each page: whoever has a million leases need not wait for the last.
            let rows = leases.iter().map(row).collect();
            ui::data(&ui::table(headings.take(), rows))?;
            continue;
        }
        for lease in leases {
            ui::print_one(args.output, &lease, || text(&lease))?;
        }
    }
    Ok(())
}

const HEADINGS: [&str; 6] = ["KEY", "OWNER", "TOKEN", "AGE", "LEFT", "WAITING"];

fn row(lease: &LeaseView) -> Vec<String> {
    vec![
        format!("{}/{}", lease.namespace, lease.key),
        lease.owner.clone(),
        lease.fencing_token.to_string(),
        seconds(lease.age_ms),
        seconds(lease.remaining_ms),
        lease.waiters.to_string(),
    ]
}

fn seconds(ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(ms / 1_000)).to_string()
}

fn text(lease: &LeaseView) -> String {
    format!(
        "{}/{}\towner={}\ttoken={}\tage={}\tleft={}\twaiting={}",
        lease.namespace,
        lease.key,
        lease.owner,
        lease.fencing_token,
        seconds(lease.age_ms),
        seconds(lease.remaining_ms),
        lease.waiters
    )
}

async fn revoke(session: &Session, args: RevokeArgs) -> Done {
    // A key from the environment would be the caller's own, which is released, not revoked.
    let key = args.key.or(args.argument).ok_or_else(|| Problem::usage("no key"))?;
    let reply = session.client.revoke(session.namespace(), &key, &args.reason).await?;
    ui::print(args.output, &reply, || match (reply.revoked, &reply.owner) {
        (true, Some(owner)) => {
            format!("revoked {key} from {owner}; the token is {} now", reply.fencing_token)
        }
        (true, None) => format!("revoked {key}; the token is {} now", reply.fencing_token),
        (false, _) => format!("nobody holds {key}"),
    })
}
