//! `s3://`, `aws://`, `azure://` and `gs://`: where a store is, read from its URL.

/// Where the objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub service: Service,
    /// The bucket, or the container.
    pub bucket: String,
    /// Put before the name of every object.
    pub prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// Amazon, or with an endpoint whoever speaks its language.
    S3 {
        endpoint: Option<String>,
    },
    Azure {
        account: String,
    },
    Gcs,
}

/// Why a URL is none of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLocation {
    #[error("expected s3://, aws://, azure:// or gs://")]
    Scheme,
    #[error("{0}")]
    Missing(&'static str),
    #[error("unknown option {0:?}; insecure=1 is the only one, and only for s3://host:port/bucket")]
    Option(String),
}

impl Location {
    /// Whether the text looks like the URL of an object store.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        matches!(text.split_once("://"), Some(("s3" | "aws" | "azure" | "gs", _)))
    }

    /// In `s3://A/...`, A is a host when it has a port or a dot and no endpoint is set, else a
    /// bucket.
    ///
    /// # Errors
    /// When something is missing or not understood.
    pub fn parse(text: &str, s3_endpoint: Option<&str>) -> Result<Self, BadLocation> {
        let (scheme, rest) = text.split_once("://").ok_or(BadLocation::Scheme)?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (first, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let is_host = scheme == "s3" && s3_endpoint.is_none() && first.contains([':', '.']);
        let insecure = match options {
            "" | "insecure=0" => false,
            "insecure=1" if is_host => true,
            other => return Err(BadLocation::Option(other.to_owned())),
        };
        let found = match scheme {
            "s3" if is_host => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let scheme = if insecure { "http" } else { "https" };
                let endpoint = Some(format!("{scheme}://{first}"));
                Self::new(Service::S3 { endpoint }, bucket, prefix)
            }
            "s3" => {
                let endpoint = s3_endpoint.map(str::to_owned);
                Self::new(Service::S3 { endpoint }, first, rest)
            }
            "aws" => Self::new(Service::S3 { endpoint: None }, first, rest),
            "azure" => {
                if first.is_empty() {
                    return Err(BadLocation::Missing("azure:// needs an account and a container"));
                }
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                Self::new(Service::Azure { account: first.to_owned() }, bucket, prefix)
            }
            "gs" => Self::new(Service::Gcs, first, rest),
            _ => return Err(BadLocation::Scheme),
        };
        if found.bucket.is_empty() {
            return Err(BadLocation::Missing(match found.service {
                Service::Azure { .. } => "the container is missing: azure://account/container",
                Service::S3 { .. } | Service::Gcs => "the bucket is missing",
            }));
        }
        Ok(found)
    }

    fn new(service: Service, bucket: &str, prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/').to_owned();
        Self { service, bucket: bucket.to_owned(), prefix }
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.service {
            Service::S3 { endpoint: Some(endpoint) } => {
                write!(f, "bucket {} at {endpoint}", self.bucket)?;
            }
            Service::S3 { endpoint: None } => write!(f, "bucket {} at Amazon S3", self.bucket)?,
            Service::Azure { account } => {
                write!(f, "container {} of Azure account {account}", self.bucket)?;
            }
            Service::Gcs => write!(f, "bucket {} at Google Cloud Storage", self.bucket)?,
        }
        if self.prefix.is_empty() { Ok(()) } else { write!(f, ", under {}/", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::{BadLocation, Location, Service};

    fn s3(endpoint: Option<&str>, bucket: &str, prefix: &str) -> Location {
        Location::new(Service::S3 { endpoint: endpoint.map(str::to_owned) }, bucket, prefix)
    }

    #[test]
    fn urls_say_where_the_store_is() {
        let read = |text: &str| Location::parse(text, None);
        let with = |text: &str| Location::parse(text, Some("https://minio:9000"));
        assert_eq!(read("s3://jobs"), Ok(s3(None, "jobs", "")));
        assert_eq!(read("aws://jobs/a/b/"), Ok(s3(None, "jobs", "a/b")));
        assert_eq!(read("s3://h:9000/jobs/a"), Ok(s3(Some("https://h:9000"), "jobs", "a")));
        assert_eq!(read("s3://s3.corp/jobs"), Ok(s3(Some("https://s3.corp"), "jobs", "")));
        assert_eq!(read("s3://h:1/j?insecure=1"), Ok(s3(Some("http://h:1"), "j", "")));
        assert_eq!(with("s3://jo.bs/a"), Ok(s3(Some("https://minio:9000"), "jo.bs", "a")));
        let azure = Service::Azure { account: "acme".into() };
        assert_eq!(read("azure://acme/jobs/a"), Ok(Location::new(azure, "jobs", "a")));
        assert_eq!(read("gs://jobs/a"), Ok(Location::new(Service::Gcs, "jobs", "a")));
    }

    #[test]
    fn what_is_no_store_is_refused() {
        let read = |text: &str| Location::parse(text, None).unwrap_err();
        assert_eq!(read("ftp://x"), BadLocation::Scheme);
        assert!(matches!(read("s3://"), BadLocation::Missing(_)));
        assert!(matches!(read("s3://h:9000"), BadLocation::Missing(_)));
        assert!(matches!(read("azure://acme"), BadLocation::Missing(_)));
        assert!(matches!(read("s3://jobs?insecure=1"), BadLocation::Option(_)));
        assert!(matches!(read("gs://jobs?x=y"), BadLocation::Option(_)));
    }
}
