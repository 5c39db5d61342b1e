//! Attempts, their ends, and who may end them.

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

const TTL: u64 = 10_000;

fn spec() -> JobSpec {
    serde_json::from_str(r#"{"command": ["true"], "max_attempts": 2}"#).unwrap()
}

fn job() -> Job {
    Job::new("j1".into(), spec(), 5, 1_000)
}

fn taker(agent: &str) -> Taker {
    Taker { agent: agent.into(), ..Taker::default() }
}

fn leased() -> Job {
    job().leased(taker("a"), "l1".into(), 5, (2_000, TTL)).unwrap()
}

fn claim(job_epoch: u64, leader_epoch: u64) -> Claim<'static> {
    Claim { lease_id: "l1", job_epoch, leader_epoch }
}

fn result(success: bool, job_epoch: u64, leader_epoch: u64) -> JobResult {
    JobResult {
        lease_id: "l1".into(),
        success,
        exit_code: Some(i32::from(!success)),
        agent: "a".into(),
        job_epoch,
        leader_epoch,
        ..JobResult::default()
    }
}

#[test]
fn what_is_asked_for_is_checked() {
    let read = |json: &str| serde_json::from_str::<JobSpec>(json);
    let usual = spec();
    assert_eq!((usual.priority, usual.timeout_seconds, usual.input.get()), (0, 60, "null"));
    assert_eq!(check(&usual), Ok(()));
    assert!(read(r#"{"command": ["a"], "comand": 1}"#).is_err());
    assert!(read("{}").is_err());
    let wrong = |change: fn(&mut JobSpec)| {
        let mut spec = spec();
        change(&mut spec);
        check(&spec).unwrap_err()
    };
    assert_eq!(wrong(|spec| spec.command.clear()), SpecRefused::Command);
    assert_eq!(wrong(|spec| spec.command = vec![String::new()]), SpecRefused::Command);
    assert_eq!(wrong(|spec| spec.command.push("a\0b".into())), SpecRefused::Command);
    let variable = wrong(|spec| drop(spec.env.insert("A=B".into(), String::new())));
    assert_eq!(variable, SpecRefused::Variable("A=B".into()));
    let large = |spec: &mut JobSpec| {
        spec.input = RawValue::from_string(format!("{:?}", "x".repeat(TEXT_MAX))).unwrap();
    };
    assert_eq!(wrong(large), SpecRefused::TooLarge);
    assert_eq!(wrong(|spec| spec.max_attempts = 0), SpecRefused::Attempts);
    assert_eq!(wrong(|spec| spec.timeout_seconds = 0), SpecRefused::Timeout);
    assert_eq!(wrong(|spec| spec.deadline_seconds = Some(0)), SpecRefused::Deadline);
}

#[test]
fn an_attempt_is_given_out_renewed_and_concluded_once() {
    let job = leased();
    assert_eq!((job.state, job.job_epoch, job.attempts), (JobState::Leased, 1, 1));
    assert_eq!(job.leased(taker("b"), "l2".into(), 5, (2_000, TTL)), Err(Refused::NotReady));
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
    // Whoever has stopped in time has a way to say so.
    assert_eq!(job.lease.as_ref().unwrap().expires_at_ms, 67_000);
    assert!(job.concluded(&claim(1, 5), result(false, 1, 5), 66_999).is_ok());
    assert!(job.lapsed(5, 66_999).is_none());
    assert!(job.lapsed(5, 67_000).unwrap().result.unwrap().error.unwrap().contains("longer"));
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
    assert_eq!(failed.leased(taker("b"), "l1".into(), 5, (3_500, TTL)), Err(Refused::NotReady));
    let second = failed.leased(taker("b"), "l1".into(), 5, (4_000, TTL)).unwrap();
    assert_eq!(second.job_epoch, 2);
    assert_eq!(second.lapsed(5, 13_999), None);
    let given_up = second.lapsed(5, 14_000).unwrap();
    assert_eq!((given_up.state, given_up.lease), (JobState::Failed, None));
}

/// Half a day, by which the clocks of two leaders may differ.
const APART: u64 = 12 * 3_600_000;

#[test]
fn a_new_leader_confirms_what_goes_on_whatever_its_clock_says() {
    let job = leased();
    for now in [20_000, APART, 100] {
        let confirmed = job.adopted(6, (now, TTL));
        let lease = confirmed.lease.as_ref().unwrap();
        assert_eq!((lease.id.as_str(), lease.job_epoch, lease.leader_epoch), ("l1", 1, 6));
        assert_eq!((lease.expires_at_ms, lease.ends_at_ms), (now + TTL, now + 60_000));
        assert_eq!((confirmed.leader_epoch, confirmed.version), (6, job.version + 1));
        let old = confirmed.concluded(&claim(1, 5), result(true, 1, 5), now + 1);
        assert_eq!(old, Err(Refused::StaleEpoch), "under the old leader");
        assert!(confirmed.concluded(&claim(1, 6), result(true, 1, 6), now + 1).is_ok());
    }
    // The same leader, whose process began anew, counts anew too.
    let again = job.adopted(5, (30_000, TTL));
    assert_eq!(again.lease.unwrap().expires_at_ms, 40_000);
}

#[test]
fn a_pause_is_not_longer_than_the_attempts_deserve_whatever_the_clock_says() {
    let mut failed = leased().concluded(&claim(1, 5), result(false, 1, 5), 3_000).unwrap();
    failed.not_before_ms = APART + 1_000;
    let adopted = failed.adopted(6, (5_000, TTL));
    assert_eq!((adopted.not_before_ms, adopted.version), (6_000, failed.version), "not written");
    // One that was never tried has deserved no pause, and what is due stays due.
    failed.attempts = 0;
    assert_eq!(failed.adopted(6, (5_000, TTL)).not_before_ms, 5_000);
    assert_eq!(failed.adopted(6, (2 * APART, TTL)).not_before_ms, APART + 1_000);
}

fn with_deadline(seconds: u64) -> Job {
    let spec = JobSpec { deadline_seconds: Some(seconds), ..spec() };
    Job::new("j1".into(), spec, 5, 1_000)
}

#[test]
fn a_job_that_is_not_over_by_its_deadline_fails() {
    let waits = with_deadline(5);
    assert_eq!(waits.lapsed(5, 5_999), None);
    let failed = waits.lapsed(5, 6_000).unwrap();
    assert_eq!((failed.state, failed.attempts), (JobState::Failed, 0));
    assert_eq!(waits.leased(taker("a"), "l1".into(), 5, (6_000, TTL)), Err(Refused::NotReady));
    // An attempt that runs is cut to it.
    let runs = waits.leased(taker("a"), "l1".into(), 5, (2_000, TTL)).unwrap();
    let lease = runs.lease.as_ref().unwrap();
    assert_eq!((lease.expires_at_ms, lease.ends_at_ms), (6_000, 6_000));
    assert_eq!(runs.renewed(&claim(1, 5), (6_000, TTL)), Err(Refused::StaleEpoch));
    let late = runs.concluded(&claim(1, 5), result(true, 1, 5), 6_000);
    assert_eq!(late, Err(Refused::StaleEpoch));
    let failed = runs.lapsed(5, 6_000).unwrap();
    assert_eq!((failed.state, failed.lease.is_none()), (JobState::Failed, true));
    let told = failed.result.unwrap();
    assert!(told.error.unwrap().contains("deadline"));
    let by_the_next = runs.lapsed(6, 6_000).unwrap().result.unwrap();
    assert_eq!((by_the_next.leader_epoch, by_the_next.job_epoch), (6, 1), "of who says so");
}

#[test]
fn of_a_deadline_as_much_is_left_as_at_the_latest_write() {
    // Two of the five seconds were gone when it was given out.
    let runs = with_deadline(5).leased(taker("a"), "l1".into(), 5, (3_000, TTL)).unwrap();
    for now in [APART, 10] {
        let adopted = runs.adopted(6, (now, TTL));
        assert_eq!(adopted.deadline_at_ms, Some(now + 3_000));
        assert_eq!(adopted.lease.unwrap().ends_at_ms, now + 3_000);
    }
    // Nobody gets more than was asked for.
    let odd = Job { deadline_at_ms: Some(u64::MAX), ..with_deadline(5) };
    assert_eq!(odd.adopted(6, (10, TTL)).deadline_at_ms, Some(5_010));
}

#[test]
fn work_that_is_given_back_does_not_count_and_comes_at_once() {
    let back = leased().released(&claim(1, 5), 3_000).unwrap();
    assert_eq!((back.state, back.attempts, back.job_epoch), (JobState::Queued, 0, 1));
    assert_eq!((back.not_before_ms, back.lease.is_none()), (3_000, true));
    assert_eq!(back.released(&claim(1, 5), 3_001), Err(Refused::StaleEpoch));
    let next = back.leased(taker("b"), "l2".into(), 5, (3_000, TTL)).unwrap();
    assert_eq!((next.job_epoch, next.attempts), (2, 1));
    assert_eq!(next.renewed(&claim(1, 5), (3_001, TTL)), Err(Refused::StaleEpoch));
}

#[test]
fn a_result_that_is_told_again_is_recognised() {
    let done = leased().concluded(&claim(1, 5), result(true, 1, 5), 3_000).unwrap();
    assert!(done.has_result_of("l1", 1) && !done.has_result_of("l2", 1));
    assert!(!done.has_result_of("l1", 2));
    // What nobody has told is nobody's result.
    let lapsed = leased().lapsed(5, 12_000).unwrap();
    assert!(!lapsed.has_result_of("", 1) && !lapsed.has_result_of("l1", 1));
}

#[test]
fn what_is_too_long_is_cut_not_lost() {
    let output = format!("{}ü", "x".repeat(OUTPUT_MAX - 1));
    let report = ResultReport { output, success: true, ..ResultReport::default() };
    let told = JobResult::told(report, 7);
    assert_eq!((told.output.len(), told.truncated, told.at_ms), (OUTPUT_MAX - 1, true, 7));
}

/// Until it is over, a job has at most the end of what its attempts wrote.
#[test]
fn of_an_attempt_that_is_followed_by_another_only_the_end_is_kept() {
    let wrote = |attempts: u32, success| {
        let output = format!("{}é the end", "ü".repeat(OUTPUT_MAX / 2 - 10));
        let error = Some("e".repeat(ERROR_MAX));
        let told = JobResult { output, error, ..result(success, 1, 5) };
        let job = Job { attempts, ..leased() };
        job.concluded(&claim(1, 5), told, 3_000).unwrap()
    };
    let again = wrote(1, false);
    let kept = again.result.clone().unwrap();
    assert_eq!(again.state, JobState::Queued);
    assert!(kept.truncated && kept.output.ends_with("üé the end"), "{}", kept.output.len());
    assert!((LAST_OUTPUT_MAX - 3..=LAST_OUTPUT_MAX).contains(&kept.output.len()));
    assert_eq!(kept.error.map(|error| error.len()), Some(LAST_ERROR_MAX));
    assert!(again.has_result_of("l1", 1));
    assert_eq!(again.weight(), job().weight(), "it was counted when it came");
    for over in [wrote(1, true), wrote(2, false)] {
        let kept = over.result.unwrap();
        assert!(!kept.truncated && kept.output.len() > LAST_OUTPUT_MAX, "{:?}", over.state);
    }
    // What a leader of before has kept whole does not stay so.
    let whole = JobResult { output: "x".repeat(OUTPUT_MAX), ..JobResult::default() };
    let adopted = Job { result: Some(whole), ..again }.adopted(6, (4_000, TTL));
    assert_eq!(adopted.result.unwrap().output.len(), LAST_OUTPUT_MAX);
    assert_eq!(tail("short".into(), 5), ("short".into(), false));
}

#[test]
fn a_job_weighs_at_least_what_its_texts_take() {
    let mut spec = spec();
    let weight = |spec: &JobSpec| Job::new("j".into(), spec.clone(), 1, 1).weight();
    let few = weight(&spec);
    spec.env.extend((0..1_000).map(|number| (number.to_string(), String::new())));
    assert!(weight(&spec) > few + 1_000 * 2 * size_of::<String>(), "empty texts count too");
    let once = JobSpec { max_attempts: 1, ..spec.clone() };
    assert!(weight(&once) < weight(&spec), "no attempt follows another");
}

#[test]
fn a_cancelled_job_takes_no_result() {
    let cancelled = leased().cancelled(5, 3_000).unwrap().unwrap();
    assert_eq!((cancelled.state, cancelled.job_epoch), (JobState::Cancelled, 2));
    let told = cancelled.concluded(&claim(1, 5), result(true, 1, 5), 3_001);
    assert_eq!(told, Err(Refused::StaleEpoch));
    assert_eq!(cancelled.cancelled(5, 4_000), Ok(None), "again");
    assert_eq!(cancelled.leased(taker("a"), "l".into(), 5, (9_000, TTL)), Err(Refused::Over));
    let done = leased().concluded(&claim(1, 5), result(true, 1, 5), 3_000).unwrap();
    assert_eq!(done.cancelled(5, 4_000), Err(Refused::Over));
}

/// What an agent gets, and what is read back, is what was given: byte for byte.
#[test]
fn whatever_input_is_taken_in_can_be_read_back() {
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let big = r#"{"a": 123456789012345678901234567890.10e400, "a":  [ ], "b": "\ud800\u0000\n"}"#;
    for input in [deep.as_str(), big, "null", " 1 "] {
        let body = format!(r#"{{"command": ["true"], "input": {input}}}"#);
        let spec: JobSpec = serde_json::from_str(&body).unwrap();
        assert_eq!(check(&spec), Ok(()));
        let job = Job::new("j".into(), spec, 1, 1);
        let stored = serde_json::to_string(&job).unwrap();
        let read: Job = serde_json::from_str(&stored).unwrap();
        assert_eq!(read.spec.input.get(), input.trim());
        assert_eq!(read, job);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Lease,
    Renew(u64, u64),
    Conclude(bool, u64, u64),
    Release(u64, u64),
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
        (0_u64..4, 4_u64..8).prop_map(|(job, leader)| Step::Release(job, leader)),
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
        let (mut job, mut now, mut leader) = (with_deadline(60), 1_000, 5);
        let mut concluded = std::collections::BTreeSet::new();
        for step in steps {
            let before = job.clone();
            let next = match step {
                Step::Lease => job.leased(taker("a"), "l1".into(), leader, (now, TTL)).ok(),
                Step::Renew(job_epoch, leader) => job.renewed(&claim(job_epoch, leader), (now, TTL)).ok(),
                Step::Conclude(ok, job_epoch, leader) => {
                    let told = result(ok, job_epoch, leader);
                    let next = job.concluded(&claim(job_epoch, leader), told, now).ok();
                    if next.is_some() {
                        prop_assert!(concluded.insert(job_epoch), "two results of one attempt");
                    }
                    next
                }
                Step::Release(job_epoch, leader) => job.released(&claim(job_epoch, leader), now).ok(),
                Step::Lapse => job.lapsed(leader, now),
                Step::Confirm => {
                    leader += 1;
                    Some(job.adopted(leader, (now, TTL)))
                }
                Step::Cancel => job.cancelled(leader, now).ok().flatten(),
                Step::Wait(ms) => {
                    now += ms;
                    None
                }
            };
            job = next.unwrap_or(job);
            prop_assert!(job.job_epoch >= before.job_epoch && job.leader_epoch >= before.leader_epoch);
            prop_assert!(job == before || job.version > before.version || job.lease.is_none());
            prop_assert!(!before.state.is_over() || job == before);
            prop_assert_eq!(job.lease.is_some(), job.state == JobState::Leased);
            prop_assert!(job.attempts <= job.spec.max_attempts);
        }
    }
}
