//! `man`: manual pages, made from the command line itself, one for each command.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::exit::{Done, Problem};
use crate::ui;

/// Print the manual page, or write those of all commands into a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Write one page for each command into this folder, which is made if need be
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockd man | man -l -
  lockd man --dir ~/.local/share/man/man1";

#[must_use]
pub fn run(args: &ManArgs, command: clap::Command) -> ExitCode {
    let done = match &args.dir {
        None => page(command),
        Some(folder) => pages(command, folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}

fn page(command: clap::Command) -> Done {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|error| Problem::failed(format!("cannot make the page: {error}")))?;
    ui::bytes(&page)
}

fn pages(command: clap::Command, folder: &Path) -> Done {
    let cannot = |error: std::io::Error| {
        Problem::failed(format!("cannot write into {}: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(cannot)?;
    clap_mangen::generate_to(command, folder).map_err(cannot)
}
