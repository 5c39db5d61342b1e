//! Agents that wait for work, in the order in which they came. Whoever goes away leaves the line,
//! and work that was on its way to it goes to the next.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::turn::Turn;
use crate::job::Taker;

/// One that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) taker: Taker,
    pub(crate) turn: oneshot::Sender<Turn>,
}

#[derive(Debug, Default)]
pub(crate) struct Line {
    waiters: VecDeque<Waiter>,
}

impl Line {
    /// Gets in line, where there is room. Whoever asks the same question again takes over the place
    /// of the first, whose client has given up.
    pub(crate) fn join(&mut self, taker: &Taker, max: usize) -> Option<oneshot::Receiver<Turn>> {
        let (turn, comes) = oneshot::channel();
        let same = self.waiters.iter_mut().find(|waiter| {
            !taker.request_id.is_empty() && waiter.taker == *taker && !waiter.turn.is_closed()
        });
        if let Some(same) = same {
            same.turn = turn;
            return Some(comes);
        }
        if self.waiters.len() >= max {
            self.waiters.retain(|waiter| !waiter.turn.is_closed());
        }
        if self.waiters.len() >= max {
            return None;
        }
        self.waiters.push_back(Waiter { taker: taker.clone(), turn });
        Some(comes)
    }

    /// The first that is still there.
    pub(crate) fn first(&mut self) -> Option<Waiter> {
        while let Some(waiter) = self.waiters.pop_front() {
            if !waiter.turn.is_closed() {
                return Some(waiter);
            }
        }
        None
    }

    /// It was not its turn after all.
    pub(crate) fn back_to_the_front(&mut self, waiter: Waiter) {
        self.waiters.push_front(waiter);
    }

    /// That process waits no more.
    pub(crate) fn dismiss(&mut self, agent: &str, incarnation: &str) {
        self.waiters.retain(|waiter| {
            waiter.taker.agent != agent || waiter.taker.incarnation != incarnation
        });
    }

    /// Nobody waits any more.
    pub(crate) fn dissolve(&mut self) {
        self.waiters.clear();
    }
}
