//! A copy of the whole store of a server, while the server is in use.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use hyper::body::Incoming;
use lockd_wire::path;

use crate::client::Client;
use crate::error::{AdminKind, Error};
use crate::transport::chunk;

/// A backup while it arrives. It holds lease ids: keep it as you keep other secrets.
#[derive(Debug)]
pub struct BackupStream {
    body: Incoming,
    silence: Duration,
}

impl Client {
    /// Asks the server for a backup of its store.
    ///
    /// # Errors
    /// When the server cannot be reached or its store has no backups.
    pub async fn backup(&self) -> Result<BackupStream, Error<AdminKind>> {
        let reply = self.open(&self.call(Method::POST, path::BACKUP)).await?;
        Ok(BackupStream { silence: reply.silence(), body: reply.into_body() })
    }
}

impl BackupStream {
    /// The next piece; `None` at the end. An error means that the backup is not whole.
    ///
    /// # Errors
    /// When the connection breaks, falls silent, or the server could not go on.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error<AdminKind>> {
        Ok(chunk(&mut self.body, Some(self.silence)).await?)
    }
}
