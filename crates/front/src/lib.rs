//! The port of a node: passes requests to its controller, and changes only while it leads.

mod answer;
mod body;
mod front;
mod gate;
mod head;
mod path;
mod rules;
mod upstream;

pub use front::{Forward, Front, FrontSettings, Standing};
pub use gate::{Gate, Pass};
pub use head::FORWARDED_HEADER;
pub use rules::{Rules, RulesError};
