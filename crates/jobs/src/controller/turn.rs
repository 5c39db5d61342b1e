//! The turn to change one thing: one after the other, each seeing what the one before has done.
//! While nobody knows what became of a change, its turn goes on, and nobody else gets one.

use std::sync::Arc;
use std::time::Duration;

use super::desk::{Desk, Doubt};
use super::office::Office;
use super::refusal::Refusal;
use crate::job::Taker;
use crate::ledger::Kind;

/// How long whoever comes again waits for what it has begun to be certain.
pub(crate) const DOUBT_WAIT: Duration = Duration::from_secs(3);

/// Lasts as long as it is kept.
#[derive(Debug)]
pub(crate) struct Turn {
    office: Arc<Office>,
    pub(crate) kind: Kind,
    pub(crate) id: String,
    /// The question upon which the job is given out.
    granting: Option<Taker>,
    /// The room that a new job takes.
    arriving: Option<usize>,
    /// Nobody is to be woken when it ends.
    quiet: bool,
}

impl Turn {
    /// The job is given out upon this question.
    pub(crate) fn grants(&mut self, desk: &mut Desk, taker: &Taker) {
        if !taker.request_id.is_empty() {
            desk.granting.insert(taker.clone(), self.id.clone());
            self.granting = Some(taker.clone());
        }
    }

    /// A new job of that size is being kept.
    pub(crate) fn arrives(&mut self, weight: usize) -> Result<(), Refusal> {
        let settings = &self.office.settings;
        let mut desk = self.office.desk.lock();
        let bytes = desk.board.weight() + desk.arriving_bytes;
        let is_full = desk.board.len() + desk.arriving >= settings.unfinished_max
            || bytes.saturating_add(weight) > settings.unfinished_bytes_max;
        if is_full {
            return Err(Refusal::TooManyJobs);
        }
        desk.arriving += 1;
        desk.arriving_bytes += weight;
        self.arriving = Some(weight);
        Ok(())
    }

    /// Nobody knows what became of its change.
    pub(crate) fn is_in_doubt(&self) {
        let key = (self.kind, self.id.clone());
        self.office.desk.lock().turns.insert(key, Doubt::Yes);
        self.office.settled.notify_waiters();
    }

    /// Ends it by a caller that looks for the next one itself.
    pub(crate) fn give_back(mut self) {
        self.quiet = true;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut desk = self.office.desk.lock();
            desk.turns.remove(&(self.kind, self.id.clone()));
            if let Some(taker) = self.granting.take() {
                desk.granting.remove(&taker);
            }
            if let Some(weight) = self.arriving.take() {
                desk.arriving = desk.arriving.saturating_sub(1);
                desk.arriving_bytes = desk.arriving_bytes.saturating_sub(weight);
            }
            match self.kind {
                Kind::Job => desk.board.let_go(&self.id),
                Kind::Agent => {}
            }
        }
        self.office.settled.notify_waiters();
        if !self.quiet {
            self.office.due.notify_one();
            self.office.dispatch();
        }
    }
}

impl Office {
    /// The turn, if nobody has it.
    pub(crate) fn try_turn(self: &Arc<Self>, kind: Kind, id: &str) -> Result<Turn, Doubt> {
        self.turn_at(&mut self.desk.lock(), kind, id)
    }

    /// As [`Office::try_turn`], by whoever has the desk; it must not end before the desk is left.
    pub(crate) fn turn_at(
        self: &Arc<Self>,
        desk: &mut Desk,
        kind: Kind,
        id: &str,
    ) -> Result<Turn, Doubt> {
        let key = (kind, id.to_owned());
        if let Some(doubt) = desk.turns.get(&key) {
            return Err(*doubt);
        }
        desk.turns.insert(key, Doubt::No);
        match kind {
            Kind::Job => desk.board.hold(id),
            Kind::Agent => {}
        }
        Ok(Turn {
            office: Arc::clone(self),
            kind,
            id: id.into(),
            granting: None,
            arriving: None,
            quiet: false,
        })
    }

    /// Waits for the turn: as long as the changes before it take, and no longer than `patience`
    /// once nobody knows what became of one.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        kind: Kind,
        id: &str,
        patience: Duration,
    ) -> Result<Turn, Refusal> {
        let ends = tokio::time::sleep(patience);
        tokio::pin!(ends);
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if !self.is_held() {
                return Err(Refusal::NotLeader);
            }
            let doubt = match self.try_turn(kind, id) {
                Ok(turn) => return Ok(turn),
                Err(doubt) => doubt,
            };
            tokio::select! {
                biased;
                () = self.over.cancelled() => return Err(Refusal::NotLeader),
                () = settled => {}
                () = &mut ends, if doubt == Doubt::Yes => return Err(Refusal::Unknown),
            }
        }
    }
}
