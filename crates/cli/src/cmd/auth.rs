//! `lockd auth`: certificates and the bundles they are kept in. One command per file; here is
//! what they share: where bundles are, how they are replaced, and how an issued one is shown.
//! What a certificate says, and who may be let in with it, is decided in `lockd-pki`.

mod ca;
mod client;
mod inspect;
mod password;
mod renew;
mod revoke;
mod server;
mod signer;
mod target;
mod tcclient;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use lockd_pki::files::{self, Existing};
use lockd_pki::{Bundle, Summary};
use serde::Serialize;

use crate::exit::{Done, Problem};
use crate::ui::{self, Format};
use crate::{exit, folder};

/// Make, renew, revoke and look into certificates
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AuthArgs {
    #[command(subcommand)]
    command: AuthCommand,
}

#[derive(Debug, Subcommand)]
enum AuthCommand {
    /// Make a bundle: a file with a certificate, its key, and the CAs it trusts
    #[command(subcommand)]
    New(NewCommand),
    Renew(renew::RenewArgs),
    /// Refuse certificates from now on
    #[command(subcommand)]
    Revoke(RevokeCommand),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
}

#[derive(Debug, Subcommand)]
enum NewCommand {
    Ca(ca::CaArgs),
    Server(server::ServerArgs),
    Client(client::ClientArgs),
    Tcclient(tcclient::TcclientArgs),
}

#[derive(Debug, Subcommand)]
enum RevokeCommand {
    Client(revoke::RevokeArgs),
}

const EXAMPLES: &str = "\
Examples:
  lockd auth new server --hosts lock.example.com --ca-pass-prompt
  lockd auth new client --cn worker-1 -n orders=rw -n stock=r --out worker-1.pem
  lockd auth inspect worker-1.pem
  lockd auth revoke client 3f2a91c0
  lockd auth renew server

Bundles are kept in LOCKD_CONFIG_DIR, else in ~/.lockd. Exit codes: 0 done, 1 failed, 2 wrong
usage, 3 verify found something wrong.";

pub fn run(args: AuthArgs) -> ExitCode {
    let now = Timestamp::now();
    let done = match args.command {
        AuthCommand::New(NewCommand::Ca(args)) => ca::run(&args, now),
        AuthCommand::New(NewCommand::Server(args)) => server::run(&args, now),
        AuthCommand::New(NewCommand::Client(args)) => client::run(&args, now),
        AuthCommand::New(NewCommand::Tcclient(args)) => tcclient::run(&args, now),
        AuthCommand::Renew(args) => renew::run(&args, now),
        AuthCommand::Revoke(RevokeCommand::Client(args)) => revoke::run(&args),
        AuthCommand::Inspect(args) => inspect::run(&args, now),
        AuthCommand::Verify(args) => verify::run(&args, now),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}

/// Where a new bundle goes, and how it is told.
#[derive(Clone, Debug, Args)]
struct Output {
    /// Where to write the bundle (default: in the configuration folder)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace a bundle of the same kind
    #[arg(long)]
    force: bool,
    /// How to print what was made
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// How long a certificate is valid.
#[derive(Clone, Copy, Debug, Args)]
struct Validity {
    /// How long it is valid, in whole days: 365d, 8760h [default: 365d]
    #[arg(long, value_name = "DURATION", value_parser = days)]
    valid_for: Option<u32>,
}

impl Validity {
    fn or(self, usual: u32) -> u32 {
        self.valid_for.unwrap_or(usual)
    }
}

/// Whole days; what is left of a day is not granted.
fn days(text: &str) -> Result<u32, String> {
    const DAY: u64 = 24 * 60 * 60;
    let length: Duration = humantime::parse_duration(text.trim())
        .map_err(|_| "write a time as 365d, 8760h or 2w".to_owned())?;
    match u32::try_from(length.as_secs() / DAY) {
        Ok(days @ 1..=3650) => Ok(days),
        Ok(_) | Err(_) => Err("a certificate is valid for 1 to 3650 days".to_owned()),
    }
}

impl Output {
    /// The file to write, the named one or the usual one.
    fn path(&self, usual: &str) -> Done<PathBuf> {
        match &self.out {
            Some(out) => Ok(out.clone()),
            None => Ok(folder::config_dir()?.join(usual)),
        }
    }

    /// What the file holds today; refused unless it may be replaced. A key that is overwritten is
    /// gone, so even by force only a bundle of the same kind gives way.
    fn replaced(&self, path: &Path, kind: &'static str) -> Done<Option<Bundle>> {
        if !files::exists(path)? {
            return Ok(None);
        }
        if !self.force {
            return Err(Problem::failed(format!("{} exists already", path.display()))
                .hint("replace it with --force, or name another file with --out"));
        }
        let bundle = load(path).map_err(|problem| problem.hint("it was left as it is"))?;
        if bundle.kind() != kind {
            let found = bundle.kind();
            let message = format!("{} is a {found} bundle, not a {kind} bundle", path.display());
            return Err(Problem::failed(message).hint("it was left as it is; name another file"));
        }
        Ok(Some(bundle))
    }

    fn existing(&self) -> Existing {
        if self.force { Existing::Replace } else { Existing::Refuse }
    }
}

/// Reads a bundle, and tells what should not be left as it is.
fn load(path: &Path) -> Done<Bundle> {
    let (bundle, warning) = files::load(path)?;
    if let Some(warning) = warning {
        ui::note(&warning.to_string());
    }
    Ok(bundle)
}

/// Writes a bundle, in a folder that is made if need be. A link is followed, not replaced.
fn write(path: &Path, text: &str, existing: Existing) -> Done {
    files::make_folder(folder::of(path))?;
    let real = std::fs::canonicalize(path).ok();
    Ok(files::write(real.as_deref().unwrap_or(path), text, existing)?)
}

/// A bundle that was made, as data.
#[derive(Debug, Serialize)]
struct Issued {
    file: String,
    /// The CA's own file, when it was made on the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    ca_file: Option<String>,
    #[serde(flatten)]
    summary: Summary,
}

impl Issued {
    fn print(&self, format: Format) -> Done {
        ui::print(format, self, || {
            let Summary { kind, name, serial, days_left, .. } = &self.summary;
            let made = format!(
                "{}: {kind} {name:?}, serial {serial}, valid for {days_left} days",
                self.file
            );
            match &self.ca_file {
                Some(ca_file) => format!("{made}\n{ca_file}: the CA that signed it, with its key"),
                None => made,
            }
        })
    }
}

/// The exit of a check that found something.
fn something_wrong(what: &Path) -> Problem {
    let message = format!("{}: something is wrong with it", what.display());
    Problem::new(exit::Exit::Wrong, message)
}

#[cfg(test)]
mod tests {
    use super::days;

    #[test]
    fn validity_is_in_whole_days() {
        for (text, expected) in [("365d", 365), ("8760h", 365), ("2w", 14), ("36h", 1), ("1y", 365)]
        {
            assert_eq!(days(text), Ok(expected), "{text}");
        }
        for text in ["", "23h", "11y", "soon", "-1d", "365"] {
            assert!(days(text).is_err(), "{text}");
        }
    }
}
