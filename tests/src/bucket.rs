//! A bucket that servers can share, with a proxy in front of it that spoils requests on demand.

use lockd_cloud::{Azurite, Moto, Plan, Proxy, S3Double};

use crate::server::Options;

/// Whose bucket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// Our own double of S3, which is fast and counts.
    Double,
    /// A real server that speaks S3.
    Moto,
    /// A real server that speaks Azure.
    Azurite,
}

impl Cloud {
    /// How many of these workers it bears. Real servers are slow programs: with more, requests
    /// wait in line until leases and timeouts are over, and nothing is done any more.
    #[must_use]
    pub fn bears(self, workers: usize) -> usize {
        match self {
            Self::Double => workers,
            Self::Moto | Self::Azurite => workers.div_ceil(4),
        }
    }
}

#[derive(Debug)]
enum Service {
    Double(S3Double),
    #[expect(dead_code, reason = "kept for its process")]
    Moto(Moto),
    Azurite(Azurite),
}

/// A bucket. Servers on it are started with [`Bucket::options`].
#[derive(Debug)]
pub struct Bucket {
    service: Service,
    pub proxy: Proxy,
}

impl Bucket {
    #[must_use]
    pub fn new(cloud: Cloud) -> Self {
        let (service, upstream) = match cloud {
            Cloud::Double => {
                let double = S3Double::start_now();
                let endpoint = double.endpoint();
                (Service::Double(double), endpoint)
            }
            Cloud::Moto => {
                let moto = Moto::start_now();
                let endpoint = moto.endpoint();
                (Service::Moto(moto), endpoint)
            }
            Cloud::Azurite => {
                let azurite = Azurite::start_now();
                let origin = azurite.origin();
                (Service::Azurite(azurite), origin)
            }
        };
        Self { service, proxy: Proxy::start_now(&upstream) }
    }

    /// The double behind the proxy.
    #[must_use]
    #[track_caller]
    pub fn double(&self) -> &S3Double {
        match &self.service {
            Service::Double(double) => double,
            Service::Moto(_) | Service::Azurite(_) => panic!("a real server"),
        }
    }

    /// Every request takes this long.
    pub fn slow_down(&self, latency: std::time::Duration) {
        self.proxy.set_plan(Plan { latency, ..self.proxy.plan() });
    }

    /// How a server on this bucket is started.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options_at(&self.proxy.endpoint())
    }

    /// As [`Bucket::options`], for a server with a way of its own to the bucket.
    #[must_use]
    pub fn options_at(&self, endpoint: &str) -> Options {
        match &self.service {
            Service::Double(_) | Service::Moto(_) => {
                let address = endpoint.trim_start_matches("http://");
                Options::new()
                    .store(format!("s3://{address}/lockd/tests?insecure=1"))
                    .variable("LOCKD_S3_ACCESS_KEY_ID", "tests")
                    .variable("LOCKD_S3_SECRET_ACCESS_KEY", "tests")
            }
            Service::Azurite(azurite) => {
                let account = azurite.account();
                Options::new()
                    .store(format!("azure://{account}/lockd/tests"))
                    .flag("azure-endpoint", format!("{endpoint}/{account}"))
                    .variable("LOCKD_AZURE_ACCOUNT_KEY", azurite.key())
            }
        }
    }
}

/// What a bad network does.
#[must_use]
pub fn bad_weather() -> Plan {
    Plan {
        latency: std::time::Duration::from_millis(2),
        drop_request: 5,
        drop_answer: 10,
        error_before: 10,
        error_after: 10,
        conflict: 10,
        late: 5,
        late_up_to: std::time::Duration::from_millis(500),
    }
}
