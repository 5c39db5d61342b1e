//! Servers that come and go on one store, with a clock that the test moves. On stores that write
//! several records at once, and on one that cannot.

use std::sync::Arc;

use lockd_core::time::{Now, Tick, UnixMillis};
use lockd_server::clock::ManualClock;
use lockd_server::{Parts, Settings};
use lockd_store::stepwise::Stepwise;
use lockd_store::{EmbeddedOptions, EmbeddedStore, MemStore, Store};

use crate::inside::Inside;

const START: Now = Now { tick: Tick(1_000), wall: UnixMillis(1_900_000_000_000) };

/// Kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Embedded,
    /// One record at a time.
    Stepwise,
}

pub const KINDS: [Kind; 3] = [Kind::Memory, Kind::Embedded, Kind::Stepwise];

/// A store that outlives the servers on it, and the time they all share.
pub struct World {
    pub kind: Kind,
    pub store: Arc<dyn Store>,
    pub clock: ManualClock,
    _folder: tempfile::TempDir,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl World {
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store: Arc<dyn Store> = match kind {
            Kind::Memory | Kind::Stepwise => Arc::new(MemStore::new()),
            Kind::Embedded => EmbeddedStore::open(EmbeddedOptions::new(folder.path().join("data")))
                .expect("a store"),
        };
        Self { kind, store, clock: ManualClock::at(START), _folder: folder }
    }

    #[must_use]
    pub fn server(&self) -> Inside {
        self.server_on(Arc::clone(&self.store))
    }

    /// A server that sees the store through another one.
    #[must_use]
    pub fn server_on(&self, store: Arc<dyn Store>) -> Inside {
        let store = match self.kind {
            Kind::Stepwise => Arc::new(Stepwise::new(store)),
            Kind::Memory | Kind::Embedded => store,
        };
        let parts =
            Parts { clock: Arc::new(self.clock.clone()), store: Some(store), ..Parts::default() };
        Inside::with_parts(Settings::embedded_defaults(), parts)
    }
}
