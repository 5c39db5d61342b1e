//! Paths with stars in them.

/// `*` is anything within a segment, `/**` at the end any rest.
#[derive(Clone, Debug)]
pub(super) struct Glob {
    segments: Vec<Vec<u8>>,
    /// More may follow.
    open: bool,
    /// Letters of either case are the same.
    any_case: bool,
}

impl Glob {
    pub(super) fn parse(path: &[u8], any_case: bool) -> Result<Self, &'static str> {
        if path == b"*" {
            return Ok(Self { segments: Vec::new(), open: true, any_case });
        }
        let Some(rest) = path.strip_prefix(b"/") else {
            return Err("a path begins with a slash");
        };
        if rest.iter().any(|byte| b"?#".contains(byte)) {
            return Err("a pattern is about the path, without a query");
        }
        let (rest, open) = match rest.strip_suffix(b"**") {
            Some([]) => return Ok(Self { segments: Vec::new(), open: true, any_case }),
            Some([before @ .., b'/']) => (before, true),
            Some(_) => return Err("** stands for whole segments"),
            None => (rest, false),
        };
        if rest.windows(2).any(|pair| pair == b"**") {
            return Err("** stands at the end");
        }
        let case = |segment: &[u8]| match any_case {
            true => segment.to_ascii_lowercase(),
            false => segment.to_vec(),
        };
        let segments = rest.split(|byte| *byte == b'/').map(case).collect();
        Ok(Self { segments, open, any_case })
    }

    pub(super) fn fits(&self, path: &[u8]) -> bool {
        let lower;
        let path = if self.any_case {
            lower = path.to_ascii_lowercase();
            lower.as_slice()
        } else {
            path
        };
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let mut given = path.split(|byte| *byte == b'/');
        for segment in &self.segments {
            match given.next() {
                // Which segments are empty, servers do not agree on.
                Some([]) if !self.any_case && !segment.is_empty() => return false,
                Some(text) if fits(segment, text) => {}
                Some(_) | None => return false,
            }
        }
        self.open || given.next().is_none()
    }
}

/// One segment, with stars.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let mut pieces = pattern.split(|byte| *byte == b'*');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let Some(mut piece) = pieces.next() else { return rest.is_empty() };
    // The earliest place for each piece leaves the most for those after it.
    for next in pieces {
        if piece.is_empty() {
            piece = next;
            continue;
        }
        let found = rest.windows(piece.len()).position(|window| window == piece);
        let after = found.and_then(|at| rest.get(at + piece.len()..));
        let Some(after) = after else { return false };
        (rest, piece) = (after, next);
    }
    rest.ends_with(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_within_a_segment_and_two_are_the_rest() {
        let fits = |pattern: &str, path: &str| {
            Glob::parse(pattern.as_bytes(), false).unwrap().fits(path.as_bytes())
        };
        assert!(fits("/v1/jobs", "/v1/jobs") && !fits("/v1/jobs", "/v1/jobs/1"));
        assert!(!fits("/v1/jobs", "/v1/job") && !fits("/v1/jobs", "/v1"));
        assert!(fits("/v1/*/x", "/v1/a/x") && !fits("/v1/*/x", "/v1/a/b/x"));
        assert!(fits("/jobs/*:cancel", "/jobs/7:cancel") && !fits("/jobs/*:cancel", "/jobs/7"));
        assert!(fits("/a*b*c", "/axxbyyc") && !fits("/a*b*c", "/axxcyyb"));
        assert!(fits("/a*bc*c", "/abcc") && !fits("/a*bc*c", "/abc"));
        assert!(fits("/v1/**", "/v1") && fits("/v1/**", "/v1/") && fits("/v1/**", "/v1/a/b"));
        assert!(!fits("/v1/**", "/v10") && !fits("/v1/**", "/v2/v1"));
        assert!(fits("/**", "/") && fits("/**", "/a/b") && fits("*", "*") && fits("*", "/a/b"));
        assert!(fits("/", "/") && !fits("/", "/a"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for wrong in ["a", "", "/a**", "/**/a", "/a/**b", "/a?b=c", "/a#b"] {
            assert!(Glob::parse(wrong.as_bytes(), false).is_err(), "{wrong}");
        }
    }
}
