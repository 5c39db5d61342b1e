//! Every error code has a page in `docs/errors`, and every page a code. A page says what
//! happened, what to do, and whether to retry.

use std::collections::BTreeSet;

use crate::repo::Source;

const FOLDER: &str = "docs/errors/";
const SECTIONS: &[&str] = &["## What happened", "## What to do", "## Is it safe to retry?"];

/// What is missing or left over.
#[must_use]
pub fn check(files: &[Source], codes: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for file in files {
        let Some(name) = file.path.strip_prefix(FOLDER) else { continue };
        let Some(code) = name.strip_suffix(".md") else {
            problems.push(format!("{}: only pages live here", file.path));
            continue;
        };
        seen.insert(code);
        if !codes.contains(&code) {
            problems.push(format!("{}: there is no such code", file.path));
        }
        if !file.text.starts_with(&format!("# `{code}`\n\nStatus ")) {
            problems.push(format!("{}: begins with its code and its status", file.path));
        }
        for section in SECTIONS.iter().filter(|section| !file.text.contains(*section)) {
            problems.push(format!("{}: lacks {section:?}", file.path));
        }
    }
    for code in codes.iter().filter(|code| !seen.contains(*code)) {
        problems.push(format!("{FOLDER}{code}.md is missing"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use lockd_wire::ErrorCode;

    use super::check;
    use crate::repo::{self, Source};

    fn page(code: &str) -> Source {
        let text = format!(
            "# `{code}`\n\nStatus 400.\n\n## What happened\n## What to do\n## Is it safe to retry?\n"
        );
        Source::new(&format!("docs/errors/{code}.md"), &text)
    }

    #[test]
    fn missing_and_left_over_pages_are_found() {
        assert!(check(&[page("a")], &["a"]).is_empty());
        assert_eq!(check(&[], &["a"]), ["docs/errors/a.md is missing"]);
        assert_eq!(check(&[page("b")], &[]), ["docs/errors/b.md: there is no such code"]);
        let empty = Source::new("docs/errors/a.md", "# `a`\n\nStatus 400.\n");
        assert_eq!(check(&[empty], &["a"]).len(), 3, "all three sections are missing");
    }

    #[test]
    fn our_codes_have_their_pages() {
        let codes: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        let problems = check(&repo::files(&repo::root()).unwrap(), &codes);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
