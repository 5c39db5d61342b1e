//! Servers that break their word: each stands between the clients and the real one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockd_sim::answer::{Answer, Refused};
use lockd_sim::call::{Ask, Block, Then, What, Write};
use lockd_sim::world::Door;
use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// A write that was refused because its lease was over is done under the next holder's.
    ReplaysLost,
    /// A write that was refused is answered as done.
    AcksRefused,
    /// Who waits first is let in after another.
    HoldsBack,
    Swallows,
    ForgetsNames,
    DropsFences,
    RollsBack,
    ReadsKeyByKey,
    HidesStaged,
    FailsInside,
}

#[derive(Default)]
struct State {
    calls: AtomicU64,
    /// Writes that came too late, by key.
    lost: Mutex<HashMap<String, Write>>,
    /// Told whenever somebody was granted something.
    granted: Notify,
    /// Told whenever anything was answered.
    answered: Notify,
}

impl State {
    fn every(&self, number: u64) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % number == number - 1
    }
}

pub(crate) fn lying(inner: Door, lie: Lie) -> Door {
    let state = Arc::new(State::default());
    Arc::new(move |ask| {
        let (inner, state) = (Arc::clone(&inner), Arc::clone(&state));
        Box::pin(async move { answer(&inner, &state, lie, ask).await })
    })
}

async fn answer(inner: &Door, state: &State, lie: Lie, mut ask: Ask) -> Answer {
    match (lie, &mut ask) {
        (Lie::ReplaysLost, _) => return replayed(inner, state, ask).await,
        (Lie::AcksRefused, Ask::Write(write)) if write.then == Then::Commit => {
            let guess = Answer::Written { version: 1, etag: None, bytes: 1, hidden: false };
            let answer = inner(ask).await;
            return if is_lost(&answer) { guess } else { answer };
        }
        (Lie::HoldsBack, Ask::Acquire(acquire)) if acquire.block != Block::No => {
            if state.every(2) {
                state.granted.notified().await;
            }
        }
        (Lie::Swallows, Ask::Acquire(acquire)) if acquire.block != Block::No => {
            if state.every(9) {
                std::future::pending::<()>().await;
            }
        }
        (Lie::ForgetsNames, ask) => forget_name(ask),
        (Lie::DropsFences, Ask::Write(write)) => write.fences.clear(),
        (Lie::DropsFences, Ask::Release(release)) => release.fences.clear(),
        (Lie::RollsBack, Ask::Release(release)) => release.rollback = true,
        (Lie::ReadsKeyByKey, Ask::Read { keys }) => return one_by_one(inner, state, keys).await,
        (Lie::HidesStaged, Ask::View { key: Some(key), .. }) => {
            ask = Ask::Get { key: key.clone() };
        }
        (Lie::FailsInside, _) if state.every(40) => {
            return Answer::Refused(Refused::code("internal_error"));
        }
        _ => {}
    }
    let answer = inner(ask).await;
    state.answered.notify_waiters();
    if matches!(answer, Answer::Granted { .. }) {
        state.granted.notify_waiters();
    }
    answer
}

fn is_lost(answer: &Answer) -> bool {
    let lost = ["lease_expired", "lease_required", "revoked", "fencing_mismatch"];
    answer.refused().is_some_and(|refused| lost.contains(&refused.code.as_str()))
}

async fn replayed(inner: &Door, state: &State, ask: Ask) -> Answer {
    let answer = inner(ask.clone()).await;
    match (&ask, &answer) {
        (Ask::Write(write), _) if is_lost(&answer) && matches!(write.what, What::Document(_)) => {
            let key = write.key.clone().unwrap_or_default();
            state.lost.lock().insert(key, write.clone());
        }
        (Ask::Acquire(acquire), Answer::Granted { held, .. }) => {
            let late = state.lost.lock().remove(&acquire.key);
            if let Some(late) = late {
                let (then, held) = (Then::Commit, held.clone());
                let late =
                    Write { then, held, if_version: None, fences: vec![], idem: None, ..late };
                inner(Ask::Write(late)).await;
            }
        }
        _ => {}
    }
    answer
}

fn forget_name(ask: &mut Ask) {
    match ask {
        Ask::Acquire(acquire) => acquire.idem = None,
        Ask::Write(write) => write.idem = None,
        Ask::Release(release) => release.idem = None,
        _ => {}
    }
}

/// Takes its time between two keys: so much happens meanwhile.
const MEANWHILE: usize = 8;

async fn one_by_one(inner: &Door, state: &State, keys: &[String]) -> Answer {
    let mut entries = Vec::new();
    for (place, key) in keys.iter().enumerate() {
        for _ in 0..if place == 0 { 0 } else { MEANWHILE } {
            state.answered.notified().await;
        }
        match inner(Ask::Read { keys: vec![key.clone()] }).await {
            Answer::Entries(one) => entries.extend(one),
            other => return other,
        }
    }
    Answer::Entries(entries)
}
