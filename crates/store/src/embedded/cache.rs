//! Records of the tree that are kept in memory. Whoever reads asks for newer records first; what
//! is found here is what the tree holds. A checkpoint brings it up to date while its records are
//! still seen as newer, and a reader adds what it found only if no checkpoint began meanwhile.

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::head::{Entry, Table};
use crate::port::{Name, Revision, Stored};

/// What one record costs beside its name and its bytes, about.
const OVERHEAD_BYTES: u64 = 192;
/// For the first size of the table; it grows.
const RECORD_BYTES_USUAL: u64 = 1024;

pub(super) struct RecordCache {
    records: Cache<Name, Stored, Weight>,
}

#[derive(Clone)]
struct Weight;

impl Weighter<Name, Stored> for Weight {
    fn weight(&self, name: &Name, stored: &Stored) -> u64 {
        (name.len() + stored.bytes.len()) as u64 + OVERHEAD_BYTES
    }
}

impl RecordCache {
    pub(super) fn new(bytes: u64) -> Self {
        let usual = usize::try_from(bytes / RECORD_BYTES_USUAL).unwrap_or(usize::MAX);
        Self { records: Cache::with_weighter(usual, bytes, Weight) }
    }

    pub(super) fn get(&self, name: &str) -> Option<Stored> {
        self.records.get(name)
    }

    /// Keeps a copy of its own: what was read is part of a larger block.
    pub(super) fn keep(&self, name: &str, stored: &Stored) {
        let bytes = Bytes::copy_from_slice(&stored.bytes);
        self.records.insert(name.into(), Stored { bytes, revision: stored.revision });
    }

    /// Takes over what a checkpoint has written to the tree.
    pub(super) fn refresh(&self, table: &Table) {
        for (name, Entry { revision, bytes, .. }) in table.iter() {
            match bytes.clone() {
                Some(bytes) => {
                    let stored = Stored { bytes, revision: Revision(*revision) };
                    self.records.insert(Name::clone(name), stored);
                }
                None => {
                    self.records.remove(&**name);
                }
            }
        }
    }
}
