//! The `lockd` program: parse, build, run, and an exit code. Without a subcommand it is the
//! server.

mod args;
mod cmd;
mod notify;

use std::process::ExitCode;

use clap::FromArgMatches;
use lockd_cli::{ui, usage};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut command = args::command();
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = command.try_get_matches_from_mut(&words).and_then(|matches| {
        let cli = args::Cli::from_arg_matches(&matches)?;
        Ok((matches, cli))
    });
    let (matches, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage::refused(&error, &command, &words),
    };
    ui::answer_in(usage::format(&matches).unwrap_or(ui::Format::Text));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return cmd::failed(&format!("cannot start: {error}")),
    };
    let code = runtime.block_on(cmd::run(cli, &matches));
    // A blocked read of standard input must not hold up the end.
    runtime.shutdown_background();
    code
}
