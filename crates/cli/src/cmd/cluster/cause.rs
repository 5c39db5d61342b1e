//! What is likely wrong with a cluster that is not healthy.

use lockd_coordinator::api::{InstanceList, Status};
use lockd_coordinator::{Member, State};

/// What is wrong, and what to look at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) what: String,
    pub(super) next: String,
}

pub(super) fn of(status: &Status, list: &InstanceList) -> Option<Cause> {
    if status.cluster_healthy {
        return None;
    }
    let cause = |what: String, next: &str| Some(Cause { what, next: next.into() });
    let named = |wanted: State| -> Vec<&str> {
        let those = list.instances.iter().filter(|member| member.status == wanted);
        those.map(|member| member.instance_id.as_str()).collect()
    };
    if list.instances.is_empty() {
        let next = "the coordinator that was asked cannot register either: look at its log";
        return cause("no instance is registered".into(), next);
    }
    if named(State::Active).is_empty() {
        let next = "every instance is cut off from the registry, or gone; look at their logs for \
                    \"heartbeat failed\"";
        return cause("no instance sends heartbeats".into(), next);
    }
    let Some(leader) = &status.leader else {
        let next = "the latest leader may have gone less than the leader's time to live ago: look \
                    again in half a minute. If it stays so, the instances cannot take the leader's \
                    key: look at their logs, and at the rights of their user";
        return cause("nobody leads".into(), next);
    };
    let id = &leader.instance_id;
    let of_leader = |member: &&Member| member.instance_id == *id;
    match list.instances.iter().find(of_leader).map(|member| member.status) {
        None => {
            let next = "something that is no instance holds the leader's key; it runs out by itself \
                        unless it is renewed";
            return cause(format!("{id} leads, but is not registered"), next);
        }
        Some(State::Drifted | State::Down) => {
            let next = "it hangs, or only part of it works: restart it; another one leads after the \
                        leader's time to live";
            return cause(format!("{id} leads, but sends no heartbeats"), next);
        }
        Some(State::Active) => {}
    }
    let mut silent = named(State::Drifted);
    silent.extend(named(State::Down));
    let (names, more) = match silent.split_at_checked(5) {
        Some((first, rest)) if !rest.is_empty() => (first, format!(" and {} more", rest.len())),
        _ => (silent.as_slice(), String::new()),
    };
    let next = "paused, overloaded, cut off from the registry, or gone without deregistering; the \
                leader removes what stays silent";
    cause(format!("no heartbeats from {}{more}", names.join(", ")), next)
}

#[cfg(test)]
mod tests {
    use lockd_coordinator::api::{LeaderView, ThisInstance};

    use super::*;

    fn member(id: &str, status: State) -> Member {
        Member {
            instance_id: id.into(),
            status,
            is_leader: false,
            started_at: 0,
            last_heartbeat: 0,
            worker_count: 1,
        }
    }

    fn told(leader: Option<&str>, members: Vec<Member>) -> String {
        let status = Status {
            cluster_healthy: false,
            instance_count: members.len(),
            active_instances: 0,
            drifted_instances: 0,
            leader: leader.map(|id| LeaderView { instance_id: id.into(), since: 0 }),
            this_instance: ThisInstance { id: "a".into(), is_leader: false },
        };
        let list = InstanceList {
            total: members.len(),
            current_leader: leader.map(Into::into),
            instances: members,
        };
        of(&status, &list).unwrap().what
    }

    #[test]
    fn each_kind_of_trouble_has_its_sentence() {
        use State::{Active, Drifted};
        assert_eq!(told(None, vec![]), "no instance is registered");
        assert_eq!(told(None, vec![member("a", Drifted)]), "no instance sends heartbeats");
        assert_eq!(told(None, vec![member("a", Active)]), "nobody leads");
        let by_hand = told(Some("x"), vec![member("a", Active)]);
        assert_eq!(by_hand, "x leads, but is not registered");
        let hangs = told(Some("b"), vec![member("a", Active), member("b", Drifted)]);
        assert_eq!(hangs, "b leads, but sends no heartbeats");
        let mut many = vec![member("a", Active)];
        many.extend((0..7).map(|n| member(&format!("s{n}"), Drifted)));
        assert_eq!(told(Some("a"), many), "no heartbeats from s0, s1, s2, s3, s4 and 2 more");
    }
}
