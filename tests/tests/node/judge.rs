//! What the stores themselves have seen of the leaders' writes, and what must hold of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use lockd_cloud::Exchange;
use lockd_wire::{header, path};
use serde_json::Value;

use super::site::{Keeper, Site};

/// A write that a store has accepted.
#[derive(Clone, Debug)]
pub struct Write {
    pub epoch: u64,
    pub id: String,
    pub state: String,
    /// Of the attempt that the job is at, and of its result if it has one.
    pub job_epoch: u64,
    pub result_epoch: Option<u64>,
    /// By the clock of the leader that took it in.
    pub created_at_ms: u64,
    /// Between these two it happened; numbers of the store's own where it counts.
    pub began: Moment,
    pub ended: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    Counted(u64),
    Seen(Instant),
}

pub enum Chronicle {
    /// A trigger writes everything down, in the transaction that writes it.
    Postgres,
    /// A recorder stands before the server.
    Lockd,
}

const AUDIT: &str = "
    CREATE TABLE audit (
        seq bigserial PRIMARY KEY, kind text, id text, leader_epoch bigint, office bigint, body text
    );
    CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit (kind, id, leader_epoch, office, body)
        SELECT NEW.kind, NEW.id, NEW.leader_epoch, e.epoch, NEW.body
        FROM lockd_controller_epoch e WHERE e.name = NEW.name;
        RETURN NEW;
    END $$;
    CREATE TRIGGER audited AFTER INSERT OR UPDATE ON lockd_controller_record
        FOR EACH ROW EXECUTE FUNCTION audited();";

impl Chronicle {
    pub fn begin(site: &Site) -> Self {
        match &site.store {
            Keeper::Postgres(postgres) => {
                postgres.run(AUDIT);
                Self::Postgres
            }
            Keeper::Lockd(_) => Self::Lockd,
            Keeper::Etcd(_) | Keeper::Redis(_) => panic!("no store of jobs"),
        }
    }

    /// All writes of jobs, in the order in which they ended.
    pub fn end(&self, site: &Site) -> Vec<Write> {
        match (self, &site.store) {
            (Self::Postgres, Keeper::Postgres(postgres)) => {
                let audit = "SELECT json_build_array(seq, id, leader_epoch, office, body::json)
                             FROM audit WHERE kind = 'job' ORDER BY seq";
                postgres.run(audit).lines().map(audited).collect()
            }
            _ => site
                .recorder
                .as_ref()
                .expect("a recorder")
                .exchanges()
                .iter()
                .filter_map(recorded)
                .collect(),
        }
    }
}

fn audited(line: &str) -> Write {
    let row: Value = serde_json::from_str(line).expect("a row");
    assert_eq!(row[2], row[3], "a write under an epoch that is not the office's: {line}");
    let at = Moment::Counted(row[0].as_u64().expect("a number"));
    let write = write(&row[4], (at, at));
    assert_eq!(Some(write.epoch), row[2].as_u64(), "the record says another epoch: {line}");
    write
}

/// Whether an exchange may be a leader's write.
pub fn is_wanted(method: &http::Method, target: &str) -> bool {
    method == http::Method::POST && target.starts_with(path::UPDATE) && target.contains("job")
}

fn recorded(exchange: &Exchange) -> Option<Write> {
    if !exchange.status?.is_success() {
        return None;
    }
    assert!(exchange.headers.contains_key(header::FENCE_TOKEN), "without a fence: {exchange:?}");
    let kept: Value = serde_json::from_slice(&exchange.body).expect("a record");
    let job: Value = serde_json::from_str(kept["body"].as_str().expect("a body")).expect("a job");
    Some(write(&job, (Moment::Seen(exchange.began), Moment::Seen(exchange.ended))))
}

fn write(job: &Value, (began, ended): (Moment, Moment)) -> Write {
    Write {
        epoch: job["leader_epoch"].as_u64().expect("an epoch"),
        id: job["id"].as_str().expect("an id").to_owned(),
        state: job["state"].as_str().expect("a state").to_owned(),
        job_epoch: job["job_epoch"].as_u64().expect("an epoch"),
        result_epoch: job["result"]["job_epoch"].as_u64(),
        created_at_ms: job["created_at_ms"].as_u64().expect("a time"),
        began,
        ended,
    }
}

/// Panics with what does not hold; returns how many writes there were.
pub fn judge(writes: &[Write], accepted: &[String]) -> usize {
    let mut by_end: Vec<&Write> = writes.iter().collect();
    by_end.sort_by_key(|write| write.ended);
    let mut by_begin = by_end.clone();
    by_begin.sort_by_key(|write| write.began);
    // Whoever begins after a write of a later leader has ended must not be an earlier one.
    let (mut ended, mut latest): (_, Option<&Write>) = (by_end.iter().peekable(), None);
    for write in by_begin {
        while let Some(before) = ended.next_if(|before| before.ended < write.began) {
            if latest.is_none_or(|latest| latest.epoch < before.epoch) {
                latest = Some(before);
            }
        }
        if let Some(latest) = latest {
            assert!(write.epoch >= latest.epoch, "{write:?} after {latest:?}");
        }
    }
    let mut of_job: BTreeMap<&str, Vec<&Write>> = BTreeMap::new();
    for write in by_end {
        of_job.entry(&write.id).or_default().push(write);
    }
    for id in accepted {
        let writes = of_job.get(id.as_str()).unwrap_or_else(|| panic!("{id} was never written"));
        let results: BTreeSet<_> = writes
            .iter()
            .filter(|write| write.state == "succeeded")
            .map(|write| (write.job_epoch, write.result_epoch, write.epoch))
            .collect();
        assert_eq!(results.len(), 1, "not one result of {id}: {writes:?}");
        let last = writes.last().map(|write| write.state.as_str());
        assert_eq!(last, Some("succeeded"), "{id} went on after its result: {writes:?}");
        let mut epochs = writes.windows(2).map(|pair| (pair[0].job_epoch, pair[1].job_epoch));
        assert!(epochs.all(|(before, after)| before <= after), "{writes:?}");
    }
    writes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64, epoch: u64, state: &str) -> Write {
        let at = Moment::Counted(number);
        Write {
            epoch,
            id: "j".into(),
            state: state.into(),
            job_epoch: 1,
            result_epoch: (state == "succeeded").then_some(1),
            created_at_ms: 1,
            began: at,
            ended: at,
        }
    }

    fn is_caught(writes: &[Write]) {
        let judged = std::panic::catch_unwind(|| judge(writes, &["j".into()]));
        assert!(judged.is_err(), "{writes:?}");
    }

    #[test]
    fn a_good_history_passes() {
        let good =
            [at(1, 1, "queued"), at(2, 1, "leased"), at(3, 2, "leased"), at(4, 2, "succeeded")];
        assert_eq!(judge(&good, &["j".into()]), 4);
    }

    #[test]
    fn forged_histories_are_caught() {
        is_caught(&[at(1, 2, "queued"), at(2, 1, "leased"), at(3, 2, "succeeded")]);
        is_caught(&[at(1, 1, "succeeded"), at(2, 1, "queued")]);
        is_caught(&[at(1, 1, "succeeded"), at(2, 2, "succeeded")]);
        is_caught(&[at(1, 1, "queued")]);
        is_caught(&[]);
    }
}
