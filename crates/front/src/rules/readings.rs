//! All the ways in which servers understand one path: escapes decoded, slashes merged, dots
//! resolved, parameters left out, in any order and as often as it makes a difference.

use percent_encoding::percent_decode;

/// More ways than this to read a path are not gone through.
const READINGS_MAX: usize = 64;
/// A longer path is not read in more ways than one.
const ODD_PATH_MAX: usize = 8 * 1024;

type Step = fn(&[u8]) -> Vec<u8>;

const STEPS: [Step; 8] =
    [decoded, without_parameters, with_slashes, cut_short, trimmed, merged, resolved, closed];

/// `None` where there are too many of them. The first is the path as it is.
pub(super) fn readings(path: &str) -> Option<Vec<Vec<u8>>> {
    let mut readings = vec![path.as_bytes().to_vec()];
    let mut next = 0;
    while let Some(reading) = readings.get(next).cloned() {
        for step in STEPS {
            let other = step(&reading);
            if readings.contains(&other) {
                continue;
            }
            if readings.len() >= READINGS_MAX || path.len() > ODD_PATH_MAX {
                return None;
            }
            readings.push(other);
        }
        next += 1;
    }
    Some(readings)
}

/// With escapes decoded once.
pub(super) fn decoded(path: &[u8]) -> Vec<u8> {
    percent_decode(path).collect()
}

/// `/a;v=1/b` as `/a/b`.
fn without_parameters(path: &[u8]) -> Vec<u8> {
    let segments: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .map(|segment| segment.split(|byte| *byte == b';').next().unwrap_or_default())
        .collect();
    segments.join(&b'/')
}

/// `/a\b` as `/a/b`.
fn with_slashes(path: &[u8]) -> Vec<u8> {
    path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect()
}

/// Without what only looks like a part of the path once it is decoded.
fn cut_short(path: &[u8]) -> Vec<u8> {
    path.split(|byte| b"\0?#".contains(byte)).next().unwrap_or_default().to_vec()
}

/// Without spaces, line ends and the like after it.
fn trimmed(path: &[u8]) -> Vec<u8> {
    let is_seen = |byte: &u8| !byte.is_ascii_whitespace() && !byte.is_ascii_control();
    let end = path.iter().rposition(is_seen).map_or(0, |last| last + 1);
    path.get(..end).unwrap_or_default().to_vec()
}

/// `/a//b` as `/a/b`.
fn merged(path: &[u8]) -> Vec<u8> {
    let mut merged = Vec::with_capacity(path.len());
    for byte in path {
        if *byte != b'/' || merged.last() != Some(&b'/') {
            merged.push(*byte);
        }
    }
    merged
}

/// `/a/./b/../c` as `/a/c`.
fn resolved(path: &[u8]) -> Vec<u8> {
    let Some(rest) = path.strip_prefix(b"/") else { return path.to_vec() };
    let mut segments: Vec<&[u8]> = Vec::new();
    // Where dots come last, what is left ends with a slash.
    let mut folder = false;
    for segment in rest.split(|byte| *byte == b'/') {
        folder = true;
        match segment {
            b"." => {}
            b".." => {
                segments.pop();
            }
            name => {
                segments.push(name);
                folder = false;
            }
        }
    }
    let mut resolved = vec![b'/'];
    resolved.extend(segments.join(&b'/'));
    if folder && resolved.last() != Some(&b'/') {
        resolved.push(b'/');
    }
    resolved
}

/// Without a slash at the end.
fn closed(path: &[u8]) -> Vec<u8> {
    match path {
        [before @ .., b'/'] if !before.is_empty() => before.to_vec(),
        whole => whole.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads_as(path: &str, reading: &str) -> bool {
        readings(path).unwrap().iter().any(|one| one == reading.as_bytes())
    }

    #[test]
    fn a_plain_path_is_read_in_one_way() {
        for plain in ["/", "/v1/jobs", "/a.b/c-d/e~f", "/v1/jobs/0190-aa", "*"] {
            assert_eq!(readings(plain).unwrap(), [plain.as_bytes()]);
        }
    }

    #[test]
    fn an_odd_path_is_read_in_every_way() {
        for odd in [
            "/a/%62",
            "/a/%2562",
            "/a/%25%36%32",
            "//a/b",
            "/a//b",
            "/a/b/",
            "/./a/b",
            "/x/../a/b",
            "/x/%2e%2E/a/b",
            "/a;v=1/b;w",
            "/..;/a/b",
            "/a%2fb",
            "/a%5Cb",
            "/a/b%00.png",
            "/a/b%3Fx",
            "/a/b%20",
            "/a/b%0a",
            "/../a/b",
            "/x/%2e%2e/../a/../../a/b",
            "/a/b/.",
        ] {
            assert!(reads_as(odd, "/a/b"), "{odd}");
        }
        // Some resolve dots before they merge slashes, some after.
        assert!(reads_as("/a/x//../b", "/a/b") && reads_as("/a/x//../b", "/a/x/b"));
    }

    #[test]
    fn too_many_ways_are_not_gone_through() {
        assert!(readings(&format!("/%{}41", "25".repeat(100))).is_none());
        assert!(readings(&format!("/{}", "a".repeat(2 * ODD_PATH_MAX))).is_some());
        assert!(readings(&format!("//{}", "a".repeat(2 * ODD_PATH_MAX))).is_none());
    }
}
