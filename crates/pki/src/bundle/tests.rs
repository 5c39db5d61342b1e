//! Bundles in every order and with everything that other tools put into them.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::{Bundle, CaBundle, ClientBundle, ServerBundle};
use crate::error::BundleFault;
use crate::fixture::{CHEAP, Odd, authority, client, day, now, server};
use crate::identity::NoIdentity;
use crate::inspect::CaKey;
use crate::issue::{Authority, ClientRequest, ServerRequest};
use crate::key::PrivateKey;
use crate::pem::{self, Block};
use crate::seal::Password;
use crate::serial::Serial;

/// Blocks that the Go implementation writes into CA and server bundles.
const FOREIGN: &str = "-----BEGIN KRYPT-SYSTEM-ROOT-KEY-----\nKey-Length: 32\n\n\
    AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n-----END KRYPT-SYSTEM-ROOT-KEY-----\n\
    -----BEGIN KRYPT-DESCRIPTOR-----\nName: lockd/metadata\nVersion: 1\n\n\
    AQIDBA==\n-----END KRYPT-DESCRIPTOR-----\n";

fn fault(text: &str) -> BundleFault {
    let error = Bundle::parse("x.pem", text).unwrap_err();
    assert!(error.to_string().starts_with("x.pem: "), "{error}");
    error.fault
}

fn block(label: &str, bytes: &[u8]) -> String {
    pem::join([&Block::new(label, &[], bytes)]).as_str().to_owned()
}

fn certificate(authority: &Authority) -> String {
    block("CERTIFICATE", authority.certificate().der())
}

fn key(key: &PrivateKey) -> String {
    pem::join([&key.to_block()]).as_str().to_owned()
}

fn password(text: &str) -> Password {
    Password::new(text.to_owned()).unwrap()
}

/// What a program writes out, given something to read.
fn openssl(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the openssl command is needed for this test");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "openssl {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_order_of_blocks_does_not_matter() {
    let ours = authority();
    let mut bundle = server(&ours);
    bundle.revoke(Serial::parse("abc").unwrap());
    let leaf = bundle.leaf();
    let parts = [
        certificate(&ours),
        key(ours.key()),
        block("CERTIFICATE", leaf.certificate.der()),
        key(&leaf.key),
        block("LOCKD DENYLIST", b"abc"),
        FOREIGN.to_owned(),
    ];
    for turn in 0..parts.len() {
        let mut turned = parts.clone();
        turned.rotate_left(turn);
        for parts in [turned.clone(), {
            turned.reverse();
            turned
        }] {
            let text = parts.join("some words between\n");
            let read = ServerBundle::parse("x.pem", &text).unwrap();
            assert_eq!(read.node_id(), bundle.node_id());
            assert_eq!(read.denylist(), bundle.denylist());
            assert_eq!(read.certificates(), bundle.certificates());
            assert!(read.authority(None).is_ok());
            assert_eq!(Bundle::Server(read).ca_key(), CaKey::Plain);
        }
    }
}

#[test]
fn what_is_not_ours_survives_a_rewrite_byte_for_byte() {
    let ours = authority();
    let server = format!("{FOREIGN}{}", server(&ours).to_pem().as_str());
    let mut read = ServerBundle::parse("x.pem", &server).unwrap();
    read.revoke(Serial::parse("1").unwrap());
    assert!(read.to_pem().contains(FOREIGN));
    let again = ServerBundle::parse("x.pem", &read.to_pem()).unwrap();
    assert_eq!(again.to_pem(), read.to_pem(), "stable from then on");
    let ca = CaBundle::new(&ours, None, CHEAP).unwrap().to_pem();
    let read = CaBundle::parse("x.pem", &format!("{}{FOREIGN}", ca.as_str())).unwrap();
    assert!(read.to_pem().contains(FOREIGN));
    let client = client(&ours, "a").to_pem();
    let denylist = block("LOCKD DENYLIST", b"abc");
    let text = format!("{denylist}{FOREIGN}{}", client.as_str());
    let read = ClientBundle::parse("x.pem", &text).unwrap();
    assert!(read.to_pem().contains(FOREIGN) && read.to_pem().contains(&denylist));
}

#[test]
fn a_denylist_is_sorted_base64_text() {
    let ours = authority();
    let mut bundle = server(&ours);
    for serial in ["B", "0a", "b"] {
        bundle.revoke(Serial::parse(serial).unwrap());
    }
    // The base64 of "a", a line end and "b".
    let block = "-----BEGIN LOCKD DENYLIST-----\nYQpi\n-----END LOCKD DENYLIST-----\n";
    assert!(bundle.to_pem().contains(block));
}

#[test]
fn what_is_missing_or_too_much_is_named() {
    let (ours, theirs) = (authority(), authority());
    let bundle = client(&ours, "a");
    let (leaf, other) = (bundle.leaf(), client(&ours, "b"));
    let ca = certificate(&ours);
    let (own_certificate, own_key) = (block("CERTIFICATE", leaf.certificate.der()), key(&leaf.key));
    let pair = format!("{own_certificate}{own_key}");
    let other_certificate = block("CERTIFICATE", other.leaf().certificate.der());
    let other_key = key(&other.leaf().key);
    let stray = key(&PrivateKey::generate().unwrap());
    let cases = [
        (pair.clone(), BundleFault::NoCa),
        (format!("{ca}{own_certificate}"), BundleFault::NoLeaf),
        (format!("{ca}{own_key}"), BundleFault::StrayKey { number: 1 }),
        (format!("{ca}{pair}{stray}"), BundleFault::StrayKey { number: 2 }),
        (format!("{ca}{pair}{other_certificate}{other_key}"), BundleFault::SeveralLeaves),
        (
            format!("{ca}{}{}{}", key(ours.key()), certificate(&theirs), key(theirs.key())),
            BundleFault::SeveralCaKeys,
        ),
        (format!("{ca}{}", block("PRIVATE KEY", b"junk")), BundleFault::Key { number: 1 }),
        (
            format!("{ca}{}", block("ENCRYPTED PRIVATE KEY", b"junk")),
            BundleFault::ForeignEncryption { number: 1 },
        ),
        (
            format!(
                "{ca}-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                     DEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"
            ),
            BundleFault::ForeignEncryption { number: 1 },
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(fault(&text), expected);
    }
    let junk = fault(&format!("{ca}{}", block("CERTIFICATE", b"junk")));
    assert!(matches!(junk, BundleFault::Certificate { number: 2, .. }), "{junk}");
    let denied = server(&ours).to_pem().as_str().to_owned() + &block("LOCKD DENYLIST", b"a\nxyz");
    assert!(matches!(fault(&denied), BundleFault::Denylist(_)));
    let nobody = Odd { uris: vec![], ..Odd::client() }.leaf(&ours);
    let text = ClientBundle::new(&ours, nobody).to_pem();
    assert_eq!(fault(&text), BundleFault::Identity(NoIdentity::Missing));
}

#[test]
fn what_is_there_twice_counts_once_and_strangers_are_kept() {
    let ours = authority();
    let bundle = client(&ours, "a");
    let text = bundle.to_pem();
    let twice = format!("{}{}", text.as_str(), text.as_str());
    assert_eq!(ClientBundle::parse("x.pem", &twice).unwrap().to_pem(), text);
    let stranger = block("CERTIFICATE", client(&ours, "b").leaf().certificate.der());
    let read = ClientBundle::parse("x.pem", &format!("{stranger}{}", text.as_str())).unwrap();
    assert_eq!(read.leaf().certificate, bundle.leaf().certificate);
    assert!(read.to_pem().contains(&stranger));
}

#[test]
fn a_bundle_of_another_kind_is_told_apart() {
    let ours = authority();
    let tc = ours.issue_client(&ClientRequest::tc("a"), now()).unwrap();
    let tc = ClientBundle::new(&ours, tc).to_pem();
    let (server, ca) = (server(&ours).to_pem(), CaBundle::new(&ours, None, CHEAP).unwrap());
    for (text, kind) in [(&tc, "TC client"), (&server, "server"), (&ca.to_pem(), "CA")] {
        assert_eq!(Bundle::parse("x.pem", text).unwrap().kind(), kind);
    }
    assert!(ClientBundle::parse("x.pem", &tc).is_ok());
    let error = ServerBundle::parse("x.pem", &tc).unwrap_err();
    assert_eq!(
        error.to_string(),
        "x.pem: it is a TC client bundle where a server bundle is needed"
    );
    assert!(ClientBundle::parse("x.pem", &server).is_err());
    assert!(CaBundle::parse("x.pem", &server).is_err());
}

#[test]
fn a_server_issued_again_keeps_what_it_had() {
    let (ours, next) = (authority(), authority());
    let text = format!("{}{FOREIGN}", server(&ours).to_pem().as_str());
    let mut old = ServerBundle::parse("x.pem", &text).unwrap();
    old.revoke(Serial::parse("abc").unwrap());
    let request = ServerRequest::new(&["lock.example".to_owned()], None);
    let renewed = old.reissue(&ours, &request, now()).unwrap();
    assert_eq!(renewed.node_id(), old.node_id());
    assert_ne!(renewed.leaf().peer.serial, old.leaf().peer.serial);
    assert!(!renewed.leaf().key.belongs_to(&old.leaf().certificate));
    assert_eq!(renewed.leaf().certificate.hosts, ["lock.example"]);
    assert_eq!(renewed.denylist(), old.denylist());
    assert_eq!(renewed.certificates(), old.certificates());
    assert!(renewed.to_pem().contains(FOREIGN));
    let moved = old.reissue(&next, &request, now()).unwrap();
    let both = [next.certificate().clone(), ours.certificate().clone()];
    assert_eq!(moved.certificates(), both, "clients of the old CA still come in");
    assert_ne!(server(&ours).node_id(), old.node_id());
}

#[test]
fn a_ca_key_can_be_protected() {
    let ours = authority();
    let bundle = CaBundle::new(&ours, Some(&password("correct horse")), CHEAP).unwrap();
    let read = CaBundle::parse("ca.pem", &bundle.to_pem()).unwrap();
    assert!(read.is_sealed());
    assert_eq!(read.to_pem(), bundle.to_pem());
    assert!(!read.to_pem().contains("BEGIN PRIVATE KEY"));
    assert_eq!(read.authority(None).unwrap_err().fault, BundleFault::Locked);
    let wrong = read.authority(Some(&password("wrong"))).unwrap_err();
    assert_eq!(wrong.fault, BundleFault::WrongPassword);
    let opened = read.authority(Some(&password("correct horse"))).unwrap();
    assert_eq!(opened.certificate(), ours.certificate());
    let other = CaBundle::new(&authority(), Some(&password("x")), CHEAP).unwrap();
    let sealed = other.to_pem().as_str().to_owned();
    let (_, sealed) = sealed.split_once("-----BEGIN LOCKD").unwrap();
    let mixed = format!("{}-----BEGIN LOCKD{sealed}", certificate(&ours));
    let mixed = CaBundle::parse("ca.pem", &mixed).unwrap();
    let stray = mixed.authority(Some(&password("x"))).unwrap_err();
    assert_eq!(stray.fault, BundleFault::StraySealedKey);
    let both = format!("{}{}", bundle.to_pem().as_str(), key(ours.key()));
    assert_eq!(fault(&both), BundleFault::SeveralCaKeys);
}

#[test]
fn a_certificate_alone_can_be_trusted_but_cannot_sign() {
    let read = CaBundle::parse("ca.pem", &certificate(&authority())).unwrap();
    assert!(!read.can_sign() && !read.is_sealed());
    assert_eq!(read.authority(None).unwrap_err().fault, BundleFault::NoCaKey);
}

#[test]
fn keys_of_other_kinds_and_forms_are_read() {
    let ours = authority();
    for (arguments, label) in [
        (&["genrsa", "-traditional", "2048"][..], "RSA PRIVATE KEY"),
        (&["ecparam", "-genkey", "-noout", "-name", "prime256v1"], "EC PRIVATE KEY"),
        (&["ecparam", "-genkey", "-noout", "-name", "secp384r1"], "EC PRIVATE KEY"),
        (&["genpkey", "-algorithm", "RSA"], "PRIVATE KEY"),
        (&["genpkey", "-algorithm", "ed25519"], "PRIVATE KEY"),
    ] {
        let text = openssl(arguments, "");
        let written = pem::parse(&text).unwrap().remove(0);
        assert_eq!(written.label(), label);
        let form = crate::key::Form::of_label(label).unwrap();
        let theirs = PrivateKey::parse(form, written.contents().unwrap().bytes).unwrap();
        let draft = crate::issue::Draft {
            name: "theirs",
            now: now(),
            days: 1,
            usages: vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth],
            uris: vec!["spiffe://lockd/sdk/theirs".to_owned()],
            hosts: &[],
        };
        let signed = ours.sign(&draft.params().unwrap(), &theirs).unwrap();
        let text = format!("{}{text}{}", block("CERTIFICATE", signed.der()), certificate(&ours));
        let read = ClientBundle::parse("x.pem", &text).unwrap();
        assert!(read.to_pem().contains(&format!("BEGIN {label}")));
        let live = crate::fixture::live(server(&ours).leaf(), &ours, &crate::Denylist::default());
        let config = crate::server_config(&live, std::sync::Arc::new(|_| {})).unwrap();
        let client = std::sync::Arc::new(crate::client_config(&read).unwrap());
        let mut shaken = crate::fixture::shake(&client, &std::sync::Arc::new(config));
        assert!(shaken.is_whole(), "{label}: {:?}", shaken.server_error);
    }
}

#[test]
fn openssl_agrees_with_what_is_issued() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (authority(), authority());
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ca, other) = (put("ca", &certificate(&ours)), put("other", &certificate(&theirs)));
    let server = server(&ours);
    let server_file = put("server", &block("CERTIFICATE", server.leaf().certificate.der()));
    let client = client(&ours, "worker-1");
    let client_file = put("client", &block("CERTIFICATE", client.leaf().certificate.der()));
    let verifies = |ca: &str, purpose: &str, leaf: &str| {
        let arguments = ["verify", "-x509_strict", "-CAfile", ca, "-purpose", purpose, leaf];
        Command::new("openssl").args(arguments).output().unwrap().status.success()
    };
    assert!(verifies(&ca, "sslserver", &server_file));
    assert!(verifies(&ca, "sslclient", &server_file));
    assert!(verifies(&ca, "sslclient", &client_file));
    assert!(!verifies(&ca, "sslserver", &client_file));
    assert!(!verifies(&other, "sslclient", &client_file));
    let public = openssl(&["pkey", "-pubout"], &key(&client.leaf().key));
    assert_eq!(openssl(&["x509", "-pubkey", "-noout", "-in", &client_file], ""), public);
    let shown = openssl(&["x509", "-noout", "-text", "-in", &ca], "");
    for expected in [
        "CN = lockd-ca",
        "ED25519",
        "CA:TRUE, pathlen:0",
        "Digital Signature, Certificate Sign, CRL Sign",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let shown = openssl(&["x509", "-noout", "-text", "-in", &server_file], "");
    for expected in [
        "TLS Web Server Authentication, TLS Web Client Authentication",
        &format!("URI:spiffe://lockd/server/{}", server.node_id()),
        "URI:lockd://ns/ALL?perm=rw",
        "DNS:localhost",
        "IP Address:127.0.0.1",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[test]
fn dates_in_another_century_are_written_and_read() {
    let far = day(365 * 60);
    let ours = Authority::create("lockd-ca", far).unwrap();
    assert!(ours.certificate().is_in_time(far));
    assert!(!ours.certificate().is_in_time(now()));
}

/// Pieces that bundles are made of, so that arbitrary texts get past the first line.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("-----BEGIN CERTIFICATE-----\n".to_owned()),
        Just("-----END CERTIFICATE-----\n".to_owned()),
        Just("-----BEGIN PRIVATE KEY-----\n".to_owned()),
        Just("-----END PRIVATE KEY-----\n".to_owned()),
        Just("-----BEGIN LOCKD ENCRYPTED PRIVATE KEY-----\n".to_owned()),
        Just("-----END LOCKD ENCRYPTED PRIVATE KEY-----\n".to_owned()),
        Just("-----BEGIN LOCKD DENYLIST-----\nYQpi\n-----END LOCKD DENYLIST-----\r\n".to_owned()),
        Just("KDF: argon2id\nSalt: \u{e4}\u{e4}\n".to_owned()),
        Just("MIIB\n".to_owned()),
        ".{0,40}",
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_fall(text in soup()) {
        prop_assert!(Bundle::parse("x.pem", &text).is_err());
    }

    #[test]
    fn no_damage_makes_the_reader_fall(at in 0usize..4000, with in any::<char>(), cut in 0usize..4000) {
        let ours = authority();
        let sealed = CaBundle::new(&ours, Some(&password("x")), CHEAP).unwrap().to_pem();
        let text = format!("{}{}{FOREIGN}", sealed.as_str(), server(&ours).to_pem().as_str());
        let mut characters: Vec<char> = text.chars().collect();
        let at = at % characters.len();
        characters[at] = with;
        characters.truncate(characters.len() - cut % characters.len());
        let text: String = characters.into_iter().collect();
        if let Ok(bundle) = Bundle::parse("x.pem", &text) {
            let _ = crate::inspect(&bundle, now()).kind;
        }
    }

    #[test]
    fn no_text_makes_the_small_readers_fall(text in ".{0,80}") {
        let _ = Serial::parse(&text).is_ok();
        let _ = crate::Denylist::parse(&text).is_ok();
        let _ = crate::Claim::parse(&text).is_ok();
        let uris = [format!("lockd://ns{text}"), format!("spiffe:{text}"), text];
        let _ = crate::Claims::of_uris(&uris).all_rw();
    }
}
