//! A certificate, read once: everything that anybody here asks of it is kept beside its bytes.
//! Reading proves nothing; whether to believe a certificate is decided in `credentials`.

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::serial::{Serial, SerialRefused};

/// An X.509 certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    der: CertificateDer<'static>,
    pub serial: Serial,
    /// The common name; empty when there is none.
    pub name: String,
    pub is_ca: bool,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// What the key may be used for; `None` when the certificate does not say.
    pub usages: Option<Usages>,
    pub uris: Vec<String>,
    /// Names and addresses of hosts. Nothing is ever compared with them.
    pub hosts: Vec<String>,
    public_key: Vec<u8>,
}

/// Purposes out of the extended key usage that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usages {
    pub server: bool,
    pub client: bool,
}

/// Why bytes are not a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    #[error("is not an X.509 certificate, or is damaged")]
    NotX509,
    #[error("{0}")]
    Serial(SerialRefused),
    #[error("has dates that cannot be read")]
    Dates,
    #[error("has extensions that cannot be read")]
    Extensions,
    #[error("has alternative names that cannot be read")]
    Names,
}

impl Certificate {
    /// # Errors
    /// When the bytes are no certificate, or one with parts that cannot be read: a name that is
    /// skipped could have been the second identity.
    pub fn parse(der: &[u8]) -> Result<Self, CertificateFault> {
        let (rest, x509) = X509Certificate::from_der(der).map_err(|_| CertificateFault::NotX509)?;
        if !rest.is_empty() {
            return Err(CertificateFault::NotX509);
        }
        let (uris, hosts) = alternative_names(&x509)?;
        let constraints = x509.basic_constraints().map_err(|_| CertificateFault::Extensions)?;
        let usage = x509.extended_key_usage().map_err(|_| CertificateFault::Extensions)?;
        let time = |seconds| Timestamp::from_second(seconds).map_err(|_| CertificateFault::Dates);
        let name = x509.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        Ok(Self {
            serial: Serial::from_octets(x509.raw_serial()).map_err(CertificateFault::Serial)?,
            name: name.unwrap_or_default().to_owned(),
            is_ca: constraints.is_some_and(|constraints| constraints.value.ca),
            not_before: time(x509.validity().not_before.timestamp())?,
            not_after: time(x509.validity().not_after.timestamp())?,
            usages: usage.map(|usage| Usages {
                server: usage.value.server_auth,
                client: usage.value.client_auth,
            }),
            uris,
            hosts,
            public_key: x509.public_key().raw.to_vec(),
            der: CertificateDer::from(der.to_vec()),
        })
    }

    #[must_use]
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The subject's public key, as it stands in the certificate.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// SHA-256 of the certificate in lower-case hexadecimal.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        Sha256::digest(&self.der).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[must_use]
    pub fn is_in_time(&self, now: Timestamp) -> bool {
        self.not_before <= now && now <= self.not_after
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({:?}, serial {}, ca {})", self.name, self.serial, self.is_ca)
    }
}

fn alternative_names(
    x509: &X509Certificate<'_>,
) -> Result<(Vec<String>, Vec<String>), CertificateFault> {
    let (mut uris, mut hosts) = (Vec::new(), Vec::new());
    let names = x509.subject_alternative_name().map_err(|_| CertificateFault::Names)?;
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            GeneralName::DNSName(host) => hosts.push((*host).to_owned()),
            GeneralName::IPAddress(octets) => hosts.push(address(octets)?),
            GeneralName::Invalid(..) => return Err(CertificateFault::Names),
            GeneralName::OtherName(..)
            | GeneralName::RFC822Name(_)
            | GeneralName::X400Address(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EDIPartyName(_)
            | GeneralName::RegisteredID(_) => {}
        }
    }
    Ok((uris, hosts))
}

fn address(octets: &[u8]) -> Result<String, CertificateFault> {
    let address = if let Ok(four) = <[u8; 4]>::try_from(octets) {
        IpAddr::from(four)
    } else {
        let sixteen = <[u8; 16]>::try_from(octets).map_err(|_| CertificateFault::Names)?;
        IpAddr::from(sixteen)
    };
    Ok(address.to_string())
}
