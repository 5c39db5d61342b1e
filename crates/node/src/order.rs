//! What the controller is to be: decided by the actor alone, read by the keeper of the controller
//! and, as an assignment, by the program itself.

use lockd_elect::{Holder, Office};
use lockd_wire::node::{Assignment, Role};

/// Somebody who leads, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) id: String,
    pub(crate) url: Option<String>,
    pub(crate) epoch: Option<u64>,
}

impl Leader {
    /// The lock knows nodes as `NODE@URL`.
    pub(crate) fn of(holder: &Holder) -> Self {
        let epoch = holder.epoch.map(|epoch| epoch.0);
        match holder.id.split_once('@') {
            Some((id, url)) => Self { id: id.into(), url: Some(url.into()), epoch },
            None => Self { id: holder.id.clone(), url: None, epoch },
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// Grows with every change, but for force.
    pub(crate) version: u64,
    /// The version that must be acknowledged: the latest that opens or closes.
    pub(crate) asked: u64,
    pub(crate) role: Role,
    /// Who leads; the node itself while it does.
    pub(crate) leader: Option<Leader>,
    /// While it is to lead.
    pub(crate) office: Option<Office>,
    /// It must be closed now, and be it by its end.
    pub(crate) force: bool,
    /// It is to end.
    pub(crate) end: bool,
}

impl Order {
    /// The epoch under which it is to write.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.office.as_ref().map(|office| office.epoch.0)
    }

    pub(crate) fn leads(&self) -> bool {
        self.role != Role::Standby
    }

    pub(crate) fn assignment(&self, node_id: &str) -> Assignment {
        let lease = self.office.as_ref().filter(|_| self.leads());
        let leader = self.leader.as_ref();
        Assignment {
            version: self.version,
            node_id: node_id.into(),
            role: self.role,
            leader_epoch: leader.and_then(|leader| leader.epoch),
            leader_id: leader.map(|leader| leader.id.clone()),
            leader_url: leader.and_then(|leader| leader.url.clone()),
            lease_ms: lease.map(|office| millis(office.remaining())),
        }
    }
}

pub(crate) fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use lockd_elect::Epoch;

    use super::*;

    #[test]
    fn the_lock_knows_where_a_leader_is() {
        let holder = |id: &str| Holder { id: id.into(), epoch: Some(Epoch(3)), remaining: None };
        let leader = Leader::of(&holder("a@http://h:1"));
        assert_eq!((leader.id.as_str(), leader.url.as_deref()), ("a", Some("http://h:1")));
        assert_eq!(Leader::of(&holder("a")).url, None);
        assert_eq!(Leader::of(&holder("a")).epoch, Some(3));
    }
}
