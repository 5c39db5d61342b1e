//! How an instance takes part: its name, the cluster's keys, and how often things are done. The
//! defaults are those that instances in other languages have built in.

use std::time::Duration;

/// Settings of one instance. Those of a cluster must agree on all but the first two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub instance_id: String,
    /// Shown to others; what the instance does with its workers is its own business.
    pub worker_count: u64,
    /// Every key of the cluster begins with it.
    pub prefix: String,
    pub heartbeat_interval: Duration,
    /// How long a heartbeat counts.
    pub heartbeat_ttl: Duration,
    pub leader_ttl: Duration,
    pub leader_renew_interval: Duration,
    /// After so long without a heartbeat an instance is *drifted*.
    pub drift_threshold: Duration,
    /// After so long without a heartbeat an instance is *down*, and removed.
    pub stale_threshold: Duration,
    pub metrics_push_interval: Duration,
    /// How many runs of each task are kept.
    pub task_history: usize,
    /// How long a task may take to end when its leader gives up the office on purpose.
    pub grace: Duration,
}

/// What cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0} must not be zero")]
    Zero(&'static str),
    #[error("{short} ({short_is:?}) must be shorter than {long} ({long_is:?})")]
    Order { short: &'static str, short_is: Duration, long: &'static str, long_is: Duration },
    #[error(
        "the instance id {0:?} is not a name: 1 to 200 characters, without spaces and control \
         characters"
    )]
    InstanceId(String),
    #[error(
        "the key prefix {0:?} cannot be used: 1 to 200 characters, without spaces and control \
         characters"
    )]
    Prefix(String),
    #[error(
        "on a Redis cluster all keys must be in one place: put a hash tag into the key prefix, as \
         in {{{0}}}"
    )]
    HashTag(String),
    #[error("task_history must be between 1 and 10000")]
    History,
}

const NAME_MAX: usize = 200;
const HISTORY_MAX: usize = 10_000;

impl Settings {
    #[must_use]
    pub fn new(instance_id: impl Into<String>) -> Self {
        Self {
            instance_id: instance_id.into(),
            worker_count: 1,
            prefix: "waf:cluster".into(),
            heartbeat_interval: Duration::from_secs(15),
            heartbeat_ttl: Duration::from_secs(90),
            leader_ttl: Duration::from_secs(30),
            leader_renew_interval: Duration::from_secs(10),
            drift_threshold: Duration::from_secs(60),
            stale_threshold: Duration::from_secs(300),
            metrics_push_interval: Duration::from_secs(30),
            task_history: 100,
            grace: Duration::from_secs(10),
        }
    }

    /// # Errors
    /// When the settings contradict each other.
    pub fn check(&self) -> Result<(), SettingsError> {
        if !is_name(&self.instance_id) {
            return Err(SettingsError::InstanceId(self.instance_id.clone()));
        }
        if !is_name(&self.prefix) {
            return Err(SettingsError::Prefix(self.prefix.clone()));
        }
        let named = [
            ("heartbeat_interval", self.heartbeat_interval),
            ("leader_renew_interval", self.leader_renew_interval),
            ("metrics_push_interval", self.metrics_push_interval),
            ("drift_threshold", self.drift_threshold),
        ];
        if let Some((name, _)) = named.iter().find(|(_, span)| span.as_millis() == 0) {
            return Err(SettingsError::Zero(name));
        }
        let ordered = [
            ("heartbeat_interval", self.heartbeat_interval, "heartbeat_ttl", self.heartbeat_ttl),
            (
                "heartbeat_interval",
                self.heartbeat_interval,
                "drift_threshold",
                self.drift_threshold,
            ),
            ("leader_renew_interval", self.leader_renew_interval, "leader_ttl", self.leader_ttl),
            ("drift_threshold", self.drift_threshold, "stale_threshold", self.stale_threshold),
            ("heartbeat_ttl", self.heartbeat_ttl, "stale_threshold", self.stale_threshold),
        ];
        for (short, short_is, long, long_is) in ordered {
            if short_is >= long_is {
                return Err(SettingsError::Order { short, short_is, long, long_is });
            }
        }
        if !(1..=HISTORY_MAX).contains(&self.task_history) {
            return Err(SettingsError::History);
        }
        Ok(())
    }

    /// A leader counts as in doubt this long before its time is over.
    #[must_use]
    pub fn notice(&self) -> Duration {
        (self.leader_ttl - self.leader_renew_interval.min(self.leader_ttl)) / 5
    }

    /// After memory was lost, everybody alive has sent a heartbeat within this.
    #[must_use]
    pub fn recollection(&self) -> Duration {
        self.leader_ttl.max(self.heartbeat_interval + self.heartbeat_interval / 4)
    }
}

fn is_name(text: &str) -> bool {
    let fits = (1..=NAME_MAX).contains(&text.len());
    fits && !text.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// Whether Redis keeps all keys with this prefix in one slot.
#[must_use]
pub fn has_hash_tag(prefix: &str) -> bool {
    let inside = prefix.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    inside.is_some_and(|(tag, _)| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_fit_together() {
        assert_eq!(Settings::new("waf-0").check(), Ok(()));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let wrong = |change: fn(&mut Settings)| {
            let mut settings = Settings::new("waf-0");
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert!(wrong(|s| s.instance_id = "a b".into()).contains("\"a b\""));
        assert!(wrong(|s| s.prefix = String::new()).contains("prefix"));
        assert!(wrong(|s| s.heartbeat_interval = Duration::ZERO).contains("zero"));
        let order = wrong(|s| s.leader_ttl = Duration::from_secs(10));
        assert_eq!(order, "leader_renew_interval (10s) must be shorter than leader_ttl (10s)");
        assert!(wrong(|s| s.heartbeat_ttl = Duration::from_secs(300)).contains("stale"));
        assert!(wrong(|s| s.task_history = 0).contains("task_history"));
    }

    #[test]
    fn a_hash_tag_is_what_is_in_the_first_braces() {
        assert!(has_hash_tag("{waf:cluster}") && has_hash_tag("a{b}c"));
        assert!(!has_hash_tag("waf:cluster") && !has_hash_tag("{}a") && !has_hash_tag("a}b{"));
    }
}
