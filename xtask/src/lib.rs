//! Rules about the repository, kept as tests: `cargo test -p xtask` fails when one is broken. Each
//! rule is a function from what it looks at to a list of problems, so that it can be shown to
//! fail. What clippy and rustfmt can check is left to them.

pub mod dependencies;
pub mod edges;
pub mod invariants;
pub mod links;
pub mod measure;
pub mod pages;
pub mod protocol;
pub mod repo;
pub mod rights;
pub mod serve;
pub mod settings;
pub mod shape;
pub mod transcript;
pub mod words;
