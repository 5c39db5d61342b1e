//! A queue whose server is killed in the middle of everything: many producers, and consumers that
//! crash, stall beyond their time, give back and extend at random. Every message is acknowledged
//! or dead in the end, none is lost, none is delivered after its acknowledgement was answered, and
//! a message dies with exactly as many failures as it was allowed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockd_tests::bucket::bad_weather;
use lockd_tests::dice::rounds;
use lockd_tests::http::Client;
use lockd_tests::queue::{Enqueue, Message, dequeue, messages, stats};
use lockd_tests::{Bucket, Cloud, Dice, Place, Request, Server, within};
use lockd_wire::path;
use serde_json::{Value, json};

const PRODUCERS: usize = 16;
const CONSUMERS: usize = 32;
/// On a real service, where a delivery or its end is several requests.
const REAL_VISIBILITY_MS: u64 = 2_000;
const MAX_ATTEMPTS: u64 = 3;
/// Short, so that what a consumer has left behind comes back soon.
const VISIBILITY_MS: u64 = 300;
/// Nothing takes this long unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(300);
/// One in so many messages makes all its consumers fail.
const POISON: usize = 100;

/// What is known about one message.
#[derive(Debug, Default)]
struct Story {
    /// Each delivery that somebody got, with the failures before it. Whoever got it may tell
    /// later than the next one.
    deliveries: BTreeMap<u64, u64>,
    /// When somebody was told that it is acknowledged.
    acked: Option<Instant>,
    /// Somebody asked for it and was told nothing.
    perhaps_acked: bool,
    /// When somebody was told that it is dead.
    died: Option<Instant>,
}

struct Storm {
    producers: usize,
    consumers: usize,
    visibility_ms: u64,
    /// Still to be enqueued.
    waiting: Mutex<VecDeque<usize>>,
    stories: Mutex<BTreeMap<usize, Story>>,
    enqueued: AtomicUsize,
    acked: AtomicUsize,
    settled: AtomicUsize,
}

#[test]
fn every_message_is_acknowledged_or_dead_in_the_end() {
    let kills = rounds(5);
    let total = kills * if kills > 5 { 5_000 } else { 2_000 };
    run(&mut [Server::usual()], kills, Storm::of(total, Cloud::Double), None);
}

#[test]
fn also_on_two_servers_that_share_a_bucket_in_bad_weather() {
    on_bucket(Cloud::Double, 2, rounds(3));
}

#[test]
fn also_on_a_real_s3() {
    on_bucket(Cloud::Moto, 1, rounds(1));
}

#[test]
fn also_on_two_servers_that_share_a_real_azure() {
    on_bucket(Cloud::Azurite, 2, rounds(1));
}

fn on_bucket(cloud: Cloud, servers: usize, kills: usize) {
    let bucket = Bucket::new(cloud);
    let mut servers: Vec<Server> = (0..servers).map(|_| Server::start(bucket.options())).collect();
    let total = kills * if cloud == Cloud::Double { 300 } else { 200 };
    run(&mut servers, kills, Storm::of(total, cloud), Some(&bucket));
}

fn run(servers: &mut [Server], kills: usize, storm: Storm, bucket: Option<&Bucket>) {
    let mut dice = Dice::announced("storm");
    let total = storm.waiting.lock().expect("a list").len();
    if let Some(bucket) = bucket {
        bucket.proxy.set_plan(bad_weather());
    }
    for round in 0..=kills {
        let last = round == kills;
        let places: Vec<Place> = servers.iter().map(|server| server.place.clone()).collect();
        let victim = dice.below(servers.len());
        let over = &AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 0..storm.producers {
                let (place, storm) = (&places[number % places.len()], &storm);
                scope.spawn(move || produce(place, storm, over));
            }
            for number in 0..storm.consumers {
                let place = &places[number % places.len()];
                let (dice, storm) = (dice.fork(), &storm);
                scope.spawn(move || consume(place, dice, storm, over));
            }
            let _home = SentHome(over);
            let enough = total * (round + 1) / (kills + 1);
            let done = || storm.settled.load(Ordering::Relaxed) >= enough;
            if last {
                within(PATIENCE, "everything is enqueued", || {
                    storm.enqueued.load(Ordering::Relaxed) == total
                });
                // One may not have heard yet of what the other has taken in, and both not of what
                // one did that was killed. The last word has one that has only just looked.
                let fresh = || bucket.is_none_or(|bucket| is_drained(&fresh_on(bucket).place));
                within(PATIENCE, "everything is settled", || {
                    places.iter().all(is_drained) && fresh()
                });
            } else {
                within(PATIENCE, "enough messages", done);
                servers[victim].kill();
            }
        });
        if !last {
            servers[victim].start_again();
        }
        println!("round {round}: {} acknowledged", storm.acked.load(Ordering::Relaxed));
    }
    if let Some(bucket) = bucket {
        bucket.proxy.heal();
        judge(&fresh_on(bucket), &storm, total);
    } else {
        judge(&servers[0], &storm, total);
    }
}

/// A server that knows nothing but what is in the bucket.
fn fresh_on(bucket: &Bucket) -> Server {
    Server::start(bucket.options())
}

/// Everybody stops when it goes.
struct SentHome<'a>(&'a AtomicUsize);

impl Drop for SentHome<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Relaxed);
    }
}

fn is_drained(place: &Place) -> bool {
    let reply = Client::new(place).call(&stats("storm"));
    if reply.status == 503 {
        return false;
    }
    let stats = reply.ok().json();
    ["ready", "delayed", "in_flight"].iter().all(|name| stats[name] == 0)
}

/// Enqueues until there is nothing left or the server is gone. What was not answered is enqueued
/// again, under the same idempotency key.
fn produce(place: &Place, storm: &Storm, over: &AtomicUsize) {
    let mut client = Client::new(place);
    while over.load(Ordering::Relaxed) == 0 {
        let Some(number) = storm.waiting.lock().expect("a list").pop_front() else { return };
        let ask = Enqueue::new("storm", number.to_string())
            .field("max_attempts", MAX_ATTEMPTS)
            .repeatable(&format!("storm-{number}"));
        match client.try_call(&ask.request()) {
            Ok(reply) if reply.status == 200 => {
                storm.enqueued.fetch_add(1, Ordering::Relaxed);
            }
            Ok(reply) if reply.status == 503 => {
                storm.waiting.lock().expect("a list").push_back(number);
            }
            Ok(reply) => panic!("{}", reply.text()),
            Err(_) => {
                storm.waiting.lock().expect("a list").push_back(number);
                return;
            }
        }
    }
}

fn consume(place: &Place, mut dice: Dice, storm: &Storm, over: &AtomicUsize) {
    let mut client = Client::new(place);
    while over.load(Ordering::Relaxed) == 0 {
        let many = if dice.one_in(4) { 8 } else { 1 };
        let ask = json!({
            "wait_seconds": 1, "page_size": many, "visibility_timeout_ms": storm.visibility_ms,
        });
        let sent = Instant::now();
        let Ok(reply) = client.try_call(&dequeue("storm", &ask)) else { return };
        match reply.status {
            200 => {}
            409 | 503 => continue,
            _ => panic!("{}", reply.text()),
        }
        let taken = messages(&reply).into_iter();
        let taken: Vec<_> = taken.map(|one| (storm.delivered(&one, sent), one)).collect();
        for (number, message) in taken {
            if work(&mut client, &mut dice, storm, number, message).is_err() {
                return;
            }
        }
    }
}

/// What a consumer does with one message. An error: the server is gone.
fn work(
    client: &mut Client,
    dice: &mut Dice,
    storm: &Storm,
    number: usize,
    mut message: Message,
) -> io::Result<()> {
    let poison = number.is_multiple_of(POISON);
    match dice.below(100) {
        // Crashes: nothing is heard of it again.
        0..3 => return Ok(()),
        // Stalls: its word comes too late, unless its time was not over after all.
        3 => std::thread::sleep(Duration::from_millis(storm.visibility_ms + 50)),
        4..8 => {
            let reply = client
                .try_call(&message.extend(&json!({"extend_by_ms": 2 * storm.visibility_ms})))?;
            if reply.status != 200 {
                return storm.refused_or(&reply, |_| ());
            }
            message.meta["meta_etag"] = reply.json()["meta_etag"].clone();
        }
        8..14 => {
            let reply = client.try_call(&message.nack(&json!({"intent": "defer"})))?;
            return storm.refused_or(&reply, |_| ());
        }
        14..18 => return give_back(client, dice, storm, number, &message),
        _ => {}
    }
    if poison {
        return give_back(client, dice, storm, number, &message);
    }
    let reply = match client.try_call(&message.ack()) {
        Ok(reply) => reply,
        Err(error) => {
            storm.story(number, |story| story.perhaps_acked = true);
            return Err(error);
        }
    };
    if reply.status == 503 && reply.json()["outcome"] == "unknown" {
        storm.story(number, |story| story.perhaps_acked = true);
    }
    storm.refused_or(&reply, |_| {
        storm.story(number, |story| {
            if story.acked.is_none() {
                storm.settled.fetch_add(1, Ordering::Relaxed);
                storm.acked.fetch_add(1, Ordering::Relaxed);
                story.acked = Some(Instant::now());
            }
        });
    })
}

fn give_back(
    client: &mut Client,
    dice: &mut Dice,
    storm: &Storm,
    number: usize,
    message: &Message,
) -> io::Result<()> {
    let nack = json!({"delay_ms": dice.below(50), "last_error": "poison"});
    let reply = client.try_call(&message.nack(&nack))?;
    storm.refused_or(&reply, |reply| {
        let failures = message.number("failure_attempts") + 1;
        let dead = reply["dead"] == true;
        assert_eq!(dead, failures == MAX_ATTEMPTS, "message {number} after {failures} failures");
        storm.story(number, |story| {
            if dead {
                story.died = Some(Instant::now());
            }
        });
        if dead {
            storm.settled.fetch_add(1, Ordering::Relaxed);
        }
    })
}

impl Storm {
    fn of(total: usize, cloud: Cloud) -> Self {
        let visibility_ms = match cloud {
            Cloud::Double => VISIBILITY_MS,
            Cloud::Moto | Cloud::Azurite => REAL_VISIBILITY_MS,
        };
        Self {
            producers: cloud.bears(PRODUCERS),
            consumers: cloud.bears(CONSUMERS),
            visibility_ms,
            waiting: Mutex::new((0..total).collect()),
            stories: Mutex::default(),
            enqueued: AtomicUsize::new(0),
            acked: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
        }
    }

    fn story(&self, number: usize, change: impl FnOnce(&mut Story)) {
        change(self.stories.lock().expect("stories").entry(number).or_default());
    }

    /// Notes a delivery that was asked for at that moment, and checks that it may be.
    fn delivered(&self, message: &Message, sent: Instant) -> usize {
        let number: usize = String::from_utf8_lossy(&message.payload).parse().expect("a number");
        let (attempts, failures) = (message.number("attempts"), message.number("failure_attempts"));
        assert!(failures < attempts && failures < MAX_ATTEMPTS, "{:?}", message.meta);
        self.story(number, |story| {
            let again = story.deliveries.insert(attempts, failures);
            assert!(again.is_none(), "message {number}: attempt {attempts} twice");
            assert!(story.deliveries.values().is_sorted(), "message {number}: {story:?}");
            for over in story.acked.iter().chain(&story.died) {
                assert!(sent < *over, "message {number} was delivered after it was over");
            }
        });
        number
    }

    /// Only a consumer that was too late is refused, or told that it is gone.
    fn refused_or(
        &self,
        reply: &lockd_tests::Reply,
        accepted: impl FnOnce(&Value),
    ) -> io::Result<()> {
        match (reply.status, reply.code().as_str()) {
            (200, _) => accepted(&reply.json()),
            (409, "queue_message_lease_mismatch" | "cas_mismatch")
            | (404, "not_found")
            | (503, _) => {}
            _ => panic!("{}", reply.text()),
        }
        Ok(())
    }
}

fn judge(server: &Server, storm: &Storm, total: usize) {
    let mut client = server.client();
    let mut dead = BTreeMap::new();
    let mut cursor = Value::Null;
    loop {
        let mut ask = json!({"queue": "storm", "limit": 1_000});
        if !cursor.is_null() {
            ask["cursor"] = cursor;
        }
        let page = client.call(&Request::post(path::QUEUE_DLQ).json(&ask)).ok().json();
        for message in page["messages"].as_array().expect("a list") {
            let payload = Request::get(path::QUEUE_PAYLOAD).query("queue", "storm");
            let payload =
                payload.query("message_id", message["message_id"].as_str().expect("an id"));
            let number: usize = client.call(&payload).ok().text().parse().expect("a number");
            assert!(
                dead.insert(number, message.clone()).is_none(),
                "message {number} is there twice"
            );
        }
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    let stats = client.call(&stats("storm")).ok().json();
    assert_eq!(stats["dead"], dead.len(), "{stats}");
    let stories = storm.stories.lock().expect("stories");
    let unheard = (0..total).filter(|number| !stories.contains_key(number));
    for number in unheard {
        // Where answers are lost, a message may have died without anybody ever seeing it.
        assert!(dead.contains_key(&number), "message {number} was never delivered");
    }
    for (number, story) in stories.iter() {
        match dead.get(number) {
            Some(message) => {
                assert!(story.acked.is_none(), "message {number} was acknowledged and is dead");
                assert_eq!(message["failure_attempts"], MAX_ATTEMPTS, "message {number}");
                let told = story.deliveries.keys().max().copied().unwrap_or(0);
                assert!(message["attempts"].as_u64() >= Some(told.max(MAX_ATTEMPTS)));
            }
            None => {
                assert!(story.died.is_none(), "message {number} died and is not among the dead");
                let gone = story.acked.is_some() || story.perhaps_acked;
                assert!(gone, "message {number} is lost: {story:?}");
            }
        }
    }
    let poison = dead.keys().filter(|number| number.is_multiple_of(POISON)).count();
    assert_eq!(poison, total.div_ceil(POISON), "all poison is dead");
    println!("{} acknowledged, {} dead", storm.acked.load(Ordering::Relaxed), dead.len());
}
