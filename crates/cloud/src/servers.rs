//! Real servers of other people, each a process of its own on a free port.

mod azurite;
mod moto;
mod process;
mod redis;

pub use azurite::Azurite;
pub use moto::Moto;
pub use process::free_port;
pub use redis::Redis;
