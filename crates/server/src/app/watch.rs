//! A watch: a snapshot first, then every change, for as long as the reader likes. The reader pulls;
//! nothing is kept for it. One who falls too far behind, or resumes from a place that is no longer
//! known, gets a fresh snapshot.

use std::collections::VecDeque;
use std::sync::Arc;

use lockd_core::key::KeyName;
use lockd_core::record::KeyRecord;
use lockd_store::StoreError;
use lockd_wire::watch::LeaseChange;
use tokio::sync::watch;

use super::App;
use super::event::{After, What};
use crate::commit::KEY_PREFIX;

/// How many keys of a snapshot are read at once.
const SNAPSHOT_PAGE: usize = 256;

/// Which keys.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    Key(KeyName),
    /// A namespace and the beginning of its keys.
    Prefix {
        namespace: String,
        prefix: String,
    },
}

impl Scope {
    fn covers(&self, key: &KeyName) -> bool {
        match self {
            Self::Key(only) => only == key,
            Self::Prefix { namespace, prefix } => {
                key.namespace() == namespace && key.key().starts_with(prefix)
            }
        }
    }

    fn stored_prefix(&self) -> String {
        match self {
            Self::Key(key) => format!("{KEY_PREFIX}{key}"),
            Self::Prefix { namespace, prefix } => format!("{KEY_PREFIX}{namespace}/{prefix}"),
        }
    }
}

/// One thing to tell the reader.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Reset {
        reason: &'static str,
        complete: bool,
        id: Option<u64>,
    },
    Change {
        key: KeyName,
        what: What,
        snapshot: bool,
        id: Option<u64>,
    },
    /// Nothing happened for a while.
    Quiet,
}

/// A watch in progress.
pub(crate) struct Watch {
    app: Arc<App>,
    scope: Scope,
    latest: watch::Receiver<u64>,
    /// Told up to here.
    seen: u64,
    ready: VecDeque<Told>,
    /// The snapshot under way: the last stored name it has reached.
    snapshot: Option<Option<String>>,
    quiet_after: std::time::Duration,
}

impl App {
    /// Starts a watch; `resume` is the place after which the reader wants to go on.
    pub(crate) fn watch(self: &Arc<Self>, scope: Scope, resume: Option<&str>) -> Watch {
        let latest = self.records.events.subscribe();
        let known = resume.and_then(|id| self.place(id));
        let mut watch = Watch {
            app: Arc::clone(self),
            scope,
            latest,
            seen: known.unwrap_or(0),
            ready: VecDeque::new(),
            snapshot: None,
            quiet_after: std::time::Duration::from_secs(15),
        };
        if known.is_none() {
            watch.reset(if resume.is_some() { "gap" } else { "start" });
        }
        watch
    }

    /// The place that an event id of this process stands for.
    fn place(&self, id: &str) -> Option<u64> {
        let (incarnation, seq) = id.split_once('-')?;
        if incarnation == self.incarnation { seq.parse().ok() } else { None }
    }
}

impl Watch {
    fn reset(&mut self, reason: &'static str) {
        // Whatever happens from here on is told after the snapshot, perhaps once more.
        self.seen = self.app.records.events.latest();
        self.ready.clear();
        self.ready.push_back(Told::Reset { reason, complete: false, id: None });
        self.snapshot = Some(None);
    }

    /// The next thing to tell; `None` when the server drains.
    pub(crate) async fn next(&mut self) -> Result<Option<Told>, StoreError> {
        loop {
            if let Some(told) = self.ready.pop_front() {
                return Ok(Some(told));
            }
            if self.app.is_draining() {
                return Ok(None);
            }
            if self.snapshot.is_some() {
                self.snapshot_page().await?;
                continue;
            }
            self.latest.mark_unchanged();
            let scope = &self.scope;
            match self.app.records.events.after(self.seen, |key| scope.covers(key)) {
                After::Gap => self.reset("slow"),
                After::Events { events, next } => {
                    let moved = next != self.seen;
                    self.seen = next;
                    self.ready.extend(events.iter().map(|event| Told::Change {
                        key: event.key.clone(),
                        what: event.what.clone(),
                        snapshot: false,
                        id: Some(event.seq),
                    }));
                    if !moved && let Some(told) = self.wait().await {
                        return Ok(Some(told));
                    }
                }
            }
        }
    }

    /// Waits for something new.
    async fn wait(&mut self) -> Option<Told> {
        tokio::select! {
            biased;
            _changed = self.latest.changed() => None,
            () = self.app.drained() => None,
            () = tokio::time::sleep(self.quiet_after) => Some(Told::Quiet),
        }
    }

    async fn snapshot_page(&mut self) -> Result<(), StoreError> {
        let Some(after) = self.snapshot.take() else { return Ok(()) };
        let prefix = self.scope.stored_prefix();
        let page = self.app.scan_keys(&prefix, after.as_deref(), SNAPSHOT_PAGE).await?;
        let now = self.app.clock().now();
        for (key, record) in &page {
            if self.scope.covers(key) {
                let told = snapshot_of(record, now);
                self.ready.extend(told.into_iter().map(|what| Told::Change {
                    key: key.clone(),
                    what,
                    snapshot: true,
                    id: None,
                }));
            }
        }
        match page.last().filter(|_| page.len() == SNAPSHOT_PAGE) {
            Some((last, _)) => self.snapshot = Some(Some(format!("{KEY_PREFIX}{last}"))),
            None => self.ready.push_back(Told::Reset {
                reason: "snapshot",
                complete: true,
                id: Some(self.seen),
            }),
        }
        Ok(())
    }
}

fn snapshot_of(record: &KeyRecord, now: lockd_core::Now) -> Vec<What> {
    let mut told = Vec::new();
    if record.version.0 > 0 {
        told.push(match &record.state {
            Some(state) => What::State {
                version: record.version.0,
                etag: Some(state.etag.to_string()),
                bytes: Some(state.bytes),
            },
            None => What::Removed { version: record.version.0 },
        });
    }
    if let Some(lease) = record.live_lease(now) {
        told.push(What::Lease {
            change: LeaseChange::Granted,
            owner: lease.owner.clone(),
            token: record.fence.0,
            expires_unix_ms: Some(lease.expires.wall.0),
        });
    }
    told
}
