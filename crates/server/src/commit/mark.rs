//! Marks in the place of messages that are not there and must not come: a record without a message.
//! Whoever is about to put a message there finds the place taken.

use bytes::Bytes;
use lockd_core::key::KeyName;
use lockd_core::record::KeyRecord;
use lockd_store::{Expect, Op, StoreError, Write, codec};

use super::{Records, record_name};

/// Under this prefix, a day and a name: a mark, to be removed after that day.
pub(crate) const MARK_PREFIX: &str = "z/";
pub(crate) const DAY_MS: u64 = 24 * 3_600_000;

/// What was found in the place of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forbidden {
    /// Nothing, and nothing will be.
    Now,
    /// The mark of somebody who was here before.
    Before,
    /// The message; or it was there and is gone.
    Exists,
}

impl Records {
    /// Makes sure that a message which is not there never will be.
    pub(crate) async fn forbid(&self, key: &KeyName) -> Result<Forbidden, StoreError> {
        let day = self.clock.now().wall.0 / DAY_MS;
        let entry = Op {
            name: format!("{MARK_PREFIX}{day:08}/{}", key.as_str()).into(),
            expect: Expect::Any,
            write: Write::Put(Bytes::new()),
        };
        let bytes = codec::encode(&KeyRecord::default(), self.clock.timeline().boot);
        let mark = Op { name: record_name(key), expect: Expect::Never, write: Write::Put(bytes) };
        match self.commit_plain(vec![entry, mark]).await {
            Ok(()) => Ok(Forbidden::Now),
            Err(StoreError::Conflict) => {
                let stored = self.store.load(&record_name(key)).await?;
                let record = self.decode(key, stored.as_ref())?;
                let is_mark = record.stored && record.message.is_none();
                Ok(if is_mark { Forbidden::Before } else { Forbidden::Exists })
            }
            Err(error) => Err(error),
        }
    }
}
