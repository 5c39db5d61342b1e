//! What a process shows and whom it believes: its certificate, the CAs it trusts and the serials
//! it refuses, checked together. [`LiveCredentials`] holds the present set and can be given
//! another one while connections come and go; every handshake asks it afresh.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::bundle::{ClientBundle, Leaf, ServerBundle};
use crate::certificate::{Certificate, Usages};
use crate::error::{BundleError, BundleFault};
use crate::identity::{Peer, Role};
use crate::serial::{Denylist, Serial};
use crate::verify::PeerRefused;

/// One set of credentials. It never changes; a reload makes another.
pub struct Credentials {
    certified: Arc<CertifiedKey>,
    own: Peer,
    anchors: Vec<Anchor>,
    denylist: Denylist,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The credentials of the moment.
#[derive(Debug)]
pub struct LiveCredentials {
    current: RwLock<Arc<Credentials>>,
}

/// A peer that was let in, and by whose word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub peer: Peer,
    pub trust: Trust,
}

/// Which pools the CA of a peer is in; it may be in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The CAs of our own bundle.
    pub own: bool,
    /// The CAs that are trusted for the sake of transaction coordinators elsewhere.
    pub tc: bool,
}

/// What the peer wants to be for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Client,
    Server,
}

/// A CA that is trusted while it is in time. TLS libraries do not ask a trusted CA for its dates.
struct Anchor {
    anchor: TrustAnchor<'static>,
    trust: Trust,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl Credentials {
    /// A server's: from its bundle, with further CAs whose coordinators may come in and further
    /// serials that may not.
    ///
    /// # Errors
    /// When a CA certificate is of a kind that TLS cannot trust.
    pub fn server(
        bundle: &ServerBundle,
        tc_trust: &[Certificate],
        denied: &Denylist,
    ) -> Result<Self, BundleError> {
        let mut denylist = bundle.denylist().clone();
        denylist.extend(denied);
        Self::new(bundle.leaf(), bundle.certificates(), tc_trust, denylist)
            .map_err(|fault| fault.of(bundle.file()))
    }

    /// A client's: from its bundle, with further CAs whose servers it believes.
    ///
    /// # Errors
    /// When a CA certificate is of a kind that TLS cannot trust.
    pub fn client(bundle: &ClientBundle, tc_trust: &[Certificate]) -> Result<Self, BundleError> {
        Self::new(bundle.leaf(), bundle.certificates(), tc_trust, Denylist::default())
            .map_err(|fault| fault.of(bundle.file()))
    }

    pub(crate) fn new(
        leaf: &Leaf,
        own: &[Certificate],
        tc: &[Certificate],
        denylist: Denylist,
    ) -> Result<Self, BundleFault> {
        let mut anchors = Vec::with_capacity(own.len() + tc.len());
        for ca in own {
            anchors.push(Anchor::new(ca, Trust { own: true, tc: false })?);
        }
        for ca in tc {
            anchors.push(Anchor::new(ca, Trust { own: false, tc: true })?);
        }
        let chain = vec![leaf.certificate.der().clone()];
        Ok(Self {
            certified: Arc::new(CertifiedKey::new(chain, Arc::clone(leaf.key.signing()))),
            own: leaf.peer.clone(),
            anchors,
            denylist,
            algorithms: rustls::crypto::ring::default_provider().signature_verification_algorithms,
        })
    }

    /// Who we are ourselves.
    #[must_use]
    pub fn own(&self) -> &Peer {
        &self.own
    }

    #[must_use]
    pub fn denylist(&self) -> &Denylist {
        &self.denylist
    }

    #[must_use]
    pub fn is_revoked(&self, serial: &Serial) -> bool {
        self.denylist.contains(serial)
    }

    /// Judges a client by its certificates, its own first. The handshake has asked the same; this
    /// is for whoever needs the peer afterwards, or holds a certificate without a connection.
    ///
    /// # Errors
    /// With the reason, when it is not let in.
    pub fn admit(
        &self,
        chain: &[CertificateDer<'_>],
        now: Timestamp,
    ) -> Result<Admitted, PeerRefused> {
        let (leaf, rest) = chain.split_first().ok_or(PeerRefused::NoCertificate)?;
        self.judge(leaf, rest, now, Purpose::Client)
    }

    /// Whether this CA signed the certificate, whatever the time is now.
    pub(crate) fn has_signed(ca: &Certificate, leaf: &Leaf) -> bool {
        let alone = Self::new(leaf, std::slice::from_ref(ca), &[], Denylist::default());
        let when = (leaf.certificate.not_before, Purpose::Client);
        alone.is_ok_and(|alone| {
            alone.follow(leaf.certificate.der(), &[], alone.anchors.iter(), when).is_ok()
        })
    }

    pub(crate) fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: Timestamp,
        purpose: Purpose,
    ) -> Result<Admitted, PeerRefused> {
        let certificate = Certificate::parse(leaf).map_err(PeerRefused::Unreadable)?;
        let trust = self.anchor_of(leaf, rest, now, purpose)?;
        purpose.check(certificate.usages)?;
        if self.is_revoked(&certificate.serial) {
            return Err(PeerRefused::Revoked(certificate.serial));
        }
        let peer = Peer::of(&certificate)?;
        match (purpose, &peer.role) {
            (Purpose::Client, _) | (Purpose::Server, Role::Server(_)) => {
                Ok(Admitted { peer, trust })
            }
            (Purpose::Server, Role::Tc(_) | Role::Sdk(_)) => Err(PeerRefused::WrongRole(peer.role)),
        }
    }

    /// Follows the signature to a CA that is trusted now. Every CA certificate of the bundle is
    /// trusted itself, so none is needed in between: further certificates that a peer shows are
    /// not followed, because TLS libraries ignore the path length of a trusted CA.
    fn anchor_of(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: Timestamp,
        purpose: Purpose,
    ) -> Result<Trust, PeerRefused> {
        let in_time = |anchor: &&Anchor| anchor.not_before <= now && now <= anchor.not_after;
        let valid = self.follow(leaf, &[], self.anchors.iter().filter(in_time), (now, purpose));
        let Err(PeerRefused::OtherCa) = valid else { return valid };
        if self.follow(leaf, &[], self.anchors.iter(), (now, purpose)).is_ok() {
            return Err(PeerRefused::CaOutOfTime);
        }
        // Only to say why: nothing that is found here lets the peer in.
        match self.follow(leaf, rest, self.anchors.iter(), (now, purpose)) {
            Ok(_) => Err(PeerRefused::Intermediate),
            Err(_) => Err(PeerRefused::OtherCa),
        }
    }

    fn follow<'a>(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        anchors: impl Iterator<Item = &'a Anchor>,
        (now, purpose): (Timestamp, Purpose),
    ) -> Result<Trust, PeerRefused> {
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let anchors: Vec<TrustAnchor<'_>> = anchors.map(|anchor| anchor.anchor.clone()).collect();
        let end = EndEntityCert::try_from(leaf).map_err(PeerRefused::of_webpki)?;
        let path = end
            .verify_for_usage(self.algorithms.all, &anchors, rest, now, purpose.usage(), None, None)
            .map_err(PeerRefused::of_webpki)?;
        let found = path.anchor();
        let same = self.anchors.iter().filter(|known| {
            known.anchor.subject == found.subject
                && known.anchor.subject_public_key_info == found.subject_public_key_info
        });
        Ok(same.fold(Trust::default(), |sum, known| Trust {
            own: sum.own || known.trust.own,
            tc: sum.tc || known.trust.tc,
        }))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("own", &self.own)
            .field("anchors", &self.anchors.len())
            .field("denylist", &self.denylist)
            .finish_non_exhaustive()
    }
}

impl LiveCredentials {
    #[must_use]
    pub fn new(credentials: Credentials) -> Arc<Self> {
        Arc::new(Self { current: RwLock::new(Arc::new(credentials)) })
    }

    /// The credentials of this moment; they stay whole however long they are held.
    #[must_use]
    pub fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.current.read())
    }

    /// From now on every handshake and every question uses these.
    pub fn replace(&self, credentials: Credentials) {
        let next = Arc::new(credentials);
        let last = std::mem::replace(&mut *self.current.write(), next);
        // Freed after the lock is gone, should nobody else hold it.
        drop(last);
    }

    /// Cheap enough for every request: a read lock and a search in a sorted set.
    #[must_use]
    pub fn is_revoked(&self, serial: &Serial) -> bool {
        self.current.read().is_revoked(serial)
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.current.read().certified)
    }
}

impl Anchor {
    fn new(ca: &Certificate, trust: Trust) -> Result<Self, BundleFault> {
        let anchor = anchor_from_trusted_cert(ca.der())
            .map_err(|_| BundleFault::UnusableCa(ca.name.clone()))?
            .to_owned();
        Ok(Self { anchor, trust, not_before: ca.not_before, not_after: ca.not_after })
    }
}

impl Purpose {
    fn usage(self) -> KeyUsage {
        match self {
            Self::Client => KeyUsage::client_auth(),
            Self::Server => KeyUsage::server_auth(),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Client => "clientAuth",
            Self::Server => "serverAuth",
        }
    }

    /// The purpose must be written down: following a chain only asks that no other one is.
    fn check(self, usages: Option<Usages>) -> Result<(), PeerRefused> {
        let has = match (self, usages) {
            (_, None) => return Err(PeerRefused::NoEku(self.as_str())),
            (Self::Client, Some(usages)) => usages.client,
            (Self::Server, Some(usages)) => usages.server,
        };
        if has { Ok(()) } else { Err(PeerRefused::WrongEku(self.as_str())) }
    }
}

#[cfg(test)]
mod tests;
