//! `auth inspect`: what is in a bundle, never a secret.

use std::path::Path;

use clap::Args;
use jiff::Timestamp;
use lockd_pki::inspect::CaKey;
use lockd_pki::{Summary, inspect};
use serde::Serialize;

use super::load;
use super::target::Target;
use crate::exit::Done;
use crate::ui::{self, Format};

/// Show what is in a bundle: who, until when, serial, claims, hosts, CAs, revoked serials
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    target: Target,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd auth inspect server
  lockd auth inspect client --in client1.pem
  lockd auth inspect worker-1.pem --output json";

#[derive(Serialize)]
struct Shown {
    file: String,
    #[serde(flatten)]
    summary: Summary,
}

pub(super) fn run(args: &InspectArgs, now: Timestamp) -> Done {
    let path = args.target.path()?;
    let bundle = load(&path)?;
    args.target.check(&bundle)?;
    let shown = Shown { file: path.display().to_string(), summary: inspect(&bundle, now) };
    ui::print(args.output, &shown, || text(&path, &shown.summary))
}

fn text(path: &Path, summary: &Summary) -> String {
    let mut lines = vec![format!("{}: {} bundle", path.display(), summary.kind)];
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            lines.push(format!("{:<12}{value}", format!("{name}:")));
        }
    };
    line("name", &summary.name);
    line("identity", summary.identity.as_deref().unwrap_or_default());
    line("role", summary.role.unwrap_or_default());
    line("serial", &summary.serial);
    line("valid", &format!("{} to {}", summary.not_before, summary.not_after));
    line("days left", &summary.days_left.to_string());
    line("namespaces", &summary.claims.join(", "));
    line("hosts", &summary.hosts.join(", "));
    line("signed by", summary.issuer_fingerprint.as_deref().unwrap_or_default());
    for ca in &summary.authorities {
        let about = format!("{} {} ({} days left)", ca.fingerprint, ca.name, ca.days_left);
        line("CA", &about);
    }
    line("CA key", ca_key(summary.ca_key));
    for serial in &summary.revoked {
        line("revoked", serial);
    }
    for problem in &summary.problems {
        line("problem", problem);
    }
    lines.join("\n")
}

fn ca_key(key: CaKey) -> &'static str {
    match key {
        CaKey::Absent => "not in this file",
        CaKey::Plain => "in this file, not protected",
        CaKey::Sealed => "in this file, protected by a password",
    }
}
