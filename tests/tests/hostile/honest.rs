//! An honest client among hostile ones, with a key of its own and a model of what must be there.
//! Now and then it sends something with a mistake, or gives up on an answer and asks again.

use std::future::Future;
use std::pin::pin;

use lockd_server::Handler;
use lockd_tests::inside::{ask, to_http};
use lockd_tests::lease::{public_get, public_of};
use lockd_tests::{Ask, Dice, Held, Reply, Request};
use lockd_wire::{header, path};

/// Hostile clients do not know this namespace.
const NAMESPACE: &str = "honest";

/// What the holder sees, and the version that it will have.
#[derive(Clone, Copy)]
struct Staged {
    /// Nothing after a removal.
    value: Option<u64>,
    version: u64,
}

pub struct Honest {
    handler: Handler,
    dice: Dice,
    key: String,
    held: Option<Held>,
    version: u64,
    committed: Option<u64>,
    staged: Option<Staged>,
    token: u64,
    counter: u64,
}

impl Honest {
    pub fn new(handler: Handler, dice: Dice, number: usize) -> Self {
        let key = format!("own-{number}");
        Self {
            handler,
            dice,
            key,
            held: None,
            version: 0,
            committed: None,
            staged: None,
            token: 0,
            counter: 0,
        }
    }

    async fn call(&self, request: &Request) -> Reply {
        ask(&self.handler, to_http(request)).await
    }

    fn there(request: Request) -> Request {
        request.query("namespace", NAMESPACE)
    }

    fn document(value: u64) -> String {
        format!("{{\"value\":{value}}}")
    }

    /// One more thing that an honest client does.
    pub async fn step(&mut self) {
        let Some(held) = self.held.clone() else {
            self.acquire().await;
            return;
        };
        match self.dice.below(9) {
            0 | 1 => self.update(&held).await,
            2 => self.commit_twice(&held).await,
            3 => self.remove(&held).await,
            4 => self.release(&held, false).await,
            5 => self.release(&held, true).await,
            6 | 7 => self.blunder(&held).await,
            _ => {}
        }
        self.look().await;
    }

    pub async fn finish(&mut self) {
        if let Some(held) = self.held.clone() {
            self.release(&held, false).await;
        }
        self.look().await;
    }

    async fn acquire(&mut self) {
        let wish = Ask::new(&self.key, "honest").field("namespace", NAMESPACE).ttl_ms(600_000);
        let held = Held::of(&self.call(&wish.request()).await);
        assert!(held.token > self.token, "tokens grow: {held:?} after {}", self.token);
        assert_eq!(held.version, self.version);
        self.token = held.token;
        self.held = Some(held);
    }

    async fn update(&mut self, held: &Held) {
        self.counter += 1;
        let request = Self::there(held.update(Self::document(self.counter)));
        let written = self.call(&request).await.ok().json();
        let version = self.next_version();
        assert_eq!(written["new_version"], version);
        self.staged = Some(Staged { value: Some(self.counter), version });
    }

    /// Commits, perhaps gives up on the answer, and asks again: it must happen once.
    async fn commit_twice(&mut self, held: &Held) {
        self.counter += 1;
        let request = Self::there(held.commit(Self::document(self.counter)));
        let request = request.header(header::IDEMPOTENCY_KEY, format!("c{}", self.counter));
        let polls = self.dice.below(5);
        {
            let mut call = pin!(self.call(&request));
            for _ in 0..polls {
                let once =
                    std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx)));
                if once.await.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let written = self.call(&request).await.ok().json();
        self.version = self.next_version();
        assert_eq!(written["new_version"], self.version, "once and not twice");
        self.committed = Some(self.counter);
        self.staged = None;
    }

    /// All changes under one lease make one version.
    fn next_version(&self) -> u64 {
        self.staged.map_or(self.version + 1, |staged| staged.version)
    }

    /// What the holder sees.
    fn value(&self) -> Option<u64> {
        self.staged.map_or(self.committed, |staged| staged.value)
    }

    /// The removal of what was staged counts as a version of its own.
    async fn remove(&mut self, held: &Held) {
        let there = self.value().is_some();
        let removed = self.call(&Self::there(held.remove())).await.ok().json();
        assert_eq!(removed["removed"], there);
        if there {
            let version = self.next_version() + u64::from(self.staged.is_some());
            self.staged = Some(Staged { value: None, version });
        }
    }

    async fn release(&mut self, held: &Held, rollback: bool) {
        let request = if rollback { held.rollback() } else { held.release() };
        let reply = self.call(&Self::there(request)).await.ok();
        assert_eq!(reply.json()["released"], true);
        if let (Some(staged), false) = (self.staged, rollback) {
            self.committed = staged.value;
            self.version = staged.version;
        }
        self.staged = None;
        self.held = None;
    }

    /// A good request with one thing wrong: refused, and nothing changes.
    async fn blunder(&mut self, held: &Held) {
        let paths = [path::UPDATE, path::MUTATE, path::METADATA, path::REMOVE];
        let path = *self.dice.pick(&paths);
        let body = match path {
            path::MUTATE => r#"{"mutations":["/value=1"]}"#,
            path::METADATA => r#"{"query_hidden":true}"#,
            _ => "{}",
        };
        let good = Self::there(held.state(path).body(body).query("then", "release"));
        let spoiled = match self.dice.below(7) {
            0 => good.with(header::FENCING_TOKEN, held.token - 1),
            1 => good.with(header::FENCING_TOKEN, held.token + 1),
            2 => good.with(header::LEASE_ID, held.lease.to_uppercase() + "x"),
            3 => good.with(header::TXN_ID, "00000000000000000000"),
            4 => good.header(header::IF_VERSION, self.version + 7),
            5 => good.header(header::IF_STATE_ETAG, "another"),
            _ => {
                good.header(header::FENCE_KEY, "honest/none").header(header::FENCE_TOKEN, u64::MAX)
            }
        };
        let reply = self.call(&spoiled).await;
        assert!(matches!(reply.status, 403 | 409), "{spoiled:?} got {}", reply.text());
    }

    /// What everybody sees, and what the holder sees.
    async fn look(&mut self) {
        let seen = public_of(&self.call(&Self::there(public_get(&self.key))).await);
        assert_eq!(
            seen.map(|seen| (seen.version, String::from_utf8_lossy(&seen.body).into_owned())),
            self.committed.map(|value| (self.version, Self::document(value))),
        );
        let Some(held) = &self.held else { return };
        let reply = self.call(&Self::there(held.get())).await;
        match self.value() {
            Some(value) => assert_eq!(reply.ok().text(), Self::document(value)),
            None => assert_eq!(reply.status, 204, "{}", reply.text()),
        }
    }
}
