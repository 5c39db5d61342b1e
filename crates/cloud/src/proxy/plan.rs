//! What the proxy does to requests: by chance for all of them, or once for a certain one.

use std::time::Duration;

use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{Method, Request, StatusCode};
use percent_encoding::percent_decode_str;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Something that happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed, nothing is forwarded.
    DropRequest,
    /// Forwarded and done; the connection is closed without an answer.
    DropAnswer,
    /// Answered with this status, nothing is forwarded.
    ErrorBefore(StatusCode),
    /// Forwarded and done; answered with this status.
    ErrorAfter(StatusCode),
    /// Answered with 409 as AWS does when writes collide; nothing is forwarded. Strikes only PUTs
    /// with `If-Match` or `If-None-Match`.
    Conflict,
    /// The connection is closed, and only after this time the request is forwarded.
    Late(Duration),
}

/// Latency for every request and chances for faults, in per mille. A request meets one fault at
/// most, so the chances must not add up to more than 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Half of it passes before forwarding, half after.
    pub latency: Duration,
    pub drop_request: u32,
    pub drop_answer: u32,
    /// 500 or 503.
    pub error_before: u32,
    /// 500.
    pub error_after: u32,
    pub conflict: u32,
    pub late: u32,
    /// How long a late request may take.
    pub late_up_to: Duration,
}

/// A fault that waits for its request.
#[derive(Debug)]
struct Trap {
    fault: Fault,
    method: Method,
    path: String,
}

#[derive(Debug)]
pub(super) struct Fate {
    pub plan: Plan,
    chance: StdRng,
    traps: Vec<Trap>,
    pub struck: u64,
}

impl Fate {
    pub(super) fn new() -> Self {
        Self { plan: Plan::default(), chance: seeded(0), traps: Vec::new(), struck: 0 }
    }

    pub(super) fn set_seed(&mut self, seed: u64) {
        self.chance = seeded(seed);
    }

    pub(super) fn set_plan(&mut self, plan: Plan) {
        let sum = plan.drop_request
            + plan.drop_answer
            + plan.error_before
            + plan.error_after
            + plan.conflict
            + plan.late;
        assert!(sum <= 1000, "{sum} per mille of the requests cannot fail");
        self.plan = plan;
    }

    pub(super) fn arm(&mut self, fault: Fault, method: Method, path: &str) {
        self.traps.push(Trap { fault, method, path: path.to_owned() });
    }

    pub(super) fn armed(&self) -> usize {
        self.traps.len()
    }

    pub(super) fn disarm(&mut self) {
        self.traps.clear();
    }

    /// What happens to this request.
    pub(super) fn decide<B>(&mut self, request: &Request<B>) -> Option<Fault> {
        let thrown = self.throw();
        let fault = self.spring(request).or(thrown);
        let fault = fault.filter(|fault| *fault != Fault::Conflict || is_conditional_put(request));
        self.struck += u64::from(fault.is_some());
        fault
    }

    fn throw(&mut self) -> Option<Fault> {
        let plan = self.plan;
        let refusal = [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE];
        let refusal = refusal[self.chance.random_range(0..2)];
        let longest = u64::try_from(plan.late_up_to.as_micros()).unwrap_or(u64::MAX);
        let late = Duration::from_micros(self.chance.random_range(0..=longest));
        let mut throw = self.chance.random_range(0..1000_u32);
        let chances = [
            (plan.drop_request, Fault::DropRequest),
            (plan.drop_answer, Fault::DropAnswer),
            (plan.error_before, Fault::ErrorBefore(refusal)),
            (plan.error_after, Fault::ErrorAfter(StatusCode::INTERNAL_SERVER_ERROR)),
            (plan.conflict, Fault::Conflict),
            (plan.late, Fault::Late(late)),
        ];
        for (chance, fault) in chances {
            if throw < chance {
                return Some(fault);
            }
            throw -= chance;
        }
        None
    }

    fn spring<B>(&mut self, request: &Request<B>) -> Option<Fault> {
        let uri = request.uri();
        let place = uri.path_and_query().map_or("", |place| place.as_str());
        let place = percent_decode_str(place).decode_utf8_lossy();
        let fits = |trap: &Trap| {
            trap.method == request.method()
                && place.contains(&trap.path)
                && (trap.fault != Fault::Conflict || is_conditional_put(request))
        };
        let index = self.traps.iter().position(fits)?;
        Some(self.traps.remove(index).fault)
    }
}

fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

fn is_conditional_put<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.method() == Method::PUT
        && (headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH))
}
