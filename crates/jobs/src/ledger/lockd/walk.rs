//! Listings of keys that go on where they stopped. Keys are listed from the start only, so whoever
//! reads page after page would otherwise pass all that it has read once more for each of them.
//!
//! A walk belongs to the opening under which it began: the names that it still has may be from
//! before another one, and a job that was accepted since is not among them.

use std::collections::VecDeque;
use std::time::Duration;

use lockd_client::{Client, KeyPages};
use tokio::time::Instant;

use crate::ledger::{Kind, LedgerFault, Reader};

/// Keys of one page: the most that the server gives.
const KEYS_MAX: u32 = 1_000;
/// Walks of clients that are remembered, and how old what they know may be.
const WALKS_MAX: usize = 8;
const FRESH: Duration = Duration::from_secs(2);

pub(super) struct Walk {
    kind: Kind,
    /// The word of the opening under which it began, if there was one.
    opening: Option<String>,
    /// The record after which its reader goes on.
    pub(super) after: String,
    pages: KeyPages,
    /// Names of a page that were not read yet.
    left: VecDeque<String>,
    /// When the latest came.
    named: Instant,
    ended: bool,
}

impl Walk {
    /// Whether there is nothing left to read.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.left.is_empty()
    }

    /// The names that are read next: at most so many, and none if a page must be asked for.
    pub(super) fn names(&self, most: usize) -> Vec<String> {
        self.left.iter().take(most).cloned().collect()
    }

    /// They were read.
    pub(super) fn pass(&mut self, count: usize) {
        self.left.drain(..count.min(self.left.len()));
    }

    /// Asks for more names. If it is given up in the middle, the same page is asked for again.
    pub(super) async fn turn_page(&mut self, prefix: &str) -> Result<(), LedgerFault> {
        let page = self.pages.next_page().await.map_err(|error| super::fault(&error))?;
        let Some(page) = page else {
            self.ended = true;
            return Ok(());
        };
        self.named = Instant::now();
        let from = format!("{prefix}{}", self.after);
        // Keys of what was removed have no state.
        let there = page.into_iter().filter(|view| view.state_etag.is_some());
        self.left.extend(there.map(|view| view.key).filter(|key| *key > from));
        Ok(())
    }
}

/// Where listings have stopped.
#[derive(Default)]
pub(super) struct Walks {
    leader: Option<Walk>,
    /// The latest last.
    clients: VecDeque<Walk>,
}

impl Walks {
    /// The walk that stopped there under this opening.
    pub(super) fn take(
        &mut self,
        reader: Reader,
        opening: Option<&str>,
        (kind, after): (Kind, &str),
    ) -> Option<Walk> {
        let is_it = |walk: &Walk| {
            walk.kind == kind && walk.after == after && walk.opening.as_deref() == opening
        };
        match reader {
            Reader::Leader => self.leader.take().filter(is_it),
            Reader::Client => {
                self.clients.retain(|walk| walk.named.elapsed() < FRESH);
                let at = self.clients.iter().position(is_it)?;
                self.clients.remove(at)
            }
        }
    }

    /// Where it goes on is remembered.
    pub(super) fn put(&mut self, reader: Reader, walk: Walk) {
        match reader {
            Reader::Leader => self.leader = Some(walk),
            Reader::Client => {
                if self.clients.len() >= WALKS_MAX {
                    self.clients.pop_front();
                }
                self.clients.push_back(walk);
            }
        }
    }

    /// From the start, up to the names after that record.
    pub(super) fn begin(
        client: &Client,
        prefix: &str,
        opening: Option<&str>,
        (kind, after): (Kind, &str),
    ) -> Walk {
        Walk {
            kind,
            opening: opening.map(str::to_owned),
            after: after.into(),
            pages: client.keys(prefix).limit(KEYS_MAX),
            left: VecDeque::new(),
            named: Instant::now(),
            ended: false,
        }
    }
}
