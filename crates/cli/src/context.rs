//! Which lease a command acts under. Flags come first, then arguments, then the environment that
//! `eval "$(lockd client acquire ...)"` has set.
//!
//! The lease in the environment belongs to the key in the environment, and is never shown for
//! another one. A name that is given but empty is never replaced by another one: it is what an
//! unset variable leaves behind.

use std::collections::BTreeMap;
use std::path::Path;

use lockd_client::{Grant, LeaseContext};

use crate::exit::{Done, Problem};

const PREFIX: &str = "LOCKD_CLIENT_";
pub(crate) const QUEUE_PREFIX: &str = "LOCKD_QUEUE_";

/// What the help text and the manual say about the environment.
pub(crate) const ENVIRONMENT: &str = "\
Environment:
  LOCKD_CLIENT_SERVER         server address, as --server
  LOCKD_CLIENT_NAMESPACE      namespace, as --namespace
  LOCKD_CLIENT_BUNDLE         the client's bundle, as --bundle
  LOCKD_CLIENT_TIMEOUT        as --timeout
  LOCKD_CLIENT_DISABLE_MTLS   as --disable-mtls
  LOCKD_CLIENT_OWNER          who holds what is acquired, as --owner
  LOCKD_CLIENT_KEY            the key, where none is named
  LOCKD_CLIENT_LEASE, LOCKD_CLIENT_FENCING_TOKEN, LOCKD_CLIENT_TXN_ID
                              the lease that is held on that key
  LOCKD_CLIENT_VERSION, LOCKD_CLIENT_ETAG, LOCKD_CLIENT_EXPIRES_UNIX,
  LOCKD_CLIENT_CORRELATION_ID set by acquire for scripts, read by nobody
  LOCKD_QUEUE_*               the message that was taken; see lockd client queue --help";

/// The `LOCKD_CLIENT_*` and `LOCKD_QUEUE_*` variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    client: BTreeMap<String, String>,
    queue: BTreeMap<String, String>,
}

/// A name as an argument or a flag gives it.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it is empty; is a variable unset?".to_owned());
    }
    Ok(text.to_owned())
}

/// A lease as flags name it.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LeaseFlags {
    /// The key; then the first argument is not the key
    #[arg(long, short, value_name = "KEY", value_parser = crate::context::name)]
    pub(crate) key: Option<String>,
    /// Id of the lease [env: LOCKD_CLIENT_LEASE]
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    pub(crate) lease: Option<String>,
    /// Fencing token of the lease [env: LOCKD_CLIENT_FENCING_TOKEN]
    #[arg(long, value_name = "N")]
    pub(crate) fencing_token: Option<u64>,
    /// Transaction of the lease [env: LOCKD_CLIENT_TXN_ID]
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    pub(crate) txn_id: Option<String>,
}

impl Environment {
    pub(crate) fn read() -> Self {
        Self::of(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }))
    }

    pub(crate) fn of(vars: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut ours = Self::default();
        for (name, value) in vars {
            if let Some(name) = name.strip_prefix(PREFIX) {
                ours.client.insert(name.to_owned(), value);
            } else if let Some(name) = name.strip_prefix(QUEUE_PREFIX) {
                ours.queue.insert(name.to_owned(), value);
            }
        }
        ours
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.client.get(name).map(String::as_str).filter(|value| !value.trim().is_empty())
    }

    /// A variable that names something. One that is set but empty names nothing, and does not
    /// count as absent.
    ///
    /// # Errors
    /// When it is set but empty.
    pub(crate) fn named(&self, name: &str) -> Done<Option<&str>> {
        given(PREFIX, name, self.client.get(name))
    }

    /// A variable about the message that was taken.
    pub(crate) fn of_queue(&self, name: &str) -> Option<&str> {
        self.queue.get(name).map(String::as_str).filter(|value| !value.trim().is_empty())
    }

    /// As [`Environment::named`], about the message that was taken.
    ///
    /// # Errors
    /// When it is set but empty.
    pub(crate) fn named_of_queue(&self, name: &str) -> Done<Option<&str>> {
        given(QUEUE_PREFIX, name, self.queue.get(name))
    }

    /// The key that is meant: the named one, else that of the environment.
    pub(crate) fn need_key(&self, named: Option<String>) -> Done<String> {
        let key = match named {
            Some(named) => Some(named),
            None => self.named("KEY")?.map(str::to_owned),
        };
        key.ok_or_else(|| Problem::usage("no key").hint("name one, or set LOCKD_CLIENT_KEY"))
    }

    /// The lease to show for a key, if there is one.
    pub(crate) fn lease(
        &self,
        key: &str,
        namespace: Option<&str>,
        flags: &LeaseFlags,
    ) -> Done<Option<LeaseContext>> {
        let known = match flags.lease {
            Some(_) => self.get("LEASE"),
            None => self.named("LEASE")?,
        };
        let known = known.filter(|_| self.is_about(key, namespace));
        let Some(lease_id) = flags.lease.as_deref().or(known) else {
            return Ok(None);
        };
        // The other parts go with the lease they were granted with.
        let same = known == Some(lease_id);
        let token = match (flags.fencing_token, self.get("FENCING_TOKEN")) {
            (Some(token), _) => Some(token),
            (None, Some(text)) if same => Some(text.trim().parse().map_err(|_| {
                Problem::usage(format!("LOCKD_CLIENT_FENCING_TOKEN is not a number: {text:?}"))
            })?),
            (None, _) => None,
        };
        let txn_id = flags.txn_id.as_deref().or_else(|| self.get("TXN_ID").filter(|_| same));
        Ok(Some(LeaseContext {
            namespace: namespace.map(str::to_owned),
            key: key.to_owned(),
            lease_id: lease_id.to_owned(),
            txn_id: txn_id.map(str::to_owned),
            token,
        }))
    }

    /// The lease to show for a key, or what to do about there being none.
    pub(crate) fn need_lease(
        &self,
        key: &str,
        namespace: Option<&str>,
        flags: &LeaseFlags,
    ) -> Done<LeaseContext> {
        let Some(lease) = self.lease(key, namespace, flags)? else {
            let message = match self.get("KEY") {
                Some(other) if self.get("LEASE").is_some() => {
                    format!("no lease for {key:?}: the one in the environment is for {other:?}")
                }
                Some(_) | None => format!("no lease for {key:?}"),
            };
            return Err(Problem::usage(message).hint(format!(
                "run eval \"$(lockd client acquire {key})\", or give --lease, --fencing-token and \
                 --txn-id"
            )));
        };
        Ok(lease)
    }

    /// Whether the lease in the environment is one of this key.
    fn is_about(&self, key: &str, namespace: Option<&str>) -> bool {
        let same_key = self.get("KEY").is_none_or(|known| plain(known) == plain(key));
        let same_namespace = match (self.get("NAMESPACE"), namespace) {
            (Some(known), Some(namespace)) => plain(known) == plain(namespace),
            (None, _) | (_, None) => true,
        };
        same_key && same_namespace
    }
}

fn given<'a>(prefix: &str, name: &str, value: Option<&'a String>) -> Done<Option<&'a str>> {
    match value.map(String::as_str) {
        Some(value) if value.trim().is_empty() => {
            let problem = Problem::usage(format!("{prefix}{name} is set but empty"));
            Err(problem.hint("give it a value, or unset it"))
        }
        value => Ok(value),
    }
}

/// The user that runs this, at its machine.
pub(crate) fn user_at_host() -> String {
    let named = ["USER", "LOGNAME"].into_iter().filter_map(std::env::var_os);
    let mut named = named.filter_map(|name| name.into_string().ok());
    let user = named.find(|name| !name.trim().is_empty() && !name.chars().any(char::is_control));
    let user = user.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()));
    let host = lockd_pki::files::machine_name().unwrap_or_else(|| "localhost".to_owned());
    format!("{user}@{host}")
}

/// Names as the server compares them, and stores them.
pub(crate) fn plain(name: &str) -> String {
    let name = name.trim();
    name.strip_prefix('/').unwrap_or(name).to_ascii_lowercase()
}

/// The variables that hand a lease on to other commands.
pub(crate) fn exports(grant: &Grant, server: &str, bundle: Option<&Path>) -> Vec<(String, String)> {
    let context = &grant.context;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let number = |value: u64| value.to_string();
    let mut exports = vec![("SERVER", server.to_owned())];
    // Absolute, because whoever reads it may be in another folder.
    let bundle =
        bundle.and_then(|path| std::path::absolute(path).ok()?.to_str().map(str::to_owned));
    exports.extend(bundle.map(|path| ("BUNDLE", path)));
    exports.extend([
        ("NAMESPACE", text(&context.namespace)),
        ("KEY", plain(&context.key)),
        ("LEASE", context.lease_id.clone()),
        ("FENCING_TOKEN", context.token.map(number).unwrap_or_default()),
        ("TXN_ID", text(&context.txn_id)),
        ("OWNER", grant.owner.clone()),
        ("VERSION", number(grant.version)),
        ("ETAG", text(&grant.etag)),
        ("EXPIRES_UNIX", number(grant.expires_at_unix)),
        ("CORRELATION_ID", grant.correlation_id.clone()),
    ]);
    exports.into_iter().map(|(name, value)| (format!("{PREFIX}{name}"), value)).collect()
}

/// Lines that a shell can `eval`.
pub(crate) fn export_lines(exports: &[(String, String)]) -> String {
    let lines: Vec<_> = exports
        .iter()
        .map(|(name, value)| format!("export {name}=\"{}\"", quoted(value)))
        .collect();
    lines.join("\n")
}

/// The inside of a double-quoted shell word.
fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '"' | '\\' | '$' | '`') {
            text.push('\\');
        }
        text.push(character);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(vars: &[(&str, &str)]) -> Environment {
        let vars =
            vars.iter().map(|(name, value)| (format!("{PREFIX}{name}"), (*value).to_owned()));
        Environment::of(vars)
    }

    fn held() -> Environment {
        environment(&[
            ("KEY", "orders"),
            ("NAMESPACE", "default"),
            ("LEASE", "L1"),
            ("FENCING_TOKEN", "7"),
            ("TXN_ID", "T1"),
        ])
    }

    #[test]
    fn a_variable_that_is_set_but_empty_is_not_absent() {
        let blank = environment(&[("KEY", " "), ("LEASE", ""), ("ETAG", "")]);
        let problem = blank.need_key(None).unwrap_err();
        assert_eq!(problem.exit().unwrap().code(), 2);
        assert!(problem.to_string().contains("LOCKD_CLIENT_KEY is set but empty"), "{problem}");
        let problem = blank.lease("k", None, &LeaseFlags::default()).unwrap_err().to_string();
        assert!(problem.contains("LOCKD_CLIENT_LEASE is set but empty"), "{problem}");
        assert_eq!(blank.get("ETAG"), None, "which names nothing");
        // What a flag says needs no variable.
        assert_eq!(blank.need_key(Some("k".into())).unwrap(), "k");
        let flags = LeaseFlags { lease: Some("L".into()), ..LeaseFlags::default() };
        assert!(blank.lease("k", None, &flags).unwrap().is_some());
    }

    #[test]
    fn the_environment_only_fills_in_an_absent_key() {
        assert_eq!(held().need_key(Some("other".into())).unwrap(), "other");
        assert_eq!(held().need_key(None).unwrap(), "orders");
        assert!(Environment::default().need_key(None).is_err());
    }

    #[test]
    fn a_lease_in_the_environment_is_shown_for_its_own_key() {
        for key in ["orders", "Orders", "/orders"] {
            let lease = held().lease(key, None, &LeaseFlags::default()).unwrap().unwrap();
            assert_eq!(lease.lease_id, "L1");
            assert_eq!(lease.token, Some(7));
            assert_eq!(lease.txn_id.as_deref(), Some("T1"));
        }
    }

    #[test]
    fn and_for_no_other_key_or_namespace() {
        let none = LeaseFlags::default();
        assert_eq!(held().lease("other", None, &none).unwrap(), None);
        assert_eq!(held().lease("orders", Some("team"), &none).unwrap(), None);
        let problem = held().need_lease("other", None, &none).unwrap_err().to_string();
        assert!(problem.contains("for \"orders\""), "{problem}");
    }

    #[test]
    fn flags_beat_the_environment_and_take_nothing_from_it() {
        let flags = LeaseFlags {
            lease: Some("L2".into()),
            fencing_token: Some(9),
            txn_id: Some("T2".into()),
            ..LeaseFlags::default()
        };
        let lease = held().lease("other", None, &flags).unwrap().unwrap();
        assert_eq!((lease.lease_id.as_str(), lease.token), ("L2", Some(9)));
        assert_eq!(lease.txn_id.as_deref(), Some("T2"));

        let only_lease = LeaseFlags { lease: Some("L2".into()), ..LeaseFlags::default() };
        let lease = held().lease("orders", None, &only_lease).unwrap().unwrap();
        assert_eq!((lease.token, lease.txn_id), (None, None), "they belong to another lease");

        let only_token = LeaseFlags { fencing_token: Some(8), ..LeaseFlags::default() };
        let lease = held().lease("orders", None, &only_token).unwrap().unwrap();
        assert_eq!((lease.lease_id.as_str(), lease.token), ("L1", Some(8)));
    }

    #[test]
    fn a_bad_token_is_told_not_ignored() {
        let environment = environment(&[("LEASE", "L1"), ("FENCING_TOKEN", "seven")]);
        let problem = environment.lease("k", None, &LeaseFlags::default()).unwrap_err();
        assert_eq!(problem.exit().unwrap().code(), 2);
    }

    #[test]
    fn exports_survive_a_shell() {
        let nasty = "a \"b\" $HOME `id` \\ 'c'\nnext;|&!#";
        let lines = export_lines(&[("LOCKD_CLIENT_OWNER".to_owned(), nasty.to_owned())]);
        let script = format!("{lines}\nprintf %s \"$LOCKD_CLIENT_OWNER\"");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), nasty);
        assert!(output.stderr.is_empty());
    }
}
