//! Real servers of other people, each a process of its own on a free port.

mod azurite;
mod moto;
mod process;

pub use azurite::Azurite;
pub use moto::Moto;
