//! The front before real servers, asked by real clients.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

mod changes;
mod controller;
mod forward;
mod own;
mod passing;
mod stand;
mod wire;
