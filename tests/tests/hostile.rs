//! Requests that nobody should send, by the hundred thousand: wrong in every part, dropped at any
//! moment, mixed with the work of honest clients. Whatever comes, the server answers with a
//! refusal it knows, keeps what the honest ones committed, and forgets nobody in a line.

mod hostile {
    pub mod honest;
    pub mod raw;
    pub mod requests;
}

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http_body_util::BodyExt;
use lockd_server::config::{Address, Family};
use lockd_server::{Bound, Handler, Settings};
use lockd_tests::dice::rounds;
use lockd_tests::inside::{self, Inside};
use lockd_tests::{Ask, Client, Dice, Held, Place, Reply, Request, eventually};
use lockd_wire::{ErrorBody, ErrorCode, path};
use tower::ServiceExt;

use hostile::honest::Honest;
use hostile::requests::{Generator, Hostile, SERVER_LACKS, is_coordinators};

const WORKERS: usize = 16;
const REQUESTS: usize = 112_000;
const PATIENCE: Duration = Duration::from_secs(60);

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Writes down every panic of any thread: the runtime catches those of tasks.
fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
            usual(panic);
        }));
    });
}

fn refuse_panics() {
    // The lock is let go of first: this one is written down too.
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(panics.is_empty(), "{} panics, the first: {}", panics.len(), panics[0]);
}

/// What all workers know of each other.
#[derive(Default)]
struct Shared {
    /// Leases of hostile clients, to be used well and badly by all of them.
    leases: Mutex<Vec<Held>>,
    /// Owners whose acquire was dropped: none of them may hold anything in the end.
    gone: Mutex<BTreeSet<String>>,
}

fn settings() -> Settings {
    let local = Address::Tcp { host: "127.0.0.1".into(), port: 0, family: Family::V4 };
    Settings {
        metrics_listen: Some(local),
        json_max: 200_000,
        mutate_max: 20_000,
        body_timeout: Duration::from_millis(20),
        ..Settings::embedded_defaults()
    }
}

fn place(bound: &Bound) -> Place {
    match bound {
        Bound::Tcp(address) | Bound::Tls(address) => Place::Tcp(*address),
        Bound::Unix(path) => Place::Unix(path.clone()),
    }
}

/// The number behind a name on the metrics page.
fn measured(metrics: &Place, name: &str) -> f64 {
    let page = Client::new(metrics).call(&Request::get(path::METRICS)).ok().text();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name} in {page}"))
}

#[test]
fn no_request_makes_the_server_fail_or_forget() {
    record_panics();
    let mut dice = Dice::announced("hostile");
    let server = Inside::new(settings());
    server.runtime.block_on(server.server.start()).expect("listeners");
    let metrics = place(&server.server.metrics_bound().expect("metrics"));
    let shared = Arc::new(Shared::default());
    let each = rounds(REQUESTS).div_ceil(WORKERS);
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let worker = Worker {
                handler: server.handler.clone(),
                generator: Generator::new(dice.fork(), number),
                shared: Arc::clone(&shared),
                honest: Honest::new(server.handler.clone(), dice.fork(), number),
                seen: BTreeSet::new(),
            };
            server.runtime.spawn(worker.work(each))
        })
        .collect();
    let mut seen = BTreeSet::new();
    for worker in workers {
        seen.extend(server.runtime.block_on(worker).expect("a worker without a panic"));
    }
    refuse_panics();
    println!("{} requests got {} kinds of answers: {seen:?}", each * WORKERS, seen.len());
    let refusals = seen.iter().filter(|(status, _)| *status >= 400).count();
    assert!(seen.contains(&(200, String::new())) && refusals > 30, "the requests are too tame");
    nothing_is_left(&server, &metrics, &shared);
    refuse_panics();
}

/// Nobody waits, nobody who went away holds, and an ordinary client finds an ordinary server.
fn nothing_is_left(server: &Inside, metrics: &Place, shared: &Shared) {
    eventually("nobody waits any more", || measured(metrics, "lockd_waiters") == 0.0);
    let gone = shared.gone.lock().expect("a list").clone();
    assert!(!gone.is_empty(), "no acquire was dropped");
    let page = || server.look(&Request::get(path::LEASES).query("limit", "1000"));
    eventually("dropped grants are given back", || {
        let page = page();
        let leases = page["leases"].as_array().expect("a list");
        assert!(leases.iter().all(|lease| lease["waiters"] == 0), "{leases:?}");
        leases.iter().all(|lease| !gone.contains(lease["owner"].as_str().expect("a name")))
    });
    for lease in page()["leases"].as_array().expect("a list") {
        let order = serde_json::json!({
            "namespace": lease["namespace"], "key": lease["key"], "reason": "the test is over",
        });
        server.done(&Request::post(path::LEASES_REVOKE).json(&order));
    }
    eventually("nobody holds anything", || measured(metrics, "lockd_leases") == 0.0);
    let held = server.acquire(&Ask::new("ordinary", "tester"));
    server.done(&held.update("[1]"));
    server.done(&held.release());
    let read = server.call(&lockd_tests::lease::public_get("ordinary")).ok();
    assert_eq!(read.text(), "[1]");
}

struct Worker {
    handler: Handler,
    generator: Generator,
    shared: Arc<Shared>,
    honest: Honest,
    seen: BTreeSet<(u16, String)>,
}

impl Worker {
    async fn work(mut self, requests: usize) -> BTreeSet<(u16, String)> {
        for _ in 0..requests {
            if self.generator.dice.one_in(16) {
                self.honest.step().await;
                continue;
            }
            let leases = self.shared.leases.lock().expect("leases").clone();
            let hostile = self.generator.next(&leases);
            if let Some(reply) = self.send(&hostile).await {
                self.judge(&hostile, &reply);
            }
        }
        self.honest.finish().await;
        self.seen
    }

    /// Sends a request; `None` when it was dropped, early or because it waited.
    async fn send(&mut self, hostile: &Hostile) -> Option<Reply> {
        let dice = &mut self.generator.dice;
        let polls = if dice.one_in(12) { dice.below(6) } else { usize::MAX };
        let may_wait = hostile.may_wait;
        let time = if may_wait { Duration::from_micros(dice.below(4000) as u64) } else { PATIENCE };
        let frames = dice.below(4);
        let request = hostile.request();
        let call = async {
            let Ok(answer) = self.handler.clone().oneshot(request).await;
            match answer.headers().get("content-type") {
                // A watch has no end: a few events are enough.
                Some(kind) if kind == "text/event-stream" => {
                    let (head, mut body) = answer.into_parts();
                    for _ in 0..frames {
                        let _frame = body.frame().await;
                    }
                    Some(Reply { status: head.status.as_u16(), headers: vec![], body: vec![] })
                }
                _ => Some(inside::read(answer).await),
            }
        };
        let outcome = tokio::time::timeout(time, within_polls(polls, call)).await;
        assert!(outcome.is_ok() || may_wait, "no answer to {hostile:?}");
        let reply = outcome.ok().flatten();
        if let (None, Some(owner)) = (&reply, &hostile.owner) {
            self.shared.gone.lock().expect("a list").insert(owner.clone());
        }
        reply
    }

    fn judge(&mut self, hostile: &Hostile, reply: &Reply) {
        let shown = || format!("{hostile:?} got {} {}", reply.status, reply.text());
        match reply.status {
            200 | 204 | 400..=499 => {}
            // No coordinator here, whoever asks.
            503 => assert!(is_coordinators(&hostile.path), "{}", shown()),
            501 => assert!(SERVER_LACKS.contains(&hostile.path.as_str()), "{}", shown()),
            _ => panic!("{}", shown()),
        }
        let mut code = String::new();
        // The answer to HEAD has no body.
        if reply.status >= 400 && hostile.method != "HEAD" {
            let body: ErrorBody =
                serde_json::from_slice(&reply.body).unwrap_or_else(|_| panic!("{}", shown()));
            assert!(ErrorCode::parse(&body.error).is_some(), "{}", shown());
            assert!(reply.header("x-correlation-id").is_some(), "{}", shown());
            code = body.error;
        }
        self.seen.insert((reply.status, code));
        if reply.status == 200 && hostile.path == path::ACQUIRE && hostile.method == "POST" {
            let mut leases = self.shared.leases.lock().expect("leases");
            leases.push(Held::of(reply));
            if leases.len() > 24 {
                leases.remove(0);
            }
        }
    }
}

/// Runs a future, but drops it after it was polled so often.
async fn within_polls<T>(polls: usize, future: impl Future<Output = Option<T>>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context);
        if left == 0 && polled.is_pending() { Poll::Ready(None) } else { polled }
    })
    .await
}
