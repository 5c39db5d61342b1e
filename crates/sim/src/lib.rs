//! How lockd is shown to keep its promises: scenarios that read the same against the bare rules,
//! the server and the SDK.

pub mod answer;
pub mod call;
pub mod case;
pub mod link;
pub mod ring;
pub mod wire;
