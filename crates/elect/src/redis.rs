//! The lock in Redis: the leader key of a cluster of instances, and keys of our own beside it.

mod address;
mod connection;
mod lock;

pub use address::{Address, AddressError, Kind};
pub use connection::{Redis, RedisFault, RedisSettings};
pub use lock::{IS_HELD, RedisLock};
