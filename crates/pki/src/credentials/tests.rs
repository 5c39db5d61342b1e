//! Judging without a handshake: who is admitted, by whose word, and what is not certificates.

use proptest::prelude::*;

use super::{Credentials, LiveCredentials, Trust};
use crate::claims::Access;
use crate::fixture::{authority, client, now, server};
use crate::identity::Role;
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
