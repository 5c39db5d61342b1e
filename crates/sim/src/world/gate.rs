//! A store whose answers come when the scheduler says so. Every call becomes a ticket that is
//! first carried out and later answered, each in its own step, so that calls overtake each other
//! and a crash can fall between the two. It can also fail on purpose.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockd_store::{
    Abilities, BlobReader, BlobWriter, Gauges, Name, Op, Page, Revision, Store, StoreError, Stored,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Not done, and the caller knows.
    Unavailable,
    /// Not done, and the caller does not know.
    UnknownLost,
    /// Done, and the caller does not know.
    UnknownDone,
}

/// Carries a call out and returns how to answer it.
type Act = Box<dyn FnOnce(Fault) -> Reply + Send>;
type Reply = Box<dyn FnOnce() + Send>;

struct Ticket {
    /// A commit, or another call that changes something.
    writes: bool,
    act: Option<Act>,
    reply: Option<Reply>,
}

/// The calls that wait for the scheduler.
#[derive(Default)]
struct Board {
    open: bool,
    tickets: Vec<Ticket>,
}

/// The scheduler's side.
#[derive(Clone, Default)]
pub struct Gate(Arc<Mutex<Board>>);

impl Gate {
    /// Whether calls pass without waiting.
    pub fn set_open(&self, open: bool) {
        self.0.lock().open = open;
    }

    /// How many calls wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.lock().tickets.len()
    }

    /// Whether this call has been carried out and only waits to be answered.
    #[must_use]
    pub fn is_carried_out(&self, place: usize) -> bool {
        self.0.lock().tickets.get(place).is_some_and(|ticket| ticket.act.is_none())
    }

    #[must_use]
    pub fn writes(&self, place: usize) -> bool {
        self.0.lock().tickets.get(place).is_some_and(|ticket| ticket.writes)
    }

    /// Carries a waiting call out. It is not answered yet.
    pub fn carry_out(&self, place: usize, fault: Fault) {
        let act = self.0.lock().tickets.get_mut(place).and_then(|ticket| ticket.act.take());
        let Some(act) = act else { return };
        let reply = act(fault);
        if let Some(ticket) = self.0.lock().tickets.get_mut(place) {
            ticket.reply = Some(reply);
        }
    }

    /// Answers a call that was carried out.
    pub fn answer(&self, place: usize) {
        let mut board = self.0.lock();
        if board.tickets.get(place).is_none_or(|ticket| ticket.act.is_some()) {
            return;
        }
        let ticket = board.tickets.remove(place);
        drop(board);
        if let Some(reply) = ticket.reply {
            reply();
        }
    }

    /// Forgets all calls: nobody is left to be answered.
    pub fn clear(&self) {
        let tickets = std::mem::take(&mut self.0.lock().tickets);
        drop(tickets);
    }
}

/// The store's side: passes everything through the gate.
pub struct GatedStore {
    inner: Arc<dyn Store>,
    gate: Gate,
}

impl GatedStore {
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, gate: Gate) -> Self {
        Self { inner, gate }
    }
}

/// The stores inside answer at once; one that does not cannot be simulated.
fn at_once<T>(call: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
    let never = || Err(StoreError::Unavailable("the store inside did not answer at once".into()));
    call.now_or_never().unwrap_or_else(never)
}

fn with_fault<T>(
    fault: Fault,
    call: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let unknown = || StoreError::Unknown("it failed on purpose".into());
    match fault {
        Fault::None => call(),
        Fault::Unavailable => Err(StoreError::Unavailable("it failed on purpose".into())),
        Fault::UnknownLost => Err(unknown()),
        Fault::UnknownDone => match call() {
            // A conflict is known before anything is written.
            Err(StoreError::Conflict) => Err(StoreError::Conflict),
            Ok(_) | Err(_) => Err(unknown()),
        },
    }
}

impl Gate {
    /// One call through the gate.
    fn pass<T: Send + 'static>(
        &self,
        writes: bool,
        call: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let mut board = self.0.lock();
        if board.open {
            drop(board);
            return Box::pin(std::future::ready(call()));
        }
        let (sender, receiver) = oneshot::channel();
        let act: Act = Box::new(move |fault| {
            let outcome = with_fault(fault, call);
            Box::new(move || {
                // Whoever asked may be gone.
                let _heard = sender.send(outcome).is_ok();
            })
        });
        board.tickets.push(Ticket { writes, act: Some(act), reply: None });
        drop(board);
        Box::pin(async move {
            match receiver.await {
                Ok(outcome) => outcome,
                // Forgotten in a crash: the process that asked does not go on either.
                Err(_) => std::future::pending().await,
            }
        })
    }
}

impl Store for GatedStore {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        let (inner, name) = (Arc::clone(&self.inner), Arc::clone(name));
        self.gate.pass(false, move || at_once(inner.load(&name)))
    }

    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>> {
        let (inner, names) = (Arc::clone(&self.inner), names.to_vec());
        self.gate.pass(false, move || at_once(inner.load_many(&names)))
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        let (inner, prefix) = (Arc::clone(&self.inner), prefix.to_owned());
        let after = after.map(str::to_owned);
        self.gate.pass(false, move || at_once(inner.scan(&prefix, after.as_deref(), limit)))
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>> {
        let inner = Arc::clone(&self.inner);
        self.gate.pass(true, move || at_once(inner.commit(ops)))
    }

    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        let gate = self.gate.clone();
        self.gate.pass(false, move || {
            let writer = at_once(inner.put_blob(&name))?;
            Ok(Box::new(GatedWriter { writer, gate }) as Box<dyn BlobWriter>)
        })
    }

    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        self.gate.pass(false, move || at_once(inner.get_blob(&name)))
    }

    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        self.gate.pass(true, move || at_once(inner.delete_blob(&name)))
    }

    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let (inner, after) = (Arc::clone(&self.inner), after.map(str::to_owned));
        self.gate.pass(false, move || at_once(inner.list_blobs(after.as_deref(), limit)))
    }

    fn health(&self) -> Result<(), StoreError> {
        self.inner.health()
    }

    fn gauges(&self) -> Gauges {
        self.inner.gauges()
    }

    /// The store outlives the process that closes it.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct GatedWriter {
    writer: Box<dyn BlobWriter>,
    gate: Gate,
}

impl BlobWriter for GatedWriter {
    fn write(&mut self, chunk: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        self.writer.write(chunk)
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>> {
        let Self { writer, gate } = *self;
        gate.pass(true, move || at_once(writer.finish()))
    }
}
