//! What the tests share: the real binary as a process that can be killed and started again, an
//! HTTP client that can also send what no client should, and waiting for events with a deadline.
//! Everything here fails by panicking with what was seen; nothing sleeps for a fixed time.

pub mod binary;
pub mod bucket;
pub mod dice;
pub mod document;
pub mod http;
pub mod http2;
pub mod inside;
pub mod lease;
pub mod process;
pub mod queue;
pub mod server;
pub mod small_disk;
pub mod tunnel;
pub mod wait;
pub mod watch;
pub mod world;

pub use bucket::{Bucket, Cloud};
pub use dice::Dice;
pub use http::{Client, Place, Reply, Request};
pub use lease::{Ask, Held};
pub use server::{Options, Server};
pub use wait::{eventually, eventually_some, within};
