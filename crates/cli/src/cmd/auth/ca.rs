//! `auth new ca`: a CA of one's own, its key in the same file, sealed when there is a password.

use std::path::Path;

use clap::Args;
use jiff::Timestamp;
use lockd_pki::bootstrap::CA_FILE;
use lockd_pki::inspect::CaKey;
use lockd_pki::issue::CA_NAME;
use lockd_pki::{Authority, Bundle, CaBundle, Cost, inspect};

use super::password::{PasswordArgs, Passwords};
use super::{Issued, Output, days, write};
use crate::exit::Done;
use crate::ui;

/// Make a CA
///
/// Whoever has its key can make certificates for everybody: protect it with a password, and keep
/// the file away from servers and clients, which do not need it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CaArgs {
    #[command(flatten)]
    output: Output,
    /// Name of the CA
    #[arg(long, value_name = "NAME", default_value = CA_NAME)]
    cn: String,
    /// How long it is valid, in whole days: 3650d, 8760h
    #[arg(long, value_name = "DURATION", default_value = "3650d", value_parser = days)]
    valid_for: u32,
    #[command(flatten)]
    password: PasswordArgs,
}

const EXAMPLES: &str = "\
Examples:
  lockd auth new ca --ca-pass-prompt
  lockd auth new ca --out ca.pem --cn example-ca --valid-for 1825d --ca-pass-file /run/secrets/ca";

pub(super) fn run(args: &CaArgs, now: Timestamp) -> Done {
    let path = args.output.path(CA_FILE)?;
    let replaced = args.output.replaced(&path, "CA")?;
    let authority = Authority::create_for(&args.cn, args.valid_for, now)?;
    let bundle = sealed(&authority, &args.password)?;
    write(&path, &bundle.to_pem(), args.output.existing())?;
    if replaced.is_some() {
        ui::note("bundles of the CA that was replaced are not let in any more: issue them again");
    }
    told(&path, &bundle);
    let summary = inspect(&Bundle::Ca(bundle), now);
    Issued { file: path.display().to_string(), ca_file: None, summary }.print(args.output.output)
}

/// The bundle of a new CA.
pub(super) fn sealed(authority: &Authority, password: &PasswordArgs) -> Done<CaBundle> {
    let password = Passwords::new(password).for_new_key()?;
    Ok(CaBundle::new(authority, password.as_ref(), Cost::default())?)
}

/// How to keep the key of a new CA.
pub(super) fn told(path: &Path, bundle: &CaBundle) {
    let protected = match Bundle::Ca(bundle.clone()).ca_key() {
        CaKey::Sealed => "is protected by the password",
        CaKey::Plain | CaKey::Absent => "is not protected by a password",
    };
    ui::note(&format!(
        "the CA key in {} {protected}; keep the file offline: only `lockd auth` needs it",
        path.display()
    ));
}
