//! `lockd demo`
use std::process::ExitCode;
pub(crate) async fn run() -> ExitCode { ExitCode::FAILURE }
