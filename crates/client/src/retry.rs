//! Whether, where and when to try again. Decisions only: the loop is in `transport`.
//!
//! The rule: a request that may have had its effect is repeated only if the server recognises the
//! repetition. Everything is bounded, by passes over the endpoints or by time.

use std::time::Duration;

use http::StatusCode;
use lockd_wire::ErrorCode;

use crate::call::Repeat;
use crate::error::{Cause, Failure, Refusal};

/// The first pause; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause of our own.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longest pause that is kept because a server asked for it; a longer one is the caller's choice.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

/// A standby says this; it is not in the list of codes that our own server sends.
const NODE_PASSIVE: &str = "node_passive";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// The answer stands.
    Stop,
    /// Another server may do it at once.
    Elsewhere,
    /// As above; but a server that was asked will not change its mind.
    OnlyElsewhere,
    /// The same server may do it later.
    Later,
}

/// What to do after a failed attempt. Also settles whether the outcome is unknown.
pub(crate) fn remedy(failure: &mut Failure, repeat: Repeat) -> Remedy {
    let (wish, harmless) = match &failure.cause {
        Cause::Connect => (Remedy::Elsewhere, true),
        Cause::Distrust(_) => (Remedy::OnlyElsewhere, true),
        Cause::Broken | Cause::TimedOut(_) => (Remedy::Elsewhere, false),
        Cause::Refused(refusal) => wish(refusal),
        Cause::Garbled(_) => (Remedy::Stop, false),
        Cause::Source(_) | Cause::Invalid(_) | Cause::TooLarge(_) | Cause::Lost(_) => {
            (Remedy::Stop, true)
        }
    };
    failure.unknown = !harmless && repeat != Repeat::Harmless;
    if harmless || repeat != Repeat::Unsent { wish } else { Remedy::Stop }
}

/// What a refusal asks for, and whether it is sure that nothing happened.
fn wish(refusal: &Refusal) -> (Remedy, bool) {
    let harmless = refusal.body.outcome.as_deref() != Some("unknown");
    match refusal.body.error.as_str() {
        NODE_PASSIVE => return (Remedy::Elsewhere, harmless),
        // A proxy, or a server that fell over while it answered.
        "" if is_gateway(refusal.status) => return (Remedy::Elsewhere, false),
        _ => {}
    }
    if refusal.status == StatusCode::TOO_MANY_REQUESTS {
        return (Remedy::Later, harmless);
    }
    match ErrorCode::parse(&refusal.body.error) {
        Some(ErrorCode::ShutdownDraining | ErrorCode::TooManyConnections) => {
            (Remedy::Elsewhere, harmless)
        }
        Some(
            ErrorCode::StoreUnavailable
            | ErrorCode::TooManyWaiters
            | ErrorCode::QueueBusy
            | ErrorCode::CasMismatch
            | ErrorCode::ReadConflict,
        ) => (Remedy::Later, harmless),
        Some(_) | None => (Remedy::Stop, harmless),
    }
}

fn is_gateway(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Counts the attempts of one call.
#[derive(Debug)]
pub(crate) struct Tries {
    endpoints: usize,
    passes_max: u32,
    passes: u32,
    in_pass: usize,
}

impl Tries {
    pub(crate) fn new(endpoints: usize, passes_max: u32) -> Self {
        Self { endpoints, passes_max, passes: 0, in_pass: 0 }
    }

    /// How long to pause before the next attempt; `None` when there is none.
    ///
    /// The endpoints of one pass follow each other at once; between passes there is a pause, at
    /// least as long as the server asked for.
    pub(crate) fn next(&mut self, remedy: Remedy, asked: Option<Duration>) -> Option<Duration> {
        match remedy {
            Remedy::Stop => return None,
            Remedy::Elsewhere | Remedy::OnlyElsewhere if self.in_pass + 1 < self.endpoints => {
                self.in_pass += 1;
                return Some(Duration::ZERO);
            }
            Remedy::OnlyElsewhere => return None,
            Remedy::Elsewhere | Remedy::Later => {}
        }
        self.passes += 1;
        self.in_pass = 0;
        let asked = asked.unwrap_or_default();
        if self.passes >= self.passes_max || asked > RETRY_AFTER_MAX {
            return None;
        }
        Some(self.pause().max(asked))
    }

    /// A server was reached, which may change how often it is worth trying.
    pub(crate) fn reached(&mut self, passes_max: u32) {
        self.passes_max = passes_max;
    }

    /// Forgets earlier failures, after an attempt that went well for a long time.
    pub(crate) fn reset(&mut self) {
        self.passes = 0;
        self.in_pass = 0;
    }

    fn pause(&self) -> Duration {
        let doublings = self.passes.saturating_sub(1).min(16);
        jittered(PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX))
    }
}

/// Somewhere between half of it and all of it, so that clients do not march in step.
pub(crate) fn jittered(span: Duration) -> Duration {
    span.div_f64(rand::random_range(1.0..=2.0))
}

#[cfg(test)]
mod tests {
    use lockd_pki::Distrust;
    use lockd_wire::ErrorBody;

    use super::*;

    fn refused(status: u16, code: &str, unknown: bool) -> Box<Failure> {
        Failure::new(Cause::Refused(Box::new(Refusal {
            status: StatusCode::from_u16(status).unwrap(),
            body: ErrorBody {
                error: code.to_owned(),
                outcome: unknown.then(|| "unknown".to_owned()),
                ..ErrorBody::default()
            },
            retry_after: None,
            correlation_id: None,
        })))
    }

    #[test]
    fn only_recognised_requests_are_repeated_after_an_unknown_outcome() {
        for make in [
            || refused(503, "store_unavailable", true),
            || refused(502, "", false),
            || Failure::new(Cause::Broken),
            || Failure::new(Cause::TimedOut(Duration::ZERO)),
        ] {
            let mut failure = make();
            assert_eq!(remedy(&mut failure, Repeat::Unsent), Remedy::Stop, "{failure}");
            assert!(failure.unknown, "{failure}");
            assert_ne!(remedy(&mut failure, Repeat::Named), Remedy::Stop, "{failure}");
            assert!(failure.unknown, "{failure}");
            assert_ne!(remedy(&mut failure, Repeat::Harmless), Remedy::Stop, "{failure}");
            assert!(!failure.unknown, "a read has no outcome: {failure}");
        }
    }

    #[test]
    fn what_certainly_did_nothing_is_repeated() {
        for (mut failure, expected) in [
            (Failure::new(Cause::Connect), Remedy::Elsewhere),
            (Failure::new(Cause::Distrust(Distrust::OfUs("no"))), Remedy::OnlyElsewhere),
            (refused(503, "node_passive", false), Remedy::Elsewhere),
            (refused(503, "shutdown_draining", false), Remedy::Elsewhere),
            (refused(503, "store_unavailable", false), Remedy::Later),
            (refused(503, "too_many_waiters", false), Remedy::Later),
            (refused(503, "queue_busy", false), Remedy::Later),
            (refused(429, "throttled", false), Remedy::Later),
            (refused(409, "cas_mismatch", false), Remedy::Later),
        ] {
            assert_eq!(remedy(&mut failure, Repeat::Unsent), expected, "{failure}");
            assert!(!failure.unknown, "{failure}");
        }
    }

    #[test]
    fn an_answer_that_stands_is_not_asked_for_again() {
        for (status, code) in [
            (409, "waiting"),
            (409, "version_conflict"),
            (403, "lease_expired"),
            (400, "invalid_body"),
            (500, "internal_error"),
            (503, "state_not_published"),
        ] {
            let mut failure = refused(status, code, false);
            assert_eq!(remedy(&mut failure, Repeat::Named), Remedy::Stop, "{code}");
        }
    }

    #[test]
    fn a_pass_goes_over_all_endpoints_at_once_then_pauses_longer_each_time() {
        let mut tries = Tries::new(3, 3);
        assert_eq!(tries.next(Remedy::Elsewhere, None), Some(Duration::ZERO));
        assert_eq!(tries.next(Remedy::Elsewhere, None), Some(Duration::ZERO));
        let first = tries.next(Remedy::Elsewhere, None).unwrap();
        assert!(first >= PAUSE_MIN / 2 && first <= PAUSE_MIN, "{first:?}");
        let second = tries.next(Remedy::Later, None).unwrap();
        assert!(second >= PAUSE_MIN && second <= PAUSE_MIN * 2, "{second:?}");
        assert_eq!(tries.next(Remedy::Later, None), None);
    }

    #[test]
    fn a_server_that_will_not_change_its_mind_is_asked_once() {
        let mut tries = Tries::new(2, 3);
        assert_eq!(tries.next(Remedy::OnlyElsewhere, None), Some(Duration::ZERO));
        assert_eq!(tries.next(Remedy::OnlyElsewhere, None), None);
    }

    #[test]
    fn a_server_may_ask_for_a_longer_pause_up_to_a_bound() {
        let second = Duration::from_secs(1);
        assert_eq!(Tries::new(1, 5).next(Remedy::Later, Some(second)), Some(second));
        let too_long = RETRY_AFTER_MAX + second;
        assert_eq!(Tries::new(1, 5).next(Remedy::Later, Some(too_long)), None);
    }

    #[test]
    fn pauses_stay_below_their_bound() {
        let mut tries = Tries::new(1, u32::MAX);
        for _ in 0..100 {
            assert!(tries.next(Remedy::Later, None).unwrap() <= PAUSE_MAX);
        }
    }
}
