//! `auth new server`: a server's bundle. With no CA at hand it makes one beside it. Over an older
//! bundle of the same server it keeps what identifies the server, so that nobody notices.

use std::path::Path;

use clap::Args;
use jiff::Timestamp;
use lockd_pki::bootstrap::{CA_FILE, SERVER_FILE};
use lockd_pki::files::{self, Existing};
use lockd_pki::inspect::CaKey;
use lockd_pki::issue::CA_NAME;
use lockd_pki::{Authority, Bundle, CaBundle, ServerBundle, ServerRequest, inspect};

use super::signer::{Signer, SignerArgs};
use super::{Issued, Output, Validity, ca, load, write};
use crate::exit::{Done, Problem};
use crate::{folder, ui};

/// Make a server's bundle, and a CA if there is none beside it
///
/// With --force over an existing bundle it is issued again: node id, trusted CAs, denylist and
/// blocks of other tools stay, and so do name and hosts unless they are given.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ServerArgs {
    #[command(flatten)]
    output: Output,
    /// Name of the server, for people to read [default: lockd-server]
    #[arg(long, value_name = "NAME")]
    cn: Option<String>,
    /// Names and addresses of the server, separated by commas; lockd itself never compares them
    /// [default: this machine]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    hosts: Vec<String>,
    #[command(flatten)]
    validity: Validity,
    /// Put the key of the CA into the server's bundle as well
    #[arg(long)]
    with_ca_key: bool,
    #[command(flatten)]
    signer: SignerArgs,
}

const EXAMPLES: &str = "\
Examples:
  lockd auth new server
  lockd auth new server --out server.pem --cn lockd-anywhere --hosts '*' --ca-pass-prompt
  lockd auth new server --out server-2.pem --ca-in ~/.lockd/ca.pem --hosts 10.0.0.7,lock.local";

pub(super) fn run(args: &ServerArgs, now: Timestamp) -> Done {
    let path = args.output.path(SERVER_FILE)?;
    let replaced = args.output.replaced(&path, "server")?;
    let (signer, made_ca) = match args.signer.for_server(&path, replaced.as_ref())? {
        Some(signer) => (signer, None),
        None => {
            let (signer, ca) = make_ca(args, &path, now)?;
            (signer, Some(ca))
        }
    };
    let old = match replaced {
        Some(Bundle::Server(server)) => Some(server),
        Some(Bundle::Ca(_) | Bundle::Client(_)) | None => None,
    };
    let bundle = issue(args, &signer.authority, old.as_ref(), now)?;
    let mut text = bundle.to_pem();
    if args.with_ca_key {
        text = with_ca_key(&bundle, &signer, made_ca.as_ref())?;
    }
    // The CA first: a server whose CA was never written could not be given a client.
    let ca_file = match &made_ca {
        None => None,
        Some(ca) => {
            write(&signer.file, &ca.to_pem(), Existing::Refuse)?;
            ca::told(&signer.file, ca);
            Some(signer.file.display().to_string())
        }
    };
    write(&path, &text, args.output.existing())?;
    let file = path.display().to_string();
    let summary = inspect(&Bundle::parse(&file, &text)?, now);
    Issued { file, ca_file, summary }.print(args.output.output)
}

/// A CA for the new server, not written yet.
fn make_ca(args: &ServerArgs, out: &Path, now: Timestamp) -> Done<(Signer, CaBundle)> {
    let file = folder::of(out).join(CA_FILE);
    let usual = folder::config_dir()?.join(CA_FILE);
    if files::exists(&usual)? {
        ui::note(&format!(
            "making a new CA; to sign with the one of this machine instead, give --ca-in {}",
            usual.display()
        ));
    }
    let authority = Authority::create(CA_NAME, now)?;
    let bundle = ca::sealed(&authority, &args.signer.password)?;
    Ok((Signer { authority, file }, bundle))
}

fn issue(
    args: &ServerArgs,
    authority: &Authority,
    old: Option<&ServerBundle>,
    now: Timestamp,
) -> Done<ServerBundle> {
    let machine = files::machine_name();
    let mut request = ServerRequest::new(&args.hosts, machine.as_deref());
    if let Some(old) = old {
        request = of_old(old, request.days);
        if !args.hosts.is_empty() {
            request.hosts.clone_from(&args.hosts);
        }
    }
    request.days = args.validity.or(request.days);
    if let Some(name) = &args.cn {
        request.name.clone_from(name);
    }
    Ok(match old {
        Some(old) => old.reissue(authority, &request, now)?,
        None => ServerBundle::issue(authority, &request, now)?,
    })
}

/// The request that an older certificate was made for.
pub(super) fn of_old(old: &ServerBundle, days: u32) -> ServerRequest {
    let certificate = &old.leaf().certificate;
    ServerRequest { name: certificate.name.clone(), hosts: certificate.hosts.clone(), days }
}

/// The server's bundle with the key of its CA in it, sealed if it is sealed.
fn with_ca_key(
    bundle: &ServerBundle,
    signer: &Signer,
    made: Option<&CaBundle>,
) -> Done<zeroize::Zeroizing<String>> {
    let text = bundle.to_pem();
    let name = signer.file.display().to_string();
    if Bundle::parse(&name, &text)?.ca_key() != CaKey::Absent {
        return Ok(text);
    }
    let ca = match made {
        Some(made) => made.to_pem(),
        None => match load(&signer.file)? {
            Bundle::Ca(ca) => ca.to_pem(),
            Bundle::Server(_) | Bundle::Client(_) => {
                return Err(Problem::failed(format!(
                    "{name} is no CA bundle; give the CA's own file with --ca-in"
                )));
            }
        },
    };
    // Two PEM files one after the other are one: what is there twice counts once.
    let both = zeroize::Zeroizing::new(format!("{}{}", text.as_str(), ca.as_str()));
    Ok(ServerBundle::parse(&name, &both)?.to_pem())
}
