//! The storage port of lockd and its adapters: records that change by compare-and-swap, and
//! immutable blobs. Nothing here knows what a lease is, except the codec of the key record.

pub mod codec;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(any(test, feature = "conformance"))]
pub mod faulty;
pub mod mem;
pub mod port;
#[cfg(any(test, feature = "conformance"))]
pub mod stepwise;

#[cfg(feature = "embedded")]
pub use embedded::{EmbeddedOptions, EmbeddedStore, OpenError};
pub use mem::MemStore;
pub use port::{
    Abilities, BlobReader, BlobWriter, Expect, Gauges, Name, Observer, Op, Page, Revision, Store,
    StoreError, Stored, Write, is_blob_name,
};
