//! A JSON document of any size in two writings: the way a person would, with white space
//! everywhere, and without any. Both are made from scratch, neither from the other.

use std::fmt::Write as _;

use sha2::Digest as _;

/// Rows in one piece of text.
const ROWS_PER_PIECE: usize = 256;

/// A list of `rows` objects.
#[derive(Clone, Copy, Debug)]
pub struct Document {
    pub rows: usize,
    /// Makes documents of the same size differ.
    pub seed: usize,
}

const TEXTS: &[&str] = &[
    r#""plain""#,
    r#""blanks  in\tside \n are kept""#,
    r#""quote \" and backslash \\""#,
    r#""\u00e9\ud83d\ude00 escaped""#,
    r#""é😀 as they are""#,
    r#""{\"not\": [\"an\", \"object\"]}""#,
];
const NUMBERS: &[&str] =
    &["0", "-0", "-0.0", "1e5", "1E+05", "123456789012345678901234567890", "0.1000", "2.5e-310"];

impl Document {
    #[must_use]
    pub fn new(rows: usize, seed: usize) -> Self {
        Self { rows, seed }
    }

    /// About this many bytes without white space.
    #[must_use]
    pub fn of_bytes(bytes: usize, seed: usize) -> Self {
        let sample = Self::new(ROWS_PER_PIECE, seed);
        let per_row = sample.compact().map(|piece| piece.len()).sum::<usize>() / ROWS_PER_PIECE;
        Self::new(bytes.div_ceil(per_row.max(1)), seed)
    }

    /// With white space, in pieces.
    pub fn pretty(self) -> impl Iterator<Item = Vec<u8>> {
        self.pieces("\r\n[\n", ",\n", "\n] \t\n", move |row| {
            let (text, number) = self.values(row);
            format!(
                "  {{\n    \"row\" : {row},\n    \"text\":\t{text},\n    \"list\": [ {number} , \
                 true , null , [ ] , {{ }} ],\n    \"text\": {text}\n  }}"
            )
        })
    }

    /// Without, in pieces.
    pub fn compact(self) -> impl Iterator<Item = Vec<u8>> {
        self.pieces("[", ",", "]", move |row| {
            let (text, number) = self.values(row);
            format!(
                r#"{{"row":{row},"text":{text},"list":[{number},true,null,[],{{}}],"text":{text}}}"#
            )
        })
    }

    /// Without white space, as a whole.
    #[must_use]
    pub fn whole(self) -> Vec<u8> {
        self.compact().flatten().collect()
    }

    fn values(self, row: usize) -> (&'static str, &'static str) {
        let at = row.wrapping_mul(31).wrapping_add(self.seed);
        (TEXTS[at % TEXTS.len()], NUMBERS[at % NUMBERS.len()])
    }

    fn pieces(
        self,
        open: &'static str,
        between: &'static str,
        close: &'static str,
        write: impl Fn(usize) -> String,
    ) -> impl Iterator<Item = Vec<u8>> {
        let count = self.rows.div_ceil(ROWS_PER_PIECE).max(1);
        (0..count).map(move |piece| {
            let mut text = String::new();
            if piece == 0 {
                text.push_str(open);
            }
            let rows = piece * ROWS_PER_PIECE..((piece + 1) * ROWS_PER_PIECE).min(self.rows);
            for row in rows {
                let before = if row == 0 { "" } else { between };
                let _ = write!(text, "{before}{}", write(row));
            }
            if piece + 1 == count {
                text.push_str(close);
            }
            text.into_bytes()
        })
    }
}

/// The etag that a server must give these bytes.
#[must_use]
pub fn etag_of(bytes: &[u8]) -> String {
    let hash = sha2::Sha256::digest(bytes);
    hash.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
