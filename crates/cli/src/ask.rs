//! Questions over HTTP to a daemon that is no lockd server: a coordinator, or a node.

use std::path::PathBuf;
use std::time::Duration;

use lockd_client::{ClientBundle, chain};
use lockd_coordinator::sidecar::http_client;
use lockd_wire::error::ErrorBody;
use reqwest::{Client, Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::{Done, Exit, Problem};

/// Who is asked, and what is shown there.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) bundle: Option<PathBuf>,
    /// What every path begins with.
    pub(crate) base: &'static str,
    /// What should be there.
    pub(crate) what: &'static str,
    /// What to do when nobody is there.
    pub(crate) missing: &'static str,
    /// Where to look for what became of a change whose answer did not come.
    pub(crate) look: &'static str,
    pub(crate) patience: Duration,
}

/// Asks one of our daemons.
pub(crate) struct Asker {
    client: Client,
    url: String,
    token: Option<String>,
    base: &'static str,
    what: &'static str,
    missing: &'static str,
    look: &'static str,
}

impl Asker {
    pub(crate) fn new(target: Target) -> Done<Self> {
        // Where two could be chosen, one must be.
        let _chosen_before = rustls::crypto::ring::default_provider().install_default().is_err();
        let mut builder = http_client(&target.url).timeout(target.patience);
        if let Some(path) = &target.bundle {
            let text = read(path)?;
            let bundle = ClientBundle::parse(&path.display().to_string(), &text)
                .map_err(|error| Problem::usage(chain(&error)))?;
            let config =
                lockd_pki::client_config(&bundle).map_err(|error| Problem::usage(chain(&error)))?;
            builder = builder.tls_backend_preconfigured(config);
        }
        let token = match &target.token_file {
            Some(path) => Some(read(path)?.lines().next().unwrap_or_default().trim().to_owned()),
            None => target.token,
        };
        let client = builder.build().map_err(|error| Problem::failed(chain(&error)))?;
        let url = target.url.trim_end_matches('/').to_owned();
        let Target { base, what, missing, look, .. } = target;
        Ok(Self { client, url, token, base, what, missing, look })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Done<T> {
        let body = self.ask(Method::GET, path, None).await?;
        self.read(&body)
    }

    pub(crate) async fn post(&self, path: &str) -> Done {
        self.ask(Method::POST, path, None).await.map(drop)
    }

    /// With a body, and for an answer.
    pub(crate) async fn tell<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Done<T> {
        let body = serde_json::to_vec(body).map_err(|error| Problem::failed(chain(&error)))?;
        let answer = self.ask(Method::POST, path, Some(body)).await?;
        self.read(&answer)
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Done<T> {
        serde_json::from_slice(body).map_err(|error| {
            Problem::failed(format!("{} gives no answer that makes sense: {error}", self.url))
                .hint(self.missing)
        })
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Done<Vec<u8>> {
        let changes = method != Method::GET;
        let mut request = self.client.request(method, format!("{}{}{path}", self.url, self.base));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.map_err(|error| self.unreached(&error, changes))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| self.unreached(&error, changes))?;
        if status.is_success() {
            return Ok(body.to_vec());
        }
        let told: ErrorBody = serde_json::from_slice(&body).unwrap_or_default();
        if is_foreign(status, path, &told) {
            let what = format!("{} is no {}: it answers {status}", self.url, self.what);
            return Err(Problem::failed(what).hint(self.missing));
        }
        let detail = if told.detail.is_empty() { status.to_string() } else { told.detail };
        let exit = match status {
            _ if told.outcome.as_deref() == Some("unknown") => Exit::Unknown,
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

    fn unreached(&self, error: &reqwest::Error, changes: bool) -> Problem {
        let told = chain(error);
        if error.is_builder() {
            let url = &self.url;
            return Problem::usage(format!("{url:?} cannot be asked: {told}"))
                .hint("an address is written as in http://127.0.0.1:9344");
        }
        if error.is_timeout() && changes && !error.is_connect() {
            let what = format!("{} did not answer in time: {told}", self.url);
            let hint = format!("it may go on with it: {} says what became of it", self.look);
            return Problem::new(Exit::Unknown, what).hint(hint);
        }
        let problem =
            Problem::new(Exit::Unavailable, format!("{} cannot be asked: {told}", self.url));
        if error.is_timeout() {
            return problem.hint("it takes too long to answer: look at its log");
        }
        problem.hint(about_tls(&told).unwrap_or(self.missing))
    }
}

/// Whether this is the answer of some other program: our daemons know their own paths. Those with
/// the name of a thing in them may be missing.
fn is_foreign(status: StatusCode, path: &str, told: &ErrorBody) -> bool {
    let unknown =
        [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
    unknown.contains(&status) && (told.error.is_empty() || !path.contains('/'))
}

/// What to do where somebody is there, and the two do not understand each other. The errors of the
/// libraries below tell this in their words only.
fn about_tls(told: &str) -> Option<&'static str> {
    let hints = [
        ("invalid HTTP version", "it speaks TLS: pass an https:// URL, and a client's --bundle"),
        ("InvalidContentType", "it does not speak TLS: pass an http:// URL"),
        (
            "UnknownIssuer",
            "its certificate is of a CA that is not known here: pass --bundle with the bundle of a \
             client of that CA",
        ),
        ("received fatal alert", "it wants a certificate that it knows: pass a client's --bundle"),
        ("invalid peer certificate", "look at the bundle of its port, and at that of --bundle"),
    ];
    hints.iter().find(|(words, _)| told.contains(words)).map(|(_, hint)| *hint)
}

fn read(path: &std::path::Path) -> Done<String> {
    let read = std::fs::read_to_string(path);
    read.map_err(|error| Problem::usage(format!("cannot read {}: {error}", path.display())))
}

/// A name as part of a path.
pub(crate) fn encoded(name: &str) -> String {
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
