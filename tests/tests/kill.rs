//! The server is killed under load, over and over, and started again on the same store. Whatever
//! it had told anybody before must still be true afterwards: to clients in answers, to readers, to
//! a watcher. Requests that were under way are sent again with their idempotency keys and must
//! have happened exactly once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockd_tests::dice::rounds;
use lockd_tests::document::{Document, etag_of};
use lockd_tests::lease::{public_get, public_of};
use lockd_tests::watch::Watch;
use lockd_tests::{Ask, Client, Dice, Held, Place, Reply, Request, Server, within};
use lockd_wire::header;

const CLIENTS: usize = 16;
const READERS: usize = 2;
const SHARED: usize = 4;
/// Longer than a round takes: these leases must survive the kill.
const LONG_MS: u64 = 600_000;
/// Holders of shared keys that die with the server make room soon.
const SHORT_MS: u64 = 400;

#[test]
fn nothing_acknowledged_or_shown_is_lost_when_the_server_is_killed_under_load() {
    let mut dice = Dice::announced("kill");
    let mut server = Server::usual();
    let facts = Facts::default();
    let mut workers: Vec<Worker> = (0..CLIENTS).map(|id| Worker::new(id, dice.fork())).collect();
    let mut done = 0;
    for round in 0..rounds(25) {
        let start = Instant::now();
        let target = dice.between(50, 400);
        let place = server.place.clone();
        let acknowledged = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| worker.work(&place, &facts, &acknowledged));
            }
            for _ in 0..READERS {
                let dice = dice.fork();
                scope.spawn(|| read(&place, &facts, dice));
            }
            scope.spawn(|| watch(&place, &facts));
            within(Duration::from_secs(120), "enough load", || {
                acknowledged.load(Ordering::Relaxed) >= target
            });
            server.kill();
        });
        done += acknowledged.load(Ordering::Relaxed);
        let killed = start.elapsed();
        server.start_again();
        let back = start.elapsed();
        let mut client = server.client();
        for worker in &workers {
            worker.still_holds(&mut client);
        }
        facts.check(&mut client);
        for worker in &mut workers {
            worker.finish_what_was_begun(&mut client, &facts);
        }
        facts.check(&mut client);
        println!(
            "round {round}: {done} acknowledged so far; killed after {killed:?}, back after \
             {back:?}, checked after {:?}",
            start.elapsed()
        );
    }
}

/// A document by how it is made, so that thousands can be remembered.
#[derive(Clone, Debug)]
enum Body {
    Small(String),
    Large(Document),
}

impl Body {
    fn new(owner: &str, number: usize, dice: &mut Dice) -> Self {
        if dice.one_in(12) {
            return Self::Large(Document::of_bytes(dice.between(70_000, 200_000), number));
        }
        Self::Small(format!(r#"{{"by":"{owner}","number":{number}}}"#))
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Small(text) => text.clone().into_bytes(),
            Self::Large(document) => document.whole(),
        }
    }
}

/// What was told to anybody, by key.
#[derive(Default)]
struct Facts {
    keys: Mutex<BTreeMap<String, Told>>,
}

#[derive(Default)]
struct Told {
    granted: BTreeSet<u64>,
    token: u64,
    /// Etags by version.
    shown: BTreeMap<u64, String>,
    /// Everything that somebody tried to write, by etag.
    tried: HashMap<String, Body>,
}

impl Facts {
    fn with<T>(&self, key: &str, act: impl FnOnce(&mut Told) -> T) -> T {
        act(self.keys.lock().expect("facts").entry(key.to_owned()).or_default())
    }

    fn granted(&self, key: &str, token: u64) {
        self.with(key, |told| {
            assert!(told.granted.insert(token), "token {token} of {key} was given twice");
            told.token = told.token.max(token);
        });
    }

    fn token_shown(&self, key: &str, token: u64) {
        self.with(key, |told| told.token = told.token.max(token));
    }

    fn tried(&self, key: &str, body: &Body) -> Vec<u8> {
        let bytes = body.bytes();
        self.with(key, |told| told.tried.insert(etag_of(&bytes), body.clone()));
        bytes
    }

    /// One version has one content, whoever asks and whenever.
    fn shown(&self, key: &str, version: u64, etag: &str) {
        self.with(key, |told| {
            let known = told.shown.entry(version).or_insert_with(|| etag.to_owned());
            assert_eq!(known, etag, "version {version} of {key} has become another");
        });
    }

    /// Compares the server with everything that was ever told.
    fn check(&self, client: &mut Client) {
        let keys: Vec<String> = self.keys.lock().expect("facts").keys().cloned().collect();
        for key in keys {
            let public = client.public(&key);
            let token = client.describe(&key)["fencing_token"].as_u64().expect("a token");
            let version = public.as_ref().map_or(0, |public| public.version);
            self.with(&key, |told| {
                assert!(token >= told.token, "the token of {key} went back to {token}");
                let highest = told.shown.keys().next_back().copied().unwrap_or(0);
                assert!(version >= highest, "{key} went back from {highest} to {version}");
                if let Some(public) = &public {
                    let body = told.tried.get(&public.etag).expect("a document somebody wrote");
                    assert!(public.body == body.bytes(), "the bytes of {key} are others");
                }
            });
            if let Some(public) = public {
                self.shown(&key, public.version, &public.etag);
            }
        }
    }
}

/// A request that changes something, and what its success means.
#[derive(Clone, Debug)]
enum Act {
    Acquire,
    Commit(Body),
    Stage(Body),
    Release,
}

/// A client with a key of its own, of which it knows exactly what must be there.
struct Worker {
    name: String,
    key: String,
    dice: Dice,
    number: usize,
    held: Option<Held>,
    version: u64,
    staged: Option<Body>,
    /// Sent, and no answer came yet.
    begun: Option<(Request, Act)>,
}

impl Worker {
    fn new(id: usize, dice: Dice) -> Self {
        Self {
            name: format!("worker-{id}"),
            key: format!("own/{id}"),
            dice,
            number: 0,
            held: None,
            version: 0,
            staged: None,
            begun: None,
        }
    }

    /// Works until the server is gone.
    fn work(&mut self, place: &Place, facts: &Facts, acknowledged: &AtomicUsize) {
        let mut client = Client::new(place);
        loop {
            let shared = self.dice.one_in(4);
            let step =
                if shared { self.share(&mut client, facts) } else { self.step(&mut client, facts) };
            if step.is_err() {
                return;
            }
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn step(&mut self, client: &mut Client, facts: &Facts) -> io::Result<()> {
        self.number += 1;
        let body = Body::new(&self.name, self.number, &mut self.dice);
        let (request, act) = match &self.held {
            None => {
                let ask = Ask::new(&self.key, &self.name).ttl_ms(LONG_MS);
                (ask.request(), Act::Acquire)
            }
            Some(held) => match self.dice.below(8) {
                0..5 => (held.commit(facts.tried(&self.key, &body)), Act::Commit(body)),
                5 => (held.update(facts.tried(&self.key, &body)), Act::Stage(body)),
                _ => (held.release(), Act::Release),
            },
        };
        let request = request.header(header::IDEMPOTENCY_KEY, self.number);
        self.begun = Some((request.clone(), act.clone()));
        let reply = client.try_call(&request)?;
        self.settle(act, reply, facts);
        self.begun = None;
        Ok(())
    }

    /// What follows from the answer, which must be exactly the one that is due.
    fn settle(&mut self, act: Act, reply: Reply, facts: &Facts) {
        let body = reply.ok();
        match act {
            Act::Acquire => {
                let held = Held::of(&body);
                assert_eq!(held.version, self.version, "{}", self.key);
                facts.granted(&self.key, held.token);
                self.held = Some(held);
            }
            Act::Commit(document) => {
                self.staged = None;
                assert_eq!(body.json()["new_version"], self.version + 1, "{}", self.key);
                self.committed(&document, facts);
            }
            Act::Stage(document) => {
                assert_eq!(body.json()["new_version"], self.version + 1, "{}", self.key);
                self.staged = Some(document);
            }
            Act::Release => {
                self.held = None;
                if let Some(document) = self.staged.take() {
                    self.committed(&document, facts);
                }
            }
        }
    }

    fn committed(&mut self, document: &Body, facts: &Facts) {
        self.version += 1;
        facts.shown(&self.key, self.version, &etag_of(&document.bytes()));
    }

    /// A turn at a key that everybody wants.
    fn share(&mut self, client: &mut Client, facts: &Facts) -> io::Result<()> {
        self.number += 1;
        let key = format!("shared/{}", self.dice.below(SHARED));
        let ask = Ask::new(&key, &self.name).ttl_ms(SHORT_MS).block(1);
        let reply = client.try_call(&ask.request())?;
        if reply.status != 200 {
            reply.refused(409, "waiting");
            return Ok(());
        }
        let held = Held::of(&reply);
        facts.granted(&key, held.token);
        let body = Body::new(&self.name, self.number, &mut self.dice);
        let bytes = facts.tried(&key, &body);
        let etag = etag_of(&bytes);
        let reply = client.try_call(&held.commit(bytes))?;
        if reply.status != 200 {
            // The machine was slow, and the short lease is over.
            assert_eq!(reply.status, 403, "{}", reply.text());
            return Ok(());
        }
        let version = reply.json()["new_version"].as_u64().expect("a version");
        assert!(version > held.version, "{key} did not grow");
        facts.shown(&key, version, &etag);
        client.try_call(&held.release())?;
        Ok(())
    }

    /// A lease that was not being released when the server died is held as before.
    fn still_holds(&self, client: &mut Client) {
        let releasing = matches!(self.begun, Some((_, Act::Release)));
        let Some(held) = self.held.as_ref().filter(|_| !releasing) else { return };
        let reply = client.call(&Ask::new(&self.key, "a thief").request());
        reply.refused(409, "waiting");
        let reply = client.call(&held.keepalive(LONG_MS));
        assert_eq!(reply.status, 200, "{} lost its lease: {}", self.key, reply.text());
    }

    /// Sends again what got no answer; afterwards the key is exactly as this client knows it.
    fn finish_what_was_begun(&mut self, client: &mut Client, facts: &Facts) {
        if let Some((request, act)) = self.begun.take() {
            let reply = client.call(&request);
            self.settle(act, reply, facts);
        }
        let version = client.public(&self.key).map_or(0, |public| public.version);
        assert_eq!(version, self.version, "{} was written more or less than once", self.key);
    }
}

/// A public reader: what it sees is a promise too.
fn read(place: &Place, facts: &Facts, mut dice: Dice) {
    let mut client = Client::new(place);
    loop {
        let key = match dice.below(CLIENTS + SHARED) {
            own if own < CLIENTS => format!("own/{own}"),
            shared => format!("shared/{}", shared - CLIENTS),
        };
        let Ok(reply) = client.try_call(&public_get(&key)) else { return };
        if let Some(public) = public_of(&reply) {
            facts.shown(&key, public.version, &public.etag);
        }
    }
}

/// A watcher of everything.
fn watch(place: &Place, facts: &Facts) {
    let Ok(mut watch) = Watch::open(place, &[("prefix", "")], None) else { return };
    while let Ok(event) = watch.try_next() {
        let key = event.data["key"].as_str().unwrap_or_default();
        match event.kind.as_str() {
            "state" => {
                let etag = event.data["state_etag"].as_str().expect("an etag");
                facts.shown(key, event.data["version"].as_u64().expect("a version"), etag);
            }
            "lease" => {
                facts.token_shown(key, event.data["fencing_token"].as_u64().expect("a token"));
            }
            _ => assert_eq!(event.kind, "reset"),
        }
    }
}
