//! Links between the documents lead somewhere: the file exists, and so does the heading.
//! Addresses on the web are not visited.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::repo::Source;

/// Links that lead nowhere. `exists` says whether a path of the repository does.
#[must_use]
pub fn check(files: &[Source], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let pages: BTreeMap<&str, BTreeSet<String>> = files
        .iter()
        .filter(|file| file.is_markdown())
        .map(|file| (file.path.as_str(), headings(&file.text)))
        .collect();
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.is_markdown()) {
        for link in links(&file.text) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if path.is_empty() { Some(file.path.clone()) } else { resolve(&file.path, path) };
            let Some(target) = target.filter(|target| exists(target)) else {
                problems.push(format!("{}: {link} does not exist", file.path));
                continue;
            };
            let known = pages.get(target.as_str());
            if !heading.is_empty() && known.is_some_and(|known| !known.contains(heading)) {
                problems.push(format!("{}: {target} has no heading #{heading}", file.path));
            }
        }
    }
    problems
}

/// The targets of links to files, code left out.
fn links(text: &str) -> Vec<&str> {
    let prose = prose(text);
    let targets = prose.into_iter().flat_map(|line| line.split("](").skip(1));
    targets
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .collect()
}

/// Lines outside of code blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut in_code = false;
    let keep = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    keep.collect()
}

/// The anchors that GitHub makes out of headings.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = prose(text).into_iter().filter(|line| line.starts_with('#'));
    titles
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// A relative link as a path from the root; `None` when it leaves the repository.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = Path::new(from).parent()?.to_str()?.split('/').collect();
    parts.retain(|part| !part.is_empty());
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::repo::{self, Source};

    fn found(text: &str) -> Vec<String> {
        let files = [
            Source::new("docs/a.md", text),
            Source::new("README.md", "# One `two`, three\n```sh\n# not a heading\n```\n"),
        ];
        check(&files, |path| files.iter().any(|file| file.path == path))
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        assert!(
            found("[x](../README.md#one-two-three) [y](a.md) [z](https://e.org/x.md)").is_empty()
        );
        assert!(found("```md\n[x](nowhere.md)\n```\n").is_empty());
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(found("[x](b.md)"), ["docs/a.md: b.md does not exist"]);
        assert_eq!(found("[x](../../out.md)").len(), 1);
        assert_eq!(found("[x](../README.md#not-a-heading)").len(), 1);
        assert_eq!(found("[x](#nowhere)").len(), 1);
    }

    #[test]
    fn our_links_lead_somewhere() {
        let root = repo::root();
        let problems = check(&repo::files(&root).unwrap(), |path| root.join(path).exists());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
