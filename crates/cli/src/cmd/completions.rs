//! `completions`: a script for the shell, made from the command line itself.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use crate::ui;

/// Print a script that completes commands and flags in a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  lockd completions bash > ~/.local/share/bash-completion/completions/lockd
  lockd completions zsh > ~/.zfunc/_lockd
  lockd completions fish > ~/.config/fish/completions/lockd.fish";

#[must_use]
pub fn run(args: &CompletionsArgs, mut command: clap::Command) -> ExitCode {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    match ui::bytes(&script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}
