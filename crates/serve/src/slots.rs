//! The slots of a port, one for each open connection. When all are taken, or all that one client
//! address may have, the connection that has been silent the longest loses its slot to the
//! newcomer: first those that never completed a request, then those between two requests. A
//! connection with a request in progress never loses its slot.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// TLS handshakes in progress at once: each costs memory before its client has shown anything.
const HANDSHAKES_MAX: usize = 1_024;
/// A connection that completed a request loses its slot only after this much silence: between two
/// requests of a busy client lies less.
const SILENT_MIN: Duration = Duration::from_secs(1);
/// So many connections are tried when the most silent one begins a request at the same moment.
const EVICT_ATTEMPTS: usize = 4;
/// The first bits of an IPv6 address, which name the network of a client: it has all addresses in it.
const V6_CLIENT_BITS: u32 = 64;

/// How many connections one client address may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerAddress {
    /// Half of all; any number from this machine, where proxies and tunnels end.
    #[default]
    Auto,
    /// So many, from this machine too.
    Most(usize),
}

/// How far a connection had come when it lost its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionStage {
    /// In its TLS handshake.
    Handshake,
    /// Before the end of the head of its first request.
    FirstRequest,
    /// Between two requests.
    Idle,
}

/// All slots are taken, and no connection is silent enough to lose its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSlot;

/// What counts as one client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Network {
    V4(Ipv4Addr),
    V6(u128),
}

impl Network {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(Ipv6Addr::to_bits(address) >> (128 - V6_CLIENT_BITS)),
        }
    }
}

/// The slots of one port, or of several that share them.
#[derive(Debug)]
pub struct Slots {
    max: usize,
    per_address: PerAddress,
    open: Mutex<Open>,
}

/// By number, which is the order of arrival.
type ByArrival = BTreeMap<u64, Arc<Slot>>;

#[derive(Debug, Default)]
struct Open {
    last: u64,
    by_network: HashMap<Network, usize>,
    handshaking: ByArrival,
    /// Without a first request.
    unspoken: ByArrival,
    spoken: ByArrival,
    closing: bool,
}

impl Slots {
    #[must_use]
    pub fn new(max: usize, per_address: PerAddress) -> Arc<Self> {
        Arc::new(Self { max: max.max(1), per_address, open: Mutex::default() })
    }

    /// A slot for a connection that was accepted just now, and the stage of the connection that
    /// lost it, if one did.
    pub(crate) fn join(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        handshake: bool,
    ) -> Result<(SlotGuard, Option<ConnectionStage>), NoSlot> {
        let network = address.map(Network::of);
        let mut open = self.open.lock();
        let mut lost = None;
        let most = address.and_then(|address| self.most_of(address));
        if let (Some(network), Some(most)) = (network, most)
            && open.by_network.get(&network).is_some_and(|count| *count >= most)
        {
            lost = Some(open.evict(|slot| slot.network == Some(network)).ok_or(NoSlot)?);
        }
        if open.count() >= self.max {
            lost = Some(open.evict(|_| true).ok_or(NoSlot)?);
        }
        if handshake && open.handshaking.len() >= HANDSHAKES_MAX {
            lost = open.evict_handshake().or(lost);
        }
        let slot = Arc::new(Slot::new(network));
        if open.closing {
            slot.wind_down();
        }
        open.last += 1;
        let number = open.last;
        if let Some(network) = network {
            *open.by_network.entry(network).or_default() += 1;
        }
        let stage = if handshake { &mut open.handshaking } else { &mut open.unspoken };
        stage.insert(number, Arc::clone(&slot));
        drop(open);
        Ok((SlotGuard { slots: Arc::clone(self), number, slot }, lost))
    }

    /// Takes the slot of a silent connection, for when there are no files left to accept another.
    pub(crate) fn make_room(&self) -> Option<ConnectionStage> {
        self.open.lock().evict(|_| true)
    }

    /// From now on connections end after the requests that are in progress.
    pub(crate) fn close(&self) {
        let mut open = self.open.lock();
        open.closing = true;
        let all = [&open.handshaking, &open.unspoken, &open.spoken];
        all.into_iter().flat_map(BTreeMap::values).for_each(|slot| slot.wind_down());
    }

    fn most_of(&self, address: IpAddr) -> Option<usize> {
        match self.per_address {
            PerAddress::Auto if address.to_canonical().is_loopback() => None,
            PerAddress::Auto => Some((self.max / 2).max(1)),
            PerAddress::Most(most) => Some(most),
        }
    }
}

impl Open {
    fn count(&self) -> usize {
        self.handshaking.len() + self.unspoken.len() + self.spoken.len()
    }

    /// Takes the slot of the connection that has been silent the longest.
    fn evict(&mut self, of: impl Fn(&Slot) -> bool) -> Option<ConnectionStage> {
        let oldest = |stage: &ByArrival| {
            let mut fitting = stage.iter().filter(|(_, slot)| of(slot));
            fitting.find(|(_, slot)| slot.evict_from(0)).map(|(number, _)| *number)
        };
        // The older of the two oldest goes first; both may be kept by an answer on its way.
        let first = |stage: &ByArrival| stage.first_key_value().map(|(number, _)| *number);
        let (handshaking, unspoken) = (&self.handshaking, &self.unspoken);
        let found = if first(handshaking) < first(unspoken) {
            oldest(handshaking).or_else(|| oldest(unspoken))
        } else {
            oldest(unspoken).or_else(|| oldest(handshaking))
        };
        if let Some(number) = found {
            return self.remove(number);
        }
        // A request may begin between the look and the grip: then the next one is tried.
        for _ in 0..EVICT_ATTEMPTS {
            let fitting = self.spoken.iter().filter(|(_, slot)| of(slot));
            let silent = fitting.filter_map(|(number, slot)| Some((slot.silent_for()?, number)));
            let (silent, number) = silent.max_by_key(|(silent, _)| *silent)?;
            if silent < SILENT_MIN {
                return None;
            }
            let number = *number;
            if self.spoken.get(&number).is_some_and(|slot| slot.evict_from(SPOKEN)) {
                return self.remove(number);
            }
        }
        None
    }

    fn evict_handshake(&mut self) -> Option<ConnectionStage> {
        let mut all = self.handshaking.iter();
        let oldest = all.find(|(_, slot)| slot.evict_from(0)).map(|(number, _)| *number)?;
        self.remove(oldest)
    }

    /// Where the connection stood; nothing when it had lost its slot before.
    fn remove(&mut self, number: u64) -> Option<ConnectionStage> {
        let stages = [
            (ConnectionStage::Handshake, &mut self.handshaking),
            (ConnectionStage::FirstRequest, &mut self.unspoken),
            (ConnectionStage::Idle, &mut self.spoken),
        ];
        let found = stages
            .into_iter()
            .find_map(|(stage, all)| all.remove(&number).map(|slot| (stage, slot)));
        let (stage, slot) = found?;
        if let Some(network) = slot.network
            && let Some(count) = self.by_network.get_mut(&network)
        {
            *count -= 1;
            if *count == 0 {
                self.by_network.remove(&network);
            }
        }
        Some(stage)
    }
}

/// The state of a slot: lost to another, has had a request, and how many are in progress.
const LOST: u64 = 1;
const SPOKEN: u64 = 2;
const REQUEST: u64 = 4;

/// What is known of one connection.
#[derive(Debug)]
pub(crate) struct Slot {
    network: Option<Network>,
    since: Instant,
    state: AtomicU64,
    /// When the latest request ended, in nanoseconds after `since`.
    silent_since: AtomicU64,
    closing: AtomicBool,
    /// Set off when the slot is lost, and when the connection is to end.
    nudge: Notify,
}

impl Slot {
    fn new(network: Option<Network>) -> Self {
        Self {
            network,
            since: Instant::now(),
            state: AtomicU64::new(0),
            silent_since: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            nudge: Notify::new(),
        }
    }

    fn age_nanos(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long no request has been in progress; nothing while one is.
    fn silent_for(&self) -> Option<Duration> {
        if self.state.load(Ordering::Acquire) >= REQUEST {
            return None;
        }
        let silent = self.age_nanos().saturating_sub(self.silent_since.load(Ordering::Relaxed));
        Some(Duration::from_nanos(silent))
    }

    /// Takes the slot away unless a request has begun.
    fn evict_from(&self, state: u64) -> bool {
        let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = self.state.compare_exchange(state, state | LOST, acquire, relaxed).is_ok();
        if taken {
            self.nudge.notify_one();
        }
        taken
    }

    fn wind_down(&self) {
        self.closing.store(true, Ordering::Release);
        self.nudge.notify_one();
    }
}

/// The slot of a connection, which leaves it when this goes.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    slots: Arc<Slots>,
    number: u64,
    slot: Arc<Slot>,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.slots.open.lock().remove(self.number);
    }
}

impl SlotGuard {
    /// The TLS handshake is complete.
    pub(crate) fn handshaken(&self) {
        let mut open = self.slots.open.lock();
        if let Some(slot) = open.handshaking.remove(&self.number) {
            open.unspoken.insert(self.number, slot);
        }
    }

    /// Ready when the slot is lost or the connection is to end.
    pub(crate) async fn nudged(&self) {
        self.slot.nudge.notified().await;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.slot.state.load(Ordering::Acquire) & LOST != 0
    }

    /// The connection ends after the requests that are in progress.
    pub(crate) fn wind_down(&self) {
        self.slot.wind_down();
    }

    /// Whether no request has been in progress for so long.
    pub(crate) fn is_silent(&self, span: Duration) -> bool {
        self.slot.silent_for().is_some_and(|silent| silent >= span)
    }

    /// Ready when the head of a first request is not complete after `first`, or no request was in
    /// progress for `idle`. One timer for a connection, none for a request.
    pub(crate) async fn overdue(&self, first: Duration, idle: Duration) {
        tokio::time::sleep(first).await;
        if self.slot.state.load(Ordering::Acquire) & SPOKEN == 0 {
            return;
        }
        loop {
            let left = match self.slot.silent_for() {
                None => idle,
                Some(silent) if silent >= idle => return,
                Some(silent) => idle.saturating_sub(silent),
            };
            tokio::time::sleep(left).await;
        }
    }

    /// For the requests of the connection.
    pub(crate) fn counter(&self) -> RequestCounter {
        let slot = Arc::clone(&self.slot);
        RequestCounter { slots: Arc::clone(&self.slots), number: self.number, slot }
    }
}

/// Counts the requests of a connection.
#[derive(Clone, Debug)]
pub(crate) struct RequestCounter {
    slots: Arc<Slots>,
    number: u64,
    slot: Arc<Slot>,
}

impl RequestCounter {
    /// A request whose head is complete. Nothing when the connection has lost its slot: it is
    /// about to be closed, and the request was not looked at.
    pub(crate) fn begin(&self) -> Option<InProgress> {
        let before = self.slot.state.fetch_add(REQUEST, Ordering::AcqRel);
        if before & LOST != 0 {
            return None;
        }
        if before & SPOKEN == 0 {
            self.first();
        }
        Some(InProgress(Arc::clone(&self.slot)))
    }

    /// The client has not taken all of an answer yet: its request is still in progress.
    pub(crate) fn sending(&self) -> InProgress {
        self.slot.state.fetch_add(REQUEST, Ordering::AcqRel);
        InProgress(Arc::clone(&self.slot))
    }

    #[cold]
    fn first(&self) {
        let mut open = self.slots.open.lock();
        self.slot.state.fetch_or(SPOKEN, Ordering::AcqRel);
        let slot = open.unspoken.remove(&self.number);
        if let Some(slot) = slot.or_else(|| open.handshaking.remove(&self.number)) {
            open.spoken.insert(self.number, slot);
        }
    }
}

/// A request in progress, until it was answered or given up.
#[derive(Debug)]
pub(crate) struct InProgress(Arc<Slot>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.silent_since.store(self.0.age_nanos(), Ordering::Relaxed);
        self.0.state.fetch_sub(REQUEST, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
