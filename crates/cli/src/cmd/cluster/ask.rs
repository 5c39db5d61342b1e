//! Questions to a coordinator.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lockd_client::ClientBundle;
use lockd_coordinator::sidecar::http_client;
use lockd_wire::error::ErrorBody;
use reqwest::{Client, Method, StatusCode};
use serde::de::DeserializeOwned;

use crate::exit::{Done, Exit, Problem, chain};

const PATIENCE: Duration = Duration::from_secs(10);

/// How the coordinator is reached.
#[derive(Debug, Args)]
pub(super) struct Reach {
    /// The coordinator
    #[arg(
        long,
        env = "LOCKD_COORDINATOR_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:9342",
        global = true
    )]
    url: String,
    /// A file with the token to show
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// The token to show
    #[arg(
        long,
        env = "LOCKD_COORDINATOR_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true,
        conflicts_with = "token_file",
        global = true
    )]
    token: Option<String>,
    /// The bundle of a client to show, for https
    #[arg(long, value_name = "FILE", global = true)]
    bundle: Option<PathBuf>,
}

/// Asks one coordinator.
pub(super) struct Asker {
    client: Client,
    url: String,
    token: Option<String>,
}

impl Asker {
    pub(super) fn new(reach: Reach) -> Done<Self> {
        // Where two could be chosen, one must be.
        let _chosen_before = rustls::crypto::ring::default_provider().install_default().is_err();
        let mut builder = http_client(&reach.url).timeout(PATIENCE);
        if let Some(path) = &reach.bundle {
            let text = read(path)?;
            let bundle = ClientBundle::parse(&path.display().to_string(), &text)
                .map_err(|error| Problem::usage(chain(&error)))?;
            let config =
                lockd_pki::client_config(&bundle).map_err(|error| Problem::usage(chain(&error)))?;
            builder = builder.tls_backend_preconfigured(config);
        }
        let token = match &reach.token_file {
            Some(path) => Some(read(path)?.trim().to_owned()),
            None => reach.token,
        };
        let client = builder.build().map_err(|error| Problem::failed(chain(&error)))?;
        Ok(Self { client, url: reach.url.trim_end_matches('/').to_owned(), token })
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Done<T> {
        let body = self.ask(Method::GET, path).await?;
        serde_json::from_slice(&body).map_err(|error| {
            Problem::failed(format!("{} gives no answer of a coordinator: {error}", self.url))
        })
    }

    pub(super) async fn post(&self, path: &str) -> Done {
        self.ask(Method::POST, path).await.map(drop)
    }

    async fn ask(&self, method: Method, path: &str) -> Done<Vec<u8>> {
        let mut request = self.client.request(method, format!("{}/api/cluster/{path}", self.url));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.map_err(|error| self.unreached(&error))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| self.unreached(&error))?;
        if status.is_success() {
            return Ok(body.to_vec());
        }
        let told: ErrorBody = serde_json::from_slice(&body).unwrap_or_default();
        let detail = if told.detail.is_empty() { status.to_string() } else { told.detail };
        let exit = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::Forbidden,
            StatusCode::SERVICE_UNAVAILABLE => Exit::Unavailable,
            _ => Exit::Failed,
        };
        let problem = Problem::new(exit, format!("{}: {detail}", self.url));
        Err(match told.error.as_str() {
            "" => problem,
            code => problem.hint(format!("`lockd explain {code}` says what to do")),
        })
    }

    fn unreached(&self, error: &reqwest::Error) -> Problem {
        let told = chain(error);
        if error.is_builder() {
            let url = &self.url;
            return Problem::usage(format!("{url:?} cannot be asked: {told}"))
                .hint("an address is written as in http://127.0.0.1:9342");
        }
        let problem =
            Problem::new(Exit::Unavailable, format!("{} cannot be asked: {told}", self.url));
        if error.is_timeout() {
            return problem.hint("it takes too long to answer: look at the coordinator's log");
        }
        problem.hint("start one with `lockd coordinator`, or name another with --url")
    }
}

fn read(path: &std::path::Path) -> Done<String> {
    let read = std::fs::read_to_string(path);
    read.map_err(|error| Problem::usage(format!("cannot read {}: {error}", path.display())))
}

/// A name as part of a path.
pub(super) fn encoded(name: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.bytes().fold(String::new(), |mut text, byte| {
        if safe(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
        text
    })
}
