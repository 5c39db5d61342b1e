//! The `lockd` program: parse, build, run, and an exit code. Without a subcommand it is the
//! server.

mod args;
mod cmd;
mod notify;

use std::process::ExitCode;

use clap::FromArgMatches;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let matches = args::command().get_matches();
    let cli = match args::Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return cmd::failed(&format!("cannot start: {error}")),
    };
    let code = runtime.block_on(cmd::run(cli, &matches));
    // A blocked read of standard input must not hold up the end.
    runtime.shutdown_background();
    code
}
