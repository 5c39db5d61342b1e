//! `auth renew`: the same bundle with a new certificate and a new key. A server keeps its node id,
//! a client its name and claims; both keep the CAs they trust and the blocks of other tools.

use clap::Args;
use jiff::Timestamp;
use lockd_pki::files::{self, Existing};
use lockd_pki::{
    Authority, Bundle, CaBundle, Claim, ClientBundle, ClientRequest, Role, Serial, ServerRequest,
    inspect,
};
use zeroize::Zeroizing;

use super::signer::SignerArgs;
use super::target::Target;
use super::{Issued, Validity, load, server, write};
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Issue a bundle again, with a new certificate and key
///
/// In place, unless --out is given. A running server takes its renewed bundle without a restart.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RenewArgs {
    #[command(flatten)]
    target: Target,
    /// Where to write it (default: in place)
    #[arg(long, value_name = "FILE")]
    out: Option<std::path::PathBuf>,
    /// Replace --out if it exists
    #[arg(long, requires = "out")]
    force: bool,
    #[command(flatten)]
    validity: Validity,
    #[command(flatten)]
    signer: SignerArgs,
    /// How to print what was made
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd auth renew server
  lockd auth renew worker-1.pem --ca-in ca.pem --ca-pass-prompt
  lockd auth renew client --in client1.pem --out client1-new.pem --valid-for 90d";

pub(super) fn run(args: &RenewArgs, now: Timestamp) -> Done {
    let path = args.target.path()?;
    let old = load(&path)?;
    args.target.check(&old)?;
    let signer = match &old {
        Bundle::Ca(_) => {
            return Err(Problem::failed(format!("{}: a CA is not renewed", path.display()))
                .hint("make another with `lockd auth new ca`, and issue bundles from it"));
        }
        Bundle::Server(_) | Bundle::Client(_) => args.signer.for_renewal(&path, &old)?,
    };
    let (text, serial) = renewed(&old, &signer.authority, args.validity, now)?;
    let (out, existing) = match &args.out {
        None => (&path, Existing::Replace),
        Some(out) if args.force => (out, Existing::Replace),
        Some(out) => (out, Existing::Refuse),
    };
    write(out, &text, existing)?;
    if let Some(serial) = serial {
        ui::note(&format!(
            "the old certificate is valid until its end; if it is in wrong hands: \
             lockd auth revoke client {serial}"
        ));
    }
    let file = out.display().to_string();
    let summary = inspect(&Bundle::parse(&file, &text)?, now);
    Issued { file, ca_file: None, summary }.print(args.output)
}

/// The new text, and the old serial where that can be revoked.
fn renewed(
    old: &Bundle,
    authority: &Authority,
    validity: Validity,
    now: Timestamp,
) -> Done<(Zeroizing<String>, Option<Serial>)> {
    match old {
        Bundle::Ca(_) => Err(Problem::failed("a CA is not renewed")),
        Bundle::Server(old) => {
            let usual = ServerRequest::new(&[], files::machine_name().as_deref()).days;
            let request = server::of_old(old, validity.or(usual));
            Ok((old.reissue(authority, &request, now)?.to_pem(), None))
        }
        Bundle::Client(old) => {
            let mut request = of_old(old)?;
            request.days = validity.or(request.days);
            let leaf = authority.issue_client(&request, now)?;
            let fresh = ClientBundle::new(authority, leaf).to_pem();
            let serial = old.leaf().certificate.serial;
            Ok((keeping_the_rest(&fresh, &old.to_pem())?, Some(serial)))
        }
    }
}

/// The request that an older certificate was made for.
fn of_old(old: &ClientBundle) -> Done<ClientRequest> {
    let peer = &old.leaf().peer;
    match &peer.role {
        Role::Tc(name) => Ok(ClientRequest::tc(name)),
        Role::Sdk(name) | Role::Server(name) => {
            let claims: Result<Vec<Claim>, _> =
                peer.claims.list().iter().map(|claim| Claim::parse(claim)).collect();
            match claims {
                // Renewing must not give a client what it did not have.
                Ok(claims) if !claims.is_empty() => Ok(ClientRequest::sdk(name, claims)),
                Ok(_) | Err(_) => Err(Problem::failed("the bundle claims no namespace")
                    .hint("make a new one with `lockd auth new client --namespace NAME=rw`")),
            }
        }
    }
}

/// The fresh bundle with everything of the old one that is not its own certificate and key.
fn keeping_the_rest(fresh: &str, old: &str) -> Done<Zeroizing<String>> {
    let mut text = Zeroizing::new(fresh.to_owned());
    for block in blocks(old) {
        let is_key = block.lines().next().is_some_and(|line| line.contains("PRIVATE KEY-----"));
        let is_certificate = block.starts_with("-----BEGIN CERTIFICATE-----");
        // Alone, only the certificate of a CA makes a bundle.
        let is_ca = is_certificate && CaBundle::parse("", block).is_ok();
        if is_ca || (!is_certificate && !is_key) {
            text.push_str(block);
        }
    }
    Ok(ClientBundle::parse("the renewed bundle", &text)?.to_pem())
}

/// The blocks of a PEM text as we write it.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find("-----BEGIN ")?;
        let from = rest.get(start..)?;
        let end = from.find("-----END ")?;
        let line = from.get(end..)?.find('\n').map_or(from.len(), |at| end + at + 1);
        let (block, after) = from.split_at_checked(line)?;
        rest = after;
        Some(block)
    })
}
