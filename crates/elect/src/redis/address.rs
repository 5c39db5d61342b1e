//! Where a Redis is: one server, servers watched by sentinels, or a cluster.

use std::fmt;

/// What kind of Redis it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Single,
    /// The sentinels know where this service is.
    Sentinel(String),
    Cluster,
}

/// An address, as it is written in a setting:
///
/// - `redis://[user:password@]host[:port][/database]`
/// - `redis-sentinel://[user:password@]host:port,host:port/service[/database]`
/// - `redis-cluster://[user:password@]host:port,host:port`
///
/// and each with `rediss` instead of `redis` for TLS.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub kind: Kind,
    pub hosts: Vec<(String, u16)>,
    pub database: i64,
    pub username: Option<String>,
    pub password: Option<String>,
    pub tls: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("{0:?} does not begin with redis://, rediss://, redis-sentinel:// or redis-cluster://")]
    Scheme(String),
    #[error("{0:?} names no host")]
    Host(String),
    #[error("{0:?} is no port")]
    Port(String),
    #[error("{0:?} is no database number")]
    Database(String),
    #[error("the address names no service: redis-sentinel://host:port/SERVICE")]
    Service,
    #[error("a cluster has no databases; leave {0:?} out")]
    ClusterDatabase(String),
    #[error("{0:?} in the address is not percent-encoded")]
    Encoding(String),
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl Address {
    /// # Errors
    /// When it is not an address.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| AddressError::Scheme(text.into()))?;
        let (tls, kind) = match scheme {
            "redis" => (false, "single"),
            "rediss" => (true, "single"),
            "redis-sentinel" => (false, "sentinel"),
            "rediss-sentinel" => (true, "sentinel"),
            "redis-cluster" => (false, "cluster"),
            "rediss-cluster" => (true, "cluster"),
            _ => return Err(AddressError::Scheme(format!("{scheme}://"))),
        };
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match place.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, place),
        };
        let (username, password) = match user {
            Some(user) => credentials(user)?,
            None => (None, None),
        };
        let port = if kind == "sentinel" { SENTINEL_PORT } else { PORT };
        let hosts: Result<Vec<_>, _> = hosts.split(',').map(|one| host(one, port)).collect();
        let path = path.trim_end_matches('/');
        let (kind, database) = match kind {
            "sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(AddressError::Service);
                }
                (Kind::Sentinel(decoded(service)?), self::database(database)?)
            }
            "cluster" if path.is_empty() => (Kind::Cluster, 0),
            "cluster" => return Err(AddressError::ClusterDatabase(path.into())),
            _ => (Kind::Single, database(path)?),
        };
        Ok(Self { kind, hosts: hosts?, database, username, password, tls })
    }
}

fn credentials(user: &str) -> Result<(Option<String>, Option<String>), AddressError> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let some = |text: &str| {
        let text = decoded(text)?;
        Ok::<_, AddressError>(Some(text).filter(|text| !text.is_empty()))
    };
    Ok((some(name)?, some(password)?))
}

fn host(text: &str, port: u16) -> Result<(String, u16), AddressError> {
    let no_host = || AddressError::Host(text.into());
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(no_host)?;
        (host, rest.strip_prefix(':').map_or(Ok(port), self::port)?)
    } else {
        match text.rsplit_once(':') {
            Some((host, text)) => (host, self::port(text)?),
            None => (text, port),
        }
    };
    if host.is_empty() { Err(no_host()) } else { Ok((host.into(), port)) }
}

fn port(text: &str) -> Result<u16, AddressError> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| AddressError::Port(text.into()))
}

fn database(text: &str) -> Result<i64, AddressError> {
    if text.is_empty() {
        return Ok(0);
    }
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| AddressError::Database(text.into()))
}

fn decoded(text: &str) -> Result<String, AddressError> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| AddressError::Encoding(text.into()))
}

/// Without the password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Single => "",
            Kind::Sentinel(_) => "-sentinel",
            Kind::Cluster => "-cluster",
        };
        write!(f, "redis{}{kind}://", if self.tls { "s" } else { "" })?;
        if let Some(username) = &self.username {
            write!(f, "{username}@")?;
        }
        for (number, (host, port)) in self.hosts.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            if host.contains(':') {
                write!(f, "{comma}[{host}]:{port}")?;
            } else {
                write!(f, "{comma}{host}:{port}")?;
            }
        }
        match &self.kind {
            Kind::Single => write!(f, "/{}", self.database),
            Kind::Sentinel(service) => write!(f, "/{service}/{}", self.database),
            Kind::Cluster => Ok(()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, AddressError, Kind};

    fn shown(text: &str) -> String {
        Address::parse(text).unwrap().to_string()
    }

    #[test]
    fn addresses_of_every_kind_are_read() {
        assert_eq!(shown("redis://redis"), "redis://redis:6379/0");
        assert_eq!(shown("rediss://[::1]:1/3"), "rediss://[::1]:1/3");
        let sentinel = Address::parse("redis-sentinel://:s%40cret@a,b:7/main/2").unwrap();
        assert_eq!(sentinel.kind, Kind::Sentinel("main".into()));
        assert_eq!(sentinel.hosts, [("a".into(), 26_379), ("b".into(), 7)]);
        assert_eq!((sentinel.username, sentinel.password), (None, Some("s@cret".into())));
        assert_eq!(sentinel.database, 2);
        assert_eq!(shown("redis-cluster://waf:x@a:1,b:2"), "redis-cluster://waf@a:1,b:2");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str| Address::parse(text).unwrap_err();
        assert_eq!(wrong("localhost"), AddressError::Scheme("localhost".into()));
        assert_eq!(wrong("http://a"), AddressError::Scheme("http://".into()));
        assert_eq!(wrong("redis://"), AddressError::Host(String::new()));
        assert_eq!(wrong("redis://a:b"), AddressError::Port("b".into()));
        assert_eq!(wrong("redis://a:0"), AddressError::Port("0".into()));
        assert_eq!(wrong("redis://a/x"), AddressError::Database("x".into()));
        assert_eq!(wrong("redis://a/-1"), AddressError::Database("-1".into()));
        assert_eq!(wrong("redis-sentinel://a"), AddressError::Service);
        assert_eq!(wrong("redis-cluster://a/1"), AddressError::ClusterDatabase("1".into()));
        assert_eq!(wrong("redis://%ff@a"), AddressError::Encoding("%ff".into()));
    }

    #[test]
    fn the_password_is_never_shown() {
        let address = Address::parse("redis://u:secret@a").unwrap();
        assert!(!format!("{address} {address:?}").contains("secret"));
    }
}
