//! `lockd demo`: a hand-over to watch. Three worker processes want one key; the holder is killed
//! in the middle of its work; the next one goes on from the last checkpoint; a late write of the
//! dead one is refused. Everything is real: the server, its store on disk, the processes.

mod worker;

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use lockd_client::{Client, LeaseContext};
use lockd_pki::bootstrap::CLIENT_FILE;
use lockd_server::config::StoreSetting;
use lockd_server::{Server, Settings};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::{failed, say, told};

use worker::Report;
pub(crate) use worker::WorkerArgs;

const KEY: &str = "orders";
/// The worker that is killed has reached this count by then.
const KILL_AT: u64 = 3;
/// Nothing in the demo takes longer than this, unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run() -> ExitCode {
    match tokio::time::timeout(4 * PATIENCE, show()).await {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => failed(&format!("the demo did not go as planned: {}", told(&error))),
        Err(_) => failed("the demo did not come to its end in time"),
    }
}

pub(crate) async fn work(args: WorkerArgs) -> ExitCode {
    match worker::run(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("{}: {}", args.name, told(&error))),
    }
}

async fn show() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let bundles = folder.path().join("bundles");
    let mut settings = Settings {
        store: StoreSetting::Embedded(folder.path().join("data")),
        mtls: true,
        ..Settings::embedded_defaults()
    };
    settings.identity.config_dir = Some(bundles.clone());
    let server = Server::new(settings).await?;
    let bound = server.start().await?;
    let address = bound.first().context("the server listens nowhere")?.to_string();
    step(
        1,
        &format!(
            "A server is up on {address}. It has made certificates for itself and its clients; \
             its store is in a temporary folder, and every write is fsynced."
        ),
    );

    let place = Place { address, bundle: bundles.join(CLIENT_FILE) };
    let client = Client::builder().endpoint(&place.address).bundle_file(&place.bundle).build()?;
    let outcome = hand_over(&client, &place).await;
    server.shutdown(Duration::from_secs(1)).await;
    outcome
}

/// Where the server is, and what lets a client in.
struct Place {
    address: String,
    bundle: PathBuf,
}

async fn hand_over(client: &Client, place: &Place) -> anyhow::Result<()> {
    step(2, "Three workers ask for the key \"orders\". One gets the lease, two wait in line.");
    let mut first = Worker::start("worker-1", place)?;
    let (token, lease) = first.granted().await?;
    say(&format!("     worker-1 holds the lease with fencing token {token}"));
    let mut second = Worker::start("worker-2", place)?;
    second.waiting().await?;
    in_line(client, 1).await?;
    let mut third = Worker::start("worker-3", place)?;
    third.waiting().await?;
    in_line(client, 2).await?;

    step(3, "worker-1 counts up and checkpoints each step: durable, and visible to everybody.");
    first.counts_to(KILL_AT).await?;
    first.kill().await?;
    let seen = count_now(client).await?;
    step(4, &format!("worker-1 is killed (kill -9) in the middle. Its last checkpoint is {seen}."));
    anyhow::ensure!(seen >= KILL_AT, "a checkpoint was lost: {seen} is less than {KILL_AT}");

    step(5, "Its lease runs out; the next in line gets the key, with a higher token.");
    let (next, _) = second.granted().await?;
    anyhow::ensure!(next > token, "the token did not grow");
    say(&format!("     worker-2 holds the lease with fencing token {next}"));
    let resumed = second.resumed().await?;
    anyhow::ensure!(resumed == seen, "worker-2 went on from {resumed}, not from {seen}");
    say(&format!("     worker-2 goes on from {resumed}: nothing is lost, nothing is done twice"));

    late_write(client, lease).await?;
    second.finished().await?;
    let (last, _) = third.granted().await?;
    third.finished().await?;
    let end = count_now(client).await?;
    step(
        7,
        &format!(
            "worker-2 and worker-3 (token {last}) finish one after the other; the count is {end}."
        ),
    );
    anyhow::ensure!(end > seen, "nobody went on");
    say("\nThat is lockd: one writer at a time, and the late one is refused where the data is.");
    Ok(())
}

/// Returns when so many workers stand in line.
async fn in_line(client: &Client, count: u64) -> anyhow::Result<()> {
    let look = async {
        loop {
            let page = client.leases().next_page().await?;
            let leases = page.unwrap_or_default();
            if leases.first().is_some_and(|lease| lease.waiters == count) {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.context("the workers do not line up")?
}

/// What a worker would send that was not dead but only stuck.
async fn late_write(client: &Client, lease: LeaseContext) -> anyhow::Result<()> {
    let token = lease.token.unwrap_or_default();
    let late = client.raw(lease).update(&serde_json::json!({ "count": 999_999 })).await;
    let Err(refused) = late else { anyhow::bail!("a late write was accepted") };
    step(
        6,
        &format!(
            "A late write with worker-1's old lease and token {token} arrives. It is refused:"
        ),
    );
    say(&format!("     {refused}"));
    Ok(())
}

async fn count_now(client: &Client) -> anyhow::Result<u64> {
    let document = client.get(KEY).await?.context("there is no checkpoint")?;
    Ok(document.json::<worker::Progress>()?.count)
}

fn step(number: u32, text: &str) {
    say(&format!("\n{number}. {text}"));
}

/// A worker process and what it reports.
struct Worker {
    child: Child,
    reports: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(name: &str, place: &Place) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("where is this program?")?;
        let mut child = Command::new(program)
            .args(["demo-worker", "--name", name, "--server", &place.address, "--key", KEY])
            .arg("--bundle")
            .arg(&place.bundle)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().context("no output")?;
        Ok(Self { child, reports: BufReader::new(stdout).lines() })
    }

    async fn next(&mut self) -> anyhow::Result<Report> {
        let line = tokio::time::timeout(PATIENCE, self.reports.next_line()).await;
        let line = line.context("a worker said nothing for too long")??;
        let line = line.context("a worker ended too early")?;
        serde_json::from_str(&line).with_context(|| format!("a worker said {line:?}"))
    }

    async fn waiting(&mut self) -> anyhow::Result<()> {
        let report = self.next().await?;
        anyhow::ensure!(matches!(report, Report::Waiting), "a worker does not wait: {report:?}");
        Ok(())
    }

    async fn granted(&mut self) -> anyhow::Result<(u64, LeaseContext)> {
        loop {
            if let Report::Granted { lease } = self.next().await? {
                let lease = LeaseContext::from(lease);
                return Ok((lease.token.context("a lease without a token")?, lease));
            }
        }
    }

    async fn resumed(&mut self) -> anyhow::Result<u64> {
        loop {
            if let Report::Resumed { count } = self.next().await? {
                return Ok(count);
            }
        }
    }

    async fn counts_to(&mut self, count: u64) -> anyhow::Result<()> {
        loop {
            if let Report::Counted { count: now } = self.next().await? {
                say(&format!("     count = {now}"));
                if now >= count {
                    return Ok(());
                }
            }
        }
    }

    async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill a worker")
    }

    async fn finished(&mut self) -> anyhow::Result<()> {
        while !matches!(self.next().await?, Report::Finished) {}
        let status = self.child.wait().await?;
        anyhow::ensure!(status.success(), "a worker ended with {status}");
        Ok(())
    }
}
