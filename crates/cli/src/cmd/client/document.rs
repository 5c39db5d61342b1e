//! Documents as people handle them: JSON as it is, JSON to read, or YAML.
//!
//! JSON is only ever re-indented, never re-written: numbers and strings keep their bytes.

use std::path::Path;

use super::tree::Tree;
use crate::exit::{Done, Problem};

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Type {
    /// YAML for files named .yaml or .yml, otherwise raw
    Auto,
    /// JSON as it is stored
    Raw,
    /// JSON, one member a line
    Json,
    Yaml,
}

impl Type {
    /// What `auto` means for this file.
    pub(crate) fn resolve(self, file: &str) -> Self {
        let is_yaml = Path::new(file).extension().is_some_and(|extension| {
            extension.eq_ignore_ascii_case("yaml") || extension.eq_ignore_ascii_case("yml")
        });
        match self {
            Self::Auto if is_yaml => Self::Yaml,
            Self::Auto => Self::Raw,
            Self::Raw | Self::Json | Self::Yaml => self,
        }
    }

    /// The text for a JSON document.
    pub(crate) fn show(self, json: &[u8]) -> Done<String> {
        let text = std::str::from_utf8(json)
            .map_err(|_| Problem::failed("the state is not valid UTF-8"))?;
        match self {
            Self::Auto | Self::Raw => Ok(format!("{text}\n")),
            Self::Json => Ok(indented(text)),
            Self::Yaml => to_yaml(text),
        }
    }

    /// The JSON document of a text.
    pub(crate) fn read(self, text: Vec<u8>) -> Done<Vec<u8>> {
        match self {
            Self::Auto | Self::Raw | Self::Json => Ok(text),
            Self::Yaml => {
                let text = String::from_utf8(text)
                    .map_err(|_| Problem::failed("the YAML is not valid UTF-8"))?;
                from_yaml(&text)
            }
        }
    }
}

fn to_yaml(json: &str) -> Done<String> {
    let tree: Tree = serde_json::from_str(json)
        .map_err(|error| Problem::failed(format!("the state cannot be shown as YAML: {error}")))?;
    serde_saphyr::to_string(&tree)
        .map_err(|error| Problem::failed(format!("the state cannot be shown as YAML: {error}")))
}

fn from_yaml(yaml: &str) -> Done<Vec<u8>> {
    let tree: Tree = serde_saphyr::from_str(yaml)
        .map_err(|error| Problem::failed(format!("not YAML: {}", error.without_snippet())))?;
    serde_json::to_vec(&tree)
        .map_err(|error| Problem::failed(format!("the YAML has no JSON form: {error}")))
}

/// Valid JSON with one member or element a line.
fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut rest = json.trim();
    while let Some(first) = rest.chars().next() {
        match first {
            '"' => {
                let (text, after) = split_string(rest);
                out.push_str(text);
                rest = after;
                continue;
            }
            '{' | '[' => {
                let after = rest.get(1..).unwrap_or_default().trim_start();
                out.push(first);
                if after.starts_with(['}', ']']) {
                    out.extend(after.chars().next());
                    rest = after.get(1..).unwrap_or_default();
                    continue;
                }
                depth += 1;
                line(&mut out, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(first);
            }
            ',' => {
                out.push(',');
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            ' ' | '\t' | '\r' | '\n' => {}
            other => out.push(other),
        }
        rest = rest.get(first.len_utf8()..).unwrap_or_default();
    }
    out.push('\n');
    out
}

/// A string with its quotes, and what follows it.
fn split_string(text: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return text.split_at(at + 1),
            _ => {}
        }
    }
    (text, "")
}

fn line(out: &mut String, depth: usize) {
    out.push('\n');
    for _ in 0..depth {
        out.push_str("  ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_goes_by_the_name_of_the_file() {
        assert_eq!(Type::Auto.resolve("a.yaml"), Type::Yaml);
        assert_eq!(Type::Auto.resolve("dir.yaml/a.YML"), Type::Yaml);
        assert_eq!(Type::Auto.resolve("a.json"), Type::Raw);
        assert_eq!(Type::Auto.resolve("-"), Type::Raw);
        assert_eq!(Type::Json.resolve("a.yaml"), Type::Json);
    }

    #[test]
    fn indenting_changes_nothing_but_space() {
        let json = r#"{"a":[1.50,{"b":"x, {y}: \"z\" \\"},[],{}],"n":123456789012345678901234567890,"ü":null}"#;
        let shown = Type::Json.show(json.as_bytes()).unwrap();
        let expected = r#"{
  "a": [
    1.50,
    {
      "b": "x, {y}: \"z\" \\"
    },
    [],
    {}
  ],
  "n": 123456789012345678901234567890,
  "ü": null
}
"#;
        assert_eq!(shown, expected);
        let mut compact = Vec::new();
        let mut compactor = lockd_json::Compactor::new(lockd_json::Limits::default());
        compactor.push(shown.as_bytes(), &mut compact).unwrap();
        compactor.finish(&mut compact).unwrap();
        assert_eq!(String::from_utf8(compact).unwrap(), json);
    }

    #[test]
    fn scalars_can_be_indented_too() {
        assert_eq!(Type::Json.show(b"\"a\"").unwrap(), "\"a\"\n");
        assert_eq!(Type::Json.show(b" 1 ").unwrap(), "1\n");
    }

    #[test]
    fn yaml_and_back_is_the_same_document() {
        let json = r#"{"z":1,"a":[true,null,-2.5,"yes","1","no: x","line\nbreak",""],"m":{"k":"ü"},"e":{},"l":[],"big":18446744073709551615}"#;
        let yaml = Type::Yaml.show(json.as_bytes()).unwrap();
        let back = Type::Yaml.read(yaml.clone().into_bytes()).unwrap();
        assert_eq!(String::from_utf8(back).unwrap(), json, "{yaml}");
    }

    #[test]
    fn what_yaml_would_change_is_refused() {
        let huge = Type::Yaml.show(br#"{"n":123456789012345678901234567890}"#);
        let problem = huge.unwrap_err().to_string();
        assert!(problem.contains("too large for YAML"), "{problem}");
    }

    #[test]
    fn broken_yaml_is_an_error() {
        assert!(Type::Yaml.read(b"a: [1".to_vec()).is_err());
        assert!(Type::Yaml.read(vec![0xff, 0xfe, 0x41]).is_err());
    }
}
