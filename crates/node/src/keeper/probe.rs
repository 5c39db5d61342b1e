//! Asking a controller whether it is well, and what it is.

use std::time::Duration;

use http::Uri;
use lockd_wire::node::{ROLE, RoleReply};
use tokio::net::TcpStream;

use crate::settings::Health;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const ANSWER_MAX: usize = 64 * 1024;

/// What a controller says of its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Role(Box<RoleReply>),
    /// It answers, and does not know roles.
    Nothing,
    /// It does not answer.
    Silent,
}

#[derive(Clone, Debug)]
pub(crate) struct Probe {
    client: reqwest::Client,
    base: String,
    host: String,
    port: u16,
    health: Health,
}

impl Probe {
    pub(crate) fn new(controller: &Uri, health: Health) -> Result<Self, reqwest::Error> {
        let nobody = rustls::RootCertStore::empty();
        let config = rustls::ClientConfig::builder().with_root_certificates(nobody);
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config.with_no_client_auth())
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE)
            .no_proxy()
            .build()?;
        let host = controller.host().unwrap_or("127.0.0.1").trim_matches(['[', ']']).to_owned();
        let port = controller.port_u16().unwrap_or(80);
        let base = controller.to_string().trim_end_matches('/').to_owned();
        Ok(Self { client, base, host, port, health })
    }

    pub(crate) async fn is_well(&self) -> bool {
        match &self.health {
            Health::Tcp => {
                let place = (self.host.as_str(), self.port);
                let connected = tokio::time::timeout(PATIENCE, TcpStream::connect(place)).await;
                matches!(connected, Ok(Ok(_)))
            }
            Health::Path(path) => {
                let answer = self.client.get(format!("{}{path}", self.base)).send().await;
                answer.is_ok_and(|answer| answer.status().is_success())
            }
        }
    }

    pub(crate) async fn role(&self) -> Said {
        let Ok(mut answer) = self.client.get(format!("{}{ROLE}", self.base)).send().await else {
            return Said::Silent;
        };
        if answer.status().is_server_error() {
            return Said::Silent;
        }
        let mut body = Vec::new();
        loop {
            match answer.chunk().await {
                Ok(Some(piece)) if body.len() + piece.len() <= ANSWER_MAX => {
                    body.extend_from_slice(&piece);
                }
                Ok(Some(_)) => return Said::Nothing,
                Ok(None) => break,
                Err(_) => return Said::Silent,
            }
        }
        match serde_json::from_slice(&body) {
            Ok(role) => Said::Role(Box::new(role)),
            Err(_) => Said::Nothing,
        }
    }
}
