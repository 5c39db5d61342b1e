//! The three rings in which scenarios run: the bare rules, the server in this process, and the SDK
//! over a real connection to it. Time is manual in all of them.

mod core;
mod refusal;
mod sdk;
mod server;

pub use core::{CoreRing, Reaping};
pub use sdk::SdkRing;
pub use server::ServerRing;
pub(crate) use server::call;

use lockd_core::time::{Now, Tick, UnixMillis};

/// Where every ring's clocks begin.
pub(crate) const START: Now = Now { tick: Tick(1_000_000), wall: UnixMillis(1_750_000_000_000) };
