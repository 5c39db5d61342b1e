//! Moto: S3 as Python people test against it. It keeps objects in memory, honours conditions on
//! PUT, and does not check signatures.

use super::process::{Process, ask};

/// Killed when it goes.
#[derive(Debug)]
pub struct Moto(Process);

impl Moto {
    /// With a bucket `lockd`. Panics with what to do if it is not installed.
    pub async fn start() -> Self {
        tokio::task::spawn_blocking(Self::start_now).await.expect("moto")
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now() -> Self {
        let arguments = |port: u16| vec!["-H127.0.0.1".to_owned(), format!("-p{port}")];
        Self(Process::start("moto/bin/moto_server", arguments, |address| {
            ask(address, "PUT /lockd HTTP/1.1") == Some(200)
        }))
    }

    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.0.address)
    }
}
