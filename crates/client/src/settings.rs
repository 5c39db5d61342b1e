//! How a client is set up. Everything has a default but the address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockd_pki::ClientBundle;
use tokio_rustls::TlsConnector;

use crate::capped::Caps;
pub use crate::capped::{Capped, Limit};
use crate::client::Client;
use crate::clock::Clock;
use crate::dial::Dial;
use crate::endpoint::{Endpoint, EndpointError};
use crate::transport::Transport;

const TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const PASSES: u32 = 6;
const DOCUMENT_BYTES_MAX: usize = 128 * 1024 * 1024;

/// That many seconds.
pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Sets up a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    endpoints: Vec<String>,
    namespace: Option<String>,
    owner: Option<String>,
    timeout: Duration,
    connect_timeout: Duration,
    passes: u32,
    document_bytes_max: usize,
    bundle: Option<Bundle>,
    caps: Caps,
}

/// A bundle, or where it is.
#[derive(Clone, Debug)]
enum Bundle {
    Read(Box<ClientBundle>),
    File(PathBuf),
}

/// Settings that operations read.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) namespace: Option<String>,
    pub(crate) owner: String,
    pub(crate) timeout: Duration,
    pub(crate) passes: u32,
    pub(crate) document_bytes_max: usize,
    pub(crate) caps: Caps,
}

impl ClientBuilder {
    pub(crate) fn new() -> Self {
        Self {
            endpoints: Vec::new(),
            namespace: None,
            owner: None,
            timeout: TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            passes: PASSES,
            document_bytes_max: DOCUMENT_BYTES_MAX,
            bundle: None,
            caps: Caps::default(),
        }
    }

    /// One more server of the same store. The first is asked first; the others when it fails.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoints.push(endpoint.into());
        self
    }

    /// Several servers of the same store, in the order in which they are tried.
    pub fn endpoints<I>(mut self, endpoints: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.endpoints.extend(endpoints.into_iter().map(Into::into));
        self
    }

    /// Speaks mutual TLS with this bundle. Servers are known by their certificates, never by
    /// their host names.
    pub fn bundle(mut self, bundle: ClientBundle) -> Self {
        self.bundle = Some(Bundle::Read(Box::new(bundle)));
        self
    }

    /// As [`ClientBuilder::bundle`], read from a file when the client is made.
    pub fn bundle_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.bundle = Some(Bundle::File(path.into()));
        self
    }

    /// The namespace that is meant when a call names none; otherwise the server's default.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Who holds the leases of this client, for people to read. By default host name and process
    /// id.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Longest silence of a server within one request: 15 seconds unless set. Waits for a key, and
    /// watches, are not cut by it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a connection may take to open: 3 seconds unless set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How often all endpoints are tried before a call fails: 6 times unless set.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.passes = attempts.max(1);
        self
    }

    /// The largest document that is read into memory as a whole: 128 MiB unless set. Streams have
    /// no bound.
    pub fn document_bytes_max(mut self, bytes: usize) -> Self {
        self.document_bytes_max = bytes;
        self
    }

    /// Is called when the server capped a time that was asked for, once for each different cap. By
    /// default such a cap is a warning in the log.
    pub fn on_capped(mut self, callback: impl Fn(&Capped) + Send + Sync + 'static) -> Self {
        self.caps = Caps::reporting_to(callback);
        self
    }

    /// Makes the client. Nothing is connected yet.
    ///
    /// # Errors
    /// When there is no address, or one of them is not an address.
    pub fn build(self) -> Result<Client, EndpointError> {
        let mut servers = Vec::new();
        let tls = self.bundle.clone().map(connector).transpose()?;
        for text in self.endpoints.iter().flat_map(|list| list.split(',')) {
            let endpoint = Endpoint::parse_for(text, tls.is_some())?;
            let dial = Dial::new(endpoint.target().clone(), self.connect_timeout, tls.clone());
            servers.push((endpoint, dial));
        }
        if servers.is_empty() {
            return Err(EndpointError::Missing);
        }
        Ok(self.assemble(servers, Clock::Boot))
    }

    pub(crate) fn assemble(self, servers: Vec<(Endpoint, Dial)>, clock: Clock) -> Client {
        let transport = Transport::new(servers, clock.clone(), self.timeout);
        let settings = Settings {
            namespace: self.namespace,
            owner: self.owner.unwrap_or_else(default_owner),
            timeout: self.timeout,
            passes: self.passes,
            document_bytes_max: self.document_bytes_max,
            caps: self.caps,
        };
        Client::new(transport, clock, settings)
    }
}

fn default_owner() -> String {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    format!("{host}-{}", std::process::id())
}

/// HTTP/1.1 only: a request that waits for a key keeps a connection of its own, so that however
/// many wait, a renewal never stands behind them.
fn connector(bundle: Bundle) -> Result<TlsConnector, EndpointError> {
    let bundle = match bundle {
        Bundle::Read(bundle) => *bundle,
        Bundle::File(path) => read_bundle(&path)?,
    };
    let config = lockd_pki::client_config(&bundle);
    let mut config = config.map_err(|error| EndpointError::Bundle(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn read_bundle(path: &std::path::Path) -> Result<ClientBundle, EndpointError> {
    match lockd_pki::files::load(path) {
        Ok((lockd_pki::Bundle::Client(bundle), _)) => Ok(bundle),
        Ok((other, _)) => {
            let (path, kind) = (path.display(), other.kind());
            Err(EndpointError::Bundle(format!("{path} is the bundle of a {kind}, not a client's")))
        }
        Err(error) => Err(EndpointError::Bundle(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_addresses_may_be_one_text() {
        let client = ClientBuilder::new().endpoint("http://a:1,b:2").endpoint("c").build().unwrap();
        assert_eq!(client.endpoints(), ["http://a:1", "http://b:2", "http://c:9341"]);
    }

    #[test]
    fn a_client_without_an_address_is_refused() {
        assert_eq!(ClientBuilder::new().build().unwrap_err(), EndpointError::Missing);
        let blank = ClientBuilder::new().endpoint("http://a,").build();
        assert_eq!(blank.unwrap_err(), EndpointError::Missing);
    }

    #[test]
    fn the_owner_names_host_and_process() {
        let owner = default_owner();
        assert!(owner.ends_with(&format!("-{}", std::process::id())), "{owner}");
        assert!(!owner.starts_with('-'), "{owner}");
    }
}
