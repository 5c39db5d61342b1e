//! What is said about a command line that is wrong, for both programs: as clap says it, with a hint
//! where a command of `lockd client` was meant, or as JSON where the command line asks for JSON.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Command, Error};

use crate::exit::Problem;
use crate::ui::{self, Format};

/// How answers, and so errors, are wanted: `--output` of the command that was given.
#[must_use]
pub fn format(matches: &ArgMatches) -> Option<Format> {
    let inner = matches.subcommand().and_then(|(_, matches)| format(matches));
    inner.or_else(|| matches.try_get_one::<Format>("output").ok().flatten().copied())
}

/// Says what is wrong with the command line, or prints the help that was asked for.
pub fn refused(error: &Error, command: &Command, words: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        let _closed = error.print().is_err();
        return ExitCode::SUCCESS;
    }
    let hint = hint(error, command);
    if wants_json(words) {
        ui::answer_in(Format::Json);
        let rendered = error.to_string();
        let message =
            rendered.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let problem = Problem::usage(message);
        return ui::fail(&match hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        });
    }
    let _closed = error.print().is_err();
    if let Some(hint) = hint {
        ui::note(&hint);
    }
    ExitCode::from(2)
}

/// `lockd acquire` means `lockd client acquire`.
fn hint(error: &Error, command: &Command) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let client = command.find_subcommand("client")?;
    client.find_subcommand(name)?;
    Some(format!("`{} client {name}` is the command for that", command.get_name()))
}

/// Before the command line could be understood.
fn wants_json(words: &[OsString]) -> bool {
    let mut words = words.iter().map(|word| word.to_str().unwrap_or_default());
    let mut words = words.by_ref().take_while(|word| *word != "--").peekable();
    while let Some(word) = words.next() {
        if word == "--output=json" || (word == "--output" && words.peek() == Some(&"json")) {
            return true;
        }
    }
    false
}
