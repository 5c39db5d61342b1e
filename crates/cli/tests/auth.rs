//! `lockd auth` as a shell would use it, in folders of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const LOCKD: &str = env!("CARGO_BIN_EXE_lockd");

/// A home, and a folder to work in that is another.
struct Desk {
    folder: TempDir,
    password: Option<&'static str>,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("here")).unwrap();
        Self { folder, password: None }
    }

    fn with_password(password: &'static str) -> Self {
        Self { password: Some(password), ..Self::new() }
    }

    fn here(&self, file: &str) -> PathBuf {
        self.folder.path().join("here").join(file)
    }

    fn usual(&self, file: &str) -> PathBuf {
        self.folder.path().join(".lockd").join(file)
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.here(file)).unwrap()
    }

    /// A command in a session without a terminal, so that nothing can ask the tester.
    fn command(&self) -> Command {
        let mut command = Command::new("setsid");
        command.args(["--wait", LOCKD]).env_clear();
        command.env("HOME", self.folder.path()).env("PATH", "/usr/bin:/bin");
        command.envs(self.password.map(|password| ("LOCKD_CA_PASSWORD", password)));
        command.current_dir(self.here("")).stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command().arg("auth").args(words(line)).output().unwrap()
    }

    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("{line} --output json"))).unwrap()
    }

    fn fails(&self, line: &str) -> (i32, String) {
        let output = self.run(line);
        assert!(!output.status.success(), "{line}: {}", said(&output));
        (output.status.code().unwrap(), said(&output))
    }
}

/// Words as a shell makes them out of a line, as far as these tests need it.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(|word| word.replace('"', "")).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_walk_from_a_server_to_a_revoked_client() {
    let desk = Desk::with_password("a long password");
    desk.ok(r#"new server --out server.pem --cn "lockd-anywhere" --hosts "*" --ca-pass-prompt"#);
    desk.ok(r#"new client --server-in server.pem --out client1.pem --cn "worker-1""#);
    let client = desk.json("inspect client --in client1.pem");
    assert_eq!(client["identity"], "spiffe://lockd/sdk/worker-1");
    assert_eq!(client["claims"], json!(["default=rw"]));
    assert!(matches!(client["days_left"].as_i64(), Some(364 | 365)), "{client}");
    desk.ok("verify server --in server.pem");
    desk.ok("verify client --server-in server.pem --in client1.pem");
    let serial = client["serial"].as_str().unwrap().to_owned();
    desk.ok(&format!("revoke client --server-in server.pem --out server.pem {serial} abc123"));
    let server = desk.ok("inspect server --in server.pem");
    assert!(server.contains("lockd-anywhere") && server.contains("hosts:      *"), "{server}");
    assert!(server.contains(&format!("revoked:    {serial}")), "{server}");
    let verified = desk.ok("verify server --in server.pem");
    assert!(verified.contains(&format!("revokes {serial}")), "{verified}");
    let (code, why) = desk.fails("verify client --server-in server.pem --in client1.pem");
    assert_eq!(code, 3);
    assert!(why.contains(&format!("serial {serial} is revoked")), "{why}");
    for file in ["server.pem", "ca.pem", "client1.pem"] {
        assert_eq!(mode(&desk.here(file)), 0o600, "{file}");
    }
}

#[test]
fn a_password_is_typed_at_the_terminal() {
    let desk = Desk::new();
    let script = |line: &str, typed: &str| {
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &format!("{LOCKD} auth {line}")]);
        command.arg("/dev/null").env_clear().env("HOME", desk.folder.path());
        command.env("PATH", "/usr/bin:/bin").env("SHELL", "/bin/sh").current_dir(desk.here(""));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), typed.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let made = script("new server --out server.pem --ca-pass-prompt", "secret\nsecret\n");
    assert!(made.status.success(), "{}", said(&made));
    assert!(desk.text("ca.pem").contains("LOCKD ENCRYPTED PRIVATE KEY"));
    let made = script("new client --server-in server.pem --out client.pem", "secret\n");
    assert!(made.status.success(), "asked without a flag: {}", said(&made));
    let wrong = script("new client --server-in server.pem --out other.pem", "sceret\n");
    assert!(said(&wrong).contains("password of the CA key is wrong"), "{}", said(&wrong));
    assert!(!desk.here("other.pem").exists());
    let differ = script("new ca --out ca2.pem --ca-pass-prompt", "one\ntwo\n");
    assert!(said(&differ).contains("differ"), "{}", said(&differ));
    assert!(!desk.here("ca2.pem").exists());
}

#[test]
fn without_a_terminal_other_ways_are_named() {
    let desk = Desk::new();
    let (code, why) = desk.fails("new server --out server.pem --ca-pass-prompt");
    assert_eq!(code, 2);
    assert!(why.contains("--ca-pass-file") && why.contains("LOCKD_CA_PASSWORD"), "{why}");
    assert!(!desk.here("server.pem").exists() && !desk.here("ca.pem").exists());
    std::fs::write(desk.here("pass"), "from a file\n").unwrap();
    desk.ok("new server --out server.pem --ca-pass-file pass");
    let (_, why) = desk.fails("new client --server-in server.pem --out client.pem");
    assert!(why.contains("--ca-pass-file"), "{why}");
    desk.ok("new client --server-in server.pem --out client.pem --ca-pass-file pass");
    let (code, _) = desk.fails("new client --out c2.pem --ca-password secret");
    assert_eq!(code, 2, "a password is never a flag's value");
}

#[test]
fn the_ca_key_is_in_the_server_bundle_only_if_asked_for() {
    let desk = Desk::with_password("secret");
    let made = desk.json("new server --out server.pem");
    assert_eq!((&made["ca_key"], &made["ca_file"]), (&json!("absent"), &json!("./ca.pem")));
    std::fs::rename(desk.here("ca.pem"), desk.here("away.pem")).unwrap();
    let (_, why) = desk.fails("new client --server-in server.pem --out client.pem");
    assert!(why.contains("neither in server.pem nor in ./ca.pem"), "{why}");
    assert!(why.contains("--ca-in"), "{why}");
    desk.ok("new client --ca-in away.pem --out client.pem");
    desk.ok("verify client --in client.pem --server-in server.pem");

    let made = desk.json("new server --out two/server.pem --with-ca-key");
    assert_eq!(made["ca_key"], "sealed");
    std::fs::remove_file(desk.here("two/ca.pem")).unwrap();
    desk.ok("new client --server-in two/server.pem --out two/client.pem");
    desk.ok("verify client --in two/client.pem --server-in two/server.pem");

    // The second server of a folder is of the same CA; here its key comes along as well.
    desk.ok("new server --out server-2.pem --ca-in away.pem --with-ca-key");
    desk.ok("new tcclient --server-in server-2.pem --out tc.pem");
    desk.ok("verify tcclient --in tc.pem --server-in server.pem");
}

#[test]
fn the_usual_folder_is_used_when_nothing_is_named() {
    let desk = Desk::new();
    desk.ok("new ca --cn our-ca");
    desk.ok("new server");
    desk.ok("new client --cn me --rw-all");
    desk.ok("new tcclient");
    assert_eq!(mode(&desk.usual("")), 0o700);
    for (what, kind) in
        [("ca", "CA"), ("server", "server"), ("client", "client"), ("tcclient", "TC client")]
    {
        let shown = desk.json(&format!("inspect {what}"));
        assert_eq!(shown["kind"], kind);
        assert_eq!(shown["authorities"][0]["name"], "our-ca");
        desk.ok(&format!("verify {what}"));
    }
    assert_eq!(desk.json("inspect client")["claims"], json!(["ALL=rw"]));
    let output = desk
        .command()
        .env("LOCKD_CONFIG_DIR", desk.here("conf"))
        .args(["auth", "inspect", "server"])
        .output()
        .unwrap();
    assert!(said(&output).contains("here/conf/server.pem"), "{}", said(&output));
}

#[test]
fn a_ca_ends_when_it_was_told_to_and_all_it_issued_with_it() {
    let desk = Desk::new();
    desk.ok("new ca --out ca.pem --valid-for 30d");
    desk.ok("new client --ca-in ca.pem --out client.pem");
    for what in ["ca", "client"] {
        let shown = desk.json(&format!("inspect {what} --in {what}.pem"));
        assert!(matches!(shown["days_left"].as_i64(), Some(29 | 30)), "{shown}");
    }
    let (code, why) = desk.fails("new ca --out other.pem --valid-for 20y");
    assert_eq!(code, 2, "{why}");
    assert!(why.contains("1 to 3650 days"), "{why}");
}

#[test]
fn a_ca_is_not_taken_from_the_usual_folder_for_a_server_elsewhere() {
    let desk = Desk::new();
    desk.ok("new ca --cn usual-ca");
    let made = desk.run("new server --out server.pem");
    assert!(said(&made).contains("--ca-in"), "{}", said(&made));
    assert_eq!(desk.json("inspect server.pem")["authorities"][0]["name"], "lockd-ca");
    // And a named server is not signed for by a CA that is not its own.
    std::fs::remove_file(desk.here("ca.pem")).unwrap();
    let (_, why) = desk.fails("new client --server-in server.pem --out client.pem");
    assert!(why.contains("--ca-in"), "{why}");
}

#[test]
fn a_server_issued_again_is_the_same_server() {
    let desk = Desk::new();
    desk.ok("new server --out server.pem --cn west --hosts lock.example.com,10.0.0.7");
    desk.ok("revoke client --server-in server.pem abc123");
    let foreign =
        "-----BEGIN KRYPT-DESCRIPTOR-----\nName: x\n\nYWJj\n-----END KRYPT-DESCRIPTOR-----\n";
    std::fs::write(desk.here("server.pem"), desk.text("server.pem") + foreign).unwrap();
    let before = desk.json("inspect server.pem");
    let (code, why) = desk.fails("new server --out server.pem");
    assert_eq!(code, 1);
    assert!(why.contains("--force"), "{why}");
    for line in ["new server --out server.pem --force --valid-for 30d", "renew server.pem"] {
        let after = desk.json(line);
        assert_ne!(after["serial"], before["serial"], "{line}");
        for same in ["identity", "hosts", "name", "revoked", "issuer_fingerprint"] {
            assert_eq!(after[same], before[same], "{line}: {same}");
        }
        assert!(desk.text("server.pem").contains("KRYPT-DESCRIPTOR"), "{line}");
    }
    let given = desk.json("new server --out server.pem --force --hosts a.example --cn east");
    assert_eq!((&given["hosts"], &given["name"]), (&json!(["a.example"]), &json!("east")));
    assert_eq!(given["identity"], before["identity"]);
}

#[test]
fn force_replaces_only_its_own_kind() {
    let desk = Desk::new();
    desk.ok("new server --out server.pem");
    let ca = desk.text("ca.pem");
    for line in [
        "new server --out ca.pem --force",
        "new client --out ca.pem --ca-in ca.pem --force",
        "new tcclient --out server.pem --ca-in ca.pem --force",
    ] {
        let (_, why) = desk.fails(line);
        assert!(why.contains("left as it is"), "{line}: {why}");
    }
    assert_eq!(desk.text("ca.pem"), ca);
    std::fs::write(desk.here("notes.pem"), "not a bundle").unwrap();
    desk.fails("new client --out notes.pem --ca-in ca.pem --force");
    assert_eq!(desk.text("notes.pem"), "not a bundle");
}

#[test]
fn a_renewed_client_keeps_its_name_claims_and_trust() {
    let desk = Desk::new();
    desk.ok("new server --out server.pem");
    desk.ok("new server --out other/server.pem");
    desk.ok("new client --out client.pem --ca-in ca.pem --cn me -n team=r -n work=rw --read-all");
    let before = desk.json("inspect client.pem");
    assert_eq!(before["claims"], json!(["ALL=r", "team=r", "work=rw"]));
    let output = desk.run("renew client.pem");
    assert!(output.status.success(), "{}", said(&output));
    let old = before["serial"].as_str().unwrap();
    assert!(said(&output).contains(&format!("revoke client {old}")), "{}", said(&output));
    let after = desk.json("inspect client.pem");
    assert_ne!(after["serial"], before["serial"]);
    for same in ["identity", "claims", "name", "issuer_fingerprint"] {
        assert_eq!(after[same], before[same], "{same}");
    }
    // By another CA: it is trusted from now on, and so is the old one.
    let moved = desk.json("renew client.pem --ca-in other/ca.pem --out moved.pem");
    assert_eq!(moved["authorities"].as_array().unwrap().len(), 2);
    desk.ok("verify client --in moved.pem --server-in other/server.pem");
    desk.fails("renew client.pem --ca-in other/ca.pem --out moved.pem");
    let (_, why) = desk.fails("renew ca.pem");
    assert!(why.contains("not renewed"), "{why}");
}

#[test]
fn revoking_spreads_to_the_servers_beside() {
    let desk = Desk::new();
    desk.ok("new server --out server.pem");
    desk.ok("new server --out server-2.pem");
    desk.ok("new server --out elsewhere.pem");
    let revoked = |file: &str| desk.json(&format!("inspect {file}"))["revoked"].clone();
    let done = desk.json("revoke client --server-in server.pem 0x0A:bc 77");
    assert_eq!(done["files"].as_array().unwrap().len(), 2, "{done}");
    assert_eq!(revoked("server.pem"), json!(["77", "abc"]));
    assert_eq!(revoked("server-2.pem"), json!(["77", "abc"]));
    assert_eq!(revoked("elsewhere.pem"), json!([]));

    desk.ok("revoke client --server-in server.pem --propagate=false 88");
    assert_eq!(revoked("server-2.pem"), json!(["77", "abc"]));
    desk.ok("revoke client --server-in elsewhere.pem --propagate=false --out new.pem 99");
    assert_eq!((revoked("elsewhere.pem"), revoked("new.pem")), (json!([]), json!(["99"])));

    let own = desk.json("inspect server.pem")["serial"].as_str().unwrap().to_owned();
    let (code, why) = desk.fails(&format!("revoke client --server-in server.pem {own}"));
    assert_eq!((code, why.contains("server itself")), (2, true), "{why}");
    let (code, _) = desk.fails("revoke client --server-in server.pem worker-1");
    assert_eq!(code, 2);

    std::fs::write(desk.here("server-3.pem"), "damaged").unwrap();
    let (code, why) = desk.fails("revoke client --server-in server.pem aa");
    assert_eq!((code, why.contains("server-3.pem")), (1, true), "{why}");
    assert_eq!(revoked("server-2.pem"), json!(["77", "aa", "abc"]), "the others were changed");
}

#[test]
fn a_link_is_followed_and_not_replaced() {
    let desk = Desk::new();
    desk.ok("new server --out real/server.pem");
    std::os::unix::fs::symlink("real/server.pem", desk.here("server.pem")).unwrap();
    desk.ok("revoke client --server-in server.pem aa");
    assert!(desk.here("server.pem").is_symlink());
    assert_eq!(desk.json("inspect real/server.pem")["revoked"], json!(["aa"]));
}

#[test]
fn verify_tells_what_does_not_hold_together() {
    let desk = Desk::new();
    desk.ok("new server --out server.pem");
    desk.ok("new client --out client.pem --ca-in ca.pem");
    desk.ok("new client --out other.pem --ca-in ca.pem");
    let key = |text: &str| {
        let at = text.find("-----BEGIN PRIVATE KEY-----").unwrap();
        (text[..at].to_owned(), text[at..].to_owned())
    };
    let (certificates, _) = key(&desk.text("client.pem"));
    let (_, other_key) = key(&desk.text("other.pem"));
    std::fs::write(desk.here("mixed.pem"), certificates + &other_key).unwrap();
    let (code, why) = desk.fails("verify client --in mixed.pem");
    assert_eq!(code, 3);
    assert!(why.contains("belongs to no certificate"), "{why}");
    let (code, why) = desk.fails("verify server --in client.pem");
    assert_eq!((code, why.contains("is a client bundle")), (3, true), "{why}");
    let (code, _) = desk.fails("verify server --in nothing.pem");
    assert_eq!(code, 1, "nothing was checked");
    let output = desk.run("verify client --in mixed.pem --output json");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&shown["ok"], shown["problems"].as_array().unwrap().len()), (&json!(false), 1));
}

#[test]
fn everything_has_three_formats_and_no_secret_in_them() {
    let desk = Desk::new();
    desk.ok("new server --out server.pem --output yaml");
    for line in ["inspect server.pem", "verify server.pem", "inspect ca --in ca.pem"] {
        let text = desk.ok(line);
        let json = desk.ok(&format!("{line} --output json"));
        let yaml = desk.ok(&format!("{line} --output yaml"));
        assert!(yaml.contains("file: ") && json.starts_with('{'), "{yaml}{json}");
        for shown in [text, json, yaml] {
            assert!(!shown.contains("PRIVATE"), "{shown}");
        }
    }
    let (code, _) = desk.fails("inspect");
    assert_eq!(code, 2);
    let (_, why) = desk.fails("inspect server --in ca.pem");
    assert!(why.contains("CA bundle"), "{why}");
}
