//! How lockd is shown to keep its promises: scenarios that read the same against the bare rules,
//! the server and the SDK; histories of many clients, from one seed each or over real connections;
//! and a checker that judges every history and knows nothing of how it came about.

#![allow(
    clippy::wildcard_enum_match_arm,
    clippy::should_implement_trait,
    clippy::large_enum_variant,
    clippy::type_complexity,
    reason = "a checker picks the few cases it judges; it only runs in tests"
)]

pub mod answer;
pub mod call;
pub mod case;
pub mod check;
pub mod dice;
pub mod history;
pub mod link;
pub mod real;
pub mod ring;
pub mod security;
pub mod soak;
pub mod tally;
pub mod wire;
pub mod world;
