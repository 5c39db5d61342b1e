//! `lockd config gen`: a settings file to start from.

use std::process::ExitCode;

use clap::Subcommand;

use super::say;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a file with every setting, its default and what it does
    #[command(after_help = "Example:\n  lockd config gen > ~/.lockd/config.yaml")]
    Gen,
}

pub(crate) fn run(command: &ConfigCommand) -> ExitCode {
    match command {
        ConfigCommand::Gen => say(lockd_server::config::example().trim_end()),
    }
    ExitCode::SUCCESS
}
