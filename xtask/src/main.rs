//! `cargo run -p xtask -- settings` prints the table of settings for the operations page,
//! `cargo run -p xtask -- rights` that of the rights for the security page;
//! `cargo run -p xtask -- replay FILE...` runs the examples of documents again and writes down
//! what they answer. The rules themselves are tests.

use std::io::Write as _;

use anyhow::{Result, bail};
use xtask::{repo, settings, transcript};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["settings"] => {
            for row in settings::rows() {
                writeln!(std::io::stdout(), "{row}")?;
            }
        }
        ["rights"] => {
            for row in lockd_server::rights() {
                writeln!(std::io::stdout(), "{row}")?;
            }
        }
        ["replay", files @ ..] if !files.is_empty() => {
            for file in files {
                let document = repo::read(file)?;
                let steps = transcript::steps(&document);
                let answers = transcript::run(&steps).await?;
                let changed = transcript::check(&steps, &answers).len();
                let text = transcript::rewrite(&document, &steps, &answers);
                std::fs::write(repo::root().join(file), text)?;
                writeln!(
                    std::io::stdout(),
                    "{file}: {} commands, {changed} new answers",
                    steps.len()
                )?;
            }
        }
        _ => bail!("say `settings`, `rights` or `replay FILE...`"),
    }
    Ok(())
}
