//! Several keys in one transaction: what was staged under any of them becomes visible together, or
//! not at all. The server decides when one of the keys is released, and that is what is sent here.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use crate::acquire::{Acquire, NoWaitSet};
use crate::call::new_request_id;
use crate::client::Client;
use crate::error::{Error, Failure, ReleaseKind};
use crate::lease::{Lease, LostReason};
use crate::release::send;
use crate::write::Fence;

/// The letters of a transaction id.
const LETTERS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// Letters of an id that carry five bits each; the last one carries a single bit.
const LETTERS_FREE: usize = 19;

/// A transaction. It begins with the first key that is held under it, and ends with
/// [`Txn::commit`] or [`Txn::rollback`]; when any of its leases is lost or dropped, the whole is
/// rolled back.
#[derive(Clone)]
pub struct Txn {
    client: Client,
    id: String,
}

impl Txn {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, id: new_id() }
    }

    /// For other processes that take part in it. A secret: whoever knows it may join.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Asks for a key under this transaction. A wait that could never end, because the holder of
    /// the key waits for this transaction, is refused at once.
    pub fn lease(&self, key: impl Into<String>) -> Acquire<NoWaitSet> {
        self.client.lease(key).txn(&self.id)
    }

    /// Makes all that is staged visible, and ends all leases. They are given here because none of
    /// them is good for anything afterwards; one suffices to commit all keys of the transaction.
    pub fn commit(self, leases: impl IntoIterator<Item = Lease>) -> Settle {
        Settle::new(leases, false)
    }

    /// Forgets all that is staged, and ends all leases.
    pub fn rollback(self, leases: impl IntoIterator<Item = Lease>) -> Settle {
        Settle::new(leases, true)
    }
}

impl fmt::Debug for Txn {
    // The id is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Txn").finish_non_exhaustive()
    }
}

/// Ends a transaction; await it. When it fails, its leases are let go of as if dropped.
#[derive(Debug)]
#[must_use = "nothing is decided before it is awaited"]
pub struct Settle {
    leases: Vec<Lease>,
    rollback: bool,
    fences: Vec<Fence>,
    name: Option<String>,
}

impl Settle {
    fn new(leases: impl IntoIterator<Item = Lease>, rollback: bool) -> Self {
        let leases = leases.into_iter().collect();
        Self { leases, rollback, fences: Vec::new(), name: None }
    }

    /// Only if the other lease is still the latest of its key, tested in the same step.
    pub fn fenced_by(self, other: &Lease) -> Self {
        let full_name = format!("{}/{}", other.namespace(), other.key());
        self.fence(full_name, other.token())
    }

    /// Only if the latest token of that key, written `namespace/key`, is still this one.
    pub fn fence(mut self, full_name: impl Into<String>, token: u64) -> Self {
        self.fences.push(Fence { full_name: full_name.into(), token });
        self
    }

    /// Names the request, so that it can be made again. Drawn at random when not set.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.name = Some(key.into());
        self
    }

    async fn settle(self) -> Result<(), Error<ReleaseKind>> {
        let Some(first) = self.leases.first() else {
            let why = "a transaction is decided by letting go of a key: give its leases";
            return Err(Failure::invalid(why).into());
        };
        for lease in &self.leases {
            lease.stop_renewing().await;
        }
        let authority = first.authority();
        let (client, context) = (authority.client(), authority.context());
        let name = self.name.unwrap_or_else(new_request_id);
        let patience = client.patience();
        let sent = send(client, context, self.rollback, &self.fences, &name, patience).await;
        let over = match &sent {
            Ok(()) => Some(LostReason::Released),
            Err(failure) => failure.refusal().and_then(LostReason::told_by),
        };
        if let Some(over) = over {
            for lease in &self.leases {
                lease.tenure().end(over.clone());
            }
        }
        Ok(sent?)
    }
}

impl IntoFuture for Settle {
    type Output = Result<(), Error<ReleaseKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.settle())
    }
}

/// In the form of an xid: 95 random bits.
fn new_id() -> String {
    let letter = |_| {
        let index: usize = rand::random_range(0..LETTERS.len());
        LETTERS.get(index).map_or('0', |letter| char::from(*letter))
    };
    (0..LETTERS_FREE).map(letter).chain(['0']).collect()
}

#[cfg(test)]
mod tests {
    use super::{LETTERS, new_id};

    #[test]
    fn ids_are_xids_and_differ() {
        let (one, other) = (new_id(), new_id());
        assert_ne!(one, other);
        assert_eq!(one.len(), 20);
        assert!(one.bytes().all(|letter| LETTERS.contains(&letter)), "{one}");
    }
}
