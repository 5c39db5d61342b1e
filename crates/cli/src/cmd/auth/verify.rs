//! `auth verify`: everything that would keep a bundle from being let in, each in a line.
//!
//! A handshake stops at the first reason; here every reason is looked for. A client is held
//! against the server that it is to be let in by, and the server against the client.

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use lockd_pki::{
    Bundle, Certificate, ClientBundle, Credentials, Denylist, FileError, Leaf, PeerRefused,
    ServerBundle, files, inspect,
};
use serde::Serialize;

use super::target::Target;
use super::{load, something_wrong};
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Check a bundle: chain, purpose, dates, denylist, and that key and certificate match
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    target: Target,
    /// The bundle of the server that a client is to be let in by
    #[arg(long, value_name = "FILE")]
    server_in: Option<PathBuf>,
    /// How to print the outcome
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd auth verify server
  lockd auth verify client --server-in server.pem --in client1.pem

Exit codes: 0 nothing is wrong, 1 could not check, 2 wrong usage, 3 something is wrong.";

#[derive(Serialize)]
struct Shown {
    file: String,
    ok: bool,
    problems: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    days_left: Option<i64>,
    /// Serials that the server refuses.
    revoked: Vec<String>,
}

pub(super) fn run(args: &VerifyArgs, now: Timestamp) -> Done {
    let path = args.target.path()?;
    let server = match &args.server_in {
        None => None,
        Some(path) => match load(path)? {
            Bundle::Server(server) => Some(server),
            other @ (Bundle::Ca(_) | Bundle::Client(_)) => {
                let message =
                    format!("{} is a {} bundle, not a server's", path.display(), other.kind());
                return Err(Problem::failed(message));
            }
        },
    };
    let shown = match files::load(&path) {
        Ok((bundle, warning)) => {
            let mut shown = check(&path, &bundle, server.as_ref(), now);
            shown.problems.extend(args.target.mismatch(&bundle)?);
            shown.problems.extend(warning.map(|warning| warning.to_string()));
            shown
        }
        // A bundle that does not hold together has been checked; one that is not there has not.
        Err(FileError::Bundle(error)) => {
            let problems = vec![error.fault.to_string()];
            let file = path.display().to_string();
            Shown { file, ok: false, problems, days_left: None, revoked: Vec::new() }
        }
        Err(other) => return Err(other.into()),
    };
    let shown = Shown { ok: shown.problems.is_empty(), ..shown };
    ui::print(args.output, &shown, || text(&shown))?;
    if shown.ok { Ok(()) } else { Err(something_wrong(&path)) }
}

fn text(shown: &Shown) -> String {
    let file = &shown.file;
    let mut lines: Vec<String> =
        shown.problems.iter().map(|problem| format!("{file}: {problem}")).collect();
    if shown.ok {
        let days = shown.days_left.unwrap_or_default();
        lines.push(format!("{file}: ok, {days} days left"));
    }
    lines.extend(shown.revoked.iter().map(|serial| format!("{file}: revokes {serial}")));
    lines.join("\n")
}

fn check(path: &Path, bundle: &Bundle, server: Option<&ServerBundle>, now: Timestamp) -> Shown {
    let summary = inspect(bundle, now);
    let mut problems = summary.problems;
    match bundle {
        Bundle::Ca(_) => {}
        Bundle::Server(own) => {
            problems.extend(of_leaf(own.leaf(), "serverAuth", own.denylist(), now));
        }
        Bundle::Client(client) => {
            let denylist = server.map(ServerBundle::denylist).cloned().unwrap_or_default();
            problems.extend(of_leaf(client.leaf(), "clientAuth", &denylist, now));
            if let Some(server) = server {
                problems.extend(between(client, server, now));
            }
        }
    }
    let mut seen = Vec::new();
    problems.retain(|problem| {
        let new = !seen.contains(problem);
        seen.push(problem.clone());
        new
    });
    Shown {
        file: path.display().to_string(),
        ok: false,
        problems,
        days_left: Some(summary.days_left),
        revoked: summary.revoked,
    }
}

/// What can be seen on a certificate alone.
fn of_leaf(leaf: &Leaf, purpose: &'static str, denylist: &Denylist, now: Timestamp) -> Vec<String> {
    let certificate = &leaf.certificate;
    let mut refused = Vec::new();
    if now < certificate.not_before {
        refused.push(PeerRefused::NotYetValid(certificate.not_before));
    }
    if certificate.not_after < now {
        refused.push(PeerRefused::Expired(certificate.not_after));
    }
    match certificate.usages {
        None => refused.push(PeerRefused::NoEku(purpose)),
        Some(usages) => {
            let has = if purpose == "serverAuth" { usages.server } else { usages.client };
            if !has {
                refused.push(PeerRefused::WrongEku(purpose));
            }
        }
    }
    if denylist.contains(&certificate.serial) {
        refused.push(PeerRefused::Revoked(certificate.serial));
    }
    refused.iter().map(PeerRefused::to_string).collect()
}

/// What keeps this client and this server apart.
fn between(client: &ClientBundle, server: &ServerBundle, now: Timestamp) -> Vec<String> {
    let mut problems = Vec::new();
    match Credentials::server(server, &[], &Denylist::default()) {
        Err(error) => problems.push(error.to_string()),
        Ok(credentials) => {
            let chain = [client.leaf().certificate.der().clone()];
            problems.extend(credentials.admit(&chain, now).err().map(|reason| reason.to_string()));
        }
    }
    let issuer = inspect(&Bundle::Server(server.clone()), now).issuer_fingerprint;
    let trusted = client.certificates().iter().map(Certificate::fingerprint);
    if issuer.is_none_or(|issuer| !trusted.into_iter().any(|known| known == issuer)) {
        problems.push("the client does not trust the CA of the server".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use lockd_pki::issue::CA_NAME;
    use lockd_pki::{Authority, ClientRequest, ServerRequest};

    use super::*;

    const DAY: i64 = 24 * 60 * 60;

    fn later(days: i64) -> Timestamp {
        Timestamp::from_second(Timestamp::now().as_second() + days * DAY).unwrap()
    }

    fn made() -> (Authority, ServerBundle, ClientBundle) {
        let now = Timestamp::now();
        let authority = Authority::create(CA_NAME, now).unwrap();
        let request = ServerRequest::new(&["*".to_owned()], None);
        let server = ServerBundle::issue(&authority, &request, now).unwrap();
        let leaf = authority.issue_client(&ClientRequest::sdk("a", Vec::new()), now).unwrap();
        let client = ClientBundle::new(&authority, leaf);
        (authority, server, client)
    }

    fn problems(bundle: &Bundle, server: Option<&ServerBundle>, now: Timestamp) -> Vec<String> {
        check(Path::new("x.pem"), bundle, server, now).problems
    }

    #[test]
    fn what_is_in_order_has_no_problems() {
        let (_, server, client) = made();
        let (client, now) = (Bundle::Client(client), Timestamp::now());
        assert_eq!(problems(&client, Some(&server), now), Vec::<String>::new());
        assert_eq!(problems(&Bundle::Server(server), None, now), Vec::<String>::new());
    }

    #[test]
    fn every_reason_is_told_and_each_once() {
        let (_, mut server, client) = made();
        server.revoke(client.leaf().certificate.serial);
        let found = problems(&Bundle::Client(client), Some(&server), later(400));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|problem| problem.contains("expired")), "{found:?}");
        assert!(found.iter().any(|problem| problem.contains("is revoked")), "{found:?}");
    }

    #[test]
    fn a_ca_outside_its_dates_is_told() {
        let (_, server, _) = made();
        let found = problems(&Bundle::Server(server), None, later(4000));
        assert!(found.iter().any(|problem| problem.contains("the CA \"lockd-ca\"")), "{found:?}");
        assert!(found.iter().any(|problem| problem.contains("expired")), "{found:?}");
    }

    #[test]
    fn another_ca_is_told_from_both_sides() {
        let (_, server, _) = made();
        let (_, _, stranger) = made();
        let found = problems(&Bundle::Client(stranger), Some(&server), Timestamp::now());
        assert!(found.iter().any(|problem| problem.contains("not issued by a CA")), "{found:?}");
        assert!(found.iter().any(|problem| problem.contains("does not trust")), "{found:?}");
    }
}
