//! What an agent is told when it is started.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use lockd_wire::node::environment;

/// The most that may be kept of what a job writes.
pub const OUTPUT_MAX: usize = 1024 * 1024;
const OUTPUT_USUAL: usize = 64 * 1024;
const NAME_MAX: usize = 256;
const SLOTS_MAX: usize = 1_024;
const POLL_WAIT_MAX: Duration = Duration::from_secs(60);

/// An agent, as it is to be.
#[derive(Clone)]
pub struct AgentSettings {
    /// Under which it is known to controllers.
    pub name: String,
    /// Where controllers are; the first is asked first.
    pub controllers: Vec<String>,
    /// How many jobs are run at once.
    pub slots: usize,
    /// How long a controller may let a question for work wait. Whole seconds.
    pub poll_wait: Duration,
    /// Shown to controllers.
    pub token: Option<String>,
    /// For controllers at `https://`; without it, the certificates that this machine trusts.
    pub tls: Option<rustls::ClientConfig>,
    /// A command that runs a guard on the arguments after it. Without it jobs only have a process
    /// group of their own, and survive if this process is killed.
    pub guard: Vec<OsString>,
    /// How many bytes are kept of what a job writes: the first quarter, and the rest from the end.
    pub output_max: usize,
    /// How long jobs may go on when the agent is stopped; for the last third of it they are asked to
    /// end.
    pub grace: Duration,
    /// Variables of this process that jobs do not get.
    pub hidden: Vec<String>,
}

impl AgentSettings {
    /// With what is usual for the rest.
    #[must_use]
    pub fn new(name: impl Into<String>, controllers: Vec<String>) -> Self {
        use environment::{ENDPOINT, EPOCH, NODE_ID, ROLE, TOKEN, URL};
        Self {
            name: name.into(),
            controllers,
            slots: 1,
            poll_wait: Duration::from_secs(20),
            token: None,
            tls: None,
            guard: Vec::new(),
            output_max: OUTPUT_USUAL,
            grace: Duration::from_secs(10),
            hidden: [ROLE, EPOCH, NODE_ID, URL, ENDPOINT, TOKEN].map(str::to_owned).to_vec(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        if self.name.is_empty() || self.name.len() > NAME_MAX {
            return Err(SettingsError::Name);
        }
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            return Err(SettingsError::Slots);
        }
        if self.output_max > OUTPUT_MAX {
            return Err(SettingsError::Output);
        }
        if self.poll_wait > POLL_WAIT_MAX {
            return Err(SettingsError::PollWait);
        }
        if self.controllers.is_empty() {
            return Err(SettingsError::NoController);
        }
        for text in &self.controllers {
            let wrong = || SettingsError::Controller(text.clone());
            let url: reqwest::Url = text.parse().map_err(|_| wrong())?;
            if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() {
                return Err(wrong());
            }
        }
        Ok(())
    }
}

impl fmt::Debug for AgentSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSettings")
            .field("name", &self.name)
            .field("controllers", &self.controllers)
            .field("slots", &self.slots)
            .field("poll_wait", &self.poll_wait)
            .field("has_token", &self.token.is_some())
            .field("guard", &self.guard)
            .field("output_max", &self.output_max)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// Why an agent is not started.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("the name of an agent has 1 to {NAME_MAX} bytes")]
    Name,
    #[error("an agent runs 1 to {SLOTS_MAX} jobs at once")]
    Slots,
    #[error("at most {OUTPUT_MAX} bytes are kept of what a job writes")]
    Output,
    #[error("a question for work waits at most {} s", POLL_WAIT_MAX.as_secs())]
    PollWait,
    #[error("an agent needs the URL of a controller")]
    NoController,
    #[error("{0:?} is no URL of a controller: http://host:port or https://host:port")]
    Controller(String),
    #[error("the token cannot be sent in a header")]
    Token,
    #[error("cannot be set up for HTTP: {0}")]
    Http(String),
}
