//! Attempts, their ends, and who may end them.

use proptest::prelude::*;

use super::*;

const TTL: u64 = 10_000;

fn spec() -> JobSpec {
    serde_json::from_str(r#"{"command": ["true"], "max_attempts": 2}"#).unwrap()
}

fn job() -> Job {
    Job::new("j1".into(), spec(), 5, 1_000)
}

fn leased() -> Job {
    job().leased("a", "l1".into(), 5, (2_000, TTL)).unwrap()
}

fn claim(job_epoch: u64, leader_epoch: u64) -> Claim<'static> {
    Claim { lease_id: "l1", job_epoch, leader_epoch }
}

fn result(success: bool, job_epoch: u64, leader_epoch: u64) -> JobResult {
    JobResult {
        success,
        exit_code: Some(i32::from(!success)),
        output: String::new(),
        error: None,
        agent: "a".into(),
        job_epoch,
        leader_epoch,
        at_ms: 0,
    }
}

#[test]
fn what_is_asked_for_is_checked() {
    let read = |json: &str| serde_json::from_str::<JobSpec>(json);
    let usual = spec();
    assert_eq!((usual.priority, usual.timeout_seconds, usual.input.clone()), (0, 60, Value::Null));
    assert_eq!(usual.check(), Ok(()));
    assert!(read(r#"{"command": ["a"], "comand": 1}"#).is_err());
    assert!(read("{}").is_err());
    let wrong = |change: fn(&mut JobSpec)| {
        let mut spec = spec();
        change(&mut spec);
        spec.check().unwrap_err()
    };
    assert_eq!(wrong(|spec| spec.command.clear()), SpecRefused::Command);
    assert_eq!(wrong(|spec| spec.command = vec![String::new()]), SpecRefused::Command);
    assert_eq!(wrong(|spec| spec.command.push("a\0b".into())), SpecRefused::Command);
    let variable = wrong(|spec| drop(spec.env.insert("A=B".into(), String::new())));
    assert_eq!(variable, SpecRefused::Variable("A=B".into()));
    assert_eq!(wrong(|spec| spec.input = "x".repeat(TEXT_MAX).into()), SpecRefused::TooLarge);
    assert_eq!(wrong(|spec| spec.max_attempts = 0), SpecRefused::Attempts);
    assert_eq!(wrong(|spec| spec.timeout_seconds = 0), SpecRefused::Timeout);
}

#[test]
fn an_attempt_is_given_out_renewed_and_concluded_once() {
    let job = leased();
    assert_eq!((job.state, job.job_epoch, job.attempts), (JobState::Leased, 1, 1));
    assert_eq!(job.leased("b", "l2".into(), 5, (2_000, TTL)), Err(Refused::NotReady));
    let renewed = job.renewed(&claim(1, 5), (8_000, TTL)).unwrap();
    assert_eq!(renewed.lease.as_ref().unwrap().expires_at_ms, 18_000);
    let done = renewed.concluded(&claim(1, 5), result(true, 1, 5), 9_000).unwrap();
    assert_eq!(done.state, JobState::Succeeded);
    // A second result, whoever sends it, is of an attempt that is over.
    let again = done.concluded(&claim(1, 5), result(false, 1, 5), 9_001);
    assert_eq!(again, Err(Refused::StaleEpoch));
}

#[test]
fn an_attempt_ends_when_its_time_is_over_however_often_it_is_renewed() {
    let mut job = leased();
    let mut now = 2_000;
    while let Ok(renewed) = job.renewed(&claim(1, 5), (now, TTL)) {
        job = renewed;
        now += 5_000;
    }
    assert_eq!(now, 62_000, "a minute");
}

#[test]
fn stale_numbers_are_refused() {
    let job = leased();
    for stale in [claim(0, 5), claim(2, 5), claim(1, 4), claim(1, 6)] {
        assert_eq!(job.renewed(&stale, (3_000, TTL)), Err(Refused::StaleEpoch));
        let told = result(true, stale.job_epoch, stale.leader_epoch);
        assert_eq!(job.concluded(&stale, told, 3_000), Err(Refused::StaleEpoch));
    }
    let other = Claim { lease_id: "l9", ..claim(1, 5) };
    assert_eq!(job.renewed(&other, (3_000, TTL)), Err(Refused::StaleEpoch));
    // Too late, even if nobody has noticed yet.
    assert_eq!(job.renewed(&claim(1, 5), (12_000, TTL)), Err(Refused::StaleEpoch));
}

#[test]
fn what_fails_comes_again_after_a_pause_until_it_is_given_up() {
    let failed = leased().concluded(&claim(1, 5), result(false, 1, 5), 3_000).unwrap();
    assert_eq!((failed.state, failed.not_before_ms), (JobState::Queued, 4_000));
    assert_eq!(failed.leased("b", "l1".into(), 5, (3_500, TTL)), Err(Refused::NotReady));
    let second = failed.leased("b", "l1".into(), 5, (4_000, TTL)).unwrap();
    assert_eq!(second.job_epoch, 2);
    assert_eq!(second.lapsed(5, 13_999), None);
    let given_up = second.lapsed(5, 14_000).unwrap();
    assert_eq!((given_up.state, given_up.lease), (JobState::Failed, None));
}

#[test]
fn a_new_leader_confirms_what_goes_on() {
    let job = leased();
    assert_eq!(job.confirmed(5, (3_000, TTL)), None, "its own");
    // Nobody led for longer than the lease: the work is not lost for that.
    let confirmed = job.confirmed(6, (20_000, TTL)).unwrap();
    let lease = confirmed.lease.as_ref().unwrap();
    assert_eq!((lease.job_epoch, lease.leader_epoch, lease.expires_at_ms), (1, 6, 30_000));
    assert_eq!(confirmed.leader_epoch, 6);
    let old = confirmed.concluded(&claim(1, 5), result(true, 1, 5), 21_000);
    assert_eq!(old, Err(Refused::StaleEpoch), "under the old leader");
    assert!(confirmed.concluded(&claim(1, 6), result(true, 1, 6), 21_000).is_ok());
}

#[test]
fn a_cancelled_job_takes_no_result() {
    let cancelled = leased().cancelled(5, 3_000).unwrap();
    assert_eq!((cancelled.state, cancelled.job_epoch), (JobState::Cancelled, 2));
    let told = cancelled.concluded(&claim(1, 5), result(true, 1, 5), 3_001);
    assert_eq!(told, Err(Refused::StaleEpoch));
    assert_eq!(cancelled.cancelled(5, 4_000), Err(Refused::Over));
    assert_eq!(cancelled.leased("a", "l".into(), 5, (9_000, TTL)), Err(Refused::Over));
}

#[test]
fn the_urgent_comes_first_then_the_older() {
    let with = |priority, at, id: &str| {
        let spec = JobSpec { priority, ..spec() };
        Job::new(id.into(), spec, 1, at)
    };
    let mut jobs = [with(0, 1, "a"), with(5, 9, "b"), with(0, 0, "c"), with(5, 9, "a")];
    jobs.sort_by(|one, other| one.rank().cmp(&other.rank()));
    let order: Vec<(i32, u64, &str)> =
        jobs.iter().map(|job| (job.spec.priority, job.created_at_ms, job.id.as_str())).collect();
    assert_eq!(order, [(5, 9, "a"), (5, 9, "b"), (0, 0, "c"), (0, 1, "a")]);
}

#[derive(Clone, Debug)]
enum Step {
    Lease,
    Renew(u64, u64),
    Conclude(bool, u64, u64),
    Lapse,
    Confirm,
    Cancel,
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Lease),
        (0_u64..4, 4_u64..8).prop_map(|(job, leader)| Step::Renew(job, leader)),
        (any::<bool>(), 0_u64..4, 4_u64..8)
            .prop_map(|(ok, job, leader)| Step::Conclude(ok, job, leader)),
        Just(Step::Lapse),
        Just(Step::Confirm),
        Just(Step::Cancel),
        (0_u64..20_000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// At most one result is taken for each attempt, epochs never go back, and what is over stays.
    #[test]
    fn whatever_comes(steps in prop::collection::vec(any_step(), 0..60)) {
        let (mut job, mut now, mut leader) = (job(), 1_000, 5);
        let mut concluded = std::collections::BTreeSet::new();
        for step in steps {
            let before = job.clone();
            let next = match step {
                Step::Lease => job.leased("a", "l1".into(), leader, (now, TTL)).ok(),
                Step::Renew(job_epoch, leader) => job.renewed(&claim(job_epoch, leader), (now, TTL)).ok(),
                Step::Conclude(ok, job_epoch, leader) => {
                    let told = result(ok, job_epoch, leader);
                    let next = job.concluded(&claim(job_epoch, leader), told, now).ok();
                    if next.is_some() {
                        prop_assert!(concluded.insert(job_epoch), "two results of one attempt");
                    }
                    next
                }
                Step::Lapse => job.lapsed(leader, now),
                Step::Confirm => {
                    leader += 1;
                    job.confirmed(leader, (now, TTL))
                }
                Step::Cancel => job.cancelled(leader, now).ok(),
                Step::Wait(ms) => {
                    now += ms;
                    None
                }
            };
            job = next.unwrap_or(job);
            prop_assert!(job.job_epoch >= before.job_epoch && job.leader_epoch >= before.leader_epoch);
            prop_assert!(!before.state.is_over() || job == before);
            prop_assert_eq!(job.lease.is_some(), job.state == JobState::Leased);
            prop_assert!(job.attempts <= job.spec.max_attempts);
        }
    }
}
