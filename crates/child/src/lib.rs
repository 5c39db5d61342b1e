//! Programs that are run for somebody: each in a process group of its own, with its output read
//! line by line or piece by piece, and gone with whoever started it.
//!
//! A program that is started through a [`guard`] dies even if the process that started it is
//! killed, with everything it has started itself. It dies too if the guard is killed: then whoever
//! started it clears away what is left.

mod clear;
mod files;
mod guard;
mod lines;
mod program;
mod tether;

pub use files::raise_open_files;
pub use guard::guard;
pub use lines::LINE_MAX;
pub use program::{Child, Program, Stream};
