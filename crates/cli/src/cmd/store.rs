//! `lockd store`
use std::process::ExitCode;
#[derive(Debug, clap::Subcommand)]
pub(crate) enum StoreCommand { /// x
 X }
pub(crate) async fn run(_c: StoreCommand) -> ExitCode { ExitCode::FAILURE }
