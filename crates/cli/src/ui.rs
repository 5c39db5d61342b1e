//! The one place where client commands print: data on standard output, talk on standard error.
//!
//! A reader that has gone away ends the command quietly.

mod progress;
mod table;

use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;

use lockd_client::chain;
use serde::Serialize;

use crate::exit::{Done, Problem};
pub use progress::Progress;
pub use table::table;

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people and shells
    Text,
    Json,
    Yaml,
}

/// Prints a value in the wanted format; the text is only made if it is wanted.
pub fn print<T: Serialize>(format: Format, value: &T, text: impl FnOnce() -> String) -> Done {
    match format {
        Format::Text => data(&text()),
        Format::Json => {
            let json =
                serde_json::to_string(value).map_err(|error| Problem::failed(chain(&error)))?;
            data(&json)
        }
        Format::Yaml => {
            let yaml = serde_saphyr::to_string(value)
                .map_err(|error| Problem::failed(error.to_string()))?;
            data(yaml.trim_end())
        }
    }
}

/// Prints one of several values; in YAML each is a document of its own.
pub fn print_one<T: Serialize>(format: Format, value: &T, text: impl FnOnce() -> String) -> Done {
    if format == Format::Yaml {
        data("---")?;
    }
    print(format, value, text)
}

/// Whether a person reads standard output, so that tables are of use.
#[must_use]
pub fn is_read_by_a_person() -> bool {
    io::stdout().is_terminal()
}

/// Whether colours are of use there. `NO_COLOR` forbids them, unless it is empty.
#[must_use]
pub fn is_colored(stream: &impl IsTerminal) -> bool {
    may_color(std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()), stream)
}

fn may_color(forbidden: bool, stream: &impl IsTerminal) -> bool {
    !forbidden && stream.is_terminal()
}

/// Lines of data; nothing at all for an empty text.
pub fn data(text: &str) -> Done {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).map_err(broken)?;
    out.write_all(b"\n").map_err(broken)?;
    out.flush().map_err(broken)
}

/// An empty screen, for what is shown again and again.
pub fn clear() -> Done {
    bytes(b"\x1b[H\x1b[2J")
}

/// Bytes of data as they are.
pub fn bytes(bytes: &[u8]) -> Done {
    let mut out = io::stdout().lock();
    out.write_all(bytes).map_err(broken)?;
    out.flush().map_err(broken)
}

/// What this program is called in messages.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Says from now on which program is talking; only the first name counts.
pub fn speak_as(program: &'static str) {
    PROGRAM.get_or_init(|| program);
}

/// How data is wanted, and errors with it.
static FORMAT: OnceLock<Format> = OnceLock::new();

/// Says from now on how errors are wanted; only the first format counts.
pub fn answer_in(format: Format) {
    FORMAT.get_or_init(|| format);
}

/// Something a person may want to know. Not being able to say it is no error.
pub fn note(text: &str) {
    let program = PROGRAM.get().unwrap_or(&"lockd");
    let _said = writeln!(io::stderr().lock(), "{program}: {text}").is_ok();
}

/// Says why a command failed, and gives its exit code.
pub fn fail(problem: &Problem) -> ExitCode {
    match problem.exit() {
        None => ExitCode::SUCCESS,
        Some(exit) => {
            match FORMAT.get() {
                Some(Format::Json | Format::Yaml) => {
                    let _said = writeln!(io::stderr().lock(), "{}", problem.json()).is_ok();
                }
                Some(Format::Text) | None => note(&problem.to_string()),
            }
            ExitCode::from(exit.code())
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is made to be given to map_err")]
fn broken(error: io::Error) -> Problem {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Problem::ClosedPipe
    } else {
        Problem::failed(format!("cannot write to standard output: {error}"))
    }
}
