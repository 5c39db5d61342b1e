//! The one way in which a record changes: a conditional PUT, and when its outcome is not known,
//! looking until it is. A write is never sent a second time unless the store has shown that it has
//! not happened; the same bytes under the same condition can then only take effect once.

use std::sync::Arc;

use bytes::Bytes;
use object_store::{PutMode, PutOptions, UpdateVersion};

use super::envelope::Envelope;
use super::reach::Operation;
use super::{Fault, Known, Shared, payload};
use crate::port::{Expect, Name, Op, Revision, StoreError, Write};

impl Shared {
    pub(super) async fn write(&self, op: Op) -> Result<Revision, StoreError> {
        let Op { name, expect, write } = op;
        let bytes = match write {
            Write::Check => return self.check(&name, expect).await,
            Write::Put(bytes) => Some(bytes),
            Write::Delete => None,
        };
        match (expect, bytes) {
            (Expect::Any, Some(bytes)) => self.overwrite(name, bytes).await,
            (Expect::Any, None) => {
                // Nobody's decision depends on it: it need not hold its place.
                self.known.remove(&name);
                self.remove(&self.record_path(&name)).await?;
                Ok(Revision(1))
            }
            (Expect::Absent | Expect::Never | Expect::Revision(_), bytes) => {
                self.swap(name, expect, bytes).await
            }
        }
    }

    async fn check(&self, name: &Name, expect: Expect) -> Result<Revision, StoreError> {
        let current = self.look(name).await?.and_then(|found| found.envelope.stored());
        let revision = current.map(|stored| stored.revision);
        if expect.is_met_by(revision) {
            Ok(revision.unwrap_or(Revision(1)))
        } else {
            Err(StoreError::Conflict)
        }
    }

    /// For what everybody may write: the last one wins.
    async fn overwrite(&self, name: Name, bytes: Bytes) -> Result<Revision, StoreError> {
        let envelope = Envelope::after(None, rand::random(), Some(bytes));
        let (path, object) = (self.record_path(&name), payload(envelope.encode()));
        let mut patience = self.patience();
        loop {
            let put = self.bucket.put_opts(&path, object.clone(), PutOptions::default());
            match self.ask(Operation::Write, put).await {
                Ok(_) => {
                    self.known.remove(&name);
                    return Ok(envelope.revision);
                }
                Err((Fault::Refused | Fault::Rejected, why)) => {
                    return Err(StoreError::Unavailable(why));
                }
                Err((_, why)) => {
                    if !patience.wait().await {
                        return Err(StoreError::Unknown(why));
                    }
                }
            }
        }
    }

    /// Replaces what is there by what is to be there, `None` by a tombstone.
    async fn swap(
        &self,
        name: Name,
        expect: Expect,
        bytes: Option<Bytes>,
    ) -> Result<Revision, StoreError> {
        let nonce: u128 = rand::random();
        let mut before = self.guess(&name, expect).await?;
        loop {
            let envelope = Envelope::after(
                before.as_ref().map(|known| &*known.envelope),
                nonce,
                bytes.clone(),
            );
            let envelope = Arc::new(envelope);
            match self.put_over(&name, before.as_ref(), &envelope, nonce).await? {
                Put::Done(version) => {
                    let revision = envelope.revision;
                    if let Some(version) = version {
                        self.known.insert(name, Known { version, envelope });
                    }
                    return Ok(revision);
                }
                // A tombstone that was not known of holds the place of what is absent.
                Put::Tombstone(tombstone) if expect == Expect::Absent && before.is_none() => {
                    before = Some(tombstone);
                }
                Put::Tombstone(_) | Put::Lost => return Err(StoreError::Conflict),
            }
        }
    }

    /// What should be there if the expectation holds. It is a guess: the PUT will tell.
    async fn guess(&self, name: &Name, expect: Expect) -> Result<Option<Known>, StoreError> {
        let fits =
            |known: &Known| expect.is_met_by(known.envelope.stored().map(|stored| stored.revision));
        match (self.known.get(name), expect) {
            (_, Expect::Never) => Ok(None),
            (Some(known), _) if fits(&known) => Ok(Some(known)),
            (None, Expect::Absent) => Ok(None),
            (Some(_) | None, _) => match self.look(name).await? {
                Some(found) if fits(&found) => Ok(Some(found)),
                None if expect == Expect::Absent => Ok(None),
                Some(_) | None => Err(StoreError::Conflict),
            },
        }
    }

    /// Sends the PUT until its outcome is known.
    async fn put_over(
        &self,
        name: &Name,
        before: Option<&Known>,
        envelope: &Envelope,
        nonce: u128,
    ) -> Result<Put, StoreError> {
        let (path, object) = (self.record_path(name), payload(envelope.encode()));
        let mode = match before {
            Some(known) => PutMode::Update(known.version.clone()),
            None => PutMode::Create,
        };
        let mut patience = self.patience();
        let mut may_have_happened = false;
        loop {
            let put = self.bucket.put_opts(&path, object.clone(), mode.clone().into());
            let (told, why) = match self.ask(Operation::Write, put).await {
                Ok(done) => {
                    let known = done.e_tag.is_some() || done.version.is_some();
                    return Ok(Put::Done(known.then(|| UpdateVersion::from(done))));
                }
                Err((Fault::Refused | Fault::Rejected, why)) if !may_have_happened => {
                    return Err(StoreError::Unavailable(why));
                }
                Err((fault, why)) => (fault == Fault::Lost && !may_have_happened, why),
            };
            may_have_happened |= !told;
            let found = loop {
                match self.read_once(&path, None).await {
                    Ok(found) => break found,
                    Err((_, why)) => {
                        if !patience.wait().await {
                            return Err(StoreError::Unknown(why));
                        }
                    }
                }
            };
            match (&found, before) {
                (Some(found), _) if found.envelope.has(nonce) => {
                    self.known.insert(Arc::clone(name), found.clone());
                    return Ok(Put::Done(None));
                }
                // Nothing has changed: it has not happened, or not yet.
                (Some(found), Some(before)) if found.is_version(&before.version) => {}
                (None, None) => {}
                (Some(found), _) => {
                    self.known.insert(Arc::clone(name), found.clone());
                    if !told && !found.envelope.remembers(envelope.revision) {
                        // So many have written since that ours would no longer be seen.
                        return Err(StoreError::Unknown(why));
                    }
                    let deleted = found.envelope.deleted;
                    return Ok(if deleted { Put::Tombstone(found.clone()) } else { Put::Lost });
                }
                (None, Some(_)) => {
                    self.known.remove(name);
                    return if told { Ok(Put::Lost) } else { Err(StoreError::Unknown(why)) };
                }
            }
            if !patience.wait().await {
                return Err(StoreError::Unknown(why));
            }
        }
    }
}

/// What became of a PUT.
enum Put {
    /// It took effect; as this version, unless another came on top of it.
    Done(Option<UpdateVersion>),
    /// It did not, because of this.
    Tombstone(Known),
    Lost,
}
