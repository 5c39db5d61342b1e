//! Examples in documents that were really run. A `console` block holds commands behind `$` (and
//! `>` where they go on) and the answers under them; this replays all blocks of a document in one shell against a fresh
//! server and compares. Ids, times and what is left of a lease differ from run to run and are
//! not compared.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::serve::Running;

/// Where the documents say that the server listens. The README has one on the usual port already,
/// and shows plain HTTP on another.
const WRITTEN_ADDRESSES: [&str; 2] = ["127.0.0.1:9341", "127.0.0.1:9340"];
/// Stands before the answer to each command.
const MARK: &str = "\u{1e}\n";
/// A whole document must be through by then.
const PATIENCE: Duration = Duration::from_secs(120);

/// The documents whose `console` blocks are replayed.
pub const DOCUMENTS: &[&str] = &["README.md", "docs/protocol.md", "docs/fencing.md"];

/// A command and the answer that the document shows, by line numbers from zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub command: String,
    pub answer: String,
    first: usize,
    end: usize,
}

/// All steps of a document, in order.
#[must_use]
pub fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut inside, mut continued) = (false, false);
    for (number, line) in document.lines().enumerate() {
        if line.starts_with("```") {
            inside = !inside && line == "```console";
            continued = false;
        } else if !inside {
            continue;
        } else if let Some(command) = line.strip_prefix("$ ") {
            let command = command.to_owned();
            continued = command.ends_with('\\');
            let first = number + 1;
            steps.push(Step { command, answer: String::new(), first, end: first });
        } else if let Some(step) = steps.last_mut() {
            let more = line.strip_prefix("> ").filter(|_| step.answer.is_empty());
            step.end = number + 1;
            if let Some(part) = more.or(continued.then_some(line)) {
                step.command.push('\n');
                step.command.push_str(part);
                step.first = number + 1;
                continued = part.ends_with('\\');
            } else {
                if step.end > step.first + 1 {
                    step.answer.push('\n');
                }
                step.answer.push_str(line);
            }
        }
    }
    steps
}

/// Runs the commands in one shell and returns what each of them said.
///
/// # Errors
/// When the shell does not come to its end.
pub async fn run(steps: &[Step]) -> Result<Vec<String>> {
    let server = Running::start().await?;
    let mut script = String::from("exec 2>&1\n");
    for step in steps {
        script.push_str("printf '\\036\\n'\n");
        let moved = |command: String, written: &&str| command.replace(written, &server.address);
        script.push_str(&WRITTEN_ADDRESSES.iter().fold(step.command.clone(), moved));
        script.push('\n');
    }
    script.push_str("printf '\\036\\n'\n");
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(script).current_dir(server.folder.path());
    shell.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, shell.output()).await.context("out of time")?;
    let said = String::from_utf8_lossy(&output.context("bash")?.stdout).into_owned();
    let written = WRITTEN_ADDRESSES.iter().find(|written| {
        steps.iter().any(|step| step.command.contains(**written) || step.answer.contains(**written))
    });
    let said = said.replace(&server.address, written.unwrap_or(&WRITTEN_ADDRESSES[0]));
    server.stop().await;
    let mut answers: Vec<String> =
        said.split(MARK).skip(1).map(|answer| answer.trim_end().to_owned()).collect();
    if answers.len() != steps.len() + 1 {
        bail!("{} commands gave {} answers:\n{said}", steps.len(), answers.len());
    }
    answers.pop();
    Ok(answers)
}

/// Answers that are not the ones shown.
#[must_use]
pub fn check(steps: &[Step], answers: &[String]) -> Vec<String> {
    let pairs = steps.iter().zip(answers);
    let different = pairs.filter(|(step, answer)| steady(&step.answer) != steady(answer));
    different
        .map(|(step, answer)| {
            format!("$ {}\nshown:\n{}\nbut it says:\n{answer}\n", step.command, step.answer)
        })
        .collect()
}

/// The document with the answers of a run in the place of those it shows.
#[must_use]
pub fn rewrite(document: &str, steps: &[Step], answers: &[String]) -> String {
    let lines: Vec<&str> = document.lines().collect();
    let mut text: Vec<&str> = Vec::new();
    let mut next = 0;
    for (step, answer) in steps.iter().zip(answers) {
        text.extend(lines.get(next..step.first).unwrap_or_default());
        if steady(&step.answer) == steady(answer) {
            text.extend(lines.get(step.first..step.end).unwrap_or_default());
        } else if !answer.is_empty() {
            text.extend(answer.lines());
        }
        next = step.end;
    }
    text.extend(lines.get(next..).unwrap_or_default());
    text.join("\n") + "\n"
}

/// Members whose numbers depend on how fast the machine is.
const HURRIED: &[&str] =
    &["\"age_ms\":", "\"remaining_ms\":", "\"retry_after_seconds\":", "retry-after: "];

/// A text without what differs from run to run.
fn steady(text: &str) -> String {
    let lines = text.trim_end().lines().filter(|line| !line.starts_with("date: "));
    let mut steady: String = lines.map(|line| words(line.trim_end()) + "\n").collect();
    for name in HURRIED {
        let parts: Vec<&str> = steady.split(name).collect();
        let rest =
            parts.iter().skip(1).map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
        let first = parts.first().copied().unwrap_or_default();
        steady = std::iter::once(first).chain(rest).collect::<Vec<_>>().join(&format!("{name}N"));
    }
    steady
}

/// A line with each generated word replaced by its kind.
fn words(line: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut out = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let kinds: Vec<&str> =
            if is_uuid(word) { vec!["UUID"] } else { word.split('-').map(kind).collect() };
        out.push_str(&kinds.join("-"));
        let next = after.find(is_word).unwrap_or(after.len());
        let (other, remaining) = after.split_at(next);
        out.push_str(other);
        rest = remaining;
    }
    out
}

fn kind(word: &str) -> &str {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let id = word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'v'));
    match word.len() {
        10 if digits => "SECONDS",
        13 if digits => "MILLISECONDS",
        20 if id => "ID",
        _ => word,
    }
}

fn is_uuid(word: &str) -> bool {
    let lengths: Vec<usize> = word.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && word.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::{DOCUMENTS, check, rewrite, run, steps};
    use crate::repo;

    const DOCUMENT: &str = "\
# A\n```sh\n$ not this\n```\n```console\n$ echo one \\\n    two\none two\n$ echo \\\n    three\nwrong\n$ if true\n> then true; fi\n```\nend\n";

    #[test]
    fn commands_and_answers_come_apart() {
        let steps = steps(DOCUMENT);
        let shown: Vec<(&str, &str)> =
            steps.iter().map(|step| (step.command.as_str(), step.answer.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("echo one \\\n    two", "one two"),
                ("echo \\\n    three", "wrong"),
                ("if true\nthen true; fi", "")
            ]
        );
    }

    #[tokio::test]
    async fn a_wrong_answer_is_found_and_can_be_put_right() {
        let steps = steps(DOCUMENT);
        let answers = run(&steps).await.unwrap();
        assert_eq!(answers, ["one two", "three", ""]);
        assert_eq!(check(&steps, &answers).len(), 1);
        let right = rewrite(DOCUMENT, &steps, &answers);
        assert_eq!(right, DOCUMENT.replace("wrong", "three"));
    }

    #[test]
    fn ids_and_times_are_not_compared_but_everything_else_is() {
        let same = |a: &str, b: &str| super::steady(a) == super::steady(b);
        let first = r#"{"lease_id":"mq525ie1o25dn02b9rvg","at":1794772603250,"age_ms":7,"v":1}"#;
        let second = r#"{"lease_id":"00000000000000000000","at":1894772603250,"age_ms":99,"v":1}"#;
        assert!(same(first, second));
        assert!(!same(first, &second.replace("\"v\":1", "\"v\":2")));
        assert!(same("id: mq525ie1o25dn02b9rvg-1", "id: nq525ie1o25dn02b9rvg-1"));
        assert!(same(
            "x 01a1e0c8-1c43-7f0a-bead-1ac1d1c661c8",
            "x 01a1e0c8-1cef-7362-a433-67fbdd962549"
        ));
    }

    #[tokio::test]
    async fn the_examples_of_our_documents_answer_as_shown() {
        for path in DOCUMENTS {
            let steps = steps(&repo::read(path).unwrap());
            let answers = run(&steps).await.unwrap();
            let problems = check(&steps, &answers);
            assert!(problems.is_empty(), "{path}\n{}", problems.join("\n"));
        }
    }
}
