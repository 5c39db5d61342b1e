//! The way in for changes under one leadership: who is inside is counted, nobody comes in once it
//! is shut, and those inside can be given up. When to do so is left to the node.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Changes of one leadership on their way. A clone is the same gate. It begins open, and one that
/// was shut stays shut: the next leadership has a gate of its own.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    count: Mutex<Count>,
    /// Somebody was the last to leave.
    empty: Notify,
    cut: CancellationToken,
}

#[derive(Debug, Default)]
struct Count {
    shut: bool,
    inside: usize,
}

impl Gate {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A change goes in, and is inside for as long as its pass exists.
    #[must_use]
    pub fn enter(&self) -> Option<Pass> {
        let mut count = self.inner.count.lock();
        if count.shut {
            return None;
        }
        count.inside += 1;
        Some(Pass { inner: Arc::clone(&self.inner) })
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.inner.count.lock().shut
    }

    /// Lets nobody in any more; those inside go on.
    pub fn shut(&self) {
        self.inner.count.lock().shut = true;
    }

    /// Until nobody is inside. Without a shut before, others may come in right after.
    pub async fn idle(&self) {
        loop {
            let emptied = self.inner.empty.notified();
            tokio::pin!(emptied);
            // From here on no leave is missed, so the count may be looked at.
            emptied.as_mut().enable();
            if self.inside() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Shuts, and gives up those inside: what they wait for is dropped, and their outcome is not
    /// known.
    pub fn cut(&self) {
        self.shut();
        self.inner.cut.cancel();
    }

    #[must_use]
    pub fn inside(&self) -> usize {
        self.inner.count.lock().inside
    }
}

/// One change inside a gate; dropped, it is out.
#[derive(Debug)]
pub struct Pass {
    inner: Arc<Inner>,
}

impl Pass {
    /// Until those inside are given up.
    pub async fn cut(&self) {
        self.inner.cut.cancelled().await;
    }

    /// The same, for whoever cannot borrow the pass.
    pub(crate) fn watch(&self) -> WaitForCancellationFutureOwned {
        self.inner.cut.clone().cancelled_owned()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut count = self.inner.count.lock();
        count.inside = count.inside.saturating_sub(1);
        if count.inside == 0 {
            self.inner.empty.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_pass_that_is_dropped_is_out() {
        let gate = Gate::new();
        let (one, two) = (gate.enter().unwrap(), gate.clone().enter().unwrap());
        assert_eq!(gate.inside(), 2);
        drop(one);
        assert_eq!(gate.inside(), 1);
        drop(two);
        assert_eq!(gate.inside(), 0);
        assert!(gate.is_open());
    }

    #[test]
    fn a_gate_that_is_shut_lets_nobody_in_and_nobody_is_thrown_out() {
        let gate = Gate::new();
        let pass = gate.enter().unwrap();
        gate.shut();
        assert!(!gate.is_open() && gate.enter().is_none());
        assert_eq!(gate.inside(), 1);
        assert!(pass.cut().now_or_never().is_none());
    }

    #[tokio::test]
    async fn it_is_idle_when_the_last_one_leaves() {
        let gate = Gate::new();
        gate.idle().await;
        let (one, two) = (gate.enter().unwrap(), gate.enter().unwrap());
        gate.shut();
        let idle = gate.idle();
        tokio::pin!(idle);
        assert!(idle.as_mut().now_or_never().is_none());
        drop(one);
        assert!(idle.as_mut().now_or_never().is_none());
        drop(two);
        idle.await;
        gate.idle().await;
    }

    #[tokio::test]
    async fn a_wait_for_idle_that_is_dropped_costs_nobody_the_news() {
        let gate = Gate::new();
        let pass = gate.enter().unwrap();
        let (mut lost, kept) = (Box::pin(gate.idle()), gate.idle());
        tokio::pin!(kept);
        assert!(lost.as_mut().now_or_never().is_none());
        assert!(kept.as_mut().now_or_never().is_none());
        drop(lost);
        drop(pass);
        kept.await;
    }

    #[tokio::test]
    async fn a_cut_wakes_everybody_inside() {
        let gate = Gate::new();
        let passes: Vec<Pass> = (0..3).filter_map(|_| gate.enter()).collect();
        let mut waits: Vec<_> = passes.iter().map(|pass| Box::pin(pass.cut())).collect();
        for wait in &mut waits {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        gate.cut();
        for wait in &mut waits {
            wait.await;
        }
        passes[0].watch().await;
        assert!(gate.enter().is_none(), "a cut also shuts");
        assert_eq!(gate.inside(), 3);
        drop(waits);
        drop(passes);
        gate.idle().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn however_they_race_idle_comes_after_the_last() {
        for _ in 0..200 {
            let gate = Gate::new();
            let tasks = tokio_util::task::TaskTracker::new();
            for _ in 0..8 {
                let gate = gate.clone();
                tasks.spawn(async move {
                    while let Some(pass) = gate.enter() {
                        tokio::task::yield_now().await;
                        drop(pass);
                    }
                });
            }
            tokio::task::yield_now().await;
            gate.shut();
            gate.idle().await;
            assert_eq!(gate.inside(), 0);
            assert!(gate.enter().is_none());
            tasks.close();
            tasks.wait().await;
        }
    }
}
