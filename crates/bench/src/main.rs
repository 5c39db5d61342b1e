//! The load driver of lockd: it starts a bare server (the floor) and lockd as processes of their
//! own, drives both with the same requests, and prints one table of what each of them did.
//!
//! It speaks HTTP only and never links the server, so that what it measures is what a client gets.
//! `lockd-bench run` is the one command; the README beside this crate says what it compares.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark reads the clock, owns its tasks by the run they belong to, and prints"
)]

mod options;

mod client;
mod parse;
mod request;
mod workload;

mod driver;
mod latency;

mod child;
mod floor;
mod machine;
mod process;

mod measures;
mod table;

#[cfg(test)]
mod smoke;

use std::process::ExitCode;

use clap::Parser as _;

use crate::options::{Command, Options};

// The server ships with this allocator; the floor must not lose or win by another one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = machine::raise_file_limit().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            match options.command {
                Command::Floor(options) => {
                    floor::serve(options.listen, &options.dir).await.map(|()| ExitCode::SUCCESS)
                }
                Command::Run(options) => measures::run(options).await,
            }
        })
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("lockd-bench: {error:#}");
        ExitCode::FAILURE
    })
}
