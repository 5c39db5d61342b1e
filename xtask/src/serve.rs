//! A server for the rules that compare documents with what really happens. It lives in this
//! process, on free ports and in a folder of its own, and ends with its value.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use lockd_server::config::{Address, Family, StoreSetting};
use lockd_server::{Bound, Server, Settings};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A running server.
pub struct Running {
    server: Server,
    /// `host:port` of the API.
    pub address: String,
    /// `host:port` of the metrics listener.
    pub metrics: String,
    /// A folder for whatever the caller wants to write; the store is elsewhere.
    pub folder: TempDir,
    _store: TempDir,
}

impl Running {
    /// # Errors
    /// When the server does not start.
    pub async fn start() -> Result<Self> {
        let (store, folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let anywhere = Address::Tcp { host: "127.0.0.1".into(), port: 0, family: Family::Any };
        let server = Server::new(Settings {
            store: StoreSetting::Embedded(store.path().join("data")),
            listen: vec![anywhere.clone()],
            metrics_listen: Some(anywhere),
            ..Settings::embedded_defaults()
        })
        .await?;
        let bound = server.start().await?;
        let address = tcp(bound.first())?;
        let metrics = tcp(server.metrics_bound().as_ref())?;
        Ok(Self { server, address, metrics, folder, _store: store })
    }

    /// Ends the server without waiting for holders.
    pub async fn stop(self) {
        self.server.shutdown(Duration::ZERO).await;
    }

    /// The page that Prometheus reads.
    ///
    /// # Errors
    /// When it is not answered with 200.
    pub async fn metrics_page(&self) -> Result<String> {
        let (head, body) = exchange(&self.metrics, "GET /metrics", "", "").await?;
        if !head.starts_with("HTTP/1.1 200") {
            bail!("{head}");
        }
        Ok(body)
    }

    /// The body of the answer to a command, whatever its status. `headers` are whole lines.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn post(&self, path: &str, headers: &str, body: &str) -> Result<String> {
        let (_, body) = exchange(&self.address, &format!("POST {path}"), headers, body).await?;
        Ok(body)
    }
}

/// One request on a connection of its own; head and body of the answer.
async fn exchange(
    address: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> Result<(String, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "{target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    Ok((head.to_owned(), body.to_owned()))
}

fn tcp(bound: Option<&Bound>) -> Result<String> {
    match bound {
        Some(Bound::Tcp(address) | Bound::Tls(address)) => Ok(address.to_string()),
        Some(Bound::Unix(_)) | None => bail!("not listening on TCP"),
    }
}
