//! Parts that tests are made of: a CA, leaves as they should be and as they should not be, and two
//! ends of a TLS connection that talk without a socket.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use rcgen::ExtendedKeyUsagePurpose::{self, ClientAuth, ServerAuth};
use rcgen::{BasicConstraints, IsCa, KeyUsagePurpose};
use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};

use crate::bundle::{ClientBundle, Leaf, ServerBundle};
use crate::certificate::Certificate;
use crate::credentials::{Credentials, LiveCredentials};
use crate::identity::{Peer, Role};
use crate::issue::{Authority, CA_NAME, ClientRequest, Draft, ServerRequest};
use crate::key::PrivateKey;
use crate::seal::Cost;
use crate::serial::Denylist;
use crate::verify::{OnRefusal, PeerRefused};

/// Protects nothing, and costs nothing.
pub(crate) const CHEAP: Cost = Cost { memory_kib: 64, passes: 1, lanes: 1 };

pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// So many days from now.
pub(crate) fn day(days: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() + days * 24 * 60 * 60).unwrap()
}

pub(crate) fn authority() -> Authority {
    Authority::create(CA_NAME, now()).unwrap()
}

/// A CA as other tools make them: it may have any number of CAs below it.
pub(crate) fn unbounded() -> Authority {
    Authority::self_signed(CA_NAME, 3650, now(), BasicConstraints::Unconstrained).unwrap()
}

/// A CA whose certificate another CA signed.
pub(crate) fn sub_ca(authority: &Authority) -> Authority {
    let (usages, uris) = (Vec::new(), Vec::new());
    let draft = Draft { name: "sub-ca", now: now(), days: 365, usages, uris, hosts: &[] };
    let mut params = draft.params().unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = PrivateKey::generate().unwrap();
    Authority::new(authority.sign(&params, &key).unwrap(), key).unwrap()
}

pub(crate) fn server(authority: &Authority) -> ServerBundle {
    ServerBundle::issue(authority, &ServerRequest::new(&[], None), now()).unwrap()
}

pub(crate) fn client(authority: &Authority, name: &str) -> ClientBundle {
    let leaf = authority.issue_client(&ClientRequest::sdk(name, Vec::new()), now()).unwrap();
    ClientBundle::new(authority, leaf)
}

/// A certificate with anything wrong with it.
#[derive(Clone)]
pub(crate) struct Odd {
    pub(crate) at: Timestamp,
    pub(crate) days: u32,
    pub(crate) usages: Vec<ExtendedKeyUsagePurpose>,
    pub(crate) uris: Vec<&'static str>,
}

impl Odd {
    /// Nothing wrong yet.
    pub(crate) fn client() -> Self {
        let uris = vec!["spiffe://lockd/sdk/odd", "lockd://ns/default?perm=rw"];
        Self { at: now(), days: 365, usages: vec![ClientAuth], uris }
    }

    pub(crate) fn server() -> Self {
        let uris = vec!["spiffe://lockd/server/odd", "lockd://ns/ALL?perm=rw"];
        Self { at: now(), days: 365, usages: vec![ServerAuth, ClientAuth], uris }
    }

    pub(crate) fn leaf(&self, authority: &Authority) -> Leaf {
        let draft = Draft {
            name: "odd",
            now: self.at,
            days: self.days,
            usages: self.usages.clone(),
            uris: self.uris.iter().map(|uri| (*uri).to_owned()).collect(),
            hosts: &[],
        };
        let key = PrivateKey::generate().unwrap();
        leaf(authority.sign(&draft.params().unwrap(), &key).unwrap(), key)
    }
}

/// A leaf even where the certificate names nobody.
pub(crate) fn leaf(certificate: Certificate, key: PrivateKey) -> Leaf {
    let peer = Peer::of(&certificate).unwrap_or_else(|_| Peer {
        role: Role::Sdk("nobody".to_owned()),
        serial: certificate.serial,
        claims: crate::Claims::Granted(crate::claims::Grants::default()),
        not_before: certificate.not_before,
        not_after: certificate.not_after,
    });
    Leaf { certificate, key, peer }
}

pub(crate) fn live(leaf: &Leaf, authority: &Authority, denied: &Denylist) -> Arc<LiveCredentials> {
    let cas = [authority.certificate().clone()];
    LiveCredentials::new(Credentials::new(leaf, &cas, &[], denied.clone()).unwrap())
}

/// Remembers what it was told.
#[derive(Clone, Default)]
pub(crate) struct Observer(Arc<Mutex<Vec<PeerRefused>>>);

impl Observer {
    pub(crate) fn listen(&self) -> OnRefusal {
        let heard = Arc::clone(&self.0);
        Arc::new(move |refusal| heard.lock().push(refusal.reason.clone()))
    }

    pub(crate) fn heard(&self) -> Vec<PeerRefused> {
        self.0.lock().clone()
    }
}

/// How a handshake went, for both ends.
pub(crate) struct Shaken {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    pub(crate) client_error: Option<rustls::Error>,
    pub(crate) server_error: Option<rustls::Error>,
}

impl Shaken {
    /// Finished without complaint, and the server hears what the client says.
    pub(crate) fn is_whole(&mut self) -> bool {
        use std::io::{Read, Write};
        if self.client_error.is_some() || self.server_error.is_some() {
            return false;
        }
        self.client.writer().write_all(b"ping").unwrap();
        carry(&mut self.client, &mut self.server).unwrap();
        let mut heard = [0; 4];
        self.server.reader().read_exact(&mut heard).is_ok() && &heard == b"ping"
    }
}

pub(crate) const VERSIONS: [&SupportedProtocolVersion; 2] =
    [&rustls::version::TLS12, &rustls::version::TLS13];

/// A handshake over nothing. The name that the client asks for is nobody's.
pub(crate) fn shake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Shaken {
    let name = ServerName::try_from("nobody.invalid").unwrap();
    let client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let server = ServerConnection::new(Arc::clone(server)).unwrap();
    let mut shaken = Shaken {
        client: client.into(),
        server: server.into(),
        client_error: None,
        server_error: None,
    };
    for _ in 0..10 {
        let said = carry(&mut shaken.client, &mut shaken.server);
        shaken.server_error = shaken.server_error.or(said.err());
        let said = carry(&mut shaken.server, &mut shaken.client);
        shaken.client_error = shaken.client_error.or(said.err());
    }
    shaken
}

/// Everything that one end has to say, to the other end.
fn carry(from: &mut Connection, to: &mut Connection) -> Result<(), rustls::Error> {
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).unwrap();
    }
    let mut wire = wire.as_slice();
    while !wire.is_empty() {
        to.read_tls(&mut wire).unwrap();
        to.process_new_packets()?;
    }
    Ok(())
}
