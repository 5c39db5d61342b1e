//! Instances as everybody sees them. Whether one is there is judged by the life of its heartbeat in
//! the one place where all are kept; nobody's clock is compared with anybody else's.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::settings::Settings;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Active,
    Drifted,
    Down,
}

impl State {
    pub const ALL: [Self; 3] = [Self::Active, Self::Drifted, Self::Down];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Drifted => "drifted",
            Self::Down => "down",
        }
    }
}

/// What is seen of an instance's heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// So long ago.
    Heard { age: Duration },
    /// It ran out; somebody noticed it at this time, in ms.
    Missing { since: u64 },
}

/// What a sign means at `now`, in ms of the clock that `Missing` was stored with.
#[must_use]
pub(crate) fn judge(sign: Sign, now: u64, settings: &Settings) -> State {
    match sign {
        Sign::Heard { age } if age < settings.drift_threshold => State::Active,
        Sign::Heard { .. } => State::Drifted,
        Sign::Missing { since } => {
            let silent = Duration::from_millis(now.saturating_sub(since));
            if silent < missing_until_down(settings) { State::Drifted } else { State::Down }
        }
    }
}

/// A heartbeat that ran out was silent for its whole life before.
#[must_use]
pub(crate) fn missing_until_down(settings: &Settings) -> Duration {
    settings.stale_threshold.saturating_sub(settings.heartbeat_ttl)
}

/// An entry of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    /// As it was written; not necessarily by us.
    pub raw: String,
    pub sign: Sign,
}

/// An instance, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub instance_id: String,
    pub status: State,
    pub is_leader: bool,
    pub started_at: u64,
    pub last_heartbeat: u64,
    pub worker_count: u64,
}

impl Entry {
    /// What it says of itself, with the status that it has. What cannot be read is zero.
    #[must_use]
    pub fn member(&self, state: State, leader: Option<&str>) -> Member {
        let said: Map<String, Value> = serde_json::from_str(&self.raw).unwrap_or_default();
        let number = |name: &str| said.get(name).map_or(0, number);
        Member {
            instance_id: self.id.clone(),
            status: state,
            is_leader: state != State::Down && leader == Some(self.id.as_str()),
            started_at: number("started_at"),
            last_heartbeat: number("last_heartbeat"),
            worker_count: number("worker_count"),
        }
    }

    /// The entry with another status and everything else as it was; `None` if it has that status
    /// already, or cannot be read.
    #[must_use]
    pub fn restated(&self, state: State) -> Option<String> {
        let mut said: Map<String, Value> = serde_json::from_str(&self.raw).ok()?;
        let status = Value::from(state.as_str());
        if said.get("status") == Some(&status) {
            return None;
        }
        said.insert("status".into(), status);
        Some(Value::Object(said).to_string())
    }
}

/// Other languages write numbers as they like.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
fn number(value: &Value) -> u64 {
    if let Some(number) = value.as_u64() {
        return number;
    }
    let number = value.as_f64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    number.filter(|number| (0.0..9e15).contains(number)).map_or(0, |number| number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_drifts_after_a_minute_and_is_down_after_five() {
        let settings = Settings::new("a");
        let heard = |age| judge(Sign::Heard { age: Duration::from_millis(age) }, 0, &settings);
        assert_eq!(heard(0), State::Active);
        assert_eq!(heard(59_999), State::Active);
        assert_eq!(heard(60_000), State::Drifted);
        assert_eq!(heard(89_999), State::Drifted);
        // It ran out after 90 s and was noticed at once.
        let missing = |now| judge(Sign::Missing { since: 1_000_000 }, now, &settings);
        assert_eq!(missing(1_000_000), State::Drifted);
        assert_eq!(missing(1_209_999), State::Drifted);
        assert_eq!(missing(1_210_000), State::Down);
        // A clock that was set back takes nobody away.
        assert_eq!(missing(0), State::Drifted);
    }

    #[test]
    fn entries_of_other_languages_are_read() {
        let entry = |raw: &str| Entry {
            id: "lua-1".into(),
            raw: raw.into(),
            sign: Sign::Heard { age: Duration::ZERO },
        };
        let written = entry(
            r#"{"instance_id":"lua-1","started_at":1734567890.0,"last_heartbeat":"1734567950","status":"drifted","worker_count":4,"zone":"a"}"#,
        );
        let member = written.member(State::Active, Some("lua-1"));
        assert_eq!((member.started_at, member.last_heartbeat), (1_734_567_890, 1_734_567_950));
        assert!(member.is_leader && member.worker_count == 4);
        let again: Value = serde_json::from_str(&written.restated(State::Active).unwrap()).unwrap();
        assert_eq!((&again["status"], &again["zone"]), (&"active".into(), &"a".into()));
        assert_eq!(written.restated(State::Drifted), None);
        for broken in ["", "[]", "{", "\u{0}"] {
            assert_eq!(entry(broken).restated(State::Drifted), None);
            assert_eq!(entry(broken).member(State::Drifted, None).started_at, 0);
        }
    }
}
