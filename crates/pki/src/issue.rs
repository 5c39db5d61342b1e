//! Making certificates: a CA that signs itself, and servers and clients signed by it.
//!
//! Keys are Ed25519, serials are random, and a certificate is valid from an hour ago, so that a
//! clock that is a little behind accepts it. What a name may look like is checked here, because a
//! name goes into an identity as it is. Where bundles are kept is for `bundle` and `files`.

use std::net::IpAddr;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm, SigningKey,
    SubjectPublicKeyInfo,
};
use rustls::SignatureScheme;
use uuid::Builder;
use x509_parser::time::ASN1Time;

use crate::bundle::Leaf;
use crate::certificate::Certificate;
use crate::claims::Claim;
use crate::entropy;
use crate::error::IssueError;
use crate::identity::{Peer, Role, is_name};
use crate::key::PrivateKey;
use crate::serial::Serial;

pub const CA_NAME: &str = "lockd-ca";
pub const SERVER_NAME: &str = "lockd-server";
pub const CLIENT_NAME: &str = "lockd-client";
pub const TC_NAME: &str = "lockd-tc-client";

const DAY_SECONDS: i64 = 24 * 60 * 60;
const CA_DAYS: u32 = 3650;
const LEAF_DAYS: u32 = 365;
const DAYS_MAX: u32 = 3650;
const BACKDATE_SECONDS: i64 = 60 * 60;
const HOST_CHARS_MAX: usize = 253;

/// A CA that can sign: its certificate and the key to it.
#[derive(Clone, Debug)]
pub struct Authority {
    certificate: Certificate,
    key: PrivateKey,
}

/// A server's certificate, as wished for.
#[derive(Clone, Debug)]
pub struct ServerRequest {
    pub name: String,
    /// Names and addresses; `*` is accepted. They are for people and other tools to read.
    pub hosts: Vec<String>,
    pub days: u32,
}

/// A client's certificate, as wished for.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    pub name: String,
    pub kind: ClientKind,
    pub days: u32,
}

#[derive(Clone, Debug)]
pub enum ClientKind {
    /// An ordinary client and the namespaces it may use.
    Sdk(Vec<Claim>),
    /// A transaction coordinator's client, which may use all.
    Tc,
}

/// What a certificate is to say.
pub(crate) struct Draft<'a> {
    pub(crate) name: &'a str,
    pub(crate) now: Timestamp,
    pub(crate) days: u32,
    pub(crate) usages: Vec<ExtendedKeyUsagePurpose>,
    pub(crate) uris: Vec<String>,
    pub(crate) hosts: &'a [String],
}

impl ServerRequest {
    /// The default name and a year; hosts as given, else the machine itself.
    #[must_use]
    pub fn new(hosts: &[String], machine: Option<&str>) -> Self {
        let hosts = if hosts.is_empty() { local_hosts(machine) } else { hosts.to_vec() };
        Self { name: SERVER_NAME.to_owned(), hosts, days: LEAF_DAYS }
    }
}

impl ClientRequest {
    /// An ordinary client for a year; without claims it may use the namespace `default`.
    #[must_use]
    pub fn sdk(name: &str, mut claims: Vec<Claim>) -> Self {
        if claims.is_empty() {
            claims.extend(Claim::parse("default=rw"));
        }
        Self { name: name.to_owned(), kind: ClientKind::Sdk(claims), days: LEAF_DAYS }
    }

    #[must_use]
    pub fn tc(name: &str) -> Self {
        Self { name: name.to_owned(), kind: ClientKind::Tc, days: LEAF_DAYS }
    }
}

impl Authority {
    /// A new CA, for ten years.
    ///
    /// # Errors
    /// When the name is not one, or the system has no random bytes.
    pub fn create(name: &str, now: Timestamp) -> Result<Self, IssueError> {
        Self::create_for(name, CA_DAYS, now)
    }

    /// A new CA, for a number of days.
    ///
    /// # Errors
    /// When the name or the number is not one, or the system has no random bytes.
    pub fn create_for(name: &str, days: u32, now: Timestamp) -> Result<Self, IssueError> {
        // Path length 0: it may sign servers and clients, but no further CA.
        Self::self_signed(name, days, now, BasicConstraints::Constrained(0))
    }

    pub(crate) fn self_signed(
        name: &str,
        days: u32,
        now: Timestamp,
        below: BasicConstraints,
    ) -> Result<Self, IssueError> {
        let key = PrivateKey::generate()?;
        let draft = Draft { name, now, days, usages: Vec::new(), uris: Vec::new(), hosts: &[] };
        let mut params = draft.params()?;
        params.is_ca = IsCa::Ca(below);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let signed = params.self_signed(&Signer::new(&key)?).map_err(failed)?;
        Ok(Self { certificate: parsed(signed.der())?, key })
    }

    /// A CA out of its parts.
    ///
    /// # Errors
    /// When they do not belong together, or the key is of a kind that we do not sign with.
    pub fn new(certificate: Certificate, key: PrivateKey) -> Result<Self, IssueError> {
        if !key.belongs_to(&certificate) {
            return Err(IssueError::OtherCaKey);
        }
        Signer::new(&key)?;
        Ok(Self { certificate, key })
    }

    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    pub(crate) fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// A server's certificate. Without a node id it gets a new one.
    ///
    /// # Errors
    /// When the request cannot be granted as it is.
    pub fn issue_server(
        &self,
        request: &ServerRequest,
        node_id: Option<&str>,
        now: Timestamp,
    ) -> Result<Leaf, IssueError> {
        let node_id = match node_id {
            Some(known) if is_name(known) => known.to_owned(),
            Some(other) => return Err(IssueError::Name(other.to_owned())),
            None => new_node_id(now)?,
        };
        self.issue(&Draft {
            name: &request.name,
            now,
            days: request.days,
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            uris: vec![Role::Server(node_id).uri(), Claim::all().uri()],
            hosts: &request.hosts,
        })
    }

    /// A client's certificate.
    ///
    /// # Errors
    /// When the request cannot be granted as it is.
    pub fn issue_client(
        &self,
        request: &ClientRequest,
        now: Timestamp,
    ) -> Result<Leaf, IssueError> {
        let name = request.name.clone();
        let uris = match &request.kind {
            ClientKind::Tc => vec![Role::Tc(name).uri(), Claim::all().uri()],
            ClientKind::Sdk(claims) => {
                let identity = [Role::Sdk(name).uri()];
                identity.into_iter().chain(claims.iter().map(Claim::uri)).collect()
            }
        };
        self.issue(&Draft {
            name: &request.name,
            now,
            days: request.days,
            usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
            uris,
            hosts: &[],
        })
    }

    fn issue(&self, draft: &Draft<'_>) -> Result<Leaf, IssueError> {
        let (mut params, end) = (draft.params()?, self.certificate.not_after);
        if end <= draft.now {
            return Err(IssueError::CaExpired(end));
        }
        // Nobody accepts a certificate when its CA has ended: it should not say otherwise.
        params.not_after = params.not_after.min(asn1_time(end.as_second())?.to_datetime());
        let key = PrivateKey::generate()?;
        let certificate = self.sign(&params, &key)?;
        let peer = Peer::of(&certificate).map_err(|error| IssueError::Failed(error.to_string()))?;
        Ok(Leaf { certificate, key, peer })
    }

    pub(crate) fn sign(
        &self,
        params: &CertificateParams,
        key: &PrivateKey,
    ) -> Result<Certificate, IssueError> {
        let signer = Signer::new(&self.key)?;
        let issuer = Issuer::from_ca_cert_der(self.certificate.der(), signer).map_err(failed)?;
        let public_key = SubjectPublicKeyInfo::from_der(key.public_key()).map_err(failed)?;
        parsed(params.signed_by(&public_key, &issuer).map_err(failed)?.der())
    }
}

impl Draft<'_> {
    pub(crate) fn params(&self) -> Result<CertificateParams, IssueError> {
        if !is_name(self.name) {
            return Err(IssueError::Name(self.name.to_owned()));
        }
        if !(1..=DAYS_MAX).contains(&self.days) {
            return Err(IssueError::Days(self.days));
        }
        let (mut params, now) = (CertificateParams::default(), self.now.as_second());
        params.not_before = asn1_time(now - BACKDATE_SECONDS)?.to_datetime();
        params.not_after = asn1_time(now + i64::from(self.days) * DAY_SECONDS)?.to_datetime();
        params.serial_number = Some(SerialNumber::from(new_serial()?.octets()));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages.clone_from(&self.usages);
        params.use_authority_key_identifier_extension = true;
        for uri in &self.uris {
            let uri = uri.as_str().try_into().map_err(failed)?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        for host in self.hosts {
            params.subject_alt_names.push(host_name(host)?);
        }
        Ok(params)
    }
}

/// Our key as the certificate maker wants to see it.
struct Signer<'a> {
    key: &'a PrivateKey,
    public_key: SubjectPublicKeyInfo,
}

impl<'a> Signer<'a> {
    fn new(key: &'a PrivateKey) -> Result<Self, IssueError> {
        let public_key = SubjectPublicKeyInfo::from_der(key.public_key()).map_err(failed)?;
        if public_key.algorithm() != &rcgen::PKCS_ED25519 {
            return Err(IssueError::CaKeyType);
        }
        Ok(Self { key, public_key })
    }
}

impl PublicKeyData for Signer<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.public_key.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.public_key.algorithm()
    }
}

impl SigningKey for Signer<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signer = self.key.signing().choose_scheme(&[SignatureScheme::ED25519]);
        let signer = signer.ok_or(rcgen::Error::RemoteKeyError)?;
        signer.sign(message).map_err(|_| rcgen::Error::RemoteKeyError)
    }
}

/// Names under which a machine reaches itself.
#[must_use]
pub fn local_hosts(machine: Option<&str>) -> Vec<String> {
    let mut hosts = vec!["localhost".to_owned()];
    hosts.extend(machine.filter(|name| *name != "localhost").map(str::to_owned));
    hosts.extend(["127.0.0.1".to_owned(), "::1".to_owned()]);
    hosts
}

fn host_name(host: &str) -> Result<SanType, IssueError> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let refused = || IssueError::Host(host.to_owned());
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '*');
    if !(1..=HOST_CHARS_MAX).contains(&host.len()) || !host.chars().all(allowed) {
        return Err(refused());
    }
    Ok(SanType::DnsName(host.try_into().map_err(|_| refused())?))
}

/// More than 0 and less than 2^62, so that it is positive and short in every encoding.
fn new_serial() -> Result<Serial, IssueError> {
    let number = u64::from_be_bytes(entropy::bytes()?) >> 2;
    Ok(Serial::from_number(number.max(1)))
}

/// Ordered by time, as other ids are.
fn new_node_id(now: Timestamp) -> Result<String, IssueError> {
    let millis = u64::try_from(now.as_millisecond()).map_err(|_| IssueError::Time)?;
    let id = Builder::from_unix_timestamp_millis(millis, &entropy::bytes()?);
    Ok(id.into_uuid().to_string())
}

fn asn1_time(seconds: i64) -> Result<ASN1Time, IssueError> {
    ASN1Time::from_timestamp(seconds).map_err(|_| IssueError::Time)
}

fn parsed(der: &[u8]) -> Result<Certificate, IssueError> {
    Certificate::parse(der).map_err(|fault| IssueError::Failed(format!("what was made {fault}")))
}

#[expect(clippy::needless_pass_by_value, reason = "used where errors are mapped")]
fn failed(error: rcgen::Error) -> IssueError {
    IssueError::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use x509_parser::prelude::{FromDer as _, X509Certificate};

    use super::{Authority, CA_NAME, ClientKind, ClientRequest, ServerRequest, new_serial};
    use crate::claims::{Access, Claim};
    use crate::error::IssueError;
    use crate::fixture::{authority, now};
    use crate::identity::Role;
    use crate::serial::Serial;

    const DAY: i64 = 24 * 60 * 60;

    #[test]
    fn certificates_last_as_long_as_they_should() {
        let (ours, now) = (authority(), now());
        let ca = Authority::create(CA_NAME, now).unwrap().certificate().clone();
        let client = ours.issue_client(&ClientRequest::tc("t"), now).unwrap().certificate;
        let server =
            ours.issue_server(&ServerRequest::new(&[], None), None, now).unwrap().certificate;
        for (certificate, days) in [(ca, 3650), (client, 365), (server, 365)] {
            assert_eq!(certificate.not_before.as_second(), now.as_second() - 3600);
            assert_eq!(certificate.not_after.as_second(), now.as_second() + days * DAY);
        }
    }

    #[test]
    fn a_ca_lasts_as_long_as_was_asked_for() {
        let ca = Authority::create_for(CA_NAME, 30, now()).unwrap();
        let end = ca.certificate().not_after.as_second();
        assert_eq!(end, now().as_second() + 30 * DAY);
        for days in [0, 3651] {
            let refused = Authority::create_for(CA_NAME, days, now()).unwrap_err();
            assert_eq!(refused, IssueError::Days(days));
        }
    }

    #[test]
    fn a_ca_of_ours_may_have_no_ca_below_it() {
        let ca = authority();
        let (_, x509) = X509Certificate::from_der(ca.certificate().der()).unwrap();
        let constraints = x509.basic_constraints().unwrap().unwrap().value;
        assert_eq!((constraints.ca, constraints.path_len_constraint), (true, Some(0)));
    }

    #[test]
    fn nothing_is_issued_beyond_the_end_of_its_ca() {
        let ca = Authority::create_for(CA_NAME, 30, now()).unwrap();
        let end = ca.certificate().not_after;
        let client = ca.issue_client(&ClientRequest::tc("t"), now()).unwrap().certificate;
        assert_eq!(client.not_after, end);
        let refused = ca.issue_client(&ClientRequest::tc("t"), end).unwrap_err();
        assert_eq!(refused, IssueError::CaExpired(end));
    }

    #[test]
    fn clients_are_named_and_may_what_was_asked_for() {
        let ours = authority();
        let plain = ours.issue_client(&ClientRequest::sdk("worker-1", Vec::new()), now()).unwrap();
        assert_eq!(plain.peer.role, Role::Sdk("worker-1".to_owned()));
        assert_eq!(plain.peer.claims.list(), ["default=rw"]);
        let claims = vec![Claim::parse("orders=r").unwrap(), Claim::parse("ALL=w").unwrap()];
        let asked = ours.issue_client(&ClientRequest::sdk("x", claims), now()).unwrap();
        assert_eq!(asked.peer.claims.list(), ["ALL=w", "orders=r"]);
        let tc = ours.issue_client(&ClientRequest::tc("t"), now()).unwrap();
        assert_eq!(tc.peer.role, Role::Tc("t".to_owned()));
        assert!(tc.peer.claims.all_rw());
        assert!(tc.peer.claims.allows("orders", Access::ReadWrite));
        let none = ClientRequest { kind: ClientKind::Sdk(Vec::new()), ..ClientRequest::tc("n") };
        assert_eq!(ours.issue_client(&none, now()).unwrap().peer.claims.list(), [""; 0]);
    }

    #[test]
    fn names_hosts_and_days_are_checked() {
        let ours = authority();
        for name in ["", "a b", "a/b", "..", "ä"] {
            let refused = ours.issue_client(&ClientRequest::tc(name), now()).unwrap_err();
            assert_eq!(refused, IssueError::Name(name.to_owned()));
            assert!(Authority::create(name, now()).is_err());
        }
        let server = |host: &str| {
            let request = ServerRequest::new(&[host.to_owned()], None);
            ours.issue_server(&request, None, now()).map(|leaf| leaf.certificate.hosts)
        };
        for (host, shown) in [("*", "*"), ("*.example", "*.example"), ("[::1]", "::1")] {
            assert_eq!(server(host).unwrap(), [shown]);
        }
        for host in ["", "a b", "http://x", "ä.example"] {
            assert_eq!(server(host).unwrap_err(), IssueError::Host(host.to_owned()));
        }
        for days in [0, 3651] {
            let request = ClientRequest { days, ..ClientRequest::tc("t") };
            assert_eq!(ours.issue_client(&request, now()).unwrap_err(), IssueError::Days(days));
        }
    }

    #[test]
    fn servers_get_a_node_id_in_the_order_of_time() {
        let ours = authority();
        let issue = |node_id| {
            let request = ServerRequest::new(&[], Some("box"));
            ours.issue_server(&request, node_id, now())
        };
        let leaf = issue(None).unwrap();
        let id = uuid::Uuid::parse_str(leaf.peer.role.name()).unwrap();
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(leaf.certificate.hosts, ["localhost", "box", "127.0.0.1", "::1"]);
        assert_eq!(issue(Some("node-1")).unwrap().peer.role, Role::Server("node-1".to_owned()));
        assert!(issue(Some("node 1")).is_err());
    }

    #[test]
    fn serials_are_random_positive_and_short() {
        let serials: BTreeSet<Serial> = (0..1000).map(|_| new_serial().unwrap()).collect();
        assert_eq!(serials.len(), 1000);
        let most = Serial::from_number((1 << 62) - 1);
        assert!(serials.iter().all(|serial| *serial > Serial::from_number(0) && *serial <= most));
        assert!(serials.iter().any(|serial| *serial > Serial::from_number(1 << 60)));
    }

    #[test]
    fn a_key_of_somebody_else_makes_no_ca() {
        let (one, two) = (authority(), authority());
        let mixed = Authority::new(one.certificate().clone(), two.key().clone());
        assert_eq!(mixed.unwrap_err(), IssueError::OtherCaKey);
    }
}
