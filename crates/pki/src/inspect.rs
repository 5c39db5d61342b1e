//! What a bundle is, as plain data for people and programs: who it names, what that allows, how
//! long it lasts, and what would keep it from being let in. Never a secret.

use jiff::Timestamp;
use serde::Serialize;

use crate::bundle::{Bundle, Leaf};
use crate::certificate::Certificate;
use crate::claims::Claims;
use crate::credentials::{Credentials, Purpose};
use crate::identity::Role;
use crate::serial::{Denylist, Serial};

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// A bundle, described.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// `CA`, `server`, `client` or `TC client`.
    pub kind: &'static str,
    pub name: String,
    pub serial: String,
    /// `server`, `tc` or `sdk`; none for a CA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// The SPIFFE URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    pub claims: Vec<String>,
    pub hosts: Vec<String>,
    pub not_before: String,
    pub not_after: String,
    /// Whole days; negative when they are over.
    pub days_left: i64,
    /// SHA-256 of the CA certificate that signed it, when that is in the bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer_fingerprint: Option<String>,
    pub authorities: Vec<AuthoritySummary>,
    pub ca_key: CaKey,
    pub revoked: Vec<String>,
    /// Everything that would keep it from being let in now, in sentences.
    pub problems: Vec<String>,
}

/// A CA in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuthoritySummary {
    pub name: String,
    pub serial: String,
    pub fingerprint: String,
    pub not_after: String,
    pub days_left: i64,
}

/// Whether a bundle can sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaKey {
    Absent,
    Plain,
    Sealed,
}

/// Describes a bundle as it is at this time.
#[must_use]
pub fn inspect(bundle: &Bundle, now: Timestamp) -> Summary {
    let kind = bundle.kind();
    match bundle {
        Bundle::Ca(ca) => {
            let shown = ca.certificates();
            let mut summary = Summary::of_cas(kind, shown, bundle.ca_key(), now);
            if let Some(first) = shown.first() {
                summary.describe(first, now);
            }
            summary
        }
        Bundle::Server(server) => {
            let mut summary = Summary::of_cas(kind, server.certificates(), bundle.ca_key(), now);
            summary.revoked = server.denylist().iter().map(Serial::to_string).collect();
            let credentials = Credentials::server(server, &[], &Denylist::default());
            summary.describe_leaf(server.leaf(), server.certificates(), now);
            summary.judge(server.leaf(), credentials.ok(), now);
            summary
        }
        Bundle::Client(client) => {
            let mut summary = Summary::of_cas(kind, client.certificates(), bundle.ca_key(), now);
            let credentials = Credentials::client(client, &[]);
            summary.describe_leaf(client.leaf(), client.certificates(), now);
            summary.judge(client.leaf(), credentials.ok(), now);
            summary
        }
    }
}

impl Summary {
    fn of_cas(kind: &'static str, cas: &[Certificate], ca_key: CaKey, now: Timestamp) -> Self {
        let late = cas.iter().filter(|ca| !ca.is_in_time(now));
        let problems = late.map(|ca| format!("the CA \"{}\" is outside its dates", ca.name));
        Self {
            kind,
            name: String::new(),
            serial: String::new(),
            role: None,
            identity: None,
            claims: Vec::new(),
            hosts: Vec::new(),
            not_before: String::new(),
            not_after: String::new(),
            days_left: 0,
            issuer_fingerprint: None,
            authorities: cas.iter().map(|ca| AuthoritySummary::of(ca, now)).collect(),
            ca_key,
            revoked: Vec::new(),
            problems: problems.collect(),
        }
    }

    fn describe(&mut self, certificate: &Certificate, now: Timestamp) {
        self.name.clone_from(&certificate.name);
        self.serial = certificate.serial.to_string();
        self.hosts.clone_from(&certificate.hosts);
        self.not_before = certificate.not_before.to_string();
        self.not_after = certificate.not_after.to_string();
        self.days_left = days_left(certificate, now);
    }

    fn describe_leaf(&mut self, leaf: &Leaf, cas: &[Certificate], now: Timestamp) {
        self.describe(&leaf.certificate, now);
        self.role = Some(leaf.peer.role.kind());
        self.identity = Some(leaf.peer.role.uri());
        self.claims = leaf.peer.claims.list();
        let issuer = cas.iter().find(|ca| Credentials::has_signed(ca, leaf));
        self.issuer_fingerprint = issuer.map(Certificate::fingerprint);
        if let Claims::Malformed(fault) = &leaf.peer.claims {
            self.problems.push(format!("{fault}; it closes every namespace"));
        }
    }

    fn judge(&mut self, leaf: &Leaf, credentials: Option<Credentials>, now: Timestamp) {
        let purpose = match leaf.peer.role {
            Role::Server(_) => Purpose::Server,
            Role::Tc(_) | Role::Sdk(_) => Purpose::Client,
        };
        match credentials {
            None => self.problems.push("a CA in it is of a kind that TLS cannot trust".to_owned()),
            Some(credentials) => {
                let judged = credentials.judge(leaf.certificate.der(), &[], now, purpose);
                self.problems.extend(judged.err().map(|reason| reason.to_string()));
            }
        }
    }
}

impl AuthoritySummary {
    fn of(ca: &Certificate, now: Timestamp) -> Self {
        Self {
            name: ca.name.clone(),
            serial: ca.serial.to_string(),
            fingerprint: ca.fingerprint(),
            not_after: ca.not_after.to_string(),
            days_left: days_left(ca, now),
        }
    }
}

fn days_left(certificate: &Certificate, now: Timestamp) -> i64 {
    (certificate.not_after.as_second() - now.as_second()).div_euclid(DAY_SECONDS)
}

#[cfg(test)]
mod tests;
