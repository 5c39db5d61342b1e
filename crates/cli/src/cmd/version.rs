//! `lockd version`: which program this is, and from which sources it was built.

use std::process::ExitCode;

use lockd_cli::ui::{self, Format};
use serde_json::json;

pub(crate) fn run(output: Format) -> ExitCode {
    let version = env!("CARGO_PKG_VERSION");
    let told = json!({
        "version": version,
        "commit": env!("LOCKD_COMMIT"),
        "build": {
            "profile": env!("LOCKD_PROFILE"),
            "target": env!("LOCKD_TARGET"),
            "rustc": env!("LOCKD_RUSTC"),
        },
    });
    match ui::print(output, &told, || format!("lockd {version}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}
