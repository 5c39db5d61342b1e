//! Where the server's log goes: standard error, as text for people or JSON for machines.

use tracing_subscriber::EnvFilter;

use crate::ui;

/// # Errors
/// When the filter does not parse; the message says so.
pub fn init(filter: &str, json: bool) -> Result<(), String> {
    // What the storage engine tells about itself is of no interest unless somebody asks.
    let quiet = format!("fjall=warn,lsm_tree=warn,{filter}");
    let parsed =
        EnvFilter::try_new(quiet).map_err(|error| format!("log-level {filter:?}: {error}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let set = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.with_ansi(ui::is_colored(&std::io::stderr())).try_init()
    };
    set.map_err(|error| format!("the log is set up already: {error}"))
}
