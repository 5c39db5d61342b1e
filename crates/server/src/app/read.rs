//! Reading documents: the committed one for everybody, the staged one for its holder, and several
//! as of one moment. A large document may be replaced between reading its name and opening it;
//! then the name is read again.

use std::sync::Arc;

use bytes::Bytes;
use lockd_core::key::KeyName;
use lockd_core::lease::{self, Proof};
use lockd_core::record::{Content, Etag, KeyRecord, State, Version};
use lockd_store::{BlobReader, StoreError};

use super::{App, Refused};

/// How often a document may slip away while it is opened.
pub(super) const ATTEMPTS_MAX: usize = 8;

/// A document, ready to be sent.
pub(crate) struct Document {
    pub(crate) version: Version,
    pub(crate) etag: Etag,
    pub(crate) bytes: u64,
    pub(crate) content: Source,
}

pub(crate) enum Source {
    Inline(Bytes),
    Blob(Box<dyn BlobReader>),
}

/// One key of a read of several.
pub(crate) struct Entry {
    pub(crate) key: KeyName,
    pub(crate) version: Version,
    pub(crate) document: Option<Document>,
}

impl App {
    /// The committed document.
    pub(crate) async fn get_public(&self, key: &KeyName) -> Result<Option<Document>, Refused> {
        let mut missed = Missed::default();
        for _ in 0..ATTEMPTS_MAX {
            let record = self.records.load(key).await?;
            match self.open(record.version, record.state.as_ref()).await {
                Err(StoreError::NoBlob) => missed.again(record.state.as_ref())?,
                opened => return Ok(opened?),
            }
        }
        Err(Refused::ReadConflict)
    }

    /// What the holder sees, and its token.
    pub(crate) async fn get_held(
        &self,
        key: &KeyName,
        proof: &Proof,
    ) -> Result<(Option<Document>, u64), Refused> {
        let mut missed = Missed::default();
        for _ in 0..ATTEMPTS_MAX {
            let record = self.records.load(key).await?;
            let checked = lease::check(&record, proof, self.clock().now());
            self.counted(checked.map_err(Refused::from))?;
            let (version, state) = record.holder_view();
            match self.open(version, state).await {
                Err(StoreError::NoBlob) => missed.again(state)?,
                opened => return Ok((opened?, record.fence.0)),
            }
        }
        Err(Refused::ReadConflict)
    }

    pub(crate) async fn describe(&self, key: &KeyName) -> Result<KeyRecord, Refused> {
        Ok(self.records.load(key).await?)
    }

    /// Several committed documents as of one moment, all opened before any is sent.
    pub(crate) async fn read_many(&self, keys: Vec<KeyName>) -> Result<Vec<Entry>, Refused> {
        let mut missed = Missed::default();
        for _ in 0..ATTEMPTS_MAX {
            let records = match self.records.load_many(&keys).await {
                Ok(records) => records,
                // They changed between any two looks at all of them.
                Err(StoreError::Conflict) => return Err(Refused::ReadConflict),
                Err(error) => return Err(error.into()),
            };
            if let Some(entries) = self.open_all(&keys, &records, &mut missed).await? {
                return Ok(entries);
            }
        }
        Err(Refused::ReadConflict)
    }

    /// `None` when one of them slipped away.
    async fn open_all(
        &self,
        keys: &[KeyName],
        records: &[KeyRecord],
        missed: &mut Missed,
    ) -> Result<Option<Vec<Entry>>, StoreError> {
        let mut entries = Vec::with_capacity(keys.len());
        for (key, record) in keys.iter().zip(records) {
            let document = match self.open(record.version, record.state.as_ref()).await {
                Err(StoreError::NoBlob) => {
                    missed.again(record.state.as_ref())?;
                    return Ok(None);
                }
                opened => opened?,
            };
            entries.push(Entry { key: key.clone(), version: record.version, document });
        }
        Ok(Some(entries))
    }

    pub(super) async fn open(
        &self,
        version: Version,
        state: Option<&State>,
    ) -> Result<Option<Document>, StoreError> {
        let Some(state) = state else { return Ok(None) };
        let content = match &state.content {
            Content::Inline(bytes) => Source::Inline(bytes.clone()),
            Content::Blob(name) => Source::Blob(self.records.store().get_blob(name).await?),
        };
        Ok(Some(Document { version, etag: state.etag, bytes: state.bytes, content }))
    }
}

/// The blob that was not there when it was last looked for.
#[derive(Default)]
pub(super) struct Missed(Option<Arc<str>>);

impl Missed {
    /// A blob goes only after its record has stopped naming it. One that was missed before and is
    /// named by a record read since has not slipped away: it is lost.
    pub(super) fn again(&mut self, state: Option<&State>) -> Result<(), StoreError> {
        let name = state.and_then(State::blob).cloned();
        if name.is_some() && self.0 == name {
            return Err(StoreError::NoBlob);
        }
        self.0 = name;
        Ok(())
    }
}

impl Document {
    /// The whole document in memory, for those who bound its size first.
    pub(crate) async fn into_bytes(self) -> Result<Vec<u8>, StoreError> {
        match self.content {
            Source::Inline(bytes) => Ok(bytes.to_vec()),
            Source::Blob(mut reader) => {
                let mut whole = Vec::new();
                while let Some(piece) = reader.next().await? {
                    whole.extend_from_slice(&piece);
                }
                Ok(whole)
            }
        }
    }
}
