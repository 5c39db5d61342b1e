//! Attaching bytes of any kind to a key, and reading them. They stream into a blob of their own
//! before any record names them, like large documents.

use std::sync::Arc;

use lockd_core::attachment::{self, Attach, AttachRefused, Attached, Detached, Which};
use lockd_core::fence::FenceFacts;
use lockd_core::key::KeyName;
use lockd_core::lease::{self, Proof};
use lockd_core::limits::ATTACHMENT_INLINE_BYTES_MAX;
use lockd_core::record::{Attachment, KeyRecord};
use lockd_core::time::Now;
use lockd_store::StoreError;

use super::document::{Bound, Expected, Pieces, Upload};
use super::read::{ATTEMPTS_MAX, Document, Missed};
use super::{App, Refused};
use crate::commit::CommitError;
use crate::tasks::Complete;

/// An attachment on its way in.
#[derive(Clone, Debug)]
pub(crate) struct AttachAsk {
    pub(crate) key: KeyName,
    pub(crate) proof: Proof,
    pub(crate) name: Box<str>,
    pub(crate) content_type: Box<str>,
    /// `None`: no bound.
    pub(crate) bytes_max: Option<u64>,
    pub(crate) keep_existing: bool,
    pub(crate) expected: Expected,
}

/// Who looks.
#[derive(Clone, Debug)]
pub(crate) enum Viewer {
    Public,
    Holder(Proof),
}

impl App {
    /// Takes in an attachment and stages it.
    pub(crate) async fn attach(
        self: &Arc<Self>,
        ask: AttachAsk,
        body: &mut Pieces,
    ) -> Result<Attached, Refused> {
        let token = self.check(&ask.key, &ask.proof).await?;
        if ask.keep_existing
            && let Some(kept) = self.kept(&ask).await?
        {
            return Ok(kept);
        }
        let inline_max = ATTACHMENT_INLINE_BYTES_MAX;
        let upload = Upload { app: self, key: &ask.key, token, inline_max };
        let bound = ask.bytes_max.map(|max| {
            let too_large = |max| Refused::AttachmentTooLarge { max };
            Bound { max, too_large }
        });
        let taken = upload.take_raw(body, &ask.expected, bound, Some(&ask.proof)).await;
        if matches!(taken, Err(Refused::Contended)) {
            self.check(&ask.key, &ask.proof).await?;
        }
        let incoming = self.counted(taken)?;
        let now = self.clock().now().wall;
        let command = Attach {
            proof: ask.proof,
            attachment: Attachment {
                id: self.ids.uuid(now).to_string().into(),
                name: ask.name,
                content_type: ask.content_type,
                created_at: now,
                updated_at: now,
                body: incoming.state.clone(),
            },
            keep_existing: ask.keep_existing,
        };
        let app = Arc::clone(self);
        self.tasks
            .complete(async move {
                let mut named = false;
                let decide = |record: &KeyRecord, _: &FenceFacts, now: Now| {
                    let decided = attachment::attach(record, &command, now)?;
                    named = decided.record.is_some();
                    Ok::<_, AttachRefused>(decided)
                };
                let outcome = app.records.commit(&ask.key, &[], decide).await;
                // A write of unknown outcome may have named the blob: then the collector decides.
                let unknown = matches!(outcome, Err(CommitError::Store(StoreError::Unknown(_))));
                if unknown || (named && outcome.is_ok()) {
                    incoming.settled();
                }
                app.counted(outcome.map_err(Refused::from))
            })
            .await
    }

    /// The attachment that is to stay, if there is one: then nothing needs to be taken in.
    async fn kept(self: &Arc<Self>, ask: &AttachAsk) -> Result<Option<Attached>, Refused> {
        let record = self.records.load(&ask.key).await?;
        let known = record.holder_attachments().iter().find(|known| known.name == ask.name);
        let (version, _) = record.holder_view();
        Ok(known.map(|known| Attached { attachment: known.clone(), kept: true, version }))
    }

    /// Stages the removal of attachments.
    pub(crate) fn detach(
        self: &Arc<Self>,
        key: KeyName,
        proof: Proof,
        which: Which,
    ) -> Complete<Result<Detached, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let decide = |record: &KeyRecord, _: &FenceFacts, now: Now| {
                attachment::detach(record, &proof, &which, now)
            };
            let outcome = app.records.commit(&key, &[], decide).await;
            app.counted(outcome.map_err(Refused::from))
        })
    }

    /// The attachments of a key.
    pub(crate) async fn attachments(
        &self,
        key: &KeyName,
        viewer: &Viewer,
    ) -> Result<Vec<Attachment>, Refused> {
        let record = self.records.load(key).await?;
        Ok(self.seen_by(&record, viewer)?.to_vec())
    }

    /// One attachment, opened for reading.
    pub(crate) async fn attachment(
        &self,
        key: &KeyName,
        viewer: &Viewer,
        which: &Which,
    ) -> Result<(Attachment, Document), Refused> {
        let mut missed = Missed::default();
        for _ in 0..ATTEMPTS_MAX {
            let record = self.records.load(key).await?;
            let seen = self.seen_by(&record, viewer)?;
            let found = seen.iter().find(|attachment| which.is(attachment)).cloned();
            let found = found.ok_or(Refused::NoAttachment)?;
            match self.open(record.version, Some(&found.body)).await {
                Err(StoreError::NoBlob) => missed.again(Some(&found.body))?,
                Ok(Some(document)) => return Ok((found, document)),
                Ok(None) => return Err(Refused::NoAttachment),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refused::ReadConflict)
    }

    fn seen_by<'a>(
        &self,
        record: &'a KeyRecord,
        viewer: &Viewer,
    ) -> Result<&'a [Attachment], Refused> {
        match viewer {
            Viewer::Public => Ok(&record.attachments),
            Viewer::Holder(proof) => {
                let checked = lease::check(record, proof, self.clock().now());
                self.counted(checked.map_err(Refused::from))?;
                Ok(record.holder_attachments())
            }
        }
    }
}
