//! The port: a lock that one candidate of many holds for a time, with a number that only grows.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// The number of a leadership. A later one is greater, whatever the lock has forgotten in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who asks. The same name in another process is somebody else: that is what the incarnation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub id: String,
    pub incarnation: String,
}

impl Candidate {
    /// A candidate of this process.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        let incarnation = format!("{:016x}", rand::random::<u64>());
        Self { id: id.into(), incarnation }
    }
}

/// Whoever holds the lock, as far as it can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    pub id: String,
    /// `None` for holders that do not count.
    pub epoch: Option<Epoch>,
    /// How long it holds the lock unless it renews.
    pub remaining: Option<Duration>,
}

/// What a lock remembers of the leaderships before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Kept,
    /// It may have forgotten something, that long before the grant: a former leader may still lead,
    /// by its own count, until one time to live after that.
    Lost {
        ago: Duration,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub epoch: Epoch,
    pub memory: Memory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    Granted(Grant),
    Held(Holder),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    Kept,
    Lost(Loss),
}

/// Why a leadership is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// It could not be renewed in time, by the leader's own clock.
    #[error("not renewed in time: {0}")]
    Expired(String),
    /// The lock says that it is not ours.
    #[error("not leader: {0} is")]
    TakenBy(String),
    /// The lock says that nobody holds it.
    #[error("not leader: nobody is")]
    Vanished,
    /// Given up on purpose.
    #[error("resigned")]
    Resigned,
}

/// The lock could not be asked, or its answer made no sense.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LockError {
    /// Nothing is known about what became of the request.
    #[error("{0}")]
    Unavailable(String),
    /// It will not get better by trying again: wrong password, wrong type, missing rights.
    #[error("{0}")]
    Refused(String),
}

/// A lock for one candidate. What is promised:
///
/// - At most one candidate is granted the lock at a time, counted from before it asked for as long
///   as the time to live.
/// - Every grant has an epoch that is greater than that of every grant before it, also of those
///   that the lock itself has forgotten if this candidate ever [saw](LeaderLock::saw) them.
/// - `renew` and `release` do nothing unless the candidate, its incarnation and the epoch are those
///   of the present grant, tested where the lock is kept, in one step.
/// - A grant whose answer was lost is granted again to the same incarnation, with the same epoch
///   and for the whole time to live, unless it has asked to release it: then with a greater one.
pub trait LeaderLock: fmt::Debug + Send + Sync {
    fn candidate(&self) -> &Candidate;

    /// How long a grant or a renewal lasts, from before it was asked for.
    fn ttl(&self) -> Duration;

    /// Tries once, without waiting for the holder.
    fn try_acquire(&self) -> BoxFuture<'_, Result<Attempt, LockError>>;

    fn renew(&self, epoch: Epoch) -> BoxFuture<'_, Result<Renewal, LockError>>;

    /// Lets go of it, if it is held. The next one may have it at once.
    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>>;

    /// Who holds it now.
    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>>;

    /// Ends when somebody may have let go of it. It may end for nothing, and it may miss those who
    /// go without a word.
    fn vacated(&self) -> BoxFuture<'_, ()>;

    /// Ends when whoever holds it may have lost it, for instance with its connection. It may end for
    /// nothing: the next renewal tells.
    fn shaken(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Tells of an epoch that was seen elsewhere: grants to this candidate are above it.
    fn saw(&self, epoch: Epoch);
}
