//! `auth revoke client`: serials go on the denylist of a server, and on those of the other servers
//! in the same folder. As much as possible is done; whatever could not be done is told at the end.

use std::path::{Path, PathBuf};

use clap::Args;
use lockd_pki::bootstrap::SERVER_FILE;
use lockd_pki::files::Existing;
use lockd_pki::{Bundle, Serial, ServerBundle};
use serde::Serialize;

use super::{load, write};
use crate::exit::{Done, Problem};
use crate::folder;
use crate::ui::{self, Format};

/// Put the serials of client certificates on the denylist
///
/// A running server reads its bundle again and then refuses them, also on open connections.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RevokeArgs {
    /// Serials in hexadecimal, as `lockd auth inspect` shows them
    #[arg(value_name = "SERIAL", required = true, value_parser = serial)]
    serials: Vec<Serial>,
    /// The server's bundle (default: server.pem in the configuration folder)
    #[arg(long, value_name = "FILE")]
    server_in: Option<PathBuf>,
    /// Where to write the changed bundle (default: in place)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Do the same to every other server*.pem in the folder
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    propagate: bool,
    /// How to print what was done
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd auth revoke client 3f2a91c0
  lockd auth revoke client --server-in server.pem --out server.pem 3f2a91c0 77ab01";

/// Bundles that are changed along; a folder with more is no folder of bundles.
const SERVERS_MAX: usize = 256;

#[derive(Serialize)]
struct Shown {
    files: Vec<Changed>,
}

#[derive(Serialize)]
struct Changed {
    file: String,
    revoked: Vec<String>,
    already_revoked: Vec<String>,
}

/// Hexadecimal, also as other tools write it: 0x in front, colons between.
fn serial(text: &str) -> Result<Serial, String> {
    let text = text.trim();
    let bare = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    Serial::parse(&bare.replace(':', "")).map_err(|refused| refused.to_string())
}

pub(super) fn run(args: &RevokeArgs) -> Done {
    let source = match &args.server_in {
        Some(path) => path.clone(),
        None => folder::config_dir()?.join(SERVER_FILE),
    };
    let out = args.out.as_ref().unwrap_or(&source);
    let mut server = match load(&source)? {
        Bundle::Server(server) => server,
        other @ (Bundle::Ca(_) | Bundle::Client(_)) => {
            return Err(Problem::failed(format!(
                "{} is a {} bundle; serials are kept in a server's",
                source.display(),
                other.kind()
            )));
        }
    };
    let own = server.leaf().certificate.serial;
    if args.serials.contains(&own) {
        return Err(Problem::usage(format!("{own} is the serial of the server itself"))
            .hint("replace the server's certificate with `lockd auth renew server`"));
    }
    let mut files = vec![change(&mut server, out, &args.serials)?];
    let mut failed = Vec::new();
    if args.propagate {
        for path in others(&source, out)? {
            match along(&path, &args.serials) {
                Ok(changed) => files.extend(changed),
                Err(problem) => failed.push(problem.to_string()),
            }
        }
    }
    let shown = Shown { files };
    ui::print(args.output, &shown, || text(&shown))?;
    if failed.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(format!("not everywhere: {}", failed.join("; ")))
        .hint("the bundles that are listed were changed; see to the others"))
}

/// The same for a bundle beside; none when it is not that of a server.
fn along(path: &Path, serials: &[Serial]) -> Done<Option<Changed>> {
    match load(path)? {
        Bundle::Server(mut server) => change(&mut server, path, serials).map(Some),
        other @ (Bundle::Ca(_) | Bundle::Client(_)) => {
            ui::note(&format!("{}: left alone, it is a {} bundle", path.display(), other.kind()));
            Ok(None)
        }
    }
}

fn change(server: &mut ServerBundle, out: &Path, serials: &[Serial]) -> Done<Changed> {
    let (mut revoked, mut already_revoked) = (Vec::new(), Vec::new());
    for serial in serials {
        let list = if server.revoke(*serial) { &mut revoked } else { &mut already_revoked };
        list.push(serial.to_string());
    }
    write(out, &server.to_pem(), Existing::Replace)?;
    Ok(Changed { file: out.display().to_string(), revoked, already_revoked })
}

/// Every other server*.pem in the folder, in order.
fn others(source: &Path, out: &Path) -> Done<Vec<PathBuf>> {
    let folder = folder::of(source);
    let cannot = |error: std::io::Error| {
        Problem::failed(format!("cannot list {}: {error}", folder.display()))
    };
    let done: Vec<PathBuf> =
        [source, out].iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let real = std::fs::canonicalize(&path).ok();
        let is_other = real.is_some_and(|real| !done.contains(&real));
        if !name.starts_with("server") || !name.ends_with(".pem") || path.is_dir() || !is_other {
            continue;
        }
        if found.len() == SERVERS_MAX {
            let message = format!("more than {SERVERS_MAX} files could be meant");
            return Err(Problem::failed(message).hint("name them one by one"));
        }
        found.push(path);
    }
    found.sort();
    Ok(found)
}

fn text(shown: &Shown) -> String {
    let lines: Vec<String> = shown
        .files
        .iter()
        .map(|changed| {
            let (new, old) = (changed.revoked.len(), changed.already_revoked.len());
            let before = if old == 0 { String::new() } else { format!(", {old} were before") };
            format!("{}: {new} revoked{before}", changed.file)
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::serial;

    #[test]
    fn serials_are_read_as_other_tools_write_them() {
        let plain = serial("3f2a91c0").unwrap();
        for text in ["3F2A91C0", "0x3f2a91c0", "3f:2a:91:c0", " 003F2A91C0 "] {
            assert_eq!(serial(text), Ok(plain), "{text}");
        }
        for text in ["", "0x", "worker-1", "3f 2a"] {
            assert!(serial(text).is_err(), "{text}");
        }
    }
}
