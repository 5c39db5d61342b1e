//! Collecting blobs that nothing names: left behind by a crash, or by a delete that failed. No
//! clock decides: a blob goes only when its key's record does not name it and the lease under
//! which it was uploaded is over there, so that nobody can install it any more.

use std::sync::Arc;

use lockd_core::key::KeyName;
use lockd_core::queue::{self, Role};
use lockd_core::record::KeyRecord;
use lockd_store::StoreError;

use super::document::parse_blob_name;
use super::{App, Refused};

const PAGE: usize = 256;

impl App {
    /// Looks at every blob once; how many were removed.
    pub(crate) async fn collect(self: &Arc<Self>) -> Result<usize, StoreError> {
        let mut removed = 0;
        let mut after: Option<String> = None;
        loop {
            let page = self.records.store().list_blobs(after.as_deref(), PAGE).await?;
            for name in &page {
                if self.tasks.is_stopping() {
                    return Ok(removed);
                }
                if self.is_garbage(name).await? {
                    self.records.store().delete_blob(name).await?;
                    removed += 1;
                }
            }
            match page.last() {
                Some(last) => after = Some(last.clone()),
                None => return Ok(removed),
            }
        }
    }

    async fn is_garbage(self: &Arc<Self>, name: &str) -> Result<bool, StoreError> {
        // A name of another shape is not ours to judge.
        let Some((key, token)) = parse_blob_name(name) else { return Ok(false) };
        if queue::role(&key) == Some(Role::Message) {
            return self.is_lost_payload(&key, name).await;
        }
        let record = self.ended_if_over(&key).await?;
        let named = record.blobs().any(|blob| **blob == *name);
        let uploading = record.lease.is_some() && record.fence == token;
        Ok(!named && !uploading)
    }

    /// The record, after a lease whose time is over was ended in it.
    async fn ended_if_over(self: &Arc<Self>, key: &KeyName) -> Result<KeyRecord, StoreError> {
        match self.lapse(key).await {
            Ok(_) => self.records.load(key).await,
            Err(Refused::Store(error)) => Err(error),
            Err(refused) => Err(StoreError::Unavailable(refused.to_string())),
        }
    }
}
