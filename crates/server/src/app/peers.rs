//! Servers that share a store tell each other what they did, through the store: each keeps a sheet
//! with its latest changes, and reads those of the others. It is news, not truth: every decision is
//! still made by a conditional write of the record itself. News wakes whoever waits, shows messages
//! to consumers, and fills the listings and watches of one server with what happened at another.
//!
//! What is not told, because a server died before it could, is found by looking: the first in line
//! asks now and then, and so does a queue for which somebody waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use lockd_core::fence::Fence;
use lockd_core::key::KeyName;
use lockd_core::message;
use lockd_core::record::{Content, Effect, KeyRecord};
use lockd_core::time::UnixMillis;
use lockd_store::{Expect, Name, Op, Revision, StoreError, Write, codec};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::App;
use super::event::What;
use crate::commit::{Records, record_name};

/// The sheet of each server is under this prefix and its name.
pub(crate) const SHEET_PREFIX: &str = "s/";
/// Changes on a sheet. Who does not read for longer than these take has missed some.
const ENTRIES_MAX: usize = 2_048;
/// News is written down this long after the first of it.
const WRITE_AFTER: Duration = Duration::from_millis(150);
/// A server without news says this often that it is there.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// One that was not heard of for this long is taken for gone.
const GONE_AFTER_MS: u64 = 45_000;
/// And after this its sheet is removed.
const FORGOTTEN_AFTER_MS: u64 = 24 * 3_600_000;
/// How often the sheets of others are read while somebody here waits for news, and otherwise.
const READ_EVERY: Duration = Duration::from_millis(250);
const READ_IDLE: Duration = Duration::from_secs(2);
/// How often new servers are looked for, and queues that somebody waits for are looked through.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Our own sheet.
#[derive(Debug)]
pub(crate) struct Journal {
    sheet: Mutex<Written>,
    news: Notify,
    /// Somebody here wants to know what the others have done, now.
    hurry: Notify,
    /// Somebody reads it.
    is_read: AtomicBool,
}

#[derive(Debug, Default)]
struct Written {
    entries: VecDeque<Entry>,
    /// The number of the first of them.
    first: u64,
}

/// What a server has done, as others read it.
#[derive(Debug, Serialize, Deserialize)]
struct Sheet {
    written_at: u64,
    first: u64,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    key: String,
    /// The record without what others do not need, as it is stored.
    record: String,
    gone: bool,
    freed: bool,
    events: Vec<What>,
}

impl Journal {
    pub(crate) fn new() -> Self {
        let (sheet, is_read) = (Mutex::default(), AtomicBool::new(false));
        Self { sheet, news: Notify::new(), hurry: Notify::new(), is_read }
    }

    /// Whether another server is there.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    /// The others are to be asked at once.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Notes down a change that is durable.
    pub(crate) fn note(
        &self,
        records: &Records,
        key: &KeyName,
        record: &KeyRecord,
        effects: &[Effect],
    ) {
        if !self.is_read() {
            return;
        }
        let events = effects.iter().filter_map(|effect| What::of(record, effect)).collect();
        let freed = record.lease.is_none()
            && effects.iter().any(|effect| matches!(effect, Effect::Ended { .. }));
        self.add(entry(records, key, record, freed, events));
    }

    fn add(&self, entry: Entry) {
        let mut written = self.sheet.lock();
        if written.entries.len() == ENTRIES_MAX {
            written.entries.pop_front();
            written.first += 1;
        }
        written.entries.push_back(entry);
        drop(written);
        self.news.notify_one();
    }

    fn sheet(&self, now: UnixMillis) -> Sheet {
        let written = self.sheet.lock();
        let entries = written.entries.iter().cloned().collect();
        Sheet { written_at: now.0, first: written.first, entries }
    }
}

fn entry(
    records: &Records,
    key: &KeyName,
    record: &KeyRecord,
    freed: bool,
    events: Vec<What>,
) -> Entry {
    let mut slim = KeyRecord { staged: None, ..record.clone() };
    slim.attachments.clear();
    slim.answers.clear();
    if let Some(state) = &mut slim.state {
        state.content = Content::Inline(Bytes::new());
    }
    let bytes = codec::encode(&slim, records.clock.timeline().boot);
    let record = BASE64_STANDARD.encode(bytes);
    Entry { key: key.as_str().to_owned(), record, gone: slim.gone, freed, events }
}

/// What is known of another server.
#[derive(Debug)]
struct Peer {
    /// The number of the next entry, and the sheet that was read last.
    next: u64,
    read: Option<Revision>,
    written_at: u64,
}

impl App {
    fn sheet_name(&self) -> Name {
        format!("{SHEET_PREFIX}{}", self.incarnation).into()
    }

    /// Keeps our sheet, until the server stops.
    pub(crate) async fn write_sheet(self: Arc<Self>) {
        let journal = &self.records.journal;
        loop {
            let sheet = journal.sheet(self.clock().now().wall);
            let bytes = serde_json::to_vec(&sheet).unwrap_or_default();
            let write = Write::Put(bytes.into());
            let op = Op { name: self.sheet_name(), expect: Expect::Any, write };
            if let Err(error) = self.records.store().commit(vec![op]).await {
                tracing::debug!(%error, "other servers do not hear from this one");
            }
            tokio::select! {
                biased;
                () = self.tasks.stopping() => break,
                () = journal.news.notified() => tokio::time::sleep(WRITE_AFTER).await,
                () = tokio::time::sleep(HEARTBEAT) => {}
            }
        }
        let done = Op { name: self.sheet_name(), expect: Expect::Any, write: Write::Delete };
        let _read_until_old = self.records.store().commit(vec![done]).await.is_ok();
    }

    /// Reads the sheets of the others, until the server stops.
    pub(crate) async fn read_sheets(self: Arc<Self>) {
        let mut peers: HashMap<Name, Peer> = HashMap::new();
        let mut looked: Option<tokio::time::Instant> = None;
        loop {
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
                looked = Some(tokio::time::Instant::now());
                self.find_peers(&mut peers).await;
                self.look_through_queues().await;
            }
            for (name, peer) in &mut peers {
                if let Err(error) = self.read_sheet(name, peer).await {
                    tracing::debug!(%name, %error, "the news of another server cannot be read");
                }
            }
            let records = &self.records;
            let waits = records.lines.total() > 0
                || records.boards.waiting() > 0
                || records.events.is_watched();
            let pause = if waits && !peers.is_empty() { READ_EVERY } else { READ_IDLE };
            tokio::select! {
                biased;
                () = self.tasks.stopping() => return,
                () = records.journal.hurry.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn find_peers(self: &Arc<Self>, peers: &mut HashMap<Name, Peer>) {
        let own = self.sheet_name();
        let Ok(names) = self.records.store().scan_names(SHEET_PREFIX, None, 1_000).await else {
            return;
        };
        peers.retain(|name, _| names.contains(name));
        for name in names {
            if name != own {
                peers.entry(name).or_insert(Peer { next: 0, read: None, written_at: 0 });
            }
        }
        let now = self.clock().now().wall.0;
        let age = |peer: &Peer| now.saturating_sub(peer.written_at);
        let is_there = |peer: &Peer| peer.read.is_none() || age(peer) < GONE_AFTER_MS;
        for (name, peer) in peers.iter().filter(|(_, peer)| peer.read.is_some()) {
            if age(peer) > FORGOTTEN_AFTER_MS {
                let op = Op { name: Arc::clone(name), expect: Expect::Any, write: Write::Delete };
                let _next_time = self.records.store().commit(vec![op]).await.is_ok();
            }
        }
        let are_there = peers.values().any(is_there);
        let journal = &self.records.journal;
        if are_there != journal.is_read.swap(are_there, Ordering::Relaxed) && are_there {
            // What was held before anybody read.
            for (key, live) in self.records.live.page("", None, ENTRIES_MAX / 2, |_, _| true) {
                let fence = Fence(live.token);
                let record = KeyRecord { fence, lease: Some(live.lease), ..KeyRecord::default() };
                journal.add(entry(&self.records, &key, &record, false, Vec::new()));
            }
        }
    }

    async fn read_sheet(self: &Arc<Self>, name: &Name, peer: &mut Peer) -> Result<(), StoreError> {
        let Some(stored) = self.records.store().load(name).await? else { return Ok(()) };
        if peer.read == Some(stored.revision) {
            return Ok(());
        }
        let damaged = |error: serde_json::Error| StoreError::Damaged(error.to_string());
        let sheet: Sheet = serde_json::from_slice(&stored.bytes).map_err(damaged)?;
        let is_new = peer.read.is_none();
        peer.read = Some(stored.revision);
        peer.written_at = sheet.written_at;
        if !is_new && sheet.first > peer.next {
            self.missed_some().await;
        }
        let seen = usize::try_from(peer.next.saturating_sub(sheet.first)).unwrap_or(usize::MAX);
        peer.next = sheet.first + sheet.entries.len() as u64;
        for entry in sheet.entries.iter().skip(seen) {
            self.hear(entry, is_new);
        }
        Ok(())
    }

    /// Takes over what another server did.
    fn hear(self: &Arc<Self>, entry: &Entry, is_old: bool) {
        let Ok(key) = KeyName::parse_full(&entry.key) else { return };
        let Ok(bytes) = BASE64_STANDARD.decode(&entry.record) else { return };
        let timeline = self.clock().timeline();
        let Ok(mut record) = codec::decode(&bytes.into(), &timeline) else { return };
        record.gone = entry.gone;
        if self.knows_better(&key, &record) {
            return;
        }
        let records = &self.records;
        records.live.follow(&key, &record);
        if let Some(place) = message::place(&record) {
            records.follow_message(&key, place);
        } else if !is_old {
            records.events.publish_all(&key, entry.events.iter().cloned());
        }
        if entry.freed {
            records.lines.wake(&key);
        }
    }

    /// Whether what is known here came later.
    fn knows_better(&self, key: &KeyName, told: &KeyRecord) -> bool {
        let records = &self.records;
        let known = match records.store().recall(&record_name(key)) {
            Some(Some(stored)) => records.decode(key, Some(&stored)).ok(),
            // Removed, as far as is known, or never looked at.
            Some(None) => return !told.gone && told.message.is_some(),
            None => None,
        };
        let rank = |record: &KeyRecord| {
            let until = record.lease.as_ref().map(|lease| lease.expires.wall);
            (record.fence, record.lease.is_none(), record.version, until)
        };
        known.is_some_and(|known| rank(&known) > rank(told))
    }

    /// Something was told that nobody here has heard.
    async fn missed_some(self: &Arc<Self>) {
        self.records.events.forget();
        self.records.lines.wake_all();
        for board in self.records.boards.loaded() {
            while let Err(error) = self.reload_board(&board).await {
                tracing::debug!(queue = %board.name, %error, "a queue could not be read again");
                if self.tasks.is_stopping() {
                    return;
                }
                tokio::time::sleep(READ_IDLE).await;
            }
        }
    }

    /// Finds messages in the store that nobody has told of.
    async fn look_through_queues(self: &Arc<Self>) {
        for board in self.records.boards.waited_for() {
            if let Err(error) = self.refresh_board(&board).await {
                tracing::debug!(queue = %board.name, %error, "a queue could not be looked through");
            }
        }
    }
}
