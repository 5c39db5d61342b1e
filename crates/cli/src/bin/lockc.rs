//! The `lockc` program: the client alone, which remembers between commands what it holds.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockd_cli::cmd::lockc::main()
}
