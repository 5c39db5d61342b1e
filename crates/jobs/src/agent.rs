//! What is known about agents, and which of them get no more work: pure rules.

use serde::{Deserialize, Serialize};

const NAME_MAX: usize = 100;

/// Letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits)
}

/// An agent, as it was last kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub name: String,
    /// Of the process that was seen last.
    pub incarnation: String,
    /// Grows with every write.
    pub version: u64,
    /// Of the leader that wrote it last.
    pub leader_epoch: u64,
    pub first_seen_ms: u64,
    pub last_seen_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tombstone: Option<Tombstone>,
}

/// Somebody has deleted the agent. It stays when another process of that name comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The process that gets no more work.
    pub incarnation: String,
    pub at_ms: u64,
    pub leader_epoch: u64,
}

impl Agent {
    #[must_use]
    pub fn new(name: &str, incarnation: &str, leader_epoch: u64, now: u64) -> Self {
        Self {
            name: name.into(),
            incarnation: incarnation.into(),
            version: 1,
            leader_epoch,
            first_seen_ms: now,
            last_seen_ms: now,
            tombstone: None,
        }
    }

    /// It has asked for work.
    #[must_use]
    pub fn seen(&self, incarnation: &str, leader_epoch: u64, now: u64) -> Self {
        Self {
            incarnation: incarnation.into(),
            version: self.version.saturating_add(1),
            leader_epoch,
            last_seen_ms: now,
            ..self.clone()
        }
    }

    /// The process of that name gets no more work. `None` if it is so already.
    #[must_use]
    pub fn deleted(&self, leader_epoch: u64, now: u64) -> Option<Self> {
        if self.is_deleted() {
            return None;
        }
        let tombstone =
            Tombstone { incarnation: self.incarnation.clone(), at_ms: now, leader_epoch };
        let version = self.version.saturating_add(1);
        Some(Self { version, leader_epoch, tombstone: Some(tombstone), ..self.clone() })
    }

    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.refuses(&self.incarnation)
    }

    /// Whether that process gets no work.
    #[must_use]
    pub fn refuses(&self, incarnation: &str) -> bool {
        self.tombstone.as_ref().is_some_and(|tombstone| tombstone.incarnation == incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_agent_gets_no_work_until_it_is_another_process() {
        let agent = Agent::new("a", "1", 5, 10);
        let deleted = agent.deleted(5, 20).unwrap();
        assert!(deleted.is_deleted() && deleted.refuses("1") && !deleted.refuses("2"));
        assert_eq!(deleted.deleted(5, 30), None, "again");
        let revived = deleted.seen("2", 6, 40);
        assert!(!revived.is_deleted() && !revived.refuses("2"));
        assert!(revived.refuses("1"), "the process that was deleted comes late");
        assert_eq!((revived.version, revived.leader_epoch), (3, 6));
    }

    #[test]
    fn names_have_letters_digits_and_little_else() {
        assert!(is_name("Node-1_worker.b") && !is_name("") && !is_name("a b") && !is_name("ä"));
        assert!(!is_name(&"x".repeat(101)));
    }
}
