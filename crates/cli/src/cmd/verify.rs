//! `lockd verify store`: whether an object store keeps the promises that a server needs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Subcommand};
use lockd_cli::exit::Problem;
use lockd_cli::ui::{self, Format};
use lockd_server::config::{self, Layers, ProcessEnvironment, StoreSetting};
use lockd_store::object::{
    self, Location, ObjectOptions, ObjectStore, Outcome, Report, Thoroughness,
};
use serde_json::{Value, json};

use super::{failed, say, server, told};
use crate::args::given_settings;

#[derive(Debug, Subcommand)]
pub(crate) enum VerifyCommand {
    /// Try everything that a server needs of an object store, and clean up
    #[command(after_help = "Examples:\n  \
        lockd verify store --store s3://jobs/lockd --s3-region eu-central-1\n  \
        lockd verify store --store s3://minio:9000/jobs?insecure=1\n  \
        lockd verify store --store azure://account/container --output json\n\n\
        Settings come from flags, variables and the settings file, as for the server.\n\
        Exit codes: 0 it can be used, 1 could not be tried, 3 it must not be used or does not \
        answer.")]
    Store {
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
}

const MUST_NOT_BE_USED: u8 = 3;

pub(crate) async fn run(
    command: VerifyCommand,
    file: Option<PathBuf>,
    matches: &ArgMatches,
) -> ExitCode {
    let VerifyCommand::Store { output } = command;
    verify(output, file, matches).await.unwrap_or_else(|error| failed(&told(&error)))
}

async fn verify(
    output: Format,
    file: Option<PathBuf>,
    matches: &ArgMatches,
) -> anyhow::Result<ExitCode> {
    let of_store = matches.subcommand_matches("verify").and_then(|m| m.subcommand_matches("store"));
    let mut flags = given_settings(matches);
    flags.extend(of_store.map(given_settings).unwrap_or_default());
    let layers = Layers { flags, file: server::settings_file(file)?, home: server::home_text() };
    let settings = config::load(&layers, &ProcessEnvironment)?.settings;
    let StoreSetting::Object(options) = settings.store else {
        anyhow::bail!(
            "this is for object stores: --store s3://bucket, azure://account/container or gs://bucket; \
             `lockd store check` reads a store in a folder"
        );
    };
    let ObjectOptions { location, .. } = &*options;
    let store = ObjectStore::open(&options).map_err(|error| anyhow::anyhow!("{error}"))?;
    let report = store.probe(Thoroughness::FULL).await;
    let shown = ui::print(output, &as_json(&options, &report), || as_text(location, &report));
    match shown {
        Ok(()) | Err(Problem::ClosedPipe) => {}
        Err(problem) => anyhow::bail!("{problem}"),
    }
    if report.is_denied() && output == Format::Text {
        say(&format!("\nThese rights are needed:\n\n{}", object::policy(&options)));
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(MUST_NOT_BE_USED) })
}

fn outcome(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Passed => ("ok", ""),
        Outcome::Failed(why) => ("FAILED", why),
        Outcome::Denied(why) => ("denied", why),
        Outcome::NoAnswer(why) => ("no answer", why),
        Outcome::Skipped => ("skipped", "what comes before it must pass first"),
    }
}

fn as_text(location: &Location, report: &Report) -> String {
    let rows = report.checks.iter().map(|check| {
        let (word, why) = outcome(&check.outcome);
        let took = format!("{:.0} ms", check.took.as_secs_f64() * 1_000.0);
        let why = why.lines().next().unwrap_or_default().to_owned();
        vec![check.name.to_owned(), word.to_owned(), took, why]
    });
    let mut text = format!("{location}\n\n{}", ui::table(None, rows.collect()));
    if let Some((ahead, bound)) = report.clock {
        let (by, which) = if ahead < 0 {
            (ahead.unsigned_abs(), "behind")
        } else {
            (ahead.unsigned_abs(), "ahead of")
        };
        text.push_str(&format!("\n\nIts clock is {by} ms {which} this machine's, ± {bound} ms."));
    }
    if !report.left.is_empty() {
        text.push_str("\nThese objects of the check could not be removed:");
        for name in &report.left {
            text.push_str(&format!("\n  {name}"));
        }
    }
    text.push_str(if report.passed() {
        "\nIt keeps its promises: any number of servers may share it."
    } else if report.is_unanswered() {
        "\nNothing can be said about it: it does not answer."
    } else {
        "\nIt must not be used as it is."
    });
    text
}

fn as_json(options: &ObjectOptions, report: &Report) -> Value {
    let checks = report.checks.iter().map(|check| {
        let (word, why) = outcome(&check.outcome);
        let ms = u64::try_from(check.took.as_millis()).unwrap_or(u64::MAX);
        json!({"name": check.name, "outcome": word.to_lowercase(), "detail": why, "took_ms": ms})
    });
    let checks: Vec<Value> = checks.collect();
    let clock = report.clock.map(|(ahead, bound)| json!({"ahead_ms": ahead, "bound_ms": bound}));
    json!({
        "store": options.location.to_string(), "usable": report.passed(), "checks": checks,
        "clock": clock, "left": report.left, "policy": report.is_denied().then(|| object::policy(options)),
    })
}
