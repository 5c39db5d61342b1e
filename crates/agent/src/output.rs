//! What a job has written, as much as is kept of it: the first quarter, and the rest from the end.
//! In between it is said how much is missing.

use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Output {
    head: Vec<u8>,
    head_max: usize,
    tail: VecDeque<u8>,
    tail_max: usize,
    left_out: u64,
}

/// What is reported of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) is_cut: bool,
}

impl Output {
    pub(crate) fn new(max: usize) -> Self {
        let head_max = max / 4;
        let (head, tail) = (Vec::new(), VecDeque::new());
        Self { head, head_max, tail, tail_max: max - head_max, left_out: 0 }
    }

    pub(crate) fn add(&mut self, piece: &[u8]) {
        let room = self.head_max.saturating_sub(self.head.len());
        let (first, rest) = piece.split_at(room.min(piece.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.tail_max);
        self.tail.drain(..over);
        self.left_out = self.left_out.saturating_add(u64::try_from(over).unwrap_or(u64::MAX));
    }

    /// Bytes that are no text are replaced.
    pub(crate) fn text(&mut self) -> Text {
        let tail = self.tail.make_contiguous();
        if self.left_out == 0 {
            let all = [self.head.as_slice(), tail].concat();
            return Text { text: String::from_utf8_lossy(&all).into_owned(), is_cut: false };
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(tail));
        let text = format!("{head}\n[... {} bytes are left out ...]\n{tail}", self.left_out);
        Text { text, is_cut: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(max: usize, pieces: &[&[u8]]) -> Text {
        let mut output = Output::new(max);
        pieces.iter().for_each(|piece| output.add(piece));
        output.text()
    }

    #[test]
    fn what_fits_is_kept_as_it_is() {
        let text = kept(8, &[b"a\r\n", "\u{e9}".as_bytes(), b"\xff", b"yz"]);
        assert_eq!(text, Text { text: "a\r\n\u{e9}\u{fffd}yz".into(), is_cut: false });
        assert_eq!(kept(8, &[]), Text::default());
    }

    #[test]
    fn a_letter_across_two_pieces_is_one_letter() {
        assert_eq!(kept(8, &[b"1\xc3", b"\xa9"]).text, "1\u{e9}");
    }

    #[test]
    fn of_more_the_beginning_and_the_end_are_kept() {
        let text = kept(8, &[b"0123", b"456789abc"]);
        let wanted = "01\n[... 5 bytes are left out ...]\n789abc";
        assert_eq!(text, Text { text: wanted.into(), is_cut: true });
        assert!(kept(0, &[b"x"]).is_cut);
    }
}
