//! Mutations on the server: read what the holder sees, apply, write back if it is still the same.
//! Bounded in size, since the document is held in memory meanwhile.

use std::sync::Arc;

use lockd_core::answer::Written;
use lockd_core::limits::JSON_DEPTH_MAX;
use lockd_core::record::{Change, Etag, KeyRecord, Version};
use lockd_json::Limits;
use lockd_json::mutate::{Mutation, MutationError, NoFiles, apply_within};

use super::document::Upload;
use super::state::WriteAsk;
use super::{App, Refused};

/// How often another write of the same holder may come in between.
const ATTEMPTS_MAX: usize = 8;

/// What a mutation did, beside the write itself.
#[derive(Clone, Debug)]
pub(crate) struct Mutated {
    pub(crate) written: Written,
    pub(crate) bytes_read: u64,
}

impl App {
    pub(crate) async fn mutate(
        self: &Arc<Self>,
        ask: WriteAsk,
        mutations: &[Mutation],
    ) -> Result<Mutated, Refused> {
        if self.was_answered(&ask).await? {
            let written = self.change(ask, Change::Keep).await?;
            return Ok(Mutated { bytes_read: 0, written });
        }
        for _ in 0..ATTEMPTS_MAX {
            let (document, seen) = self.base(&ask).await?;
            let bytes_read = document.as_ref().map_or(0, |document| document.len() as u64);
            let now = rfc3339(self.clock().now().wall.0);
            let max = self.limits.mutate_max.min(self.limits.json_max);
            let changed = apply_within(document.as_deref(), mutations, &now, &NoFiles, max);
            let changed = compact(&changed.map_err(|error| too_large(error, max))?, max)?;
            let token = self.check(&ask.key, &ask.proof).await?;
            let upload = Upload::document(self, &ask.key, token);
            let incoming = upload.take_bytes(changed).await?;
            match self.install(ask.clone(), incoming, move |record| view(record) == seen).await {
                Ok(written) => return Ok(Mutated { written, bytes_read }),
                Err(Refused::Contended) => {}
                Err(refused) => return Err(refused),
            }
        }
        Err(Refused::Contended)
    }

    /// The document the holder sees, and by what it can be known again.
    async fn base(
        &self,
        ask: &WriteAsk,
    ) -> Result<(Option<Vec<u8>>, (Version, Option<Etag>)), Refused> {
        let max = self.limits.mutate_max;
        let (document, _) = self.get_held(&ask.key, &ask.proof).await?;
        let Some(document) = document else {
            let seen = view(&self.records.load(&ask.key).await?);
            return Ok((None, seen));
        };
        if document.bytes > max {
            return Err(Refused::MutateTooLarge { max });
        }
        let seen = (document.version, Some(document.etag));
        Ok((Some(document.into_bytes().await?), seen))
    }

    /// Whether the same request was made before: it must not be done twice.
    pub(super) async fn was_answered(&self, ask: &WriteAsk) -> Result<bool, Refused> {
        let Some(stamp) = ask.stamp else { return Ok(false) };
        let record = self.records.load(&ask.key).await?;
        Ok(record.answers.iter().any(|answer| answer.stamp.id == stamp.id))
    }
}

/// Version and document as the holder sees them.
fn view(record: &KeyRecord) -> (Version, Option<Etag>) {
    let (version, state) = record.holder_view();
    (version, state.map(|state| state.etag))
}

/// The result is checked like any other document that comes in.
fn compact(document: &[u8], max: u64) -> Result<Vec<u8>, Refused> {
    let limits = Limits { depth_max: JSON_DEPTH_MAX, bytes_max: max };
    Ok(lockd_json::compact(document, limits)?)
}

fn too_large(error: MutationError, max: u64) -> Refused {
    match error {
        MutationError::TooLarge { .. } => Refused::MutateTooLarge { max },
        other @ (MutationError::Expression { .. }
        | MutationError::Document(_)
        | MutationError::NotAnObject
        | MutationError::TooMuchWork { .. }) => Refused::Mutation(other),
    }
}

fn rfc3339(unix_ms: u64) -> String {
    let ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).unwrap_or_default().to_string()
}
