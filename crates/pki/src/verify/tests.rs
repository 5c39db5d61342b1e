//! Every refusal from end to end: two ends of a TLS connection, in 1.2 and 1.3, both sides.

use std::io;
use std::sync::Arc;

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, CodeSigning, ServerAuth};
use rustls::client::Resumption;
use rustls::{AlertDescription, HandshakeKind, SupportedProtocolVersion};

use super::{Distrust, PeerRefused};
use crate::bundle::Leaf;
use crate::certificate::CertificateFault;
use crate::credentials::{Credentials, LiveCredentials};
use crate::fixture::{
    Observer, Odd, Shaken, VERSIONS, authority, client, day, live, now, server, shake, sub_ca,
};
use crate::identity::{NoIdentity, Role};
use crate::issue::{Authority, CA_NAME, ClientRequest};
use crate::serial::Denylist;
use crate::tls::{client_config, client_of_versions, server_config};

/// Meets a client with this leaf; the server trusts `ours` and denies these.
fn meet_client(
    ours: &Authority,
    leaf: &Leaf,
    denied: &Denylist,
    version: &'static SupportedProtocolVersion,
) -> (Shaken, Vec<PeerRefused>) {
    let observer = Observer::default();
    let good = Odd::server().leaf(ours);
    let server = server_config(&live(&good, ours, denied), observer.listen()).unwrap();
    let client = live(leaf, ours, &Denylist::default());
    let client = client_of_versions(&client, Arc::new(|_| {}), &[version]).unwrap();
    (shake(&Arc::new(client), &Arc::new(server)), observer.heard())
}

/// Meets a server with this leaf; the client trusts `ours` and denies these.
fn meet_server(
    ours: &Authority,
    leaf: &Leaf,
    denied: &Denylist,
    version: &'static SupportedProtocolVersion,
) -> (Shaken, Vec<PeerRefused>) {
    let observer = Observer::default();
    let server = live(leaf, ours, &Denylist::default());
    let server = server_config(&server, Arc::new(|_| {})).unwrap();
    let client = live(&Odd::client().leaf(ours), ours, denied);
    let client = client_of_versions(&client, observer.listen(), &[version]).unwrap();
    (shake(&Arc::new(client), &Arc::new(server)), observer.heard())
}

/// The client is refused with this reason and is sent this alert.
fn check_client(ours: &Authority, leaf: &Leaf, expected: &PeerRefused, alert: AlertDescription) {
    for version in VERSIONS {
        let (mut shaken, heard) = meet_client(ours, leaf, &Denylist::default(), version);
        assert!(!shaken.is_whole(), "{expected}");
        assert_eq!(heard, std::slice::from_ref(expected), "{version:?}");
        assert!(shaken.server_error.is_some());
        assert_eq!(shaken.client_error, Some(rustls::Error::AlertReceived(alert)), "{expected}");
        let error = io::Error::other(shaken.client_error.unwrap());
        assert!(matches!(Distrust::find(&error), Some(Distrust::OfUs(_))), "{expected}");
    }
}

/// The server is refused with this reason, which the client can find in its error.
fn check_server(ours: &Authority, leaf: &Leaf, expected: &PeerRefused) {
    for version in VERSIONS {
        let (mut shaken, heard) = meet_server(ours, leaf, &Denylist::default(), version);
        assert!(!shaken.is_whole(), "{expected}");
        assert_eq!(heard, std::slice::from_ref(expected), "{version:?}");
        let error = io::Error::other(shaken.client_error.unwrap());
        assert_eq!(Distrust::find(&error), Some(Distrust::OfPeer(expected.clone())));
    }
}

#[test]
fn good_peers_meet_under_any_name_in_both_versions() {
    let ours = authority();
    let tc = ours.issue_client(&ClientRequest::tc("coordinator"), now()).unwrap();
    let (sdk, peer) = (client(&ours, "worker-1").leaf().clone(), server(&ours).leaf().clone());
    for version in VERSIONS {
        for leaf in [&sdk, &tc, &peer] {
            let (mut shaken, heard) = meet_client(&ours, leaf, &Denylist::default(), version);
            assert!(shaken.is_whole(), "{:?} {:?}", shaken.client_error, shaken.server_error);
            assert_eq!(heard, []);
            assert_eq!(shaken.client.protocol_version(), Some(version.version));
        }
        let (mut shaken, heard) = meet_server(&ours, &peer, &Denylist::default(), version);
        assert!(shaken.is_whole(), "{:?}", shaken.client_error);
        assert_eq!(heard, []);
    }
}

#[test]
fn a_client_bundle_is_all_a_client_needs() {
    let ours = authority();
    let live = live(server(&ours).leaf(), &ours, &Denylist::default());
    let server = Arc::new(server_config(&live, Arc::new(|_| {})).unwrap());
    let mut config = client_config(&client(&ours, "worker-1")).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut shaken = shake(&Arc::new(config), &server);
    assert!(shaken.is_whole());
    assert_eq!(shaken.server.alpn_protocol(), Some(b"http/1.1".as_slice()));
    let stranger = client_config(&client(&authority(), "worker-1")).unwrap();
    assert!(!shake(&Arc::new(stranger), &server).is_whole());
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let ours = authority();
    let live = live(server(&ours).leaf(), &ours, &Denylist::default());
    let server = Arc::new(server_config(&live, Arc::new(|_| {})).unwrap());
    let mut config = client_config(&client(&ours, "worker-1")).unwrap();
    config.client_auth_cert_resolver = Arc::new(Nobody);
    let shaken = shake(&Arc::new(config), &server);
    assert_eq!(shaken.server_error, Some(rustls::Error::NoCertificatesPresented));
}

#[test]
fn a_client_of_a_sub_ca_is_refused_in_the_handshake() {
    let ours = authority();
    let sub = sub_ca(&ours);
    let leaf = sub.issue_client(&ClientRequest::tc("intruder"), now()).unwrap();
    let chain = vec![leaf.certificate.der().clone(), sub.certificate().der().clone()];
    let shown = rustls::sign::CertifiedKey::new(chain, Arc::clone(leaf.key.signing()));
    let shown = Arc::new(Shown(Arc::new(shown)));
    for version in VERSIONS {
        let observer = Observer::default();
        let credentials = live(server(&ours).leaf(), &ours, &Denylist::default());
        let server = Arc::new(server_config(&credentials, observer.listen()).unwrap());
        let trusting = live(client(&ours, "x").leaf(), &ours, &Denylist::default());
        let mut config = client_of_versions(&trusting, Arc::new(|_| {}), &[version]).unwrap();
        config.client_auth_cert_resolver = Arc::clone(&shown) as _;
        let mut shaken = shake(&Arc::new(config), &server);
        assert!(!shaken.is_whole(), "{version:?}");
        assert_eq!(observer.heard(), [PeerRefused::Intermediate]);
        let alert = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
        assert_eq!(shaken.client_error, Some(alert));
    }
}

/// Shows a chain as it is.
#[derive(Debug)]
struct Shown(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for Shown {
    fn resolve(
        &self,
        _hints: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Nobody;

impl rustls::client::ResolvesClientCert for Nobody {
    fn resolve(
        &self,
        _hints: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[test]
fn another_ca_with_the_same_name_is_another_ca() {
    let (ours, theirs) = (authority(), authority());
    assert_eq!(ours.certificate().name, theirs.certificate().name);
    let alert = AlertDescription::UnknownCA;
    check_client(&ours, &Odd::client().leaf(&theirs), &PeerRefused::OtherCa, alert);
    check_server(&ours, &Odd::server().leaf(&theirs), &PeerRefused::OtherCa);
    let renamed = Authority::create("other-ca", now()).unwrap();
    check_client(&ours, &Odd::client().leaf(&renamed), &PeerRefused::OtherCa, alert);
}

#[test]
fn a_ca_outside_its_own_dates_vouches_for_nobody() {
    let old = Authority::create(CA_NAME, day(-3651)).unwrap();
    // In a handshake the client, who believes the same CA, is the first to break off.
    let live = live(&Odd::server().leaf(&old), &old, &Denylist::default());
    let chain = [Odd::client().leaf(&old).certificate.der().clone()];
    let admitted = live.current().admit(&chain, now());
    assert_eq!(admitted.unwrap_err(), PeerRefused::CaOutOfTime);
    check_server(&old, &Odd::server().leaf(&old), &PeerRefused::CaOutOfTime);
}

#[test]
fn dates_count() {
    let ours = authority();
    let alert = AlertDescription::CertificateExpired;
    let late = |odd: Odd| Odd { at: day(-3), days: 2, ..odd }.leaf(&ours);
    let leaf = late(Odd::client());
    check_client(&ours, &leaf, &PeerRefused::Expired(leaf.peer.not_after), alert);
    let leaf = late(Odd::server());
    check_server(&ours, &leaf, &PeerRefused::Expired(leaf.peer.not_after));
    let early = |odd: Odd| Odd { at: day(2), ..odd }.leaf(&ours);
    let leaf = early(Odd::client());
    check_client(&ours, &leaf, &PeerRefused::NotYetValid(leaf.peer.not_before), alert);
    let leaf = early(Odd::server());
    check_server(&ours, &leaf, &PeerRefused::NotYetValid(leaf.peer.not_before));
}

#[test]
fn the_purpose_must_be_there_and_right() {
    let ours = authority();
    let alert = AlertDescription::UnsupportedCertificate;
    let odd = |odd: Odd, usages: &[_]| Odd { usages: usages.to_vec(), ..odd }.leaf(&ours);
    let no_eku = odd(Odd::client(), &[]);
    assert_eq!(no_eku.certificate.usages, None, "the extension is left out");
    check_client(&ours, &no_eku, &PeerRefused::NoEku("clientAuth"), alert);
    for usages in [[ServerAuth], [CodeSigning]] {
        let leaf = odd(Odd::client(), &usages);
        check_client(&ours, &leaf, &PeerRefused::WrongEku("clientAuth"), alert);
    }
    check_server(&ours, &odd(Odd::server(), &[]), &PeerRefused::NoEku("serverAuth"));
    let leaf = odd(Odd::server(), &[ClientAuth]);
    check_server(&ours, &leaf, &PeerRefused::WrongEku("serverAuth"));
}

#[test]
fn whoever_is_not_named_exactly_once_is_nobody() {
    let ours = authority();
    let alert = AlertDescription::AccessDenied;
    for (uris, expected) in [
        (vec![], NoIdentity::Missing),
        (vec!["lockd://ns/ALL?perm=rw"], NoIdentity::Missing),
        (vec!["spiffe://lockd/sdk/a", "spiffe://lockd/sdk/b"], NoIdentity::Several(2)),
        (
            vec!["spiffe://other/sdk/a"],
            NoIdentity::OtherDomain("\"spiffe://other/sdk/a\"".to_owned()),
        ),
        (
            vec!["spiffe://lockd/admin/a"],
            NoIdentity::OtherPath("\"spiffe://lockd/admin/a\"".to_owned()),
        ),
    ] {
        let expected = PeerRefused::NoIdentity(expected);
        let leaf = Odd { uris: uris.clone(), ..Odd::client() }.leaf(&ours);
        check_client(&ours, &leaf, &expected, alert);
        let leaf = Odd { uris, ..Odd::server() }.leaf(&ours);
        check_server(&ours, &leaf, &expected);
    }
}

#[test]
fn a_client_is_no_server_whatever_its_purpose_says() {
    let ours = authority();
    for (uri, role) in [
        ("spiffe://lockd/sdk/odd", Role::Sdk("odd".to_owned())),
        ("spiffe://lockd/tc/odd", Role::Tc("odd".to_owned())),
    ] {
        let leaf = Odd { uris: vec![uri], ..Odd::server() }.leaf(&ours);
        check_server(&ours, &leaf, &PeerRefused::WrongRole(role));
    }
}

#[test]
fn the_revoked_are_refused_on_both_sides() {
    let ours = authority();
    for version in VERSIONS {
        let leaf = Odd::client().leaf(&ours);
        let denied = Denylist::parse(&format!("00{}", leaf.peer.serial).to_uppercase()).unwrap();
        let (mut shaken, heard) = meet_client(&ours, &leaf, &denied, version);
        assert!(!shaken.is_whole());
        assert_eq!(heard, [PeerRefused::Revoked(leaf.peer.serial)]);
        let alert = AlertDescription::CertificateRevoked;
        assert_eq!(shaken.client_error, Some(rustls::Error::AlertReceived(alert)));
        let other = Odd::client().leaf(&ours);
        assert!(meet_client(&ours, &other, &denied, version).0.is_whole());

        let leaf = Odd::server().leaf(&ours);
        let denied = Denylist::parse(&leaf.peer.serial.to_string()).unwrap();
        let (mut shaken, heard) = meet_server(&ours, &leaf, &denied, version);
        assert!(!shaken.is_whole());
        assert_eq!(heard, [PeerRefused::Revoked(leaf.peer.serial)]);
    }
}

#[test]
fn a_ca_itself_is_no_peer() {
    let ours = authority();
    let ca = crate::fixture::leaf(ours.certificate().clone(), ours.key().clone());
    for version in VERSIONS {
        let (mut shaken, heard) = meet_client(&ours, &ca, &Denylist::default(), version);
        assert!(!shaken.is_whole());
        assert!(matches!(heard.as_slice(), [PeerRefused::Unsupported(_)]), "{heard:?}");
    }
}

/// With resumption the second handshake would be carried by the first, certificates unseen.
#[test]
fn an_earlier_session_does_not_let_the_revoked_in() {
    let ours = authority();
    for version in VERSIONS {
        let observer = Observer::default();
        let (own, peer) = (Odd::server().leaf(&ours), Odd::client().leaf(&ours));
        let credentials = live(&own, &ours, &Denylist::default());
        let server = Arc::new(server_config(&credentials, observer.listen()).unwrap());
        let live_client = live(&peer, &ours, &Denylist::default());
        let mut eager = client_of_versions(&live_client, Arc::new(|_| {}), &[version]).unwrap();
        eager.resumption = Resumption::in_memory_sessions(8);
        let eager = Arc::new(eager);
        for _ in 0..2 {
            let mut shaken = shake(&eager, &server);
            assert!(shaken.is_whole());
            assert_eq!(shaken.client.handshake_kind(), Some(HandshakeKind::Full), "{version:?}");
        }
        let denied = Denylist::parse(&peer.peer.serial.to_string()).unwrap();
        let cas = [ours.certificate().clone()];
        credentials.replace(Credentials::new(&own, &cas, &[], denied).unwrap());
        assert!(!shake(&eager, &server).is_whole());
        assert_eq!(observer.heard(), [PeerRefused::Revoked(peer.peer.serial)]);
    }
}

#[test]
fn a_reload_counts_from_the_next_handshake() {
    let (old, new) = (authority(), authority());
    let credentials = live(server(&old).leaf(), &old, &Denylist::default());
    let config = Arc::new(server_config(&credentials, Arc::new(|_| {})).unwrap());
    let of = |authority: &Authority| Arc::new(client_config(&client(authority, "x")).unwrap());
    let (of_old, of_new) = (of(&old), of(&new));
    let mut open = shake(&of_old, &config);
    assert!(open.is_whole());
    assert!(!shake(&of_new, &config).is_whole());
    let next = Credentials::server(&server(&new), &[], &Denylist::default()).unwrap();
    credentials.replace(next);
    assert!(shake(&of_new, &config).is_whole());
    assert!(!shake(&of_old, &config).is_whole());
    assert!(open.is_whole(), "an open connection is not cut");
}

#[test]
fn a_client_that_reloads_shows_its_new_certificate() {
    let (old, new) = (authority(), authority());
    let credentials: Arc<LiveCredentials> =
        live(client(&old, "x").leaf(), &old, &Denylist::default());
    let config = crate::tls::live_client_config(&credentials, Arc::new(|_| {})).unwrap();
    let of_new = live(server(&new).leaf(), &new, &Denylist::default());
    let of_new = Arc::new(server_config(&of_new, Arc::new(|_| {})).unwrap());
    let config = Arc::new(config);
    assert!(!shake(&config, &of_new).is_whole());
    credentials.replace(Credentials::client(&client(&new, "x"), &[]).unwrap());
    assert!(shake(&config, &of_new).is_whole());
}

#[test]
fn every_reason_has_a_word_and_a_sentence_of_its_own() {
    let reasons = [
        PeerRefused::NoCertificate,
        PeerRefused::OtherCa,
        PeerRefused::Intermediate,
        PeerRefused::CaOutOfTime,
        PeerRefused::Expired(now()),
        PeerRefused::NotYetValid(now()),
        PeerRefused::NoEku("clientAuth"),
        PeerRefused::WrongEku("clientAuth"),
        PeerRefused::Revoked(crate::Serial::parse("1").unwrap()),
        PeerRefused::NoIdentity(NoIdentity::Missing),
        PeerRefused::WrongRole(Role::Sdk("a".to_owned())),
        PeerRefused::Unreadable(CertificateFault::NotX509),
        PeerRefused::Unsupported("x".to_owned()),
    ];
    let distinct = |of: fn(&PeerRefused) -> String| {
        reasons.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(distinct(|reason| reason.code().to_owned()), reasons.len());
    assert_eq!(distinct(PeerRefused::to_string), reasons.len());
}

#[test]
fn what_a_stranger_calls_itself_cannot_draw_on_the_log() {
    assert_eq!(super::shown("a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb");
    assert_eq!(super::shown(&"x".repeat(999)).len(), 64);
}
