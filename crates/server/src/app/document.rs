//! Taking in a JSON document of any size: validated and compacted as it streams, small ones kept
//! in memory for the record, large ones written to a blob. Nothing is visible until a commit
//! names it, and what no commit names is removed.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use lockd_core::fence::Fence;
use lockd_core::key::KeyName;
use lockd_core::lease::Proof;
use lockd_core::limits::{INLINE_BYTES_MAX, JSON_DEPTH_MAX};
use lockd_core::record::{Content, Etag, State};
use lockd_json::{Compactor, Limits};
use lockd_store::{BlobWriter, StoreError};
use sha2::{Digest, Sha256};

use super::{App, Refused};

/// How much is handed to a blob at once.
const PIECE_BYTES: usize = 256 * 1024;
/// How often a long upload looks whether its lease still lives.
const LOOK_EVERY_BYTES: u64 = 4 * 1024 * 1024;

/// A request body, piece by piece. It ends by itself when it comes too slowly.
pub(crate) type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, Refused>> + Send>>;

/// What the sender says about the bytes it sends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) bytes: Option<u64>,
    pub(crate) sha256: Option<[u8; 32]>,
}

/// The most that is taken in, and what is said about more.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) max: u64,
    pub(crate) too_large: fn(u64) -> Refused,
}

/// A document that is durable but not yet part of any record.
pub(crate) struct Incoming {
    pub(crate) state: State,
    blob: Option<Orphan>,
}

impl Incoming {
    /// A record names it now, or may: it is no longer ours to remove.
    pub(crate) fn settled(mut self) {
        if let Some(blob) = &mut self.blob {
            blob.name = None;
        }
    }
}

/// Removes a blob that no record came to name.
struct Orphan {
    app: Arc<App>,
    name: Option<Arc<str>>,
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let store = Arc::clone(self.app.records.store());
            self.app.tasks.spawn("drop orphan", async move {
                if let Err(error) = store.delete_blob(&name).await {
                    tracing::warn!(blob = %name, %error, "a blob stays until it is collected");
                }
            });
        }
    }
}

/// Under whose name a document comes in.
pub(crate) struct Upload<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) key: &'a KeyName,
    pub(crate) token: Fence,
    /// Up to this size it is kept for the record itself.
    pub(crate) inline_max: usize,
}

impl<'a> Upload<'a> {
    /// Of the document of a key.
    pub(crate) fn document(app: &'a Arc<App>, key: &'a KeyName, token: Fence) -> Self {
        Self { app, key, token, inline_max: INLINE_BYTES_MAX }
    }

    /// Reads a body of any kind, as it is.
    pub(crate) async fn take_raw(
        &self,
        body: &mut Pieces,
        expected: &Expected,
        bound: Option<Bound>,
        proof: Option<&Proof>,
    ) -> Result<Incoming, Refused> {
        let mut raw_hash = expected.sha256.map(|_| Sha256::new());
        let mut sink = Sink::new();
        let (mut bytes, mut look_at) = (0_u64, LOOK_EVERY_BYTES);
        while let Some(piece) = body.next().await.transpose()? {
            bytes += piece.len() as u64;
            if let Some(bound) = bound.filter(|bound| bytes > bound.max) {
                return Err((bound.too_large)(bound.max));
            }
            if let Some(hash) = &mut raw_hash {
                hash.update(&piece);
            }
            sink.pending.extend_from_slice(&piece);
            if sink.pending.len() >= PIECE_BYTES {
                self.flush(&mut sink).await?;
            }
            if bytes >= look_at {
                look_at = bytes + LOOK_EVERY_BYTES;
                if let Some(proof) = proof {
                    self.app.check(self.key, proof).await?;
                }
            }
        }
        check_expected(expected, bytes, raw_hash)?;
        self.settle(sink).await
    }

    /// Reads a whole body. A long one looks now and then whether its lease is still there, if a
    /// proof is given, so that an upload in vain ends early.
    pub(crate) async fn take(
        &self,
        body: &mut Pieces,
        expected: &Expected,
        proof: Option<&Proof>,
    ) -> Result<Incoming, Refused> {
        let limits = Limits { depth_max: JSON_DEPTH_MAX, bytes_max: self.app.limits.json_max };
        let mut compactor = Compactor::new(limits);
        let mut raw_hash = expected.sha256.map(|_| Sha256::new());
        let mut sink = Sink::new();
        let mut look_at = LOOK_EVERY_BYTES;
        while let Some(piece) = body.next().await.transpose()? {
            if let Some(hash) = &mut raw_hash {
                hash.update(&piece);
            }
            compactor.push(&piece, &mut sink.pending)?;
            if sink.pending.len() >= PIECE_BYTES {
                self.flush(&mut sink).await?;
            }
            if compactor.bytes_in() >= look_at {
                look_at = compactor.bytes_in() + LOOK_EVERY_BYTES;
                if let Some(proof) = proof {
                    self.app.check(self.key, proof).await?;
                }
            }
        }
        check_expected(expected, compactor.bytes_in(), raw_hash)?;
        compactor.finish(&mut sink.pending)?;
        self.settle(sink).await
    }

    /// Takes a document that is in memory already, and known to be compact JSON.
    pub(crate) async fn take_bytes(&self, document: Vec<u8>) -> Result<Incoming, Refused> {
        let mut sink = Sink::new();
        sink.pending = document;
        self.settle(sink).await
    }

    /// Hands what is pending to the blob, opening it first.
    async fn flush(&self, sink: &mut Sink) -> Result<(), Refused> {
        if sink.blob.is_none() {
            let name: Arc<str> = blob_name(self.key, self.token, &self.app.ids.unique()).into();
            let orphan = Orphan { app: Arc::clone(self.app), name: Some(Arc::clone(&name)) };
            let writer = self.app.records.store().put_blob(&name).await?;
            sink.blob = Some(OpenBlob { writer, name, orphan });
        }
        let full = std::mem::replace(&mut sink.pending, Vec::with_capacity(PIECE_BYTES * 5 / 4));
        sink.hash.update(&full);
        sink.bytes += full.len() as u64;
        if let Some(blob) = &mut sink.blob {
            blob.writer.write(Bytes::from(full)).await?;
        }
        Ok(())
    }

    async fn settle(&self, mut sink: Sink) -> Result<Incoming, Refused> {
        if sink.blob.is_none() && sink.pending.len() <= self.inline_max {
            let etag = Etag(Sha256::digest(&sink.pending).into());
            let bytes = sink.pending.len() as u64;
            let content = Content::Inline(Bytes::from(sink.pending));
            return Ok(Incoming { state: State { etag, bytes, content }, blob: None });
        }
        if !sink.pending.is_empty() {
            self.flush(&mut sink).await?;
        }
        let etag = Etag(sink.hash.finalize().into());
        let Some(blob) = sink.blob else {
            return Err(Refused::BodyBroken("the body is empty".into()));
        };
        match blob.writer.finish().await {
            // Collected on the way: the lease under which it came in is over.
            Err(StoreError::NoBlob) => return Err(Refused::Contended),
            finished => finished?,
        }
        let state = State { etag, bytes: sink.bytes, content: Content::Blob(blob.name) };
        Ok(Incoming { state, blob: Some(blob.orphan) })
    }
}

/// Where compacted bytes go.
struct Sink {
    pending: Vec<u8>,
    hash: Sha256,
    bytes: u64,
    blob: Option<OpenBlob>,
}

struct OpenBlob {
    writer: Box<dyn BlobWriter>,
    name: Arc<str>,
    orphan: Orphan,
}

impl Sink {
    fn new() -> Self {
        Self { pending: Vec::new(), hash: Sha256::new(), bytes: 0, blob: None }
    }
}

fn check_expected(expected: &Expected, bytes: u64, hash: Option<Sha256>) -> Result<(), Refused> {
    if let Some(expected) = expected.bytes.filter(|expected| *expected != bytes) {
        return Err(Refused::ExpectedBytes { expected, got: bytes });
    }
    let got: Option<[u8; 32]> = hash.map(|hash| hash.finalize().into());
    match (expected.sha256, got) {
        (Some(expected), Some(got)) if expected != got => {
            Err(Refused::ExpectedSha256 { got: Etag(got).to_string() })
        }
        (Some(_) | None, Some(_) | None) => Ok(()),
    }
}

/// A blob says for which key and under which token it was uploaded, so that the collector can
/// tell whether anybody may still install it.
fn blob_name(key: &KeyName, token: Fence, unique: &str) -> String {
    format!("{}/{}/{}-{unique}", key.namespace(), key.key().replace('/', "~"), token.0)
}

/// The key and token in a blob's name.
pub(crate) fn parse_blob_name(name: &str) -> Option<(KeyName, Fence)> {
    let mut parts = name.split('/');
    let (namespace, key, file) = (parts.next()?, parts.next()?, parts.next()?);
    let (token, _) = file.split_once('-')?;
    if parts.next().is_some() {
        return None;
    }
    let key = KeyName::parse(namespace, &key.replace('~', "/")).ok()?;
    Some((key, Fence(token.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use lockd_core::fence::Fence;
    use lockd_core::key::KeyName;

    use super::{blob_name, parse_blob_name};

    #[test]
    fn the_name_of_a_blob_tells_its_key_and_token() {
        let key = KeyName::parse("ns", "a/b..c").unwrap();
        let name = blob_name(&key, Fence(12), "xyz");
        assert_eq!(name, "ns/a~b..c/12-xyz");
        assert_eq!(parse_blob_name(&name), Some((key, Fence(12))));
        assert_eq!(parse_blob_name("other"), None);
    }
}
