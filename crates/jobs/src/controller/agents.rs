//! Agents that ask for work: when they were seen, and which of them are deleted.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::commit::Change;
use super::desk::KnownAgent;
use super::office::Office;
use super::refusal::Refusal;
use super::submit::hex;
use crate::agent::Agent;
use crate::job::Taker;
use crate::ledger::Kind;

/// An agent that asks is written at most this often, and one that is another process at most this
/// often.
pub(crate) const WRITE_EVERY_MS: u64 = 30_000;
const WRITE_AGAIN_MS: u64 = 1_000;
/// Where there are too many, one that was not seen for so long makes room.
const FORGET_AFTER_MS: u64 = 600_000;

/// The id of an agent's record: names have letters that ids have not.
pub(crate) fn agent_id(name: &str) -> String {
    hex(&Sha256::digest(name.as_bytes()))
}

impl Office {
    /// An agent asks. It is told no if it was deleted.
    pub(crate) fn saw_agent(self: &Arc<Self>, taker: &Taker) -> Result<(), Refusal> {
        let now = self.time.now();
        let (is_due, forgotten) = {
            let mut desk = self.desk.lock();
            let is_new = !desk.agents.contains_key(&taker.agent);
            let is_full = desk.agents.len() >= self.settings.agents_max;
            let forgotten = if is_new && is_full {
                let oldest = desk.agents.values().min_by_key(|known| known.seen_ms);
                let name = oldest
                    .filter(|known| known.seen_ms.saturating_add(FORGET_AFTER_MS) <= now)
                    .map(|known| known.kept.name.clone())
                    .ok_or(Refusal::TooManyAgents)?;
                desk.agents.remove(&name);
                Some(name)
            } else {
                None
            };
            let known = desk.agents.entry(taker.agent.clone()).or_insert_with(|| {
                let agent = Agent::new(&taker.agent, &taker.incarnation, self.epoch, now);
                KnownAgent::kept(Agent { version: 0, ..agent }, None, now)
            });
            if known.kept.refuses(&taker.incarnation) {
                return Err(Refusal::AgentDeleted);
            }
            known.seen_ms = now;
            known.incarnation.clone_from(&taker.incarnation);
            let changed = known.kept.incarnation != taker.incarnation;
            let every = if changed { WRITE_AGAIN_MS } else { WRITE_EVERY_MS };
            (known.written_ms.is_none_or(|at| at.saturating_add(every) <= now), forgotten)
        };
        if let Some(name) = forgotten
            && let Ok(turn) = self.try_turn(Kind::Agent, &agent_id(&name))
        {
            let office = Arc::clone(self);
            self.tasks.spawn(async move { office.commit(turn, Change::Forget).await });
        }
        if is_due {
            self.write_agent(&taker.agent);
        }
        Ok(())
    }

    /// In the background: no work waits for it. One that is being written is written later.
    fn write_agent(self: &Arc<Self>, name: &str) {
        let Ok(turn) = self.try_turn(Kind::Agent, &agent_id(name)) else { return };
        let now = self.time.now();
        let next = {
            let mut desk = self.desk.lock();
            let Some(known) = desk.agents.get_mut(name) else { return };
            known.written_ms = Some(now);
            known.kept.seen(&known.incarnation, self.epoch, now)
        };
        let office = Arc::clone(self);
        self.tasks.spawn(async move { office.commit(turn, Change::Agent(next)).await });
    }

    /// Its present process gets no more work. What it has it may end.
    pub(crate) async fn delete_agent(self: &Arc<Self>, name: &str) -> Result<KnownAgent, Refusal> {
        let turn = self.turn(Kind::Agent, &agent_id(name), Duration::ZERO).await?;
        let known = self.desk.lock().agents.get(name).cloned();
        let mut known = known.ok_or(Refusal::NotFound("no such agent"))?;
        // It may have been seen since it was written.
        let seen = Agent { incarnation: known.incarnation.clone(), ..known.kept.clone() };
        let Some(deleted) = seen.deleted(self.epoch, self.time.now()) else { return Ok(known) };
        self.commit(turn, Change::Agent(deleted.clone())).await?;
        known.kept = deleted;
        Ok(known)
    }
}
