//! Real servers of other people, each a process of its own on a free port.

mod azurite;
mod etcd;
mod moto;
mod postgres;
mod process;
mod redis;
mod secure;

pub use azurite::Azurite;
pub use etcd::Etcd;
pub use moto::Moto;
pub use postgres::Postgres;
pub use process::free_port;
pub use redis::Redis;
pub use secure::ServerFiles;
