//! Bundles: everything that one party needs, in one PEM file. The order of the blocks does not
//! matter; CAs are known by their flag, keys find their certificates by the public key, and blocks
//! that mean nothing to us are kept as they are. What kind of bundle it is follows from whose
//! certificate is in it. Files are read and written in `files`.

use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::certificate::Certificate;
use crate::error::{BundleError, BundleFault, IssueError};
use crate::identity::{Peer, Role};
use crate::inspect::CaKey;
use crate::issue::{Authority, ServerRequest};
use crate::key::{Form, PrivateKey};
use crate::pem::{self, Block};
use crate::seal::{self, Cost, Password, Sealed};
use crate::serial::{Denylist, Serial};

const CERTIFICATE: &str = "CERTIFICATE";
const DENYLIST: &str = "LOCKD DENYLIST";
const FOREIGN_ENCRYPTED: &str = "ENCRYPTED PRIVATE KEY";

/// Any bundle.
#[derive(Clone, Debug)]
pub enum Bundle {
    Ca(CaBundle),
    Server(ServerBundle),
    Client(ClientBundle),
}

/// CAs to trust and, where it is kept, the key that signs for one of them.
#[derive(Clone, Debug)]
pub struct CaBundle {
    authorities: Authorities,
    rest: Vec<Block>,
}

/// A server: its certificate and key, the CAs whose clients it lets in, and who is revoked.
#[derive(Clone, Debug)]
pub struct ServerBundle {
    authorities: Authorities,
    leaf: Leaf,
    denylist: Denylist,
    rest: Vec<Block>,
}

/// A client of either kind: its certificate and key, and the CAs whose servers it believes.
#[derive(Clone, Debug)]
pub struct ClientBundle {
    authorities: Authorities,
    leaf: Leaf,
    rest: Vec<Block>,
}

/// A certificate, its key, and whom it names.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub certificate: Certificate,
    pub key: PrivateKey,
    pub peer: Peer,
}

/// The CA part of a bundle.
#[derive(Clone, Debug)]
struct Authorities {
    /// What the file is called in messages.
    file: String,
    certificates: Vec<Certificate>,
    key: Option<AuthorityKey>,
}

#[derive(Clone, Debug)]
enum AuthorityKey {
    Plain(PrivateKey),
    Sealed(Sealed),
}

impl Bundle {
    /// Reads a bundle of whatever kind. `file` is what messages call it.
    ///
    /// # Errors
    /// When the text is not one, with what is wrong and what to do.
    pub fn parse(file: &str, text: &str) -> Result<Self, BundleError> {
        Parts::read(text).and_then(|parts| parts.assemble(file)).map_err(|fault| fault.of(file))
    }

    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ca(_) => "CA",
            Self::Server(_) => "server",
            Self::Client(client) => match client.leaf.peer.role {
                Role::Tc(_) => "TC client",
                Role::Sdk(_) | Role::Server(_) => "client",
            },
        }
    }

    /// Whether the key of a CA is in it, and how.
    #[must_use]
    pub fn ca_key(&self) -> CaKey {
        let authorities = match self {
            Self::Ca(bundle) => &bundle.authorities,
            Self::Server(bundle) => &bundle.authorities,
            Self::Client(bundle) => &bundle.authorities,
        };
        match authorities.key {
            None => CaKey::Absent,
            Some(AuthorityKey::Plain(_)) => CaKey::Plain,
            Some(AuthorityKey::Sealed(_)) => CaKey::Sealed,
        }
    }

    fn other_kind(&self, file: &str, wanted: &'static str) -> BundleError {
        BundleFault::OtherKind { wanted, found: self.kind() }.of(file)
    }
}

impl CaBundle {
    /// A bundle for a new CA, its key sealed when there is a password.
    ///
    /// # Errors
    /// When the key cannot be sealed.
    pub fn new(
        authority: &Authority,
        password: Option<&Password>,
        cost: Cost,
    ) -> Result<Self, IssueError> {
        let mut authorities = Authorities::of(authority, "ca.pem");
        authorities.key = Some(match password {
            None => AuthorityKey::Plain(authority.key().clone()),
            Some(password) => AuthorityKey::Sealed(Sealed::seal(authority.key(), password, cost)?),
        });
        Ok(Self { authorities, rest: Vec::new() })
    }

    /// # Errors
    /// When the text is not a CA bundle.
    pub fn parse(file: &str, text: &str) -> Result<Self, BundleError> {
        match Bundle::parse(file, text)? {
            Bundle::Ca(bundle) => Ok(bundle),
            other @ (Bundle::Server(_) | Bundle::Client(_)) => Err(other.other_kind(file, "CA")),
        }
    }

    #[must_use]
    pub fn certificates(&self) -> &[Certificate] {
        &self.authorities.certificates
    }

    /// The CA that can sign.
    ///
    /// # Errors
    /// When the key is not there, or the password is missing or wrong.
    pub fn authority(&self, password: Option<&Password>) -> Result<Authority, BundleError> {
        self.authorities.open(password)
    }

    #[must_use]
    pub fn is_sealed(&self) -> bool {
        matches!(self.authorities.key, Some(AuthorityKey::Sealed(_)))
    }

    /// Whether it can sign without a password.
    #[must_use]
    pub fn can_sign(&self) -> bool {
        matches!(self.authorities.key, Some(AuthorityKey::Plain(_)))
    }

    #[must_use]
    pub fn to_pem(&self) -> Zeroizing<String> {
        pem::join(self.authorities.blocks().iter().chain(&self.rest))
    }
}

impl ServerBundle {
    /// # Errors
    /// When the request cannot be granted as it is.
    pub fn issue(
        authority: &Authority,
        request: &ServerRequest,
        now: Timestamp,
    ) -> Result<Self, IssueError> {
        let leaf = authority.issue_server(request, None, now)?;
        let authorities = Authorities::of(authority, "server.pem");
        Ok(Self { authorities, leaf, denylist: Denylist::default(), rest: Vec::new() })
    }

    /// The same server with a new certificate and key: it keeps its node id, the CAs it trusts,
    /// its denylist and whatever else is in the file.
    ///
    /// # Errors
    /// When the request cannot be granted as it is.
    pub fn reissue(
        &self,
        authority: &Authority,
        request: &ServerRequest,
        now: Timestamp,
    ) -> Result<Self, IssueError> {
        let leaf = authority.issue_server(request, Some(self.node_id()), now)?;
        let mut renewed = Self { leaf, ..self.clone() };
        let certificates = &mut renewed.authorities.certificates;
        if !certificates.contains(authority.certificate()) {
            certificates.insert(0, authority.certificate().clone());
        }
        Ok(renewed)
    }

    /// # Errors
    /// When the text is not a server bundle.
    pub fn parse(file: &str, text: &str) -> Result<Self, BundleError> {
        match Bundle::parse(file, text)? {
            Bundle::Server(bundle) => Ok(bundle),
            other @ (Bundle::Ca(_) | Bundle::Client(_)) => Err(other.other_kind(file, "server")),
        }
    }

    pub(crate) fn file(&self) -> &str {
        &self.authorities.file
    }

    #[must_use]
    pub fn node_id(&self) -> &str {
        self.leaf.peer.role.name()
    }

    #[must_use]
    pub fn certificates(&self) -> &[Certificate] {
        &self.authorities.certificates
    }

    #[must_use]
    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }

    #[must_use]
    pub fn denylist(&self) -> &Denylist {
        &self.denylist
    }

    /// Puts a serial on the list; false when it was there.
    pub fn revoke(&mut self, serial: Serial) -> bool {
        self.denylist.insert(serial)
    }

    /// The CA, when its key is kept in this file.
    ///
    /// # Errors
    /// When the key is not there, or the password is missing or wrong.
    pub fn authority(&self, password: Option<&Password>) -> Result<Authority, BundleError> {
        self.authorities.open(password)
    }

    #[must_use]
    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut blocks = self.leaf.blocks().to_vec();
        blocks.extend(self.authorities.blocks());
        if !self.denylist.is_empty() {
            blocks.push(Block::new(DENYLIST, &[], self.denylist.to_text().as_bytes()));
        }
        pem::join(blocks.iter().chain(&self.rest))
    }
}

impl ClientBundle {
    pub(crate) fn file(&self) -> &str {
        &self.authorities.file
    }

    /// A bundle for a certificate that `authority` has issued.
    #[must_use]
    pub fn new(authority: &Authority, leaf: Leaf) -> Self {
        let authorities = Authorities::of(authority, "client.pem");
        Self { authorities, leaf, rest: Vec::new() }
    }

    /// # Errors
    /// When the text is not a client bundle.
    pub fn parse(file: &str, text: &str) -> Result<Self, BundleError> {
        match Bundle::parse(file, text)? {
            Bundle::Client(bundle) => Ok(bundle),
            other @ (Bundle::Ca(_) | Bundle::Server(_)) => Err(other.other_kind(file, "client")),
        }
    }

    #[must_use]
    pub fn certificates(&self) -> &[Certificate] {
        &self.authorities.certificates
    }

    #[must_use]
    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }

    #[must_use]
    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut blocks = self.leaf.blocks().to_vec();
        blocks.extend(self.authorities.blocks());
        pem::join(blocks.iter().chain(&self.rest))
    }
}

impl Leaf {
    /// First in every bundle: other programs take the first certificate of a file for its own.
    fn blocks(&self) -> [Block; 2] {
        [Block::new(CERTIFICATE, &[], self.certificate.der()), self.key.to_block()]
    }
}

impl Authorities {
    fn of(authority: &Authority, file: &str) -> Self {
        let certificates = vec![authority.certificate().clone()];
        Self { file: file.to_owned(), certificates, key: None }
    }

    fn open(&self, password: Option<&Password>) -> Result<Authority, BundleError> {
        let open = || {
            let key = match (&self.key, password) {
                (None, _) => return Err(BundleFault::NoCaKey),
                (Some(AuthorityKey::Plain(key)), _) => key.clone(),
                (Some(AuthorityKey::Sealed(_)), None) => return Err(BundleFault::Locked),
                (Some(AuthorityKey::Sealed(sealed)), Some(password)) => sealed.open(password)?,
            };
            let owner = self.certificates.iter().find(|owner| key.belongs_to(owner));
            // A key in the clear was matched when the file was read.
            let owner = owner.ok_or(BundleFault::StraySealedKey)?;
            Authority::new(owner.clone(), key).map_err(|_| BundleFault::CaKeyType)
        };
        open().map_err(|fault| fault.of(&self.file))
    }

    fn blocks(&self) -> Vec<Block> {
        let certificates = self.certificates.iter();
        let mut blocks: Vec<Block> =
            certificates.map(|ca| Block::new(CERTIFICATE, &[], ca.der())).collect();
        blocks.extend(self.key.as_ref().map(|key| match key {
            AuthorityKey::Plain(key) => key.to_block(),
            AuthorityKey::Sealed(sealed) => sealed.to_block(),
        }));
        blocks
    }
}

/// What is in a file, before it is known what kind of bundle it makes.
#[derive(Default)]
struct Parts {
    certificates: Vec<Certificate>,
    keys: Vec<PrivateKey>,
    sealed: Option<Sealed>,
    denylists: Vec<Block>,
    rest: Vec<Block>,
}

impl Parts {
    fn read(text: &str) -> Result<Self, BundleFault> {
        let mut parts = Self::default();
        let (mut certificate_number, mut key_number) = (0, 0);
        for block in pem::parse(text)? {
            if block.label() == CERTIFICATE {
                certificate_number += 1;
                parts.add_certificate(&block, certificate_number)?;
            } else if let Some(form) = Form::of_label(block.label()) {
                key_number += 1;
                parts.add_key(&block, form, key_number)?;
            } else if block.label() == FOREIGN_ENCRYPTED {
                return Err(BundleFault::ForeignEncryption { number: key_number + 1 });
            } else if block.label() == seal::LABEL {
                let sealed = Sealed::of_block(&block)?;
                if parts.sealed.replace(sealed).is_some() {
                    return Err(BundleFault::SeveralCaKeys);
                }
            } else if block.label() == DENYLIST {
                parts.denylists.push(block);
            } else {
                parts.rest.push(block);
            }
        }
        Ok(parts)
    }

    fn add_certificate(&mut self, block: &Block, number: usize) -> Result<(), BundleFault> {
        let certificate = Certificate::parse(&block.contents()?.bytes)
            .map_err(|fault| BundleFault::Certificate { number, fault })?;
        if !self.certificates.contains(&certificate) {
            self.certificates.push(certificate);
        }
        Ok(())
    }

    fn add_key(&mut self, block: &Block, form: Form, number: usize) -> Result<(), BundleFault> {
        let contents = block.contents()?;
        if contents.headers.iter().any(|(name, _)| name == "DEK-Info") {
            return Err(BundleFault::ForeignEncryption { number });
        }
        let key = PrivateKey::parse(form, contents.bytes).ok_or(BundleFault::Key { number })?;
        self.keys.push(key);
        Ok(())
    }

    fn assemble(mut self, file: &str) -> Result<Bundle, BundleFault> {
        let all = std::mem::take(&mut self.certificates);
        let (certificates, leaves): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.is_ca);
        let (ca_key, leaf_key) = self.sort_keys(&certificates, &leaves)?;
        let key = match (ca_key, self.sealed.take()) {
            (Some(_), Some(_)) => return Err(BundleFault::SeveralCaKeys),
            (Some(plain), None) => Some(AuthorityKey::Plain(plain)),
            (None, sealed) => sealed.map(AuthorityKey::Sealed),
        };
        if certificates.is_empty() {
            return Err(BundleFault::NoCa);
        }
        let authorities = Authorities { file: file.to_owned(), certificates, key };
        let Some(key) = leaf_key else {
            if !leaves.is_empty() {
                return Err(BundleFault::NoLeaf);
            }
            self.rest.extend(self.denylists);
            return Ok(Bundle::Ca(CaBundle { authorities, rest: self.rest }));
        };
        let (mut own, others): (Vec<_>, Vec<_>) =
            leaves.into_iter().partition(|certificate| key.belongs_to(certificate));
        let certificate = own.pop().ok_or(BundleFault::NoLeaf)?;
        if !own.is_empty() {
            return Err(BundleFault::SeveralLeaves);
        }
        // Somebody's certificate without a key: of no use to us, but not ours to throw away.
        self.rest.extend(others.iter().map(|other| Block::new(CERTIFICATE, &[], other.der())));
        let peer = Peer::of(&certificate)?;
        let leaf = Leaf { certificate, key, peer };
        match leaf.peer.role {
            Role::Server(_) => {
                let denylist = read_denylists(&self.denylists)?;
                let rest = self.rest;
                Ok(Bundle::Server(ServerBundle { authorities, leaf, denylist, rest }))
            }
            Role::Tc(_) | Role::Sdk(_) => {
                self.rest.extend(self.denylists);
                Ok(Bundle::Client(ClientBundle { authorities, leaf, rest: self.rest }))
            }
        }
    }

    /// The key of a CA and the key of a leaf.
    fn sort_keys(
        &mut self,
        authorities: &[Certificate],
        leaves: &[Certificate],
    ) -> Result<(Option<PrivateKey>, Option<PrivateKey>), BundleFault> {
        let (mut ca_key, mut leaf_key) = (None, None);
        for (index, key) in std::mem::take(&mut self.keys).into_iter().enumerate() {
            let (place, several) = if leaves.iter().any(|leaf| key.belongs_to(leaf)) {
                (&mut leaf_key, BundleFault::SeveralLeaves)
            } else if authorities.iter().any(|authority| key.belongs_to(authority)) {
                (&mut ca_key, BundleFault::SeveralCaKeys)
            } else {
                return Err(BundleFault::StrayKey { number: index + 1 });
            };
            let again = |held: &PrivateKey| held.public_key() == key.public_key();
            if place.as_ref().is_some_and(|held| !again(held)) {
                return Err(several);
            }
            *place = Some(key);
        }
        Ok((ca_key, leaf_key))
    }
}

fn read_denylists(blocks: &[Block]) -> Result<Denylist, BundleFault> {
    let mut denylist = Denylist::default();
    for block in blocks {
        let contents = block.contents()?;
        let text =
            std::str::from_utf8(&contents.bytes).map_err(|_| BundleFault::DenylistNotText)?;
        denylist.extend(&Denylist::parse(text)?);
    }
    Ok(denylist)
}

#[cfg(test)]
mod tests;
