//! The rules of lockd as pure functions: present record and command in, next record and effects
//! out. No I/O, no clock, no randomness, no async: time and new ids are arguments, so the same
//! code runs in the server, in the simulator and in a model checker.

pub mod answer;
pub mod attachment;
pub mod fence;
pub mod ids;
pub mod key;
pub mod lease;
pub mod limits;
pub mod message;
pub mod pin;
pub mod queue;
pub mod record;
pub mod state;
pub mod supervise;
pub mod time;
pub mod txn;

pub use fence::{Fence, FenceCondition, FenceFacts, FenceRefused};
pub use ids::{LeaseId, TxnId};
pub use key::KeyName;
pub use record::{Decided, Effect, KeyRecord};
pub use time::{Deadline, Now, Span, Tick, Timeline, UnixMillis};
