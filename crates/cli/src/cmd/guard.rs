//! `lockd guard`: a command that dies with whoever started it.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::failed;

#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

pub(crate) async fn run(args: GuardArgs) -> ExitCode {
    match lockd_child::guard(&args.command).await {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        Err(error) => {
            let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            failed(&format!("{}: {error}", args.command.join(&OsString::from(" ")).display()));
            ExitCode::from(code)
        }
    }
}
