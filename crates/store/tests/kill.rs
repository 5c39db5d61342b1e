//! A process that is killed without warning while it commits: what it was told is there, whoever
//! opens the store next. The process is this test program itself, started with a variable set.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test, helpers included"
)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use lockd_store::{
    EmbeddedOptions, EmbeddedStore, Expect, Name, Op, Store, StoreError, Stored, Write,
};
use tokio::task::JoinSet;

const VARIABLE: &str = "LOCKD_STORE_KILL_TEST";
const WRITERS: usize = 8;

fn options(path: &Path) -> EmbeddedOptions {
    let mut options = EmbeddedOptions::new(path);
    options.segment_bytes = 64 << 10;
    options.checkpoint_bytes = 128 << 10;
    options.head_bytes = 64 << 10;
    options
}

fn number(stored: Option<&Stored>) -> u64 {
    stored.map_or(0, |stored| std::str::from_utf8(&stored.bytes[..20]).unwrap().parse().unwrap())
}

/// Counts up in two records at once and prints each number after its commit was answered.
async fn count_up(store: Arc<EmbeddedStore>, writer: usize) -> Result<(), StoreError> {
    let names: [Name; 2] = [format!("a/{writer}").into(), format!("b/{writer}").into()];
    loop {
        let loaded = store.load_many(&names).await?;
        let next = number(loaded[0].as_ref()) + 1;
        let text = Bytes::from(format!("{next:020}").repeat(10));
        let op = |(name, stored): (&Name, &Option<Stored>)| Op {
            name: Arc::clone(name),
            expect: Expect::unchanged(stored.as_ref()),
            write: Write::Put(text.clone()),
        };
        store.commit(names.iter().zip(&loaded).map(op).collect()).await?;
        writeln!(std::io::stdout().lock(), "done {writer} {next}").unwrap();
    }
}

/// The process that is killed. Without the variable there is nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let store = EmbeddedStore::open(options(Path::new(&path))).unwrap();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(count_up(Arc::clone(&store), writer));
    }
    while let Some(ended) = writers.join_next().await {
        ended.unwrap().unwrap();
    }
}

/// Runs the child until it has reported so many commits, kills it, and tells the last of each.
fn run_and_kill(path: &Path, reports: usize, last: &mut HashMap<usize, u64>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = 0;
    let mut note = |line: String| {
        // The harness writes its own text in front of the first.
        let Some((_, report)) = line.split_once("done ") else { return false };
        let (writer, number) = report.split_once(' ').unwrap();
        last.insert(writer.parse().unwrap(), number.parse().unwrap());
        true
    };
    while seen < reports {
        let line = lines.next().expect("the child ended by itself").unwrap();
        seen += usize::from(note(line));
    }
    child.kill().unwrap();
    // What it had still said before it died counts too. A line is one write to the pipe, so
    // none is cut.
    for line in lines {
        note(line.unwrap());
    }
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_commits_survive_a_kill() {
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut last = HashMap::new();
    for round in 0..6 {
        run_and_kill(&path, 100 + round * 400, &mut last);
        let store = EmbeddedStore::open(options(&path)).unwrap();
        for writer in 0..WRITERS {
            let names: [Name; 2] = [format!("a/{writer}").into(), format!("b/{writer}").into()];
            let loaded = store.load_many(&names).await.unwrap();
            let (a, b) = (number(loaded[0].as_ref()), number(loaded[1].as_ref()));
            assert_eq!(a, b, "round {round}: half a commit of writer {writer}");
            let told = last.get(&writer).copied().unwrap_or(0);
            // One more may have been made than was told, never fewer.
            assert!(a == told || a == told + 1, "round {round}: {writer} was told {told}, has {a}");
            last.insert(writer, a);
        }
        // Every other time the next process finds a store that was closed properly.
        if round % 2 == 0 {
            store.close().await;
        }
    }
}
