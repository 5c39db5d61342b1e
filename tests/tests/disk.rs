//! What happens when the disk is not what it should be: taken by another server, full, or changed
//! behind the server's back. Nothing acknowledged is lost, nothing wrong is served, and the server
//! says what is the matter.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockd_tests::document::Document;
use lockd_tests::http::Connection;
use lockd_tests::lease::public_get;
use lockd_tests::server::{files_below, run};
use lockd_tests::small_disk::SmallDisk;
use lockd_tests::{Ask, Client, Dice, Options, Request, Server, eventually};

#[test]
fn a_second_server_on_the_same_store_refuses_to_start() {
    let server = Server::usual();
    let mut client = server.client();
    let held = client.acquire(&Ask::new("k", "test"));
    let home = tempfile::tempdir().expect("a folder");
    let store = server.store().display().to_string();
    let args = ["--disable-mtls", "--listen", "127.0.0.1:0", "--store", &store];
    let second = run(home.path(), &args, &[]);
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    let expected = format!("the store at {store} is in use by process {}", server.pid());
    assert!(said.contains(&expected), "{said}");
    // The first one does not notice.
    client.call(&held.commit("1")).ok();
}

#[test]
fn a_store_is_free_again_as_soon_as_its_server_was_killed() {
    let mut server = Server::usual();
    for _ in 0..3 {
        server.kill();
        server.start_again();
    }
    assert!(server.is_ready());
}

/// Writes documents of its own under one lease, and knows which were acknowledged.
struct Writer {
    client: Client,
    held: lockd_tests::Held,
    number: usize,
    /// The last document that was acknowledged, and those of unknown outcome after it.
    last: Vec<u8>,
    unknown: Vec<Vec<u8>>,
}

impl Writer {
    fn new(server: &Server, key: &str) -> Self {
        let mut client = server.client();
        let held = client.acquire(&Ask::new(key, "writer").ttl_ms(600_000));
        let mut writer = Self { client, held, number: 0, last: Vec::new(), unknown: Vec::new() };
        assert_eq!(writer.write(1_000), 200);
        writer
    }

    /// Commits a new document; the status.
    fn write(&mut self, bytes: usize) -> u16 {
        self.number += 1;
        let document = Document::of_bytes(bytes, self.number).whole();
        let reply = self.client.call(&self.held.commit(document.clone()));
        match reply.status {
            200 => {
                self.last = document;
                self.unknown.clear();
            }
            _ => {
                reply.refused(503, "store_unavailable");
                assert!(reply.header("retry-after").is_some());
                if reply.json()["outcome"] == "unknown" {
                    self.unknown.push(document);
                }
            }
        }
        reply.status
    }

    /// What is there is what was acknowledged last, or what came after it with unknown outcome.
    #[track_caller]
    fn check(&mut self, server: &Server) {
        let public = server.client().public(&self.held.key).expect("a document");
        let known = public.body == self.last || self.unknown.contains(&public.body);
        assert!(known, "{} lost what was acknowledged", self.held.key);
    }
}

#[test]
fn a_full_disk_refuses_writes_loses_nothing_and_recovers_by_itself() {
    let disk = SmallDisk::new(48 << 20);
    let mut server = Server::start(Options::new().store(disk.path().join("data")));
    let mut small = Writer::new(&server, "small");
    let mut large = Writer::new(&server, "large");
    large.write(200_000);
    for round in 0..3 {
        disk.fill();
        eventually("large documents do not fit", || large.write(1_000_000) == 503);
        eventually("small ones do not fit any more", || {
            disk.fill();
            small.write(30_000) == 503
        });
        // Unready, with a reason, for as long as the disk is full.
        let mut client = server.client();
        eventually("it says that it is not ready", || {
            disk.fill();
            small.write(30_000);
            client.call(&Request::get("/readyz")).status == 503
        });
        for _ in 0..100 {
            let ready = client.call(&Request::get("/readyz"));
            ready.refused(503, "store_unavailable");
            assert!(ready.text().contains("No space left"), "{}", ready.text());
        }
        assert_eq!(client.call(&Request::get("/healthz")).status, 200, "it lives");
        small.check(&server);
        large.check(&server);
        disk.free();
        eventually("it works again by itself", || server.is_ready() && small.write(30_000) == 200);
        eventually("large documents fit again", || large.write(1_000_000) == 200);
        small.check(&server);
        large.check(&server);
        println!("round {round}: {} small and {} large writes tried", small.number, large.number);
    }
    // A server that is killed on a full disk starts on it, and knows everything.
    disk.fill();
    server.kill();
    if server.try_start_again().is_err() {
        disk.free();
        server.start_again();
    }
    small.check(&server);
    large.check(&server);
    let renewed = server.client().call(&small.held.keepalive(600_000));
    assert!([200, 503].contains(&renewed.status), "the lease is gone: {}", renewed.text());
}

/// A stopped server whose store holds known documents, small and large.
struct Stopped {
    server: Server,
    documents: BTreeMap<String, Vec<u8>>,
}

/// How a server came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Everything was written to where it belongs.
    Asked,
    /// The newest records are in the log only.
    Killed,
}

impl Stopped {
    fn new(end: End) -> Self {
        let mut server = Server::usual();
        let mut client = server.client();
        let mut documents = BTreeMap::new();
        for number in 0..40 {
            let key = format!("k{number}");
            let bytes = if number % 8 == 0 { 150_000 } else { 2_000 };
            let document = Document::of_bytes(bytes, number).whole();
            let held = client.acquire(&Ask::new(&key, "test"));
            client.call(&held.update(document.clone()).query("then", "release")).ok();
            documents.insert(key, document);
        }
        // The end of the log cannot be told from a write that a crash cut short: what matters
        // is not there.
        let held = client.acquire(&Ask::new("last", "test"));
        client.call(&held.update("1").query("then", "release")).ok();
        match end {
            End::Asked => {
                server.terminate();
                assert!(server.ended(Duration::from_secs(20)).success());
            }
            End::Killed => server.kill(),
        }
        Self { server, documents }
    }

    /// Whether a key is served right, or refused as damaged. Anything else is a lie.
    fn read(&self, key: &str, expected: &[u8]) -> Verdict {
        let mut connection = Connection::open(&self.server.place).expect("a connection");
        connection.send(&public_get(key)).expect("sent");
        match connection.reply() {
            Ok(reply) if reply.status == 200 && reply.body == expected => Verdict::Right,
            Ok(reply) => {
                assert_eq!(
                    reply.says(),
                    (500, "store_damaged".into()),
                    "{key}: {:.200}",
                    reply.text()
                );
                Verdict::Damaged
            }
            // A large document that is damaged at its end breaks off before it is whole.
            Err(_) => Verdict::Damaged,
        }
    }

    /// Starts the server on the changed store: what it says, and how many documents it refuses.
    fn judge(&mut self, changed: &Path) -> Judged {
        match self.server.try_start_again() {
            Err((status, log)) => {
                assert_eq!(status.code(), Some(1), "{log}");
                Judged::RefusedToOpen(log)
            }
            Ok(()) => {
                let read = |(key, document): (&String, &Vec<u8>)| self.read(key, document);
                let verdicts: Vec<Verdict> = self.documents.iter().map(read).collect();
                let damaged = verdicts.iter().filter(|one| **one == Verdict::Damaged).count();
                if damaged > 0 {
                    eventually(&format!("{} is reported", changed.display()), || {
                        let log = self.server.log();
                        ["is damaged", "could not be read to its end", "names is missing"]
                            .iter()
                            .any(|report| log.contains(report))
                    });
                }
                self.server.kill();
                Judged::Served { damaged }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Right,
    Damaged,
}

#[derive(Debug)]
enum Judged {
    RefusedToOpen(String),
    Served { damaged: usize },
}

/// Changes a byte of a file; the second time it is as before.
fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).expect("a file of the store");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[byte[0] ^ 0x41], at).expect("written");
}

/// Where something was written: log segments are made larger than what is in them.
fn written_bytes(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap_or_default();
    (0..bytes.len()).filter(|at| bytes[*at] != 0).map(|at| at as u64).collect()
}

/// A folder with everything in it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a kind").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

#[test]
fn a_changed_byte_in_a_large_document_is_never_served() {
    let mut dice = Dice::announced("blobs");
    let mut stopped = Stopped::new(End::Killed);
    let blobs = stopped.server.blobs();
    assert_eq!(blobs.len(), 5);
    for turn in 0..8 {
        let path = dice.pick(&blobs).clone();
        let places = written_bytes(&path);
        let at = if turn == 0 { places[places.len() - 30] } else { *dice.pick(&places) };
        flip(&path, at);
        match stopped.judge(&path) {
            Judged::Served { damaged } => assert_eq!(damaged, 1, "{} at {at}", path.display()),
            Judged::RefusedToOpen(log) => assert!(log.contains("blob"), "{log}"),
        }
        flip(&path, at);
    }
    assert!(matches!(stopped.judge(&blobs[0]), Judged::Served { damaged: 0 }));
    // A file that is gone altogether is noticed too.
    std::fs::remove_file(&blobs[0]).expect("removed");
    assert!(matches!(stopped.judge(&blobs[0]), Judged::Served { damaged: 1 }));
}

/// Changes a byte of a record file, `times` over; each time everything that is served is right.
/// How many changes were found.
fn change_records(end: End, part: &str, times: usize) -> usize {
    let mut dice = Dice::announced(part);
    let mut stopped = Stopped::new(end);
    let store = stopped.server.store();
    let kept = tempfile::tempdir().expect("a folder");
    copy(&store, kept.path());
    let files: Vec<(PathBuf, Vec<u64>)> = files_below(&store.join(part))
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| name != "lock"))
        .map(|path| (path.clone(), written_bytes(&path)))
        .filter(|(_, written)| !written.is_empty())
        .collect();
    assert!(!files.is_empty(), "there is nothing in {part}");
    let mut found = 0;
    for turn in 0..times {
        let (path, written) = &files[turn % files.len()];
        flip(path, *dice.pick(written));
        match stopped.judge(path) {
            Judged::RefusedToOpen(log) => {
                found += 1;
                let name = store.display().to_string();
                assert!(log.contains(&name), "the message does not say where:\n{log}");
            }
            Judged::Served { damaged: 0 } => {}
            Judged::Served { .. } => found += 1,
        }
        // The server may have written since: begin again from the copy.
        std::fs::remove_dir_all(&store).expect("removed");
        copy(kept.path(), &store);
    }
    println!("{part}: {found} of {times} changes mattered and were found");
    found
}

#[test]
fn a_changed_byte_in_the_log_is_never_served() {
    let found = change_records(End::Killed, "log", 12);
    assert!(found >= 10, "all but the last frames matter");
}

#[test]
fn a_changed_byte_in_the_tree_is_never_served() {
    assert!(change_records(End::Asked, "tree", 16) > 0, "no change was ever found");
}
