//! `lockd txn`: transactions as coordinators and operators see them. Whoever holds keys needs none
//! of this: releasing a key decides its transaction.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use lockd_pki::bootstrap::TC_FILE;
use lockd_wire::txn::{TxnParticipant, TxnReply, TxnRequest, TxnView};

use super::client::{Global, Session};
use crate::context::Environment;
use crate::exit::{Done, EXIT_CODES, Problem};
use crate::folder;
use crate::ui::{self, Format};

/// Look at transactions, and decide them in place of their holders
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct TxnArgs {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: TxnCommand,
}

#[derive(Debug, Subcommand)]
enum TxnCommand {
    /// Add participants to a transaction that is not decided
    Prepare(DecideArgs),
    /// Commit a transaction: all that is staged under it becomes visible
    Commit(DecideArgs),
    /// Roll a transaction back: all that is staged under it is forgotten
    Rollback(DecideArgs),
    /// Finish a transaction as far as that can be done now
    Replay(ReplayArgs),
    /// List the transactions that have a record
    List(ListArgs),
    /// Show one transaction: its state, its participants, its times
    Show(ReplayArgs),
}

#[derive(Debug, Args)]
struct DecideArgs {
    #[command(flatten)]
    which: Which,
    /// A key that takes part, as namespace:key or namespace:key@store; may be repeated
    #[arg(long = "participant", short, value_name = "NAMESPACE:KEY", value_parser = participant)]
    participants: Vec<TxnParticipant>,
    /// When it is given up if nobody holds a key under it, in seconds since 1970
    #[arg(long, value_name = "SECONDS")]
    expires_unix: Option<u64>,
    /// The term of the coordinator in whose name this is done
    #[arg(long, value_name = "NUMBER")]
    tc_term: Option<u64>,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    #[command(flatten)]
    which: Which,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// How to print them; JSON and YAML have one document for each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Which transaction.
#[derive(Debug, Args)]
struct Which {
    /// The transaction id
    #[arg(value_name = "TXN", required_unless_present = "txn_id",
          value_parser = crate::context::name)]
    argument: Option<String>,
    /// The transaction id
    #[arg(long, value_name = "TXN", conflicts_with = "argument",
          value_parser = crate::context::name)]
    txn_id: Option<String>,
}

impl Which {
    fn id(self) -> Done<String> {
        self.txn_id.or(self.argument).ok_or_else(|| Problem::usage("no transaction id"))
    }
}

fn after_help() -> String {
    format!(
        "\
Over mutual TLS this needs the bundle of a coordinator: the one named with --bundle, else
tc-client.pem in this folder or in the configuration folder.

Examples:
  lockd txn list
  lockd txn show dbt13p52rdtdpbi4k50g
  lockd txn rollback dbt13p52rdtdpbi4k50g
  lockd txn commit dbt13p52rdtdpbi4k50g --participant default:orders --participant stock:shoes

{EXIT_CODES}"
    )
}

pub async fn run(args: TxnArgs) -> ExitCode {
    match dispatch(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}

async fn dispatch(mut args: TxnArgs) -> Done {
    if args.global.tls.bundle.is_none() && args.global.tls.mtls() {
        let folders = [Some(".".into()), folder::config_dir().ok()];
        let bundles = folders.into_iter().flatten().map(|folder| folder.join(TC_FILE));
        args.global.tls.bundle = bundles.into_iter().find(|path| path.exists());
    }
    let session = Session::open(args.global, Environment::read(), None)?;
    match args.command {
        TxnCommand::Prepare(args) => decide(&session, args, "pending").await,
        TxnCommand::Commit(args) => decide(&session, args, "commit").await,
        TxnCommand::Rollback(args) => decide(&session, args, "rollback").await,
        TxnCommand::Replay(args) => {
            let reply = session.client.replay_txn(&args.which.id()?).await?;
            told(args.output, &reply)
        }
        TxnCommand::Show(args) => {
            let record = session.client.txn_record(&args.which.id()?).await?;
            ui::print(args.output, &record, || whole(&record))
        }
        TxnCommand::List(args) => list(&session, args.output).await,
    }
}

async fn decide(session: &Session, args: DecideArgs, state: &str) -> Done {
    let request = TxnRequest {
        txn_id: args.which.id()?,
        state: state.to_owned(),
        participants: args.participants,
        expires_at_unix: args.expires_unix,
        tc_term: args.tc_term,
        target_backend_hash: None,
    };
    let reply = session.client.decide_txn(&request).await?;
    told(args.output, &reply)
}

fn told(output: Format, reply: &TxnReply) -> Done {
    if reply.unknown {
        ui::note("no key takes part in this transaction: it was not known, and cannot begin now");
    }
    ui::print(output, reply, || format!("{} {}", reply.txn_id, reply.state))
}

async fn list(session: &Session, output: Format) -> Done {
    let mut pages = session.client.txns();
    let for_a_person = output == Format::Text && ui::is_read_by_a_person();
    let mut headings = Some(&HEADINGS[..]);
    while let Some(txns) = pages.next_page().await? {
        if for_a_person {
            ui::data(&ui::table(headings.take(), txns.iter().map(row).collect()))?;
            continue;
        }
        for txn in txns {
            ui::print_one(output, &txn, || row(&txn).join("\t"))?;
        }
    }
    Ok(())
}

const HEADINGS: [&str; 4] = ["TRANSACTION", "STATE", "KEYS", "CHANGED"];

fn row(txn: &TxnView) -> Vec<String> {
    vec![
        txn.txn_id.clone(),
        txn.state.clone(),
        txn.participants.len().to_string(),
        time(txn.updated_at_unix_ms),
    ]
}

fn whole(txn: &TxnView) -> String {
    let mut lines = vec![
        format!("transaction: {}", txn.txn_id),
        format!("state:       {}", txn.state),
        format!("begun:       {}", time(txn.created_at_unix_ms)),
        format!("changed:     {}", time(txn.updated_at_unix_ms)),
    ];
    lines.extend(txn.reason.as_ref().map(|reason| format!("because:     {reason}")));
    for participant in &txn.participants {
        let reached = if participant.applied { "" } else { " (not reached yet)" };
        let reached = if txn.state == "pending" { "" } else { reached };
        let namespace = participant.namespace.as_deref().unwrap_or("?");
        lines.push(format!("key:         {namespace}/{}{reached}", participant.key));
    }
    lines.join("\n")
}

fn time(unix_ms: u64) -> String {
    let ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).unwrap_or_default().to_string()
}

fn participant(text: &str) -> Result<TxnParticipant, String> {
    let (name, hash) = match text.rsplit_once('@') {
        Some((name, hash)) => (name, Some(hash.to_owned())),
        None => (text, None),
    };
    match name.split_once([':', '/']) {
        Some((namespace, key)) if !namespace.is_empty() && !key.is_empty() => Ok(TxnParticipant {
            namespace: Some(namespace.to_owned()),
            key: key.to_owned(),
            backend_hash: hash,
            applied: false,
        }),
        Some(_) | None => Err("write a participant as namespace:key".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::participant;

    #[test]
    fn participants_are_written_with_their_namespace() {
        let read = participant("stock:shoes/42@0af3").unwrap();
        assert_eq!((read.namespace.as_deref(), read.key.as_str()), (Some("stock"), "shoes/42"));
        assert_eq!(read.backend_hash.as_deref(), Some("0af3"));
        assert_eq!(participant("default/orders").unwrap().key, "orders");
        assert!(participant("orders").is_err());
        assert!(participant(":orders").is_err());
    }
}
