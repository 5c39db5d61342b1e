//! Which certificate a client shows: the bundle that is named, else the one `client*.pem` in the
//! current folder, else the one in the configuration folder. One that could be several is never
//! guessed. Whether a server is spoken to over TLS at all is decided here too.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::BoolishValueParser;
use lockd_pki::{ClientBundle, FileError, files};

use crate::exit::{Done, Problem};
use crate::{folder, ui};

const VARIABLE: &str = "LOCKD_CLIENT_BUNDLE";

/// The flags about TLS, as all client commands take them.
#[derive(Clone, Debug, Default, Args)]
pub struct BundleArgs {
    /// The bundle to show to servers (default: the one client*.pem in this folder, else in the
    /// configuration folder)
    #[arg(long, short, global = true, value_name = "FILE", env = VARIABLE)]
    pub bundle: Option<PathBuf>,
    /// Speak plain HTTP to servers that are named without a scheme
    #[arg(long, global = true, env = "LOCKD_CLIENT_DISABLE_MTLS", value_name = "BOOL",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", hide_default_value = true, action = clap::ArgAction::Set,
          value_parser = BoolishValueParser::new())]
    pub disable_mtls: bool,
    /// Whether to use mutual TLS; --mtls=false is --disable-mtls [default: true]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set,
          value_parser = BoolishValueParser::new())]
    pub mtls: Option<bool>,
}

impl BundleArgs {
    /// Whether mutual TLS is on. What is said outright beats what is only not said.
    #[must_use]
    pub fn mtls(&self) -> bool {
        self.mtls.unwrap_or(!self.disable_mtls)
    }
}

/// Servers as they are meant, and what to show to them.
#[derive(Debug)]
pub struct Resolved {
    /// Every address with its scheme, separated by commas.
    pub servers: String,
    /// Where the bundle is, and the bundle; none when no server is spoken to over TLS.
    pub bundle: Option<(PathBuf, ClientBundle)>,
}

/// Gives every server a scheme and finds the bundle that they need.
///
/// # Errors
/// When a bundle is needed and none can be used, or several could be meant.
pub fn resolve(args: &BundleArgs, servers: &str) -> Done<Resolved> {
    let servers = with_schemes(servers, args.mtls());
    if !servers.split(',').any(is_tls) {
        return Ok(Resolved { servers, bundle: None });
    }
    let found = match args.bundle.as_deref().filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => (path.to_owned(), load(path)?),
        None => search_usual()?,
    };
    tracing::debug!(path = %found.0.display(), "bundle");
    Ok(Resolved { servers, bundle: Some(found) })
}

/// The bundle that a daemon shows as a client, and where it is: the one that a setting of the daemon
/// names, else the one that `lockd client` would show.
///
/// # Errors
/// As [`resolve`].
pub fn of_daemon(named: Option<&Path>, flag: &str) -> Done<(PathBuf, ClientBundle)> {
    let named = named.map(Path::to_owned).or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    match named.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => {
            let bundle = load(&path)?;
            Ok((path, bundle))
        }
        None => search_usual().map_err(|problem| {
            problem.hint(format!(
                "name one with {flag} or {VARIABLE}, or make one with `lockd auth new client`"
            ))
        }),
    }
}

/// The bundle to show to these servers; none when none of them is spoken to over TLS.
///
/// # Errors
/// As [`resolve`].
pub fn bundle_for(args: &BundleArgs, servers: &str) -> Done<Option<ClientBundle>> {
    Ok(resolve(args, servers)?.bundle.map(|(_, bundle)| bundle))
}

/// A bare address means TLS, unless that is off.
fn with_schemes(servers: &str, mtls: bool) -> String {
    let usual = if mtls { "https" } else { "http" };
    let servers = servers.split(',').map(str::trim).filter(|server| !server.is_empty());
    let named: Vec<String> =
        servers
            .map(|server| {
                if server.contains("://") {
                    server.to_owned()
                } else {
                    format!("{usual}://{server}")
                }
            })
            .collect();
    named.join(",")
}

fn is_tls(server: &str) -> bool {
    server.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("https"))
}

fn load(path: &Path) -> Done<ClientBundle> {
    let loaded = files::read(path)?;
    if let Some(warning) = loaded.warning {
        ui::note(&warning.to_string());
    }
    Ok(ClientBundle::parse(&path.display().to_string(), &loaded.text)?)
}

/// The one in this folder, else the one in the configuration folder.
fn search_usual() -> Done<(PathBuf, ClientBundle)> {
    let folders = [Some(PathBuf::from(".")), folder::config_dir().ok()];
    search(folders.iter().flatten().map(PathBuf::as_path))
}

/// The first folder that has exactly one.
fn search<'a>(folders: impl Iterator<Item = &'a Path>) -> Done<(PathBuf, ClientBundle)> {
    let mut seen = Vec::new();
    for folder in folders {
        if !files::exists(folder)? {
            seen.push(format!("there is no folder {}", folder.display()));
            continue;
        }
        match files::find_client(folder) {
            Ok(found) => return Ok(found),
            Err(FileError::NoClient { folder, unusable }) => {
                seen.push(format!("there is none in {}", folder.display()));
                seen.extend(unusable);
            }
            Err(several @ FileError::SeveralClients { .. }) => {
                return Err(Problem::usage(several.to_string())
                    .hint("name it with --bundle or LOCKD_CLIENT_BUNDLE"));
            }
            Err(other) => return Err(other.into()),
        }
    }
    Err(Problem::usage(format!("no client bundle: {}", seen.join("; "))).hint(
        "name one with --bundle, make one with `lockd auth new client`, or speak plain HTTP with \
         --disable-mtls",
    ))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use lockd_pki::files::Existing;
    use lockd_pki::issue::CA_NAME;
    use lockd_pki::{Authority, ClientRequest};

    use super::*;

    fn make(folder: &Path, file: &str, request: &ClientRequest) {
        let authority = Authority::create(CA_NAME, Timestamp::now()).unwrap();
        let leaf = authority.issue_client(request, Timestamp::now()).unwrap();
        let text = ClientBundle::new(&authority, leaf).to_pem();
        files::write(&folder.join(file), &text, Existing::Refuse).unwrap();
    }

    fn sdk(folder: &Path, file: &str, name: &str) {
        make(folder, file, &ClientRequest::sdk(name, Vec::new()));
    }

    fn found(folders: &[&Path]) -> Done<String> {
        let (_, bundle) = search(folders.iter().copied())?;
        Ok(bundle.leaf().peer.role.name().to_owned())
    }

    #[test]
    fn a_bare_address_means_tls_unless_that_is_off_and_a_scheme_is_honoured() {
        for (servers, mtls, expected) in [
            ("localhost:9341", true, "https://localhost:9341"),
            ("localhost:9341", false, "http://localhost:9341"),
            ("https://h", false, "https://h"),
            ("http://h", true, "http://h"),
            ("unix:///run/lockd", true, "unix:///run/lockd"),
            ("http://a, b,", true, "http://a,https://b"),
            ("https://a,b", false, "https://a,http://b"),
        ] {
            assert_eq!(with_schemes(servers, mtls), expected, "{servers} {mtls}");
        }
        assert!(is_tls("HTTPS://h") && !is_tls("http://h") && !is_tls("unix:///https://"));
    }

    #[test]
    fn mutual_tls_is_on_unless_it_is_said_otherwise() {
        let mtls = |disable_mtls, mtls| BundleArgs { bundle: None, disable_mtls, mtls }.mtls();
        assert!(mtls(false, None));
        assert!(!mtls(true, None));
        assert!(!mtls(false, Some(false)));
        assert!(mtls(true, Some(true)), "a flag beats the variable");
    }

    #[test]
    fn this_folder_comes_before_the_usual_one() {
        let (here, usual) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [here.path(), usual.path()];
        sdk(usual.path(), "client.pem", "usual");
        assert_eq!(found(&folders).unwrap(), "usual");
        sdk(here.path(), "client-1.pem", "here");
        assert_eq!(found(&folders).unwrap(), "here");
    }

    #[test]
    fn several_are_listed_and_none_is_taken() {
        let (here, usual) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        sdk(usual.path(), "client.pem", "usual");
        sdk(here.path(), "client-1.pem", "one");
        sdk(here.path(), "client-2.pem", "two");
        let said = found(&[here.path(), usual.path()]).unwrap_err().to_string();
        assert!(said.contains("client-1.pem") && said.contains("client-2.pem"), "{said}");
        assert!(said.contains("--bundle"), "{said}");
    }

    #[test]
    fn what_cannot_be_used_is_passed_over_and_told_in_the_end() {
        let (here, usual) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(here.path().join("client.pem"), "damaged").unwrap();
        make(here.path(), "client-tc.pem", &ClientRequest::tc("tc"));
        let said = found(&[here.path(), Path::new("/no/such/folder")]).unwrap_err().to_string();
        assert!(said.contains("client.pem") && said.contains("of a tc"), "{said}");
        assert!(said.contains("no folder /no/such/folder"), "{said}");
        assert!(said.contains("--disable-mtls"), "{said}");
        sdk(usual.path(), "client.pem", "usual");
        assert_eq!(found(&[here.path(), usual.path()]).unwrap(), "usual");
    }

    #[test]
    fn a_named_bundle_is_taken_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        sdk(folder.path(), "mine.pem", "mine");
        let args = |file: &str| BundleArgs {
            bundle: Some(folder.path().join(file)),
            ..BundleArgs::default()
        };
        let bundle = bundle_for(&args("mine.pem"), "localhost").unwrap().unwrap();
        assert_eq!(bundle.leaf().peer.role.name(), "mine");
        assert!(bundle_for(&args("absent.pem"), "localhost").is_err());
        assert!(bundle_for(&args("absent.pem"), "http://localhost").unwrap().is_none());
    }
}
