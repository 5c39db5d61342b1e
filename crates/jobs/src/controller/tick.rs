//! What happens in office without being asked for: attempts lapse, deadlines pass, jobs become
//! ready, and what is over is forgotten after a while.

use std::sync::Arc;
use std::time::Duration;

use super::commit::Change;
use super::desk::Keep;
use super::office::{Office, STORE_AT_ONCE};
use super::turn::Turn;
use crate::ledger::Kind;

/// The longest and the shortest time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// After a write whose outcome is not known.
const PAUSE: Duration = Duration::from_secs(1);
/// How many jobs are forgotten between two looks.
const FORGET_AT_ONCE: usize = 256;

/// As long as the office lasts.
pub(crate) async fn tick(office: Arc<Office>) {
    loop {
        let wait = office.next_look();
        tokio::select! {
            () = office.over.cancelled() => return,
            () = office.due.notified() => {}
            () = office.time.sleep(wait) => {}
        }
        if !office.is_held() {
            tokio::select! {
                () = office.over.cancelled() => return,
                () = office.time.sleep(LOOK_EVERY / 4) => continue,
            }
        }
        office.dispatch();
        // Also where nothing is given out: what has become ready is not looked for again.
        office.desk.lock().board.ripen(office.time.now());
        if !office.lapse().await || !office.forget().await {
            tokio::select! {
                () = office.over.cancelled() => return,
                () = office.time.sleep(PAUSE) => {}
            }
        }
    }
}

impl Office {
    fn next_look(&self) -> Duration {
        let now = self.time.now();
        let at = self.desk.lock().board.look_at();
        let wait = at.map(|at| Duration::from_millis(at.saturating_sub(now)));
        wait.unwrap_or(LOOK_EVERY).clamp(LOOK_AGAIN, LOOK_EVERY)
    }

    /// Ends what has lapsed. Tells whether the store could be asked.
    async fn lapse(self: &Arc<Self>) -> bool {
        loop {
            let turns: Vec<Turn> =
                std::iter::from_fn(|| self.lapsed()).take(STORE_AT_ONCE).collect();
            if turns.is_empty() {
                return true;
            }
            let lapsing = turns.into_iter().map(|turn| async {
                let job = self.desk.lock().board.get(&turn.id).cloned();
                match job.and_then(|job| job.lapsed(self.epoch, self.time.now())) {
                    Some(next) => self.commit(turn, Change::Job(Box::new(next))).await,
                    None => Ok(()),
                }
            });
            let lapsed = futures_util::future::join_all(lapsing).await;
            if lapsed.iter().any(Result::is_err) {
                return false;
            }
        }
    }

    fn lapsed(self: &Arc<Self>) -> Option<Turn> {
        let id = self.desk.lock().board.lapsed(self.time.now())?.id.clone();
        self.try_turn(Kind::Job, &id).ok()
    }

    /// Forgets the oldest of too many jobs that are over. Tells whether the store could be asked.
    async fn forget(self: &Arc<Self>) -> bool {
        let age = u64::try_from(self.settings.finished_age_min.as_millis()).unwrap_or(u64::MAX);
        let before = self.time.now().saturating_sub(age);
        let keep = Keep {
            jobs_max: self.settings.finished_max,
            young_since_ms: before,
            bytes_max: self.settings.finished_bytes_max,
        };
        let old: Vec<String> = {
            let desk = self.desk.lock();
            desk.finished.too_many(keep).take(FORGET_AT_ONCE).map(str::to_owned).collect()
        };
        for ids in old.chunks(STORE_AT_ONCE) {
            let turns = ids.iter().filter_map(|id| self.try_turn(Kind::Job, id).ok());
            let forgetting = turns.map(|turn| self.commit(turn, Change::Forget));
            let forgotten = futures_util::future::join_all(forgetting).await;
            if forgotten.iter().any(Result::is_err) {
                return false;
            }
        }
        true
    }
}
