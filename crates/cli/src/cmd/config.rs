//! `lockd config`: a settings file to start from, and the settings as they are.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Subcommand};
use lockd_cli::ui::{self, Format};
use lockd_server::config::Effective;
use serde_json::json;

use super::{say, server, told, wrong};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a file with every setting, its default and what it does
    #[command(after_help = "Example:\n  lockd config gen > ~/.lockd/config.yaml")]
    Gen,
    /// Print the settings that a server would have here, and where each comes from
    ///
    /// Reads the same flags, variables and file as the server, and starts nothing.
    #[command(after_help = "Examples:\n  lockd config show\n  lockd --config /etc/lockd.yaml \
        config show --output json\n\nExits with 2 when the settings are not right, and says why.")]
    Show {
        /// How to print them
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
}

pub(crate) fn run(
    command: &ConfigCommand,
    file: Option<PathBuf>,
    matches: &ArgMatches,
) -> ExitCode {
    match command {
        ConfigCommand::Gen => {
            say(lockd_server::config::example().trim_end());
            ExitCode::SUCCESS
        }
        ConfigCommand::Show { output } => match server::loaded(file, matches) {
            Ok(loaded) => show(*output, &loaded.effective),
            Err(error) => wrong(&told(&error)),
        },
    }
}

fn show(output: Format, settings: &[Effective]) -> ExitCode {
    let listed: Vec<_> = settings
        .iter()
        .map(|it| json!({ "name": it.name, "value": it.value, "source": it.source }))
        .collect();
    let cell = |value: &str| if value.is_empty() { "-".to_owned() } else { value.to_owned() };
    let row = |it: &Effective| vec![it.name.to_owned(), cell(&it.value), it.source.clone()];
    let text = || match ui::is_read_by_a_person() {
        true => ui::table(Some(&["NAME", "VALUE", "FROM"]), settings.iter().map(row).collect()),
        false => settings.iter().map(|it| row(it).join("\t")).collect::<Vec<_>>().join("\n"),
    };
    match ui::print(output, &listed, text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}
