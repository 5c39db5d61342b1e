//! Servers on a bucket that is away for a while, or that answers clearly but not as it should.

use std::time::{Duration, Instant};

use lockd_cloud::{Flaw, Plan};
use lockd_tests::server::{self, Server};
use lockd_tests::{Ask, Bucket, Cloud, Held, Request, eventually};

/// A name that no stranger may learn.
const SECRET: &str = "very-secret-job";

const LOST: &str = "object store unreachable";
const BACK: &str = "object store reachable again";

#[test]
fn a_server_on_a_bucket_that_holds_nothing_stops_at_once() {
    let bucket = Bucket::new(Cloud::Double);
    let mut server = Server::start(bucket.options().flag("shutdown-timeout", "20s"));
    let mut client = server.client();
    let held = Held::of(&client.call(&Ask::new("k", "me").request()));
    client.call(&held.release()).ok();
    drop(client);
    let asked = Instant::now();
    server.terminate();
    let status = server.ended(Duration::from_secs(60));
    let (took, log) = (asked.elapsed(), server.log());
    println!("it took {took:?}");
    assert!(status.success() && !log.contains("did not end in time"), "{took:?}: {log}");
    assert!(took < Duration::from_secs(5), "it took {took:?}");
}

/// How the store is away.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// Requests are neither answered nor refused.
    Silent,
    /// Each is answered with an error.
    Errors,
}

impl Outage {
    fn begin(self, bucket: &Bucket) {
        match self {
            Self::Silent => bucket.proxy.hold(),
            Self::Errors => bucket.proxy.set_plan(Plan { error_before: 1_000, ..Plan::default() }),
        }
    }
}

fn lines(server: &Server, text: &str) -> usize {
    server.log().lines().filter(|line| line.contains(text)).count()
}

#[test]
fn an_outage_of_the_store_is_logged_when_it_begins_and_when_it_is_over_and_bounds_what_clients_wait()
 {
    for outage in [Outage::Silent, Outage::Errors] {
        let bucket = Bucket::new(Cloud::Double);
        let server = Server::start(bucket.options());
        let mut client = server.client();
        let _held = Held::of(&client.call(&Ask::new(SECRET, "me").request()));
        for number in 1..=2 {
            outage.begin(&bucket);
            // The first ones find out.
            client.call(&Ask::new(SECRET, "other").request()).refused(503, "store_unavailable");
            eventually("the log says that the store is away", || lines(&server, LOST) == number);
            for _ in 0..3 {
                let asked = Instant::now();
                let ask = Ask::new(SECRET, "other").block(60);
                client.call(&ask.request()).refused(503, "store_unavailable");
                let waited = asked.elapsed();
                assert!(waited < Duration::from_secs(5), "{outage:?}: it waited {waited:?}");
            }
            bucket.proxy.heal();
            eventually("it serves again", || {
                client.call(&Ask::new(SECRET, "other").request()).status == 409
            });
            eventually("the log says that it is back", || lines(&server, BACK) == number);
        }
        assert_eq!((lines(&server, LOST), lines(&server, BACK)), (2, 2), "{}", server.log());
    }
}

#[test]
fn a_few_errors_of_the_store_are_no_outage() {
    let bucket = Bucket::new(Cloud::Double);
    let server = Server::start(bucket.options());
    bucket.proxy.set_plan(Plan { error_before: 200, drop_answer: 100, ..Plan::default() });
    let mut client = server.client();
    for number in 0..100 {
        let _held = Held::of(&client.call(&Ask::new(&format!("k{number}"), "me").request()));
    }
    assert_eq!((lines(&server, LOST), lines(&server, BACK)), (0, 0), "{}", server.log());
}

#[test]
fn what_readyz_says_during_an_outage_names_no_object() {
    for outage in [Outage::Errors, Outage::Silent] {
        let bucket = Bucket::new(Cloud::Double);
        let server = Server::start(bucket.options());
        outage.begin(&bucket);
        let (asking, place) = (std::sync::atomic::AtomicBool::new(true), &server.place);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = lockd_tests::Client::new(place);
                while asking.load(std::sync::atomic::Ordering::Relaxed) {
                    client
                        .call(&Ask::new(SECRET, "me").request())
                        .refused(503, "store_unavailable");
                }
            });
            let mut stranger = server.metrics_client();
            let mut said = std::collections::BTreeSet::new();
            let start = Instant::now();
            eventually("it is unready for a while", || {
                let ready = stranger.call(&Request::get("/readyz"));
                if ready.status == 503 {
                    said.insert(ready.text());
                }
                !said.is_empty() && start.elapsed() > Duration::from_secs(6)
            });
            asking.store(false, std::sync::atomic::Ordering::Relaxed);
            for text in &said {
                println!("{text}");
                let names = [SECRET, "records/", "k/default", "pulse", "/s/"];
                let named = names.iter().find(|name| text.contains(*name));
                assert_eq!(named, None, "{outage:?}: {text}");
                assert!(text.contains("lockd"), "it names the store: {text}");
            }
        });
    }
}

#[test]
fn verify_says_what_a_store_did_that_answers_clearly_and_ends_with_3() {
    for (flaw, said) in [(Flaw::RefusesIfMatch, "412"), (Flaw::DoesNotKnowIfMatch, "400")] {
        let bucket = Bucket::new(Cloud::Double);
        bucket.double().set_flaw(flaw);
        bucket.double().set_clock_offset(-5_000);
        let home = tempfile::tempdir().expect("a folder");
        let address = bucket.double().endpoint().replace("http://", "");
        let url = format!("s3://{address}/lockd/verify?insecure=1");
        let keys = [("LOCKD_S3_ACCESS_KEY_ID", "x"), ("LOCKD_S3_SECRET_ACCESS_KEY", "y")];
        let args = ["verify", "store", "--store", &url, "--s3-retry-timeout", "60s"];
        let asked = Instant::now();
        let ended = server::run(home.path(), &args, &keys);
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(ended.status.code(), Some(3), "{flaw:?}: {text}");
        assert!(text.contains(said) && !text.contains("no answer"), "{flaw:?}: {text}");
        assert!(text.contains("ms behind") && !text.contains("ms ahead"), "{flaw:?}: {text}");
        assert!(asked.elapsed() < Duration::from_secs(30), "it took the whole retry time");
        assert_eq!(bucket.double().keys("lockd"), Vec::<String>::new(), "{flaw:?}: it cleans up");
    }
}
