//! `lockd store`: backups from a running server; restore, check and get on a store at rest.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use lockd_cli::bundle::{self, BundleArgs};
use lockd_cli::exit::Problem;
use lockd_cli::ports;
use lockd_cli::ui::{self, Format, Progress};
use lockd_core::key::KeyName;
use lockd_server::clock::{Clock as _, SystemClock};
use lockd_server::maintain;
use serde_json::json;

use super::{failed, say, told};

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy the whole store of a running server into a file
    #[command(after_help = "Example:\n  lockd store backup lockd-$(date +%F).backup\n\n\
        The file holds lease ids, which are secrets: it is written readable by you alone.")]
    Backup {
        /// The backup; must not exist yet
        file: PathBuf,
        /// Where the server is: https://host:port, http://host:port, host[:port] or unix:///path
        #[arg(long, short = 's', env = "LOCKD_CLIENT_SERVER", default_value = ports::server::LISTEN)]
        server: String,
        #[command(flatten)]
        tls: BundleArgs,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Make a store out of a backup; tokens go on above all that were ever given
    #[command(
        after_help = "Example:\n  lockd store restore lockd.backup --store /var/lib/lockd\n\n\
        Leases of the backup are ended. The store must be empty or missing, and no server running."
    )]
    Restore {
        /// The backup
        file: PathBuf,
        #[command(flatten)]
        at: At,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Read everything in a store and list what is wrong; repairs nothing
    #[command(after_help = "Example:\n  lockd store check --store /var/lib/lockd\n\n\
        Exit codes: 0 nothing is wrong, 1 could not check, 3 something is wrong.")]
    Check {
        #[command(flatten)]
        at: At,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Print the record of a key as JSON
    #[command(after_help = "Example:\n  lockd store get orders --store /var/lib/lockd\n\n\
        No server may have the store open; ask a running one with `lockd client describe`.")]
    Get {
        /// The key
        key: String,
        #[arg(long, short = 'n', default_value = "default")]
        namespace: String,
        #[command(flatten)]
        at: At,
    },
}

/// Which store.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// The folder of the store, or embedded:///path (default: ~/.lockd/data)
    #[arg(long, env = "LOCKD_STORE")]
    store: Option<String>,
}

const SOMETHING_WRONG: u8 = 3;

pub(crate) async fn run(command: StoreCommand) -> ExitCode {
    let outcome = match command {
        StoreCommand::Backup { file, server, tls, output } => {
            backup(&file, &server, &tls, output).await
        }
        StoreCommand::Restore { file, at, output } => restore(file, &at, output).await,
        StoreCommand::Check { at, output } => check(&at, output).await,
        StoreCommand::Get { key, namespace, at } => get(&namespace, &key, &at).await,
    };
    outcome.unwrap_or_else(|error| failed(&told(&error)))
}

impl At {
    fn path(&self) -> anyhow::Result<PathBuf> {
        let Some(text) = self.store.as_deref().filter(|text| !text.is_empty()) else {
            let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
            let home = home.ok_or_else(|| anyhow::anyhow!("say which store: --store PATH"))?;
            return Ok(home.join(".lockd/data"));
        };
        match text.split_once("://") {
            None => Ok(PathBuf::from(text)),
            Some(("embedded" | "pebble" | "disk" | "file", path)) => Ok(PathBuf::from(path)),
            Some(_) => anyhow::bail!("{text} is not an embedded store; this works on folders only"),
        }
    }
}

/// Streams the backup into a file beside the target and renames it when it is whole and durable.
async fn backup(
    file: &Path,
    server: &str,
    tls: &BundleArgs,
    output: Format,
) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(!file.exists(), "{} exists already; name another file", file.display());
    let folder = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let mut draft = tempfile::NamedTempFile::new_in(folder)?;
    let resolved = bundle::resolve(tls, server).map_err(|problem| anyhow::anyhow!("{problem}"))?;
    let mut builder = lockd_client::Client::builder().endpoint(&resolved.servers);
    if let Some((_, bundle)) = resolved.bundle {
        builder = builder.bundle(bundle);
    }
    let client = builder.build()?;
    let mut pieces = client.backup().await?;
    let progress = Progress::new(None);
    let mut bytes: u64 = 0;
    while let Some(piece) = pieces.chunk().await? {
        draft.write_all(&piece)?;
        bytes += piece.len() as u64;
        progress.add(piece.len());
    }
    progress.clear();
    draft.as_file().sync_all()?;
    draft.persist_noclobber(file)?;
    std::fs::File::open(folder)?.sync_all()?;
    let shown = file.display().to_string();
    print(output, &json!({ "file": shown, "bytes": bytes }), || format!("{shown}: {bytes} bytes"))?;
    Ok(ExitCode::SUCCESS)
}

async fn restore(file: PathBuf, at: &At, output: Format) -> anyhow::Result<ExitCode> {
    let target = at.path()?;
    let shown = target.display().to_string();
    let now = SystemClock::start().now().wall;
    let work = move || maintain::restore(&file, &target, now);
    let summary = tokio::task::spawn_blocking(work).await??;
    let value = json!({
        "store": shown,
        "records": summary.records,
        "blobs": summary.blobs,
        "blob_bytes": summary.blob_bytes,
        "damaged_blobs": summary.damaged_blobs,
    });
    print(output, &value, || {
        format!("{shown}: {} records, {} blobs", summary.records, summary.blobs)
    })?;
    for blob in &summary.damaged_blobs {
        failed(&format!("the backup was made without the damaged blob {blob}"));
    }
    let whole = summary.damaged_blobs.is_empty();
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(SOMETHING_WRONG) })
}

async fn check(at: &At, output: Format) -> anyhow::Result<ExitCode> {
    let report = maintain::check(&at.path()?).await?;
    let problem = |problem: &lockd_store::embedded::Problem| json!({ "what": problem.what, "detail": problem.detail });
    let problems: Vec<_> = report.problems.iter().map(problem).collect();
    let value = json!({
        "records": report.records,
        "blobs": report.blobs,
        "log_frames": report.log_frames,
        "unfinished_blobs": report.unfinished_blobs,
        "problems": problems,
        "more_problems": report.more_problems,
    });
    print(output, &value, || {
        let mut lines = vec![format!(
            "{} records, {} blobs, {} frames in the log, {} unfinished uploads",
            report.records, report.blobs, report.log_frames, report.unfinished_blobs
        )];
        let found = report.problems.iter();
        lines.extend(found.map(|problem| format!("{}: {}", problem.what, problem.detail)));
        if report.more_problems > 0 {
            lines.push(format!("... and {} more", report.more_problems));
        }
        lines.join("\n")
    })?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(SOMETHING_WRONG) })
}

/// Prints in the wanted format. A reader that has gone away is no error.
fn print(
    format: Format,
    value: &serde_json::Value,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    match ui::print(format, value, text) {
        Ok(()) | Err(Problem::ClosedPipe) => Ok(()),
        Err(problem) => anyhow::bail!("{problem}"),
    }
}

async fn get(namespace: &str, key: &str, at: &At) -> anyhow::Result<ExitCode> {
    let key = KeyName::parse(namespace, key)?;
    match maintain::get(&at.path()?, &key).await? {
        Some(record) => {
            say(&serde_json::to_string_pretty(&record)?);
            Ok(ExitCode::SUCCESS)
        }
        None => anyhow::bail!("there is no record of {key}"),
    }
}
