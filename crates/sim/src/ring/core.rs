//! The bare rules over a map of stored records. Nothing here decides: it gathers what core wants
//! to know, stores what core returns, and says it in words.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use lockd_core::answer::Stamp;
use lockd_core::fence::{Fence, FenceCondition, FenceFacts};
use lockd_core::ids::{LeaseId, TxnId};
use lockd_core::key::KeyName;
use lockd_core::lease::{self, InTxn, Proof, ProofRefused, ReleaseRefused};
use lockd_core::record::{Change, Content, Decided, Etag, KeyRecord, State, Version};
use lockd_core::state::{self, Guard, Stage, StageRefused};
use lockd_core::time::{BootId, Now, Span, Tick, Timeline, UnixMillis};
use lockd_core::txn::{self, By, DecideRefused, Outcome, Settle, TxnRecord, Why};
use lockd_json::mutate::{self, NoFiles};
use lockd_store::codec;
use sha2::{Digest, Sha256};

use super::START;
use super::refusal::{Known, No, code};
use crate::answer::{Answer, Described, Document, Entry};
use crate::call::{self, Ask, Held, NAMESPACE, Then, What};
use crate::case::Ring;

/// What the server takes when a lease asks for no time to live.
const TTL_DEFAULT: Span = Span::secs(30);
const LIMITS: lockd_json::Limits = lockd_json::Limits { depth_max: 512, bytes_max: 8 << 20 };

/// Whether leases that ran out are ended at once, or when somebody comes upon them. The answers
/// must not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaping {
    Eager,
    Never,
}

/// Records under core's rules.
pub struct CoreRing {
    stored: BTreeMap<KeyName, Bytes>,
    txns: BTreeMap<TxnId, Bytes>,
    now: Now,
    timeline: Timeline,
    by_lease: HashMap<LeaseId, KeyName>,
    reaping: Reaping,
    ids: u32,
}

impl CoreRing {
    #[must_use]
    pub fn new(reaping: Reaping) -> Self {
        Self {
            stored: BTreeMap::new(),
            txns: BTreeMap::new(),
            now: START,
            timeline: Timeline { boot: BootId(1), start: START, slack: Some(Span::ZERO) },
            by_lease: HashMap::new(),
            reaping,
            ids: 0,
        }
    }

    fn load(&self, key: &KeyName) -> Result<KeyRecord, No> {
        match self.stored.get(key) {
            Some(bytes) => codec::decode(bytes, &self.timeline).map_err(|_| code("store_damaged")),
            None => Ok(KeyRecord::default()),
        }
    }

    /// Stores what was decided.
    fn keep<A>(&mut self, key: &KeyName, decided: Decided<A>) -> A {
        if let Some(next) = decided.record {
            if let Some(lease) = &next.lease {
                self.by_lease.insert(lease.id.clone(), key.clone());
            }
            self.stored.insert(key.clone(), codec::encode(&next, self.timeline.boot));
        }
        decided.answer
    }

    /// The tokens of the keys in the conditions, asked and staged.
    fn facts(&self, asked: &[FenceCondition], record: &KeyRecord) -> Result<FenceFacts, No> {
        let staged = record.staged.iter().flat_map(|staged| &staged.fences);
        let mut facts = Vec::new();
        for condition in asked.iter().chain(staged) {
            facts.push((condition.key.clone(), self.load(&condition.key)?.fence));
        }
        Ok(FenceFacts::new(facts))
    }

    /// The key of an ask, and the proof that goes with it.
    fn under(&self, key: Option<&str>, held: &Held, unknown: &str) -> Result<(KeyName, Proof), No> {
        let lease = LeaseId::new(&held.lease_id);
        match key {
            Some(name) => {
                let txn = TxnId::parse(&held.txn_id).map_err(|_| code("invalid_txn"))?;
                let proof = Proof { lease, fence: Some(Fence(held.token)), txn: Some(txn) };
                Ok((key_name(name)?, proof))
            }
            None => {
                let key = self.by_lease.get(&lease).cloned().ok_or_else(|| code(unknown))?;
                Ok((key, Proof { lease, fence: None, txn: None }))
            }
        }
    }

    fn acquire(&mut self, ask: &call::Acquire) -> Result<Answer, No> {
        let key = key_name(&ask.key)?;
        let explicit = ask.txn.as_deref().map(TxnId::parse).transpose();
        let explicit = explicit.map_err(|_| code("invalid_txn"))?;
        self.ids += 1;
        let mut record = self.load(&key)?;
        if let Some(lease) = record.lease.as_ref().filter(|lease| !lease.is_live(self.now))
            && lease.recorded
        {
            self.lapsed(&key, lease.txn)?;
            record = self.load(&key)?;
        }
        let command = lease::Acquire {
            new_id: LeaseId::new(&format!("lease-{}", self.ids)),
            owner: ask.owner.as_str().into(),
            txn: match explicit {
                Some(txn) => txn,
                None => TxnId::parse(&format!("{:020}", self.ids)).map_err(|_| code("bug"))?,
            },
            recorded: explicit.is_some(),
            ttl: ask.ttl_ms.map_or(TTL_DEFAULT, Span),
            if_not_exists: ask.if_not_exists,
            stamp: stamp("acquire", ask.idem.as_deref(), &format!("{ask:?}")),
        };
        let decided = lease::acquire(&record, &command, self.now)?;
        if let (Some(txn), Some(_)) = (explicit, &decided.record) {
            self.join(txn, &key, command.ttl)?;
        }
        let token = decided.record.as_ref().map_or(record.fence, |next| next.fence);
        let lease = self.keep(&key, decided);
        let held = Held {
            lease_id: lease.id.as_str().to_owned(),
            txn_id: lease.txn.as_str().to_owned(),
            token: token.0,
        };
        let etag = record.state.as_ref().map(|state| state.etag.to_string());
        Ok(Answer::Granted { held, version: record.version.0, etag, ttl_ms: lease.ttl.0 })
    }

    fn load_txn(&self, txn: TxnId) -> Result<Option<TxnRecord>, No> {
        let Some(bytes) = self.txns.get(&txn) else { return Ok(None) };
        codec::decode_txn(bytes).map(Some).map_err(|_| code("store_damaged"))
    }

    /// The key takes part from now on, and with it the one that began the transaction.
    fn join(&mut self, txn: TxnId, key: &KeyName, ttl: Span) -> Result<(), No> {
        let mut joining = vec![key.clone()];
        for other in self.stored.keys().filter(|other| *other != key).cloned().collect::<Vec<_>>() {
            if let Some(enrolled) = txn::enrol(&self.load(&other)?, txn, self.now) {
                self.stored.insert(other.clone(), codec::encode(&enrolled, self.timeline.boot));
                joining.push(other);
            }
        }
        let known = self.load_txn(txn)?;
        let until = self.now.wall.plus(ttl);
        let joined = txn::join(known.as_ref(), &joining, until, self.now);
        if let Some(record) = joined.map_err(|_| code("txn_conflict"))? {
            self.txns.insert(txn, codec::encode_txn(&record));
        }
        Ok(())
    }

    fn settle(&mut self, ask: &Settle) -> Result<(), SettleNo> {
        let record = self.load_txn(ask.txn)?.ok_or_else(|| code("txn_not_found"))?;
        let mut keys = Vec::new();
        let mut facts = Vec::new();
        for participant in &record.participants {
            let record = self.load(&participant.key)?;
            let staged = record.staged.iter().flat_map(|staged| &staged.fences);
            for condition in staged.chain(&ask.fences) {
                facts.push((condition.key.clone(), self.load(&condition.key)?.fence));
            }
            keys.push((participant.key.clone(), record));
        }
        let facts = FenceFacts::new(facts);
        let settled = txn::settle(&record, &keys, ask, &facts, self.now);
        let settled = settled.map_err(SettleNo::Refused)?;
        if let Some(record) = settled.record {
            self.txns.insert(ask.txn, codec::encode_txn(&record));
        }
        for (key, decided) in settled.keys {
            self.keep(&key, decided);
        }
        Ok(())
    }

    /// The lease of a participant has run out.
    fn lapsed(&mut self, key: &KeyName, txn: TxnId) -> Result<(), No> {
        let (outcome, by) = (Outcome::Rollback(Why::Lapsed), By::Lapse(key.clone()));
        match self.settle(&Settle { txn, outcome, by, fences: Vec::new(), term: 0 }) {
            Ok(()) | Err(SettleNo::Refused(_)) => Ok(()),
            Err(SettleNo::Other(no)) => Err(no),
        }
    }

    fn write(&mut self, ask: &call::Write) -> Result<Answer, No> {
        let (key, proof) = self.under(ask.key.as_deref(), &ask.held, "lease_required")?;
        let record = self.load(&key)?;
        let operation = match ask.what {
            What::Document(_) => "update",
            What::Remove => "remove",
            What::Metadata => "metadata",
            What::Mutate(_) => "mutate",
        };
        let asked = call::Write { streamed: false, ..ask.clone() };
        let stamp = stamp(operation, ask.idem.as_deref(), &format!("{asked:?}"));
        let repeated =
            stamp.is_some_and(|stamp| record.answers.iter().any(|old| old.stamp.id == stamp.id));
        let change = match &ask.what {
            What::Mutate(_) if repeated => Change::Keep,
            What::Mutate(expressions) => {
                lease::check(&record, &proof, self.now)?;
                Change::Write(self.mutated(&record, expressions)?)
            }
            What::Document(text) => Change::Write(document(text.as_bytes())?),
            What::Remove => Change::Remove,
            What::Metadata => Change::Keep,
        };
        let stage = Stage {
            proof,
            guard: Guard {
                version: ask.if_version.map(Version),
                etag: ask.if_etag.as_deref().map(Into::into),
            },
            change,
            hidden: ask.hidden,
            fences: fences(&ask.fences)?,
            then: match ask.then {
                Then::Stage => state::Then::Stage,
                Then::Commit => state::Then::Commit,
                Then::Release => state::Then::Release,
            },
            alone: false,
            stamp,
        };
        let facts = self.facts(&stage.fences, &record)?;
        let mut staged = state::stage(&record, &stage, &facts, self.now);
        let mut ends = None;
        if let Err(StageRefused::InTxn(InTxn(txn))) = staged {
            let known = self.load_txn(txn)?;
            let alone = known.is_some_and(|known| known.participants.iter().all(|p| p.key == key));
            let stage = Stage { alone, ..stage };
            staged = state::stage(&record, &stage, &facts, self.now);
            ends = Some(txn).filter(|_| stage.then == state::Then::Release);
        }
        let written = self.keep(&key, staged?);
        if let Some(txn) = ends {
            let (outcome, by) = (Outcome::Commit, By::Order);
            match self.settle(&Settle { txn, outcome, by, fences: Vec::new(), term: 0 }) {
                Ok(()) | Err(SettleNo::Refused(_)) => {}
                Err(SettleNo::Other(no)) => return Err(no),
            }
        }
        let version = written.version.0;
        Ok(match ask.what {
            What::Document(_) | What::Mutate(_) => Answer::Written {
                version,
                etag: written.etag.map(|etag| etag.to_string()),
                bytes: written.bytes,
                hidden: written.hidden,
            },
            What::Remove => Answer::Removed { version: written.removed.then_some(version) },
            What::Metadata => Answer::Marked { version, hidden: written.hidden },
        })
    }

    fn mutated(&self, record: &KeyRecord, expressions: &[String]) -> Result<State, No> {
        let mut mutations = Vec::new();
        for expression in expressions {
            mutations.extend(mutate::parse(expression, mutate::Source::Server)?);
        }
        let (_, state) = record.holder_view();
        let before = state.map(bytes_of);
        let when = "2026-01-01T00:00:00Z";
        document(&mutate::apply_within(before, &mutations, when, &NoFiles, LIMITS.bytes_max)?)
    }

    fn release(&mut self, ask: &call::Release) -> Result<Answer, No> {
        let (key, proof) = self.under(ask.key.as_deref(), &ask.held, "fencing_mismatch")?;
        let record = self.load(&key)?;
        let release = lease::Release {
            proof,
            rollback: ask.rollback,
            fences: fences(&ask.fences)?,
            stamp: stamp("release", ask.idem.as_deref(), &format!("{ask:?}")),
        };
        let facts = self.facts(&release.fences, &record)?;
        match lease::release(&record, &release, &facts, self.now) {
            Err(ReleaseRefused::InTxn(InTxn(txn))) => self.release_in(txn, &key, &release)?,
            decided => self.keep(&key, decided?),
        }
        Ok(Answer::Released)
    }

    fn release_in(
        &mut self,
        txn: TxnId,
        key: &KeyName,
        release: &lease::Release,
    ) -> Result<(), No> {
        let outcome =
            if release.rollback { Outcome::Rollback(Why::Asked) } else { Outcome::Commit };
        let (proof, stamp) = (release.proof.clone(), release.stamp);
        let by = By::Holder { key: key.clone(), proof, stamp };
        let ask = Settle { txn, outcome, by, fences: release.fences.clone(), term: 0 };
        match self.settle(&ask) {
            Ok(()) => return Ok(()),
            Err(SettleNo::Refused(DecideRefused::Proof(ProofRefused::Expired))) => {
                self.lapsed(key, txn)?;
            }
            Err(SettleNo::Refused(DecideRefused::Fence(refused))) => {
                return Err(ReleaseRefused::Fence(refused).into());
            }
            Err(SettleNo::Refused(DecideRefused::Proof(refused))) => return Err(refused.into()),
            Err(SettleNo::Refused(_)) => return Err(code("txn_conflict")),
            Err(SettleNo::Other(no)) => return Err(no),
        }
        let record = self.load(key)?;
        let facts = self.facts(&release.fences, &record)?;
        self.keep(key, lease::release(&record, release, &facts, self.now)?);
        Ok(())
    }

    fn answer(&mut self, ask: &Ask) -> Result<Answer, No> {
        match ask {
            Ask::Acquire(acquire) => self.acquire(acquire),
            Ask::Write(write) => self.write(write),
            Ask::Release(release) => self.release(release),
            Ask::Keepalive { key, held, ttl_ms } => {
                let (key, proof) = self.under(key.as_deref(), held, "lease_required")?;
                let ttl = ttl_ms.map_or(TTL_DEFAULT, Span);
                let decided = lease::renew(&self.load(&key)?, &proof, ttl, self.now)?;
                Ok(Answer::Renewed { ttl_ms: self.keep(&key, decided).ttl.0 })
            }
            Ask::View { key, held } => {
                let (key, proof) = self.under(key.as_deref(), held, "lease_required")?;
                let record = self.load(&key)?;
                lease::check(&record, &proof, self.now)?;
                let (version, state) = record.holder_view();
                Ok(Answer::Document(state.map(|state| shown(version, state))))
            }
            Ask::Get { key } => {
                let record = self.load(&key_name(key)?)?;
                let state = record.state.as_ref();
                Ok(Answer::Document(state.map(|state| shown(record.version, state))))
            }
            Ask::Describe { key } => self.describe(&key_name(key)?),
            Ask::Read { keys } => keys
                .iter()
                .map(|key| self.entry(key))
                .collect::<Result<_, _>>()
                .map(Answer::Entries),
            Ask::Revoke { key, reason } => {
                let key = key_name(key)?;
                let record = self.load(&key)?;
                let decided = match lease::revoke(&record, reason, self.now) {
                    Ok(Some(decided)) => decided,
                    Ok(None) => {
                        return Ok(Answer::Revoked { owner: None, token: record.fence.0 });
                    }
                    Err(InTxn(txn)) => return self.revoke_in(txn, key, &record, reason),
                };
                let token = decided.record.as_ref().map_or(record.fence, |next| next.fence);
                let lease = self.keep(&key, decided);
                Ok(Answer::Revoked { owner: Some(lease.owner.into()), token: token.0 })
            }
        }
    }

    fn revoke_in(
        &mut self,
        txn: TxnId,
        key: KeyName,
        record: &KeyRecord,
        reason: &str,
    ) -> Result<Answer, No> {
        let owner = record.lease.as_ref().map(|lease| lease.owner.to_string());
        let why = Why::Revoked { key, reason: reason.into() };
        let (outcome, by) = (Outcome::Rollback(why), By::Order);
        match self.settle(&Settle { txn, outcome, by, fences: Vec::new(), term: 0 }) {
            Ok(()) => Ok(Answer::Revoked { owner, token: record.fence.next().0 }),
            Err(SettleNo::Refused(_)) => Err(code("txn_conflict")),
            Err(SettleNo::Other(no)) => Err(no),
        }
    }

    fn describe(&self, key: &KeyName) -> Result<Answer, No> {
        let record = self.load(key)?;
        let lease = record.live_lease(self.now);
        Ok(Answer::Described(Described {
            owner: lease.map(|lease| lease.owner.to_string()),
            left_ms: lease.map(|lease| lease.expires.remaining(self.now).0),
            token: record.fence.0,
            version: record.version.0,
            etag: record.state.as_ref().map(|state| state.etag.to_string()),
            hidden: record.hidden,
        }))
    }

    fn entry(&self, key: &str) -> Result<Entry, No> {
        let record = self.load(&key_name(key)?)?;
        let text = record.state.as_ref().map(|state| shown(record.version, state).text);
        Ok(Entry { key: key.to_owned(), version: record.version.0, text })
    }

    fn reap(&mut self) {
        for key in self.stored.keys().cloned().collect::<Vec<_>>() {
            let record = self.load(&key).unwrap_or_default();
            match lease::lapse(&record, self.now) {
                Ok(Some(decided)) => self.keep(&key, decided),
                Ok(None) => {}
                Err(InTxn(txn)) => drop(self.lapsed(&key, txn).is_ok()),
            }
        }
    }
}

/// Why a transaction was not settled.
enum SettleNo {
    Refused(DecideRefused),
    Other(No),
}

impl From<No> for SettleNo {
    fn from(no: No) -> Self {
        Self::Other(no)
    }
}

impl Ring for CoreRing {
    fn name(&self) -> &'static str {
        match self.reaping {
            Reaping::Eager => "rules",
            Reaping::Never => "rules without a reaper",
        }
    }

    fn ask(&mut self, ask: &Ask) -> Answer {
        if self.reaping == Reaping::Eager {
            self.reap();
        }
        self.answer(ask).unwrap_or_else(|Known(refused)| Answer::Refused(refused))
    }

    fn advance(&mut self, ms: u64) {
        self.now.tick = self.now.tick.plus(Span(ms));
        self.now.wall = self.now.wall.plus(Span(ms));
    }

    fn step_wall(&mut self, by_ms: i64) {
        self.now.wall = UnixMillis(self.now.wall.0.saturating_add_signed(by_ms));
    }

    fn restart(&mut self, reboot: bool) {
        if reboot {
            self.now.tick = Tick(1);
            self.timeline.boot.0 += 1;
        }
        self.timeline.start = self.now;
        // A new process knows the leases that are in the store, not those that ended before, and
        // puts them on its own timeline.
        self.by_lease.clear();
        for key in self.stored.keys().cloned().collect::<Vec<_>>() {
            let record = self.load(&key).unwrap_or_default();
            if let Some(lease) = &record.lease {
                self.by_lease.insert(lease.id.clone(), key.clone());
                self.stored.insert(key, codec::encode(&record, self.timeline.boot));
            }
        }
    }
}

fn key_name(key: &str) -> Result<KeyName, No> {
    KeyName::parse(NAMESPACE, key).map_err(|_| code("invalid_key"))
}

fn fences(fences: &[call::Fence]) -> Result<Vec<FenceCondition>, No> {
    let condition = |fence: &call::Fence| {
        let key = KeyName::parse_full(&fence.name).map_err(|_| code("invalid_fence"))?;
        Ok(FenceCondition { key, token: Fence(fence.token) })
    };
    fences.iter().map(condition).collect()
}

fn document(text: &[u8]) -> Result<State, No> {
    let bytes = lockd_json::compact(text, LIMITS).map_err(|_| code("invalid_body"))?;
    let etag = Etag(Sha256::digest(&bytes).into());
    Ok(State { etag, bytes: bytes.len() as u64, content: Content::Inline(bytes.into()) })
}

fn bytes_of(state: &State) -> &[u8] {
    match &state.content {
        Content::Inline(bytes) => bytes,
        Content::Blob(_) => &[],
    }
}

fn shown(version: Version, state: &State) -> Document {
    Document { version: version.0, text: String::from_utf8_lossy(bytes_of(state)).into() }
}

fn stamp(operation: &str, idem: Option<&str>, request: &str) -> Option<Stamp> {
    let idem = idem?;
    Some(Stamp { id: hash(&[operation, idem]), request: hash(&[request]) })
}

fn hash(parts: &[&str]) -> u128 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish().into()
}
