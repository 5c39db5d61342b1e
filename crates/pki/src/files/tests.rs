//! Files: modes, bounds, what is never overwritten, and which bundle is the one.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::{
    Existing, FILE_BYTES_MAX, Warning, find_client, load, machine_name, make_folder, read,
    read_bounded, read_denylist, read_trust, write,
};
use crate::bundle::ClientBundle;
use crate::error::FileError;
use crate::fixture::{CHEAP, authority, client, now, server};
use crate::issue::ClientRequest;
use crate::{CaBundle, Serial};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_are_for_their_owner_and_appear_whole() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("a/b");
    make_folder(&folder).unwrap();
    make_folder(&folder).unwrap();
    assert_eq!(mode(&folder), 0o700);
    let path = folder.join("x.pem");
    write(&path, "one", Existing::Refuse).unwrap();
    assert_eq!(mode(&path), 0o600);
    let refused = write(&path, "two", Existing::Refuse).unwrap_err();
    assert!(matches!(refused, FileError::Exists { .. }), "{refused}");
    assert_eq!(read(&path).unwrap().text.as_str(), "one");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    write(&path, "two", Existing::Replace).unwrap();
    assert_eq!(read(&path).unwrap().text.as_str(), "two");
    assert_eq!(mode(&path), 0o600);
    assert_eq!(names(&folder), ["x.pem"], "nothing is left beside it");
    let error = write(&folder.join("none/x.pem"), "", Existing::Refuse).unwrap_err();
    assert!(error.to_string().contains("none/x.pem"), "{error}");
}

#[test]
fn reading_is_bounded_and_wants_a_text_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pem");
    let size = usize::try_from(FILE_BYTES_MAX).unwrap();
    fs::write(&path, vec![b' '; size]).unwrap();
    assert_eq!(read(&path).unwrap().text.len(), size);
    fs::write(&path, vec![b' '; size + 1]).unwrap();
    assert!(matches!(read(&path), Err(FileError::TooLarge { .. })));
    fs::write(&path, [0xff]).unwrap();
    assert!(matches!(read(&path), Err(FileError::NotText { .. })));
    assert!(matches!(read(folder.path()), Err(FileError::NotAFile { .. })));
    // A file that never ends, and one that says it is empty while it is not.
    assert!(matches!(read(Path::new("/dev/zero")), Err(FileError::NotAFile { .. })));
    assert!(!read(Path::new("/proc/self/status")).unwrap().text.is_empty());
    let missing = read(&folder.path().join("none.pem")).unwrap_err();
    assert!(missing.to_string().contains("none.pem: cannot read it"), "{missing}");
}

#[test]
fn a_source_that_is_longer_than_it_said_is_not_read_to_its_end() {
    let mut source = io::repeat(b' ').take(FILE_BYTES_MAX * 4);
    assert_eq!(read_bounded(&mut source, 0).unwrap(), None);
    assert_eq!(source.limit(), FILE_BYTES_MAX * 3 - 1);
}

#[test]
fn keys_that_others_can_read_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("client.pem");
    write(&path, &client(&authority(), "a").to_pem(), Existing::Refuse).unwrap();
    assert_eq!(load(&path).unwrap().1, None);
    for mode in [0o640, 0o604] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let warning = load(&path).unwrap().1.unwrap();
        assert_eq!(warning, Warning::ReadableByOthers { path: path.clone(), mode });
        assert!(warning.to_string().contains("chmod 600"), "{warning}");
    }
    let public = folder.path().join("public.pem");
    fs::write(&public, "no key in here").unwrap();
    fs::set_permissions(&public, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(read(&public).unwrap().warning, None);
}

#[test]
fn the_only_usable_client_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, ours) = (folder.path(), authority());
    let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    let none = find_client(folder).unwrap_err();
    assert!(matches!(none, FileError::NoClient { .. }), "{none}");
    let tc = ours.issue_client(&ClientRequest::tc("t"), now()).unwrap();
    put("client-tc.pem", &ClientBundle::new(&ours, tc).to_pem());
    put("client-broken.pem", "nothing");
    put("client.txt", &client(&ours, "text").to_pem());
    put("tc-client.pem", &client(&ours, "other").to_pem());
    put("server.pem", &server(&ours).to_pem());
    let none = find_client(folder).unwrap_err().to_string();
    assert!(none.contains("client-tc.pem: it is that of a tc"), "{none}");
    assert!(none.contains("client-broken.pem: there is no PEM block"), "{none}");
    put("client-b.pem", &client(&ours, "b").to_pem());
    let (path, bundle) = find_client(folder).unwrap();
    assert_eq!(path, folder.join("client-b.pem"));
    assert_eq!(bundle.leaf().peer.role.name(), "b");
    put("client.pem", &client(&ours, "a").to_pem());
    let several = find_client(folder).unwrap_err();
    assert!(matches!(&several, FileError::SeveralClients { usable, .. } if usable.len() == 2));
    let several = several.to_string();
    assert!(several.contains("client-b.pem") && several.contains("client.pem"), "{several}");
}

#[test]
fn folders_of_trust_are_read_whole_or_not_at_all() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("trust");
    assert!(read_trust(&folder).unwrap().is_empty(), "no folder is no trust");
    fs::create_dir(&folder).unwrap();
    let (one, two) = (authority(), authority());
    let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    put("a", &CaBundle::new(&one, None, CHEAP).unwrap().to_pem());
    put("b.pem", &CaBundle::new(&two, None, CHEAP).unwrap().to_pem());
    put(".hidden", "junk");
    fs::create_dir(folder.join("below")).unwrap();
    symlink(folder.join("a"), folder.join("c")).unwrap();
    let trusted = read_trust(&folder).unwrap();
    let [a, b] = [one.certificate().clone(), two.certificate().clone()];
    assert_eq!(trusted, [a.clone(), b, a]);
    put("z", "junk");
    assert!(read_trust(&folder).is_err());
}

#[test]
fn denylists_in_files_name_the_bad_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("denylist");
    fs::write(&path, "# gone\n00AB\n").unwrap();
    assert!(read_denylist(&path).unwrap().contains(&Serial::parse("ab").unwrap()));
    fs::write(&path, "ab\nq\n").unwrap();
    let error = read_denylist(&path).unwrap_err().to_string();
    assert!(error.contains("denylist: line 2"), "{error}");
}

#[test]
fn the_machine_has_a_name_that_fits_a_certificate() {
    if let Some(name) = machine_name() {
        let hosts = crate::issue::local_hosts(Some(&name));
        let request = crate::ServerRequest::new(&hosts, None);
        assert!(crate::ServerBundle::issue(&authority(), &request, now()).is_ok(), "{name}");
    }
}
