//! From the text of a setting to its type.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockd_core::queue::QueueName;
use lockd_store::object::{Encryption, Location, ObjectOptions};

use super::{Address, Family, NAMED_QUEUES_MAX, NamedQueues, StoreSetting};

/// Why a value was refused: what would have been right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadValue(pub String);

fn bad<T>(what: impl Into<String>) -> Result<T, BadValue> {
    Err(BadValue(what.into()))
}

pub(super) fn switch(text: &str) -> Result<bool, BadValue> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => bad("expected true or false"),
    }
}

/// `30s`, `1m30s`, or a bare number of seconds.
pub(super) fn duration(text: &str) -> Result<Duration, BadValue> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|_| BadValue("expected a duration such as 30s or 5m".into()))
}

/// `8MiB`, `100MB`, or a bare number of bytes. A unit without the `i` counts in thousands.
pub(super) fn bytes(text: &str) -> Result<u64, BadValue> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = lower.get(digits.len()..).unwrap_or_default().trim();
    let scale: u64 = match unit {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "ki" | "kib" => 1 << 10,
        "m" | "mb" => 1_000_000,
        "mi" | "mib" => 1 << 20,
        "g" | "gb" => 1_000_000_000,
        "gi" | "gib" => 1 << 30,
        "t" | "tb" => 1_000_000_000_000,
        "ti" | "tib" => 1 << 40,
        _ => return bad("expected a size such as 8MiB or 100MB"),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)) {
        Some(bytes) => Ok(bytes),
        None => bad("expected a size such as 8MiB or 100MB"),
    }
}

/// As [`bytes`], within what services take as the size of a part.
pub(super) fn part_size(text: &str) -> Result<usize, BadValue> {
    let size = bytes(text)?;
    if !(5 << 20..=512 << 20).contains(&size) {
        return bad("a part has 5MiB to 512MiB");
    }
    usize::try_from(size).map_err(|_| BadValue("too large for this machine".into()))
}

/// Nothing, `AES256` or `aws:kms`.
pub(super) fn encryption(text: &str, key: Option<String>) -> Result<Option<Encryption>, BadValue> {
    match (text.to_ascii_lowercase().as_str(), key) {
        ("", None) => Ok(None),
        ("aes256", None) => Ok(Some(Encryption::Aes256)),
        ("aws:kms", key) => Ok(Some(Encryption::Kms { key })),
        ("" | "aes256", Some(_)) => bad("s3-kms-key-id is for aws:kms"),
        _ => bad("expected AES256 or aws:kms"),
    }
}

/// As [`bytes`]; nothing for `auto`.
pub(super) fn bytes_or_auto(text: &str) -> Result<Option<u64>, BadValue> {
    match text {
        "auto" => Ok(None),
        other => bytes(other)
            .map(Some)
            .map_err(|_| BadValue("expected auto, or a size such as 8MiB or 100MB".into())),
    }
}

pub(super) fn count(text: &str) -> Result<usize, BadValue> {
    match text.parse::<usize>() {
        Ok(count) if count > 0 => Ok(count),
        Ok(_) | Err(_) => bad("expected a whole number above zero"),
    }
}

pub(super) fn count_or_auto(text: &str) -> Result<Option<usize>, BadValue> {
    match text {
        "auto" => Ok(None),
        other => count(other)
            .map(Some)
            .map_err(|_| BadValue("expected auto, or a whole number above zero".into())),
    }
}

/// One address; `proto` says how a bare one is meant.
pub(super) fn named_queues(text: &str) -> Result<NamedQueues, BadValue> {
    match text {
        "" => return Ok(NamedQueues::None),
        "all" => return Ok(NamedQueues::All),
        _ => {}
    }
    let mut named: Vec<QueueName> = Vec::new();
    for name in text.split(',').map(str::trim) {
        let Some((namespace, queue)) = name.rsplit_once('/') else {
            return bad(format!("{name:?} is not namespace/queue"));
        };
        let parsed = QueueName::parse(namespace, queue);
        let queue = parsed.map_err(|refused| BadValue(format!("{name:?}: {refused}")))?;
        if !named.contains(&queue) {
            named.push(queue);
        }
    }
    if named.len() > NAMED_QUEUES_MAX {
        return bad(format!("at most {NAMED_QUEUES_MAX} queues can be named"));
    }
    Ok(NamedQueues::These(named))
}

pub(super) fn address(text: &str, proto: &str) -> Result<Address, BadValue> {
    let text = text.trim();
    if let Some(path) = text.strip_prefix("unix://") {
        return unix(path);
    }
    let family = match proto {
        "tcp" => Family::Any,
        "tcp4" => Family::V4,
        "tcp6" => Family::V6,
        "unix" => return unix(text),
        _ => return bad("listen-proto is tcp, tcp4, tcp6 or unix"),
    };
    let text = text.strip_prefix("tcp://").unwrap_or(text);
    let wanted = "expected host:port, :port or unix:///path";
    let Some((host, port)) = text.rsplit_once(':') else { return bad(wanted) };
    let Ok(port) = port.parse() else { return bad(wanted) };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Address::Tcp { host, port, family })
}

fn unix(path: &str) -> Result<Address, BadValue> {
    // Linux keeps the whole path of a socket in 108 bytes.
    if path.is_empty() || path.len() > 107 {
        return bad("the path of a unix socket has 1 to 107 bytes");
    }
    Ok(Address::Unix(PathBuf::from(path)))
}

pub(super) fn addresses(text: &str, proto: &str) -> Result<Vec<Address>, BadValue> {
    text.split(',').map(|one| address(one, proto)).collect()
}

/// `mem://`, `embedded:///path` and its other names, a plain path, or an object store.
pub(super) fn store(
    text: &str,
    home: Option<&str>,
    s3_endpoint: Option<&str>,
) -> Result<StoreSetting, BadValue> {
    if text.is_empty() {
        return match home {
            Some(home) => Ok(StoreSetting::Embedded(Path::new(home).join(".lockd/data"))),
            None => bad("say where data lives: there is no home folder to take"),
        };
    }
    match text.split_once("://") {
        Some(("mem" | "memory", "")) => Ok(StoreSetting::Memory),
        Some(("embedded" | "pebble" | "disk" | "file", path)) if !path.is_empty() => {
            Ok(StoreSetting::Embedded(PathBuf::from(path)))
        }
        Some(("s3" | "aws" | "azure" | "gs", _)) => match Location::parse(text, s3_endpoint) {
            Ok(location) => Ok(StoreSetting::Object(Box::new(ObjectOptions::new(location)))),
            Err(wrong) => Err(BadValue(wrong.to_string())),
        },
        Some(_) => bad("expected a path, mem://, s3://, aws://, azure:// or gs://"),
        None => Ok(StoreSetting::Embedded(PathBuf::from(text))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::{QueueName, address, bytes, duration, named_queues, store};
    use crate::config::{Address, Family, NAMED_QUEUES_MAX, NamedQueues, StoreSetting};

    #[test]
    fn durations_and_sizes_read_as_people_write_them() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert!(duration("soon").is_err());
        assert_eq!(bytes("100MB"), Ok(100_000_000));
        assert_eq!(bytes("8 MiB"), Ok(8 << 20));
        assert_eq!(bytes("77"), Ok(77));
        assert!(bytes("99999999999GiB").is_err());
        assert!(bytes("MiB").is_err());
    }

    #[test]
    fn addresses_have_a_host_a_port_or_a_path() {
        let tcp = |host: &str, port| Address::Tcp { host: host.into(), port, family: Family::Any };
        assert_eq!(address(":9341", "tcp"), Ok(tcp("", 9341)));
        assert_eq!(address("[::1]:80", "tcp"), Ok(tcp("::1", 80)));
        assert_eq!(address("/run/l.sock", "unix"), Ok(Address::Unix("/run/l.sock".into())));
        assert_eq!(address("unix:///run/l.sock", "tcp"), Ok(Address::Unix("/run/l.sock".into())));
        assert!(address("9341", "tcp").is_err());
        assert!(address("a:99999", "tcp").is_err());
    }

    #[test]
    fn queues_are_named_with_their_namespaces() {
        assert_eq!(named_queues(""), Ok(NamedQueues::None));
        assert_eq!(named_queues("all"), Ok(NamedQueues::All));
        let queue = |namespace, name| QueueName::parse(namespace, name).unwrap();
        let two = vec![queue("default", "mail"), queue("tenant", "jobs")];
        let said = "default/mail, tenant/jobs,default/mail";
        assert_eq!(named_queues(said), Ok(NamedQueues::These(two)));
        for wrong in ["mail", "default/", ",default/mail", "default/a b"] {
            assert!(named_queues(wrong).is_err(), "{wrong}");
        }
        let many: Vec<String> = (0..=NAMED_QUEUES_MAX).map(|n| format!("n/{n}")).collect();
        assert!(named_queues(&many.join(",")).is_err());
    }

    #[test]
    fn stores_have_many_names() {
        let at = |path: &str| Ok(StoreSetting::Embedded(PathBuf::from(path)));
        assert_eq!(store("mem://", None, None), Ok(StoreSetting::Memory));
        assert_eq!(store("/var/lib/lockd", None, None), at("/var/lib/lockd"));
        assert_eq!(store("pebble:///x", None, None), at("/x"));
        assert_eq!(store("", Some("/home/u"), None), at("/home/u/.lockd/data"));
        assert!(store("", None, None).is_err());
        assert!(matches!(store("s3://bucket", None, None), Ok(StoreSetting::Object(_))));
        assert!(store("s3://", None, None).is_err());
        assert!(store("ftp://x", None, None).is_err());
    }
}
