//! Scenarios: what several clients do at given times, and what each of them hears. One text runs
//! against the bare rules, the server and the SDK, and must read the same in all three.

mod parse;
mod run;
mod step;

pub use parse::{BadCase, parse};
pub use run::{Ring, run};
pub use step::{Case, Command, Event, Step};
