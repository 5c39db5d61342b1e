//! `edit`: expressions applied to a document without any server, from standard input to standard
//! output or in place. And the same for the commands that change state from here.

use std::io::{Read as _, Write as _};
use std::path::Path;

use clap::{Args, ValueEnum};
use lockd_json::mutate::{self, FileValues, Mutation, Source};

use super::document::Type;
use crate::exit::{Done, Problem};
use crate::ui;

/// Apply expressions to a JSON document, offline
///
/// Reads standard input and writes standard output, or changes a file in place. What no expression
/// names keeps its bytes. No input counts as {}.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EditArgs {
    /// Expressions: path=value, path++, path--, path=+N, rm:path, time:path=NOW, file:path=FILE
    #[arg(value_name = "EXPRESSION", required = true)]
    expressions: Vec<String>,
    /// Change this file in place
    #[arg(long, short, value_name = "FILE")]
    file: Option<String>,
    /// What the document is written in; without it the name of the file decides
    #[arg(long = "type", value_enum)]
    kind: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Json,
    Yaml,
}

const EXAMPLES: &str = "\
Examples:
  lockd client get orders | lockd client edit status.counter++ | lockd client update orders
  lockd client edit --file checkpoint.json progress.step=done progress.count=+5
  lockd client edit -f state.yaml rm:/old time:/updated=NOW";

/// Largest file that becomes a value.
const FILE_VALUE_BYTES_MAX: u64 = 100 * 1024 * 1024;

pub(super) fn run(args: EditArgs) -> Done {
    let mutations = parse(&args.expressions, Source::Local)?;
    let kind = match args.kind {
        Some(Kind::Json) => Type::Raw,
        Some(Kind::Yaml) => Type::Yaml,
        None => Type::Auto.resolve(args.file.as_deref().unwrap_or("-")),
    };
    let text = match &args.file {
        None => read_stdin()?,
        Some(path) => std::fs::read(path)
            .map_err(|error| Problem::failed(format!("cannot read {path}: {error}")))?,
    };
    let blank = text.iter().all(u8::is_ascii_whitespace);
    let json = if blank { Vec::new() } else { kind.read(text)? };
    let edited = apply(Some(&json), &mutations)?;
    let shown = match kind {
        Type::Yaml => kind.show(&edited)?.into_bytes(),
        Type::Auto | Type::Raw | Type::Json => with_line_end(edited),
    };
    match args.file {
        None => ui::bytes(&shown),
        Some(path) => replace(Path::new(&path), &shown)
            .map_err(|error| Problem::failed(format!("cannot write {path}: {error}"))),
    }
}

/// Reads expressions; a wrong one is told before anything is touched.
pub(super) fn parse(expressions: &[String], source: Source) -> Done<Vec<Mutation>> {
    let mut mutations = Vec::new();
    for expression in expressions {
        let parsed = mutate::parse(expression, source);
        mutations.extend(parsed.map_err(|error| Problem::usage(error.to_string()))?);
    }
    Ok(mutations)
}

/// Applies expressions to a document here.
pub(super) fn apply(document: Option<&[u8]>, mutations: &[Mutation]) -> Done<Vec<u8>> {
    let now = jiff::Timestamp::now().to_string();
    mutate::apply(document, mutations, &now, &LocalFiles)
        .map_err(|error| Problem::failed(error.to_string()))
}

struct LocalFiles;

impl FileValues for LocalFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        let read = file.take(FILE_VALUE_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| error.to_string())?;
        if bytes.len() as u64 > FILE_VALUE_BYTES_MAX {
            return Err(format!("it has more than {FILE_VALUE_BYTES_MAX} bytes"));
        }
        Ok(bytes)
    }
}

fn read_stdin() -> Done<Vec<u8>> {
    let mut text = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut text)
        .map_err(|error| Problem::failed(format!("cannot read standard input: {error}")))?;
    Ok(text)
}

fn with_line_end(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
    bytes
}

/// Puts new content in the place of a file, which keeps its permissions, in one step.
fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    // A link is followed, so that what it points to changes and not the link.
    let path = std::fs::canonicalize(path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    file.as_file().set_permissions(std::fs::metadata(&path)?.permissions())?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(file: &Path, expressions: &[&str]) -> Done {
        run(EditArgs {
            expressions: expressions.iter().map(|text| (*text).to_owned()).collect(),
            file: Some(file.to_str().unwrap().to_owned()),
            kind: None,
        })
    }

    #[test]
    fn a_file_is_changed_in_place_and_the_rest_of_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        std::fs::write(&file, "{ \"n\": 1.50, \"keep\": 10e2 }\n").unwrap();
        edit(&file, &["count++", "rm:/n"]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("10e2"), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, serde_json::json!({ "keep": 1000.0, "count": 1 }));
    }

    #[test]
    fn a_yaml_file_stays_yaml() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        std::fs::write(&file, "step: fetch\ncount: 1\n").unwrap();
        edit(&file, &["count=+5", "step=done"]).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "step: done\ncount: 6\n");
    }

    #[test]
    fn an_empty_file_counts_as_an_empty_object() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.json", "a.yaml"] {
            let file = dir.path().join(name);
            std::fs::write(&file, "\n").unwrap();
            edit(&file, &["a.b=1"]).unwrap();
            assert!(std::fs::read_to_string(&file).unwrap().contains('b'), "{name}");
        }
    }

    #[test]
    fn a_wrong_expression_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        std::fs::write(&file, "{\"a\":\"text\"}").unwrap();
        assert_eq!(edit(&file, &["b=1", "oops"]).unwrap_err().exit().unwrap().code(), 2);
        assert_eq!(edit(&file, &["b=1", "a++"]).unwrap_err().exit().unwrap().code(), 1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"a\":\"text\"}");
    }

    #[test]
    fn values_may_come_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let (file, value) = (dir.path().join("a.json"), dir.path().join("v.txt"));
        std::fs::write(&file, "{}").unwrap();
        std::fs::write(&value, "from a file").unwrap();
        edit(&file, &[&format!("file:/v={}", value.display())]).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"v\":\"from a file\"}\n");
    }
}
