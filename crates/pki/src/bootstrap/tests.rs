//! First starts: alone, again, half done, and many at once.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use super::{BootstrapError, CA_FILE, CLIENT_FILE, SERVER_FILE, TC_FILE, bootstrap};
use crate::bundle::{Bundle, CaBundle};
use crate::credentials::Credentials;
use crate::files::{self, Existing, Warning, find_client};
use crate::fixture::{CHEAP, authority, client, now, server};
use crate::seal::Password;
use crate::serial::Denylist;

const ALL: [&str; 4] = [CA_FILE, SERVER_FILE, CLIENT_FILE, TC_FILE];

/// The server of the folder lets the clients of the folder in, and its own kind.
fn check_matching(folder: &Path) {
    let load = |file: &str| files::load(&folder.join(file)).unwrap().0;
    let Bundle::Server(server) = load(SERVER_FILE) else { panic!("no server bundle") };
    let credentials = Credentials::server(&server, &[], &Denylist::default()).unwrap();
    for file in [CLIENT_FILE, TC_FILE] {
        let Bundle::Client(client) = load(file) else { panic!("no client bundle") };
        let chain = [client.leaf().certificate.der().clone()];
        assert!(credentials.admit(&chain, now()).unwrap().trust.own, "{file}");
    }
    let own = [server.leaf().certificate.der().clone()];
    credentials.admit(&own, now()).unwrap();
}

fn contents(folder: &Path) -> Vec<Option<String>> {
    ALL.iter().map(|file| fs::read_to_string(folder.join(file)).ok()).collect()
}

#[test]
fn a_first_start_makes_everything_and_the_next_nothing() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("lockd");
    let first = bootstrap(&folder, &["*".to_owned(), "10.0.0.1".to_owned()], now()).unwrap();
    assert_eq!(first.made, ALL.map(|file| folder.join(file)));
    assert_eq!(first.warnings, []);
    assert_eq!(first.server.leaf().certificate.hosts, ["*", "10.0.0.1"]);
    check_matching(&folder);
    assert_eq!(find_client(&folder).unwrap().0, folder.join(CLIENT_FILE));
    let before = contents(&folder);
    let second = bootstrap(&folder, &[], now()).unwrap();
    assert_eq!(second.made, Vec::<std::path::PathBuf>::new());
    assert_eq!(second.server.node_id(), first.server.node_id());
    assert_eq!(contents(&folder), before);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), ALL.len(), "nothing else is left");
}

#[test]
fn a_start_that_was_cut_short_is_completed() {
    for kept in 1..ALL.len() {
        let folder = tempfile::tempdir().unwrap();
        bootstrap(folder.path(), &[], now()).unwrap();
        for file in &ALL[kept..] {
            fs::remove_file(folder.path().join(file)).unwrap();
        }
        let before = contents(folder.path());
        let again = bootstrap(folder.path(), &[], now()).unwrap();
        assert_eq!(again.made.len(), ALL.len() - kept);
        assert_eq!(contents(folder.path())[..kept], before[..kept]);
        check_matching(folder.path());
    }
}

#[test]
fn many_that_start_at_once_agree() {
    const STARTS: usize = 8;
    for _ in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        let barrier = Barrier::new(STARTS);
        let start = || {
            barrier.wait();
            let started = bootstrap(folder.path(), &[], now()).unwrap();
            (started.server.node_id().to_owned(), started.made.len())
        };
        let results: Vec<(String, usize)> = thread::scope(|scope| {
            let threads: Vec<_> = (0..STARTS).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let nodes: BTreeSet<&String> = results.iter().map(|(node, _)| node).collect();
        assert_eq!(nodes.len(), 1, "one server");
        let made: usize = results.iter().map(|(_, made)| made).sum();
        assert_eq!(made, ALL.len(), "each file was made once");
        check_matching(folder.path());
    }
}

#[test]
fn a_server_whose_ca_is_kept_elsewhere_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SERVER_FILE);
    fs::write(&path, server(&authority()).to_pem().as_str()).unwrap();
    let started = bootstrap(folder.path(), &[], now()).unwrap();
    assert!(started.made.is_empty());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no new CA beside it");
}

#[test]
fn a_new_ca_is_not_put_beside_bundles_of_another() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(CLIENT_FILE), client(&authority(), "a").to_pem().as_str())
        .unwrap();
    let error = bootstrap(folder.path(), &[], now()).unwrap_err();
    assert!(matches!(error, BootstrapError::CaMissing { found: CLIENT_FILE, .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn bundles_of_another_ca_are_told() {
    let (ours, theirs) = (authority(), authority());
    let start = |file: &str, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let ca = CaBundle::new(&ours, None, CHEAP).unwrap().to_pem();
        files::write(&folder.path().join(CA_FILE), &ca, Existing::Refuse).unwrap();
        let path = folder.path().join(file);
        files::write(&path, text, Existing::Refuse).unwrap();
        (bootstrap(folder.path(), &[], now()), path)
    };
    let (started, path) = start(SERVER_FILE, &server(&theirs).to_pem());
    let error = started.unwrap_err();
    assert!(matches!(&error, BootstrapError::OtherCa { path: told } if *told == path), "{error}");
    for file in [CLIENT_FILE, TC_FILE] {
        let (started, path) = start(file, &client(&theirs, "a").to_pem());
        assert_eq!(started.unwrap().warnings, [Warning::OtherCa { path }]);
        let (started, _) = start(file, "nothing");
        let warnings = started.unwrap().warnings;
        assert!(matches!(warnings.as_slice(), [Warning::Unusable(_)]), "{warnings:?}");
    }
}

#[test]
fn a_protected_ca_is_not_asked_to_sign() {
    let folder = tempfile::tempdir().unwrap();
    let ours = authority();
    let password = Password::new("x".to_owned()).unwrap();
    let ca = CaBundle::new(&ours, Some(&password), CHEAP).unwrap();
    fs::write(folder.path().join(CA_FILE), ca.to_pem().as_str()).unwrap();
    let error = bootstrap(folder.path(), &[], now()).unwrap_err();
    assert!(matches!(error, BootstrapError::CaLocked { .. }), "{error}");
    assert!(error.to_string().contains("lockd auth new"), "{error}");
    // With its own bundle the server starts, and whatever else is missing stays so.
    fs::write(folder.path().join(SERVER_FILE), server(&ours).to_pem().as_str()).unwrap();
    assert!(bootstrap(folder.path(), &[], now()).unwrap().made.is_empty());
}
