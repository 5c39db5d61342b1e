//! Histories of answers, honest and not.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    AGE_MAX_MS, BOUND_MAX_MS, DATE_MS, HEARD_WITHIN_MS, SLOP_MS, StoreNow, StoreTime, TimeEstimate,
    TimeUnknown,
};

/// What a store says whose clock is ahead by `ahead`.
fn date(ours: i64, ahead: i64) -> i64 {
    (ours + ahead).div_euclid(1_000) * 1_000
}

/// How far off the truth the time is, beyond what the bound admits.
fn beyond(now: StoreNow, truth: i64) -> u64 {
    now.unix_ms.abs_diff(u64::try_from(truth).unwrap()).saturating_sub(now.bound_ms)
}

/// A request, after a pause; how long it went there and back, and what its date is.
#[derive(Clone, Copy, Debug)]
struct Answer {
    pause: i64,
    there: i64,
    back: i64,
    dated: Dated,
}

#[derive(Clone, Copy, Debug)]
enum Dated {
    /// So old.
    Honest(i64),
    /// So much ahead, or behind.
    Wrong(i64),
}

const HONEST: std::ops::Range<i64> = 0..1_000;
/// An honest answer comes at least this often.
const WRONG_IN_A_ROW_MAX: usize = 7;
const PAUSE_MAX: i64 = 3_000;
const WAY_MAX: i64 = 400;
/// Longer than so many answers take, as the longest lease is.
const HOLD: Duration = Duration::from_secs(60);

fn answers(wrong: impl Strategy<Value = i64>) -> impl Strategy<Value = Vec<Answer>> {
    let dated = prop_oneof![HONEST.prop_map(Dated::Honest), wrong.prop_map(Dated::Wrong)];
    let answer = (1..PAUSE_MAX, 0..WAY_MAX, 0..WAY_MAX, dated)
        .prop_map(|(pause, there, back, dated)| Answer { pause, there, back, dated });
    prop::collection::vec(answer, 1..120).prop_map(|mut answers| {
        let mut in_a_row = WRONG_IN_A_ROW_MAX;
        for answer in &mut answers {
            in_a_row = if matches!(answer.dated, Dated::Wrong(_)) { in_a_row + 1 } else { 0 };
            if in_a_row > WRONG_IN_A_ROW_MAX {
                (answer.dated, in_a_row) = (Dated::Honest(0), 0);
            }
        }
        answers
    })
}

/// Replays them against a store that is ahead and whose clock runs faster by so many millionths.
/// How far the truth was beyond the bound, at worst, while the time was said to be known.
fn worst(answers: &[Answer], ahead: i64, ppm: i64) -> u64 {
    let mut time = TimeEstimate::new(HOLD);
    let mut ours = 10_000_000_i64;
    let truth = |ours: i64| ours + ahead + (ours - 10_000_000) * ppm / 1_000_000;
    let mut worst = 0;
    for answer in answers {
        ours += answer.pause;
        let met = ours + answer.there;
        let shown = match answer.dated {
            Dated::Honest(age) => truth(met) - age,
            Dated::Wrong(by) => truth(met) + by,
        };
        let answered = met + answer.back;
        time.learn(date(shown, 0), ours, answered);
        ours = answered;
        for later in [0, 1_000, HEARD_WITHIN_MS] {
            if let Ok(now) = time.check(ours + later) {
                assert!(now.bound_ms <= BOUND_MAX_MS, "{now:?}");
                worst = worst.max(beyond(now, truth(ours + later)));
            }
        }
    }
    worst
}

proptest! {
    #[test]
    fn the_truth_is_within_the_bound_or_the_time_is_not_known(
        ahead in -4_000_000_i64..4_000_000,
        ppm in -180_i64..180,
        answers in answers(prop_oneof![6_000_i64..90_000, -90_000_i64..-6_000]),
    ) {
        prop_assert_eq!(worst(&answers, ahead, ppm), 0);
    }

    #[test]
    fn dates_that_are_a_little_wrong_move_it_by_no_more_than_a_date_is_inexact(
        ahead in -4_000_000_i64..4_000_000,
        ppm in -180_i64..180,
        answers in answers(-9_000_i64..9_000),
    ) {
        let inexact = u64::try_from(DATE_MS + AGE_MAX_MS + 2 * WAY_MAX + 2 * SLOP_MS).unwrap();
        let worst = worst(&answers, ahead, ppm);
        prop_assert!(worst <= inexact, "{worst} ms beyond the bound");
    }

    #[test]
    fn the_time_of_an_honest_store_is_known(
        ahead in -4_000_000_i64..4_000_000,
        ppm in -180_i64..180,
        answers in answers(HONEST.prop_map(|age| -age)),
    ) {
        prop_assert_eq!(worst(&answers, ahead, ppm), 0);
        let mut time = TimeEstimate::new(HOLD);
        time.learn(date(10_000_000, ahead), 10_000_000, 10_000_400);
        prop_assert!(time.check(10_000_400).is_ok());
    }
}

#[test]
fn answers_in_different_parts_of_their_seconds_narrow_it_down() {
    let time = StoreTime::default();
    let ahead = 123_456;
    for number in 0..40 {
        let sent = 1_000_000 + number * 137;
        time.learn(date(sent + 10, ahead), sent, sent + 20);
    }
    let now = time.now(1_010_000).unwrap();
    // What is left is the age that a date may have.
    assert!(now.bound_ms < 660, "{now:?}");
    assert!(time.now(1_010_000 + 3_600_000).unwrap().bound_ms > 1_300, "it widens slowly");
}

#[test]
fn a_contradiction_is_not_forgotten_with_the_next_answer() {
    // Dates A, B, B: the store's clock is not ahead, but one who answers is by 10 s.
    let time = StoreTime::default();
    for (ours, ahead) in [(1_000_000, 0), (1_000_100, 10_000), (1_000_200, 10_000)] {
        time.learn(date(ours, ahead), ours, ours + 5);
    }
    let now = time.now(1_000_300).unwrap();
    assert!(now.unix_ms.abs_diff(1_000_300) <= now.bound_ms, "the truth is not in {now:?}");
    let unknown = time.check(1_000_300);
    assert!(matches!(unknown, Err(TimeUnknown::Contradiction { .. })), "{unknown:?}");
}

#[test]
fn a_widened_window_stays_for_the_longest_lease_after_the_last_contradiction() {
    let lease = 120_000;
    let mut time = TimeEstimate::new(Duration::from_millis(120_000));
    let mut ours = 1_000_000;
    let mut hear = |time: &mut TimeEstimate, until: i64, ahead: i64| {
        while ours < until {
            ours += 1_000;
            time.learn(date(ours, ahead), ours, ours + 5);
        }
    };
    hear(&mut time, 1_010_000, 0);
    hear(&mut time, 1_012_000, 45_000);
    let last = 1_013_005;
    hear(&mut time, last + lease - 2_000, 0);
    assert!(matches!(time.check(last + lease - 1), Err(TimeUnknown::Contradiction { .. })));
    hear(&mut time, last + lease + 2_000, 0);
    let now = time.check(last + lease + 2_000).unwrap();
    assert!(now.bound_ms < 1_200 && beyond(now, last + lease + 2_000) == 0, "{now:?}");
}

#[test]
fn a_gateway_that_renews_its_date_once_a_second_stays_inside_the_bound() {
    for phase in [100, 500, 900] {
        let time = StoreTime::default();
        for number in 0..200 {
            let ours = 1_000_000_i64 + number * 37;
            let renewed = (ours - phase).div_euclid(1_000) * 1_000 + phase;
            time.learn(date(renewed, 0), ours - 2, ours + 2);
            let now = time.check(ours + 2).unwrap();
            let truth = u64::try_from(ours + 2).unwrap();
            assert!(now.unix_ms.abs_diff(truth) <= now.bound_ms, "{phase} {number} {now:?}");
        }
    }
}

#[test]
fn time_that_is_not_heard_of_is_lost_and_comes_back() {
    let time = StoreTime::default();
    assert_eq!((time.now(1), time.check(1)), (None, Err(TimeUnknown::NoDate)));
    time.weigh(date(1_000_000, 0), 1_000_000, 1_000_005);
    assert_eq!(
        time.check(1_000_005),
        Err(TimeUnknown::NoDate),
        "the date of an object is no answer's"
    );
    time.learn(date(1_000_000, 0), 1_000_000, 1_000_005);
    let silent = 1_000_005 + HEARD_WITHIN_MS;
    assert!(time.check(silent).is_ok());
    assert!(matches!(time.check(silent + 1), Err(TimeUnknown::Lost { .. })));
    time.learn(date(silent, 0), silent, silent + 5);
    assert!(time.check(silent + 6).is_ok());
}
