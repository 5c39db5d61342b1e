//! Azurite: the blob service of Azure as Microsoft gives it to developers. It keeps everything in
//! memory and does check signatures.

use std::net::SocketAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use ring::hmac;

use super::process::{Process, ask};
use crate::clock::http_date;

/// Known to everybody: the documentation of Azurite has it.
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

const ACCOUNT: &str = "devstoreaccount1";

/// Killed when it goes.
#[derive(Debug)]
pub struct Azurite(Process);

impl Azurite {
    /// With a container `lockd`. Panics with what to do if it is not installed.
    pub async fn start() -> Self {
        tokio::task::spawn_blocking(Self::start_now).await.expect("azurite")
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now() -> Self {
        let arguments = |port: u16| {
            let fixed = "--blobHost 127.0.0.1 --inMemoryPersistence --skipApiVersionCheck \
                         --disableTelemetry --silent --blobPort";
            fixed.split_whitespace().map(str::to_owned).chain([port.to_string()]).collect()
        };
        let program = "azurite/node_modules/.bin/azurite-blob";
        Self(Process::start(program, arguments, |address| {
            create_container(address, "lockd") == Some(201)
        }))
    }

    /// With the account as its path, as Azurite wants it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}/{ACCOUNT}", self.origin())
    }

    /// Without a path, for a proxy in front of it.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://{}", self.0.address)
    }

    #[must_use]
    pub fn account(&self) -> &'static str {
        ACCOUNT
    }

    #[must_use]
    pub fn key(&self) -> &'static str {
        KEY
    }
}

/// Signed by what Azure calls a shared key: the method, headers and resource, one per line.
fn create_container(address: SocketAddr, name: &str) -> Option<u16> {
    let (date, version) = (http_date(Timestamp::now()), "2021-12-02");
    let headers = format!("x-ms-date:{date}\nx-ms-version:{version}");
    // Azurite names the account twice, once as its own path.
    let resource = format!("/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container");
    let empty_lines = "\n".repeat(12);
    let signed = format!("PUT{empty_lines}{headers}\n{resource}");
    let key = BASE64_STANDARD.decode(KEY).expect("the key of Azurite");
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), signed.as_bytes());
    let signature = BASE64_STANDARD.encode(signature);
    let request = format!(
        "PUT /{ACCOUNT}/{name}?restype=container HTTP/1.1\r\n\
         x-ms-date: {date}\r\nx-ms-version: {version}\r\n\
         Authorization: SharedKey {ACCOUNT}:{signature}"
    );
    ask(address, &request)
}
