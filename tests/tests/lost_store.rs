//! The store's directory is removed or replaced under a running server: it stops acknowledging,
//! says why, comes back only with its own directory, and no second server starts meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lockd_tests::lease::public_get;
use lockd_tests::server::{files_below, run};
use lockd_tests::{Ask, Client, Options, Request, Server, eventually, within};

/// By then the server has noticed; it looks every second at least.
const NOTICED: Duration = Duration::from_secs(30);

/// A server on a store in a folder that this test owns.
struct Case {
    folder: tempfile::TempDir,
    server: Server,
}

impl Case {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Server::start(Options::new().store(folder.path().join("data")));
        Self { folder, server }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The server says that it is not ready, and that it is because of its directory.
    #[track_caller]
    fn unready(&self) -> bool {
        let reply = self.server.client().call(&Request::get("/readyz"));
        if reply.status == 200 {
            return false;
        }
        reply.refused(503, "store_unavailable");
        let text = reply.text();
        assert!(text.contains(&self.store().display().to_string()), "{text}");
        assert!(text.contains("removed") || text.contains("replaced"), "{text}");
        true
    }

    /// Tries to start a second server on the same path.
    fn second(&self) -> Output {
        let home = tempfile::tempdir().expect("a folder");
        let store = self.store().display().to_string();
        let args = ["10", lockd_tests::binary::lockd().to_str().expect("a path")];
        let args = args.into_iter().chain(["--disable-mtls", "--listen", "127.0.0.1:0"]);
        let args: Vec<&str> = args.chain(["--store", &store]).collect();
        let mut command = std::process::Command::new("timeout");
        command.args(args).env_clear().env("HOME", home.path()).current_dir(home.path());
        command.output().expect("a second server can be tried")
    }

    #[track_caller]
    fn refuses_second(&self) {
        let second = self.second();
        let said = String::from_utf8_lossy(&second.stderr);
        assert_eq!(second.status.code(), Some(1), "a second server started:\n{said}");
        let expected = format!(
            "the store at {} is in use by process {}",
            self.store().display(),
            self.server.pid()
        );
        assert!(said.contains(&expected), "{said}");
    }
}

/// Grants and commits without a pause, and what became of them.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    fn on(server: &Server) -> Self {
        let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let work = |worker: usize| {
            let mut client = server.client();
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            std::thread::spawn(move || {
                for number in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let ask = Ask::new(&format!("load{worker}/{number}"), "load").ttl_ms(600_000);
                    match client.call(&ask.request()).status {
                        200 => acknowledged.fetch_add(1, Ordering::Relaxed),
                        503 => 0,
                        other => panic!("unexpected answer: {other}"),
                    };
                }
            })
        };
        let workers = (0..4).map(work).collect();
        let load = Self { stop, acknowledged, workers };
        eventually("the load has begun", || load.acknowledged() > 100);
        load
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.join().expect("the load ran to its end");
        }
    }
}

/// What the holder of `held` is answered when it writes.
fn write_status(client: &mut Client, held: &lockd_tests::Held) -> u16 {
    client.call(&held.commit("2")).status
}

#[test]
fn a_store_removed_under_load_is_noticed_and_nothing_more_is_acknowledged() {
    let case = Case::new();
    let mut client = case.server.client();
    let held = client.acquire(&Ask::new("k", "test").ttl_ms(600_000));
    let load = Load::on(&case.server);
    // As `rm -rf` does while files are being made: again, until nothing is left.
    eventually("everything is removed", || fs::remove_dir_all(case.store()).is_ok());
    within(NOTICED, "the server is unready", || case.unready());
    // From here on nothing is acknowledged, by whichever endpoint.
    let before = load.acknowledged();
    for _ in 0..20 {
        assert_eq!(write_status(&mut client, &held), 503);
        client.call(&public_get("k")).refused(503, "store_unavailable");
        assert!(case.unready(), "it does not come back by itself");
    }
    assert_eq!(load.acknowledged(), before, "writes are acknowledged into nothing");
    assert!(
        !case.store().exists(),
        "the directory was made again: {:?}",
        files_below(&case.store())
    );
    load.end();
    assert_eq!(case.server.client().call(&Request::get("/healthz")).status, 200, "it lives");
    case.refuses_second();
}

#[test]
fn a_store_whose_content_was_removed_is_noticed() {
    let case = Case::new();
    let mut client = case.server.client();
    let held = client.acquire(&Ask::new("k", "test").ttl_ms(600_000));
    // The directory stays, as a mount point does.
    for entry in fs::read_dir(case.store()).expect("a folder") {
        let path = entry.expect("an entry").path();
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.expect("removed");
    }
    within(NOTICED, "the server is unready", || case.unready());
    assert_eq!(write_status(&mut client, &held), 503);
    case.refuses_second();
}

#[test]
fn a_store_moved_away_comes_back_only_with_its_own_directory() {
    let case = Case::new();
    let mut client = case.server.client();
    let held = client.acquire(&Ask::new("k", "test").ttl_ms(600_000));
    let away = case.folder.path().join("away");
    fs::rename(case.store(), &away).expect("moved");
    fs::create_dir(case.store()).expect("a new directory");
    within(NOTICED, "the server is unready", || case.unready());
    for _ in 0..10 {
        assert_eq!(write_status(&mut client, &held), 503);
        assert!(case.unready(), "it serves from the new directory");
    }
    assert_eq!(count(&case.store()), 0, "nothing is made in the new directory");
    // A second server starts neither on the new directory nor on the one that was moved.
    case.refuses_second();
    let home = tempfile::tempdir().expect("a folder");
    let moved = away.display().to_string();
    let args = ["--disable-mtls", "--listen", "127.0.0.1:0", "--store", &moved];
    let second = run(home.path(), &args, &[]);
    assert_eq!(second.status.code(), Some(1), "{}", String::from_utf8_lossy(&second.stderr));
    fs::remove_dir_all(case.store()).expect("the new directory goes");
    fs::rename(&away, case.store()).expect("moved back");
    within(NOTICED, "the server is ready again", || case.server.is_ready());
    assert_eq!(write_status(&mut client, &held), 200, "its leases live");
}

#[test]
fn a_restart_uses_what_is_there_and_another_server_may_start_after_the_end() {
    let mut case = Case::new();
    fs::remove_dir_all(case.store()).expect("removed");
    within(NOTICED, "the server is unready", || case.unready());
    case.server.terminate();
    assert!(case.server.ended(Duration::from_secs(30)).success(), "it can still be stopped");
    case.server.start_again();
    assert!(case.server.is_ready(), "a new store");
    let held = case.server.client().acquire(&Ask::new("k", "test"));
    assert_eq!(held.token, 1);
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).expect("a folder").count()
}
