//! `lockd explain`: what an error code means and what to do about it, without a network. The
//! pages are those of the manual, put into the program when it is built.

use std::process::ExitCode;

use clap::Args;
use lockd_wire::ErrorCode;
use serde::Serialize;

use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// Explain an error code
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// The code, as it stands in an answer or a message
    #[arg(value_name = "CODE", required_unless_present = "list")]
    code: Option<String>,
    /// List all codes
    #[arg(long, conflicts_with = "code")]
    list: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd explain fencing_mismatch
  lockd explain --list";

const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/error_pages.rs"));

/// Codes that are suggested for one that does not exist.
const SUGGESTIONS_MAX: usize = 3;

#[derive(Serialize)]
struct Shown<'a> {
    code: &'a str,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<&'a str>,
}

#[must_use]
pub fn run(args: &ExplainArgs) -> ExitCode {
    let done = match &args.code {
        Some(code) => explain(code, args.output),
        None => list(args.output),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}

fn explain(asked: &str, format: Format) -> Done {
    let Some(code) = find(asked) else {
        let problem = Problem::usage(format!("there is no error code {asked:?}"));
        let near = near(asked);
        return Err(if near.is_empty() {
            problem.hint("see all of them with `lockd explain --list`")
        } else {
            problem.hint(format!("did you mean {}?", near.join(", ")))
        });
    };
    let page = page(code).unwrap_or("There is no page for this code.\n");
    let shown = Shown { code: code.as_str(), status: status(page), page: Some(page) };
    ui::print(format, &shown, || page.trim_end().to_owned())
}

fn list(format: Format) -> Done {
    let mut codes: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    codes.sort_unstable();
    let widest = codes.iter().map(|code| code.len()).max().unwrap_or_default();
    for code in codes {
        let status = find(code).and_then(page).map(status).unwrap_or_default();
        let shown = Shown { code, status, page: None };
        ui::print_one(format, &shown, || format!("{code:<widest$}  {status}").trim_end().into())?;
    }
    Ok(())
}

/// The code that is meant, also when it is written with hyphens or in capitals.
fn find(asked: &str) -> Option<ErrorCode> {
    let asked = plain(asked);
    ErrorCode::ALL.iter().copied().find(|code| plain(code.as_str()) == asked)
}

fn plain(asked: &str) -> String {
    asked.trim().to_ascii_lowercase().replace(['-', ' '], "_")
}

fn page(code: ErrorCode) -> Option<&'static str> {
    PAGES.iter().find(|(name, _)| *name == code.as_str()).map(|(_, page)| *page)
}

/// `409 Conflict`, out of the line that begins with `Status`.
fn status(page: &str) -> &str {
    let line = page.lines().find_map(|line| line.strip_prefix("Status ")).unwrap_or_default();
    line.split(['.', ';', ',']).next().unwrap_or_default().trim()
}

/// The nearest codes, nearest first.
fn near(asked: &str) -> Vec<&'static str> {
    let asked = plain(asked);
    if asked.is_empty() {
        return Vec::new();
    }
    let far = (asked.chars().count() / 3).max(2);
    let mut found: Vec<(usize, &str)> = ErrorCode::ALL
        .iter()
        .map(|code| code.as_str())
        .filter_map(|code| {
            let plain = plain(code);
            let part = asked.len() > 3 && plain.contains(&asked);
            let steps = if part { 0 } else { steps(&asked, &plain) };
            (steps <= far).then_some((steps, code))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().take(SUGGESTIONS_MAX).map(|(_, code)| code).collect()
}

/// How many letters must be added, removed or changed to make one word of the other.
fn steps(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut before = index;
        let mut next = vec![index + 1];
        let mut left = index + 1;
        for (place, above) in other.iter().zip(row.iter().skip(1)) {
            let changed = before + usize::from(*place != letter);
            left = changed.min(above + 1).min(left + 1);
            next.push(left);
            before = *above;
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_with_a_status() {
        for code in ErrorCode::ALL {
            let page = page(*code).unwrap_or_else(|| panic!("{} has no page", code.as_str()));
            let number = status(page).split(' ').next().unwrap_or_default();
            assert!(number.parse::<u16>().is_ok(), "{}: {number:?}", code.as_str());
        }
    }

    #[test]
    fn a_code_is_found_however_it_is_written() {
        for asked in ["waiting", " Waiting ", "fencing-mismatch", "FENCING_MISMATCH", "not-leader"]
        {
            assert!(find(asked).is_some(), "{asked}");
        }
        for code in ErrorCode::ALL {
            assert_eq!(find(code.as_str()), Some(*code));
        }
        assert!(find("no_such_code").is_none());
    }

    #[test]
    fn near_codes_are_suggested_nearest_first() {
        assert_eq!(near("fencing_mismach").first(), Some(&"fencing_mismatch"));
        assert_eq!(near("wating"), ["waiting"]);
        assert!(near("version").contains(&"version_conflict"));
        assert!(near("invalid").len() <= SUGGESTIONS_MAX);
        assert!(near("qqqqqqqqqq").is_empty());
        assert!(near("").is_empty());
        assert_eq!(near("STALE_EPOC"), ["STALE_EPOCH"]);
    }

    #[test]
    fn steps_are_counted() {
        for (one, other, expected) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ab", 0)]
        {
            assert_eq!(steps(one, other), expected, "{one} {other}");
        }
    }
}
