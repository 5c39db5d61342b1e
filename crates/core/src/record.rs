//! The record of one key: everything lockd knows about it, changed as a whole by one conditional
//! write. The functions in `lease` and `state` are the only ones that make a next record.

use std::sync::Arc;

use bytes::Bytes;

use crate::answer::Remembered;
use crate::fence::{Fence, FenceCondition};
use crate::ids::{LeaseId, TxnId};
use crate::message::Message;
use crate::pin::Pin;
use crate::time::{Deadline, Now, Span, UnixMillis};

/// The number of commits a key has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One key. The default is a key that nobody has ever asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRecord {
    /// Whether the key is in the store. Never stored itself.
    pub stored: bool,
    /// The token of the latest grant; outlives everything else here.
    pub fence: Fence,
    pub version: Version,
    pub state: Option<State>,
    /// In the order of their names, each once.
    pub attachments: Vec<Attachment>,
    /// Kept out of query results.
    pub hidden: bool,
    /// When it was last committed to.
    pub updated_at: UnixMillis,
    pub lease: Option<Lease>,
    /// What the holder has written and not yet committed. Only with a lease.
    pub staged: Option<Staged>,
    /// How the latest lease that is over came to its end.
    pub ended: Option<Ended>,
    /// Answers kept for repeated requests, oldest first.
    pub answers: Vec<Remembered>,
    /// Writes elsewhere that hold the token still; only where a store writes one record at a time.
    pub pins: Vec<Pin>,
    /// The key is that of a message; its state is the payload.
    pub message: Option<Box<Message>>,
    /// To be removed from the store with all it names. Never stored itself.
    pub gone: bool,
}

/// A document, by its identity and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// SHA-256 of the bytes.
    pub etag: Etag,
    pub bytes: u64,
    pub content: Content,
}

/// Bytes of any kind that belong to a key, under a name of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub id: Box<str>,
    pub name: Box<str>,
    pub content_type: Box<str>,
    pub created_at: UnixMillis,
    pub updated_at: UnixMillis,
    pub body: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Etag(pub [u8; 32]);

#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    Inline(Bytes),
    /// The name of an immutable blob.
    Blob(Arc<str>),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inline(bytes) => write!(f, "Inline({} bytes)", bytes.len()),
            Self::Blob(name) => write!(f, "Blob({name})"),
        }
    }
}

/// The right to write, for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub owner: Box<str>,
    pub txn: TxnId,
    /// The transaction has a record, which decides about this lease and what was staged under it.
    pub recorded: bool,
    pub ttl: Span,
    pub granted_at: UnixMillis,
    pub expires: Deadline,
}

impl Lease {
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        !self.expires.is_past(now)
    }
}

/// Written under a lease, invisible to everybody else until it is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The version that committing will give.
    pub version: Version,
    pub change: Change,
    /// All attachments as they will be; `None`: as they are.
    pub attachments: Option<Vec<Attachment>>,
    pub hidden: Option<bool>,
    /// Tested again when it is committed.
    pub fences: Vec<FenceCondition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The document stays as it is.
    Keep,
    Write(State),
    Remove,
}

/// The end of a lease, remembered so that a repeated release gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub lease: LeaseId,
    pub fence: Fence,
    pub how: End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Released; nothing had been staged.
    Released,
    /// Released, and what was staged is committed.
    Committed,
    /// Released with the wish to forget what was staged.
    RolledBack,
    /// Ran out. `lost` when staged data went with it.
    Lapsed {
        lost: bool,
    },
    Revoked {
        reason: Box<str>,
    },
}

/// What follows from a decision, to be acted upon only after the record is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Granted,
    Ended {
        owner: Box<str>,
        fence: Fence,
        how: End,
    },
    /// New state is visible to everybody.
    Committed,
    /// The state was removed for everybody.
    Removed,
    /// Nothing names this blob any more.
    DropBlob(Arc<str>),
}

/// A decision: what to store (`None`: nothing changes), what to answer, what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided<A> {
    pub record: Option<KeyRecord>,
    pub answer: A,
    pub effects: Vec<Effect>,
}

impl<A> Decided<A> {
    pub(crate) fn unchanged(answer: A) -> Self {
        Self { record: None, answer, effects: Vec::new() }
    }

    /// The same decision with another answer.
    pub fn map<B>(self, answer: impl FnOnce(A) -> B) -> Decided<B> {
        Decided { record: self.record, answer: answer(self.answer), effects: self.effects }
    }
}

impl KeyRecord {
    /// A key that is not stored yet. Its tokens start above `floor`, the highest token that keys
    /// forgotten by a restore may have given out.
    #[must_use]
    pub fn absent(floor: Fence) -> Self {
        Self { fence: floor, ..Self::default() }
    }

    #[must_use]
    pub fn live_lease(&self, now: Now) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.is_live(now))
    }

    /// The version and document that the holder sees: its own staged ones, else the committed.
    #[must_use]
    pub fn holder_view(&self) -> (Version, Option<&State>) {
        match &self.staged {
            Some(Staged { version, change: Change::Write(state), .. }) => (*version, Some(state)),
            Some(Staged { version, change: Change::Remove, .. }) => (*version, None),
            Some(Staged { version, change: Change::Keep, .. }) => (*version, self.state.as_ref()),
            None => (self.version, self.state.as_ref()),
        }
    }

    /// The attachments that the holder sees.
    #[must_use]
    pub fn holder_attachments(&self) -> &[Attachment] {
        let staged = self.staged.as_ref().and_then(|staged| staged.attachments.as_deref());
        staged.unwrap_or(&self.attachments)
    }

    /// Every blob that the record names.
    pub fn blobs(&self) -> impl Iterator<Item = &Arc<str>> {
        let staged = match &self.staged {
            Some(Staged { change: Change::Write(state), .. }) => Some(state),
            Some(Staged { change: Change::Keep | Change::Remove, .. }) | None => None,
        };
        let attached = self.staged.iter().filter_map(|staged| staged.attachments.as_ref());
        let attached = attached.flatten().chain(&self.attachments).map(|one| &one.body);
        self.state.iter().chain(staged).chain(attached).filter_map(State::blob)
    }
}

impl State {
    #[must_use]
    pub fn blob(&self) -> Option<&Arc<str>> {
        match &self.content {
            Content::Blob(name) => Some(name),
            Content::Inline(_) => None,
        }
    }
}
