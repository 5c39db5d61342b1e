//! Judging without a handshake: who is admitted, by whose word, and what is not certificates.

use proptest::prelude::*;

use super::{Credentials, LiveCredentials, Purpose, Trust};
use crate::claims::Access;
use crate::fixture::{authority, client, now, server, sub_ca, unbounded};
use crate::identity::Role;
use crate::issue::{ClientRequest, ServerRequest};
use crate::serial::Denylist;
use crate::verify::PeerRefused;

#[test]
fn the_pool_that_vouches_is_told() {
    let (ours, theirs, nobody) = (authority(), authority(), authority());
    let trusted = [theirs.certificate().clone()];
    let credentials = Credentials::server(&server(&ours), &trusted, &Denylist::default()).unwrap();
    let admit = |authority| {
        let bundle = client(authority, "worker-1");
        credentials.admit(&[bundle.leaf().certificate.der().clone()], now())
    };
    assert_eq!(admit(&ours).unwrap().trust, Trust { own: true, tc: false });
    assert_eq!(admit(&theirs).unwrap().trust, Trust { own: false, tc: true });
    assert_eq!(admit(&nobody).unwrap_err(), PeerRefused::OtherCa);
    assert_eq!(credentials.admit(&[], now()).unwrap_err(), PeerRefused::NoCertificate);
    let both = [theirs.certificate().clone(), ours.certificate().clone()];
    let credentials = Credentials::server(&server(&ours), &both, &Denylist::default()).unwrap();
    let bundle = client(&ours, "worker-1");
    let admitted = credentials.admit(&[bundle.leaf().certificate.der().clone()], now()).unwrap();
    assert_eq!(admitted.trust, Trust { own: true, tc: true });
    assert_eq!(admitted.peer.role, Role::Sdk("worker-1".to_owned()));
    assert!(admitted.peer.claims.allows("default", Access::ReadWrite));
    assert!(!admitted.peer.claims.allows("orders", Access::Any));
}

#[test]
fn a_sub_ca_vouches_for_no_peer_unless_the_bundle_has_it() {
    // Of our making and, without a path length, of another tool's.
    for ours in [authority(), unbounded()] {
        let sub = sub_ca(&ours);
        let below = sub_ca(&sub);
        let tc = sub.issue_client(&ClientRequest::tc("intruder"), now()).unwrap();
        let peer = sub.issue_server(&ServerRequest::new(&[], None), None, now()).unwrap();
        let deep = below.issue_client(&ClientRequest::tc("intruder"), now()).unwrap();
        let der = |certificate: &crate::Certificate| certificate.der().clone();
        let (sub_ca, below_ca) = (sub.certificate(), below.certificate());
        let own = ours.issue_server(&ServerRequest::new(&[], None), None, now()).unwrap();
        let good = ours.issue_client(&ClientRequest::tc("coordinator"), now()).unwrap();
        let trusting = |cas: &[crate::Certificate]| {
            Credentials::new(&own, cas, &[], Denylist::default()).unwrap()
        };

        let plain = trusting(&[ours.certificate().clone()]);
        // The CA itself may be shown with a leaf: bundles end with it.
        for rest in [vec![], vec![der(ours.certificate())], vec![der(sub_ca)]] {
            let shown = [vec![der(&good.certificate)], rest].concat();
            assert!(plain.admit(&shown, now()).is_ok());
        }
        for shown in [
            vec![der(&tc.certificate), der(sub_ca)],
            vec![der(&tc.certificate), der(sub_ca), der(ours.certificate())],
            vec![der(&peer.certificate), der(sub_ca)],
            vec![der(&deep.certificate), der(below_ca), der(sub_ca)],
        ] {
            let refused = plain.admit(&shown, now());
            assert_eq!(refused.unwrap_err(), PeerRefused::Intermediate, "{} shown", shown.len());
        }
        let server = plain.judge(peer.certificate.der(), &[der(sub_ca)], now(), Purpose::Server);
        assert_eq!(server.unwrap_err(), PeerRefused::Intermediate);
        // A sub-CA is no peer itself.
        assert!(plain.admit(&[der(sub_ca)], now()).is_err());
        assert_eq!(
            plain.admit(&[der(&tc.certificate)], now()).unwrap_err(),
            PeerRefused::OtherCa,
            "a chain that is not shown cannot be told from a stranger's"
        );

        let allowing = trusting(&[ours.certificate().clone(), sub_ca.clone()]);
        for shown in [vec![der(&tc.certificate)], vec![der(&tc.certificate), der(sub_ca)]] {
            assert!(allowing.admit(&shown, now()).is_ok());
        }
        let shown = [der(&deep.certificate), der(below_ca), der(sub_ca)];
        assert_eq!(allowing.admit(&shown, now()).unwrap_err(), PeerRefused::Intermediate);
        let only = trusting(std::slice::from_ref(sub_ca));
        assert!(only.admit(&[der(&tc.certificate)], now()).is_ok());
        assert_eq!(
            only.admit(&[der(&good.certificate)], now()).unwrap_err(),
            PeerRefused::OtherCa,
            "who signed a CA of the bundle is not in the bundle for that"
        );
    }
}

#[test]
fn both_denylists_count_and_can_be_replaced() {
    let ours = authority();
    let (one, two) = (client(&ours, "one"), client(&ours, "two"));
    let serial = |bundle: &crate::ClientBundle| bundle.leaf().peer.serial;
    let mut bundle = server(&ours);
    assert!(bundle.revoke(serial(&one)));
    assert!(!bundle.revoke(serial(&one)));
    let external = Denylist::parse(&serial(&two).to_string()).unwrap();
    let live = LiveCredentials::new(Credentials::server(&bundle, &[], &external).unwrap());
    assert!(live.is_revoked(&serial(&one)) && live.is_revoked(&serial(&two)));
    live.replace(Credentials::server(&bundle, &[], &Denylist::default()).unwrap());
    assert!(live.is_revoked(&serial(&one)) && !live.is_revoked(&serial(&two)));
    assert!(!live.is_revoked(&live.current().own().serial));
}

#[test]
fn a_changed_certificate_is_not_believed() {
    let ours = authority();
    let credentials = Credentials::server(&server(&ours), &[], &Denylist::default()).unwrap();
    let good = client(&ours, "worker-1").leaf().certificate.der().to_vec();
    let at = good.windows(8).position(|bytes| bytes == b"worker-1").unwrap();
    let mut forged = good.clone();
    forged[at + 7] = b'2';
    assert!(credentials.admit(&[good.into()], now()).is_ok());
    assert!(credentials.admit(&[forged.into()], now()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn damaged_certificates_are_refused_without_harm(at in 0usize..400, bit in 0u8..8) {
        let ours = authority();
        let credentials =
            Credentials::server(&server(&ours), &[], &Denylist::default()).unwrap();
        let mut der = client(&ours, "worker-1").leaf().certificate.der().to_vec();
        let at = at % der.len();
        der[at] ^= 1 << bit;
        prop_assert!(credentials.admit(&[der.into()], now()).is_err());
    }

    #[test]
    fn any_bytes_are_refused_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(crate::Certificate::parse(&bytes).is_err());
    }
}
