//! What is looked at once, or again and again.

use std::time::Duration;

use clap::Args;

use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

#[derive(Debug, Args)]
pub(crate) struct LookArgs {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
    /// Look again and again
    #[arg(long, short)]
    watch: bool,
    /// How often, with --watch
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = lockd_coordinator::sidecar::span)]
    interval: Duration,
}

impl LookArgs {
    /// Once, or until interrupted. What is wrong is said each time, and does not end it.
    pub(crate) async fn again_and_again(&self, once: impl AsyncFn() -> Done) -> Done {
        if !self.watch {
            return once().await;
        }
        loop {
            if self.output == Format::Text && ui::is_read_by_a_person() {
                ui::clear()?;
            }
            match once().await {
                Err(Problem::ClosedPipe) => return Ok(()),
                Err(problem) => ui::note(&problem.to_string()),
                Ok(()) => {}
            }
            tokio::time::sleep(self.interval.max(Duration::from_millis(100))).await;
        }
    }
}
