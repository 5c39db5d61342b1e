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
#[cfg(feature = "object")]
pub mod object;
pub mod port;
#[cfg(any(test, feature = "conformance"))]
pub mod stepwise;
pub mod time;

#[cfg(feature = "embedded")]
pub use embedded::{EmbeddedOptions, EmbeddedStore, OpenError};
pub use mem::MemStore;
#[cfg(feature = "object")]
pub use object::ObjectStore;
pub use port::{
    Abilities, BlobReader, BlobWriter, Expect, Gauges, Name, Observer, Op, Page, Revision, Store,
    StoreError, Stored, Write, is_blob_name,
};
pub use time::{StoreNow, StoreTime, TimeEstimate, TimeUnknown};
