//! An HTTP client over real connections, plain or with mutual TLS, for what the SDK has no words for
//! and for clients that must not be clever. Over TLS it speaks HTTP/2, as the SDK never does.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lockd_pki::ClientBundle;
use rustls::{ClientConfig, RootCertStore};

use crate::answer::Answer;
use crate::call::Ask;
use crate::history::Told;
use crate::wire::{self, Heard};
use crate::world::sse;

/// Connections to one server.
#[derive(Clone, Debug)]
pub struct Link {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
}

impl Link {
    /// `base` is the address of the server: `http://host:port`, or `https://` with a bundle.
    ///
    /// # Errors
    /// When the bundle is of no use.
    pub fn new(base: String, bundle: Option<&ClientBundle>) -> Result<Self, String> {
        let tls = match bundle {
            Some(bundle) => lockd_pki::client_config(bundle).map_err(|error| error.to_string())?,
            None => trusting_nobody().map_err(|error| error.to_string())?,
        };
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let connector = builder.enable_all_versions().build();
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector), base })
    }

    /// Watches all keys until the connection ends.
    ///
    /// # Errors
    /// When it does not begin.
    pub async fn watch(&self, tell: impl FnMut(Told, Option<String>)) -> Result<(), String> {
        let request = Request::get(format!("{}{}", self.base, lockd_wire::path::WATCH));
        let request = request.body(Full::default()).map_err(|error| error.to_string())?;
        let response = self.client.request(request).await.map_err(|error| error.to_string())?;
        sse::listen(response.into_body().into_data_stream(), tell).await;
        Ok(())
    }

    /// One request and its answer; `now` is the wall time, where it is known.
    ///
    /// # Errors
    /// When there was no answer. It may have happened all the same.
    pub async fn ask(&self, ask: &Ask, now: Option<u64>) -> Result<Answer, String> {
        let request = wire::request(ask, &self.base).map_err(|error| error.to_string())?;
        let response = self.client.request(request.map(Full::new)).await;
        let (parts, body) = response.map_err(|error| error.to_string())?.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let heard = Heard { status: parts.status, headers: parts.headers, body, now };
        Ok(wire::answer(ask, &heard))
    }
}

/// For a link that never asks for TLS.
fn trusting_nobody() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}
