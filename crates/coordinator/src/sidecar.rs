//! Tasks of a sidecar: commands and HTTP calls, as they are written in its configuration file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use lockd_child::{Child, Program, Stream};
use lockd_client::chain;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};

use crate::coordinator::{Task, TaskContext};
use crate::schedule::{Schedule, ScheduleError};
use crate::task::Missed;

/// Variables of the sidecar that its tasks have no use for.
const SECRETS: [&str; 2] = ["REDIS_PASSWORD", "LOCKD_COORDINATOR_REDIS"];
/// An HTTP call that has no other limit.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of an error is kept.
const ERROR_MAX: usize = 512;

/// A task, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    pub name: String,
    #[serde(default, deserialize_with = "maybe_span")]
    pub every: Option<Duration>,
    pub cron: Option<String>,
    #[serde(default, deserialize_with = "maybe_span")]
    pub initial_delay: Option<Duration>,
    #[serde(default)]
    pub missed: Missed,
    #[serde(default, deserialize_with = "maybe_span")]
    pub timeout: Option<Duration>,
    pub command: Option<Vec<String>>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub http: Option<CallSpec>,
}

/// An HTTP call, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallSpec {
    pub url: String,
    #[serde(default = "post")]
    pub method: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: String,
}

fn post() -> String {
    "POST".into()
}

/// What is wrong with a task.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("task {0:?}: give it either `every` or `cron`")]
    When(String),
    #[error("task {0:?}: give it either a `command` or an `http` call")]
    What(String),
    #[error("task {name:?}: {source}")]
    Schedule { name: String, source: ScheduleError },
    #[error("task {name:?}: {why}")]
    Call { name: String, why: String },
}

/// Seconds as a number, or with a unit: `90`, `90s`, `1m 30s`.
///
/// # Errors
/// When it is neither.
pub fn span(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.trim().parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text.trim()).map_err(|error| error.to_string())
}

/// As [`span`], for configuration files.
///
/// # Errors
/// When it is no span.
pub fn maybe_span<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Text(String),
    }
    let Some(written) = Option::<Written>::deserialize(from)? else { return Ok(None) };
    let span = match written {
        Written::Number(seconds) => span(&seconds.to_string()),
        Written::Text(text) => span(&text),
    };
    span.map(Some).map_err(serde::de::Error::custom)
}

impl TaskSpec {
    /// The task, for this instance. Commands run under the guard.
    ///
    /// # Errors
    /// When it contradicts itself.
    pub fn task(self, instance_id: &str, guard: &[OsString]) -> Result<Task, SpecError> {
        let name = self.name.clone();
        let schedule = match (self.every, &self.cron) {
            (Some(every), None) => Schedule::every(every),
            (None, Some(cron)) => Schedule::cron(cron),
            (Some(_), Some(_)) | (None, None) => return Err(SpecError::When(name)),
        };
        let wrong = |source| SpecError::Schedule { name: name.clone(), source };
        let schedule = schedule.map_err(wrong)?;
        let mut task = match (self.command, self.http) {
            (Some(command), None) if !command.is_empty() => {
                let environment = self.env.into_iter().collect();
                let hidden = SECRETS.map(str::to_owned).to_vec();
                let guard = guard.to_vec();
                let program = Program { command, environment, hidden, guard };
                let (program, id) = (Arc::new(program), Arc::<str>::from(instance_id));
                Task::new(name, schedule, move |context| {
                    run(Arc::clone(&program), Arc::clone(&id), context)
                })
            }
            (None, Some(call)) => {
                let call = Call::new(call, instance_id)
                    .map_err(|why| SpecError::Call { name: name.clone(), why })?;
                let call = Arc::new(call);
                Task::new(name, schedule, move |context| Arc::clone(&call).make(context))
                    .timeout(CALL_TIMEOUT)
            }
            (Some(_), Some(_) | None) | (None, None) => return Err(SpecError::What(name)),
        };
        task = task.missed(self.missed);
        if let Some(delay) = self.initial_delay {
            task = task.initial_delay(delay);
        }
        if let Some(longest) = self.timeout {
            task = task.timeout(longest);
        }
        Ok(task)
    }
}

/// Runs a command. It learns what it needs to fence what it writes; it is asked to end when the
/// leadership is in doubt, and killed when this is dropped.
async fn run(program: Arc<Program>, id: Arc<str>, task: TaskContext) -> Result<(), String> {
    let mut program = Program::clone(&program);
    program.environment.extend([
        ("LOCKD_INSTANCE_ID".into(), id.to_string()),
        ("LOCKD_TASK_NAME".into(), task.name.clone()),
        ("LOCKD_TASK_EPOCH".into(), task.epoch.to_string()),
        ("LOCKD_TASK_SCHEDULED_AT_MS".into(), task.scheduled_at_ms.to_string()),
        ("LOCKD_TASK_MANUAL".into(), task.manual.to_string()),
    ]);
    let last_error = Arc::new(Mutex::new(String::new()));
    let (name, kept) = (task.name.clone(), Arc::clone(&last_error));
    let on_line = move |stream, line: &str| match stream {
        Stream::Output => tracing::info!(task = %name, "{line}"),
        Stream::Error => {
            tracing::warn!(task = %name, "{line}");
            *kept.lock() = line.chars().take(ERROR_MAX).collect();
        }
    };
    let mut child = Child::start(&program, on_line).map_err(|error| unstarted(&program, &error))?;
    let ended = tokio::select! {
        ended = child.wait() => ended,
        () = task.cancelled.cancelled() => {
            child.terminate().await;
            child.wait().await
        }
    };
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let said = last_error.lock().clone();
            Err(if said.is_empty() { status.to_string() } else { format!("{status}: {said}") })
        }
        Err(error) => Err(unstarted(&program, &error)),
    }
}

fn unstarted(program: &Program, error: &std::io::Error) -> String {
    format!("{:?} could not be started: {error}", program.command)
}

/// An HTTP call, ready to be made.
struct Call {
    client: reqwest::Client,
    method: reqwest::Method,
    url: reqwest::Url,
    headers: reqwest::header::HeaderMap,
    body: String,
}

impl Call {
    fn new(spec: CallSpec, instance_id: &str) -> Result<Self, String> {
        use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

        let mut headers = HeaderMap::new();
        let own = [("x-lockd-instance-id".to_owned(), instance_id.to_owned())];
        for (name, value) in spec.headers.into_iter().chain(own) {
            let header = HeaderName::try_from(name.as_str());
            let header = header.map_err(|_| format!("{name:?} is no header"))?;
            let value = HeaderValue::try_from(value);
            headers.insert(header, value.map_err(|_| format!("{name}: not a value of a header"))?);
        }
        let url: reqwest::Url =
            spec.url.parse().map_err(|error| format!("{:?}: {error}", spec.url))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(format!("{:?} begins with neither http:// nor https://", spec.url));
        }
        let method = spec.method.to_ascii_uppercase();
        let client = http_client(&spec.url)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| chain(&error))?;
        Ok(Self {
            client,
            method: method.parse().map_err(|_| format!("{method:?} is no method"))?,
            url,
            headers,
            body: spec.body,
        })
    }

    /// Dropped when the leadership is in doubt; whoever is called is told the epoch.
    async fn make(self: Arc<Self>, task: TaskContext) -> Result<(), String> {
        let request = self
            .client
            .request(self.method.clone(), self.url.clone())
            .headers(self.headers.clone())
            .header("x-lockd-task", &task.name)
            .header("x-lockd-epoch", task.epoch.0)
            .header("x-lockd-scheduled-at-ms", task.scheduled_at_ms)
            .header("x-lockd-manual", task.manual.to_string())
            .body(self.body.clone());
        let answer = tokio::select! {
            answer = request.send() => answer.map_err(|error| chain(&error))?,
            () = task.cancelled.cancelled() => return Err("no longer the leader".into()),
        };
        let status = answer.status();
        if status.is_success() { Ok(()) } else { Err(format!("answered {status}")) }
    }
}

/// For what is not encrypted, no certificates of authorities are needed: a machine may have none.
pub fn http_client(url: &str) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder();
    if !url.starts_with("http://") {
        return builder;
    }
    let nobody = rustls::RootCertStore::empty();
    let config = rustls::ClientConfig::builder().with_root_certificates(nobody);
    builder.tls_backend_preconfigured(config.with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_seconds_or_have_a_unit() {
        assert_eq!(span("15"), Ok(Duration::from_secs(15)));
        assert_eq!(span("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(span("1m 30s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "-1", "soon", "NaN", "1e300"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_task_that_contradicts_itself_is_refused() {
        let task = |json: &str| -> Result<Task, String> {
            let spec: TaskSpec = serde_json::from_str(json).map_err(|error| error.to_string())?;
            spec.task("a", &[]).map_err(|error| error.to_string())
        };
        assert!(task(r#"{"name":"a","every":"1h","command":["true"]}"#).is_ok());
        assert!(task(r#"{"name":"a","every":60,"missed":"all","command":["true"]}"#).is_ok());
        let wrong = |json: &str, part: &str| {
            let told = task(json).unwrap_err();
            assert!(told.contains(part), "{told}");
        };
        wrong(r#"{"name":"a","command":["true"]}"#, "`every` or `cron`");
        wrong(r#"{"name":"a","every":1}"#, "`command` or an `http`");
        wrong(r#"{"name":"a","every":1,"command":[]}"#, "`command` or an `http`");
        wrong(r#"{"name":"a","cron":"x","command":["true"]}"#, "no cron expression");
        wrong(r#"{"name":"a","every":"soon","command":["true"]}"#, "");
        wrong(r#"{"name":"a","every":1,"comand":["true"]}"#, "unknown field");
        wrong(r#"{"name":"a","every":1,"http":{"url":"ftp://x"}}"#, "http://");
    }
}
