//! Programs that are run for somebody: each in a process group of its own, with its output read
//! line by line, and gone with whoever started it.
//!
//! A program that is started through a [`guard`] dies even if the process that started it is
//! killed, with everything it has started itself.

mod guard;
mod lines;
mod program;

pub use guard::guard;
pub use lines::LINE_MAX;
pub use program::{Child, Program, Stream};
