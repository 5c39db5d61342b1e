//! Several keys in one transaction: what was staged under any of them becomes visible together, or
//! not at all. The server decides when one of the keys is released, and that is what is sent here.

use std::fmt;

use crate::acquire::{Acquire, NoWaitSet};
use crate::client::Client;
use crate::lease::Lease;
use crate::release::Release;

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
    pub fn commit(self, leases: impl IntoIterator<Item = Lease>) -> Release {
        Release::all(leases, false)
    }

    /// Forgets all that is staged, and ends all leases.
    pub fn rollback(self, leases: impl IntoIterator<Item = Lease>) -> Release {
        Release::all(leases, true)
    }
}

/// The id, for whatever can take part in a transaction.
impl From<&Txn> for String {
    fn from(txn: &Txn) -> Self {
        txn.id.clone()
    }
}

impl fmt::Debug for Txn {
    // The id is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Txn").finish_non_exhaustive()
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
