//! Output, line by line, or piece by piece as it comes.

use tokio::io::{AsyncRead, AsyncReadExt as _};

use tokio::task::JoinHandle;

use crate::Stream;

/// The longest line that is handed over in one piece.
pub const LINE_MAX: usize = 8 * 1024;

/// Reads to the end, in the background.
pub(crate) fn read<R>(
    from: R,
    stream: Stream,
    on_line: impl Fn(Stream, &str) + Send + 'static,
) -> JoinHandle<()>
where
    R: AsyncRead + Send + Unpin + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "ends with the program")]
    tokio::spawn(async move {
        let mut from = from;
        let mut lines = Lines::default();
        let mut piece = vec![0; LINE_MAX];
        while let Ok(read @ 1..) = from.read(&mut piece).await {
            lines.add(piece.get(..read).unwrap_or_default(), &|line| on_line(stream, line));
        }
        lines.end(&|line| on_line(stream, line));
    })
}

/// As [`read`], with nothing changed.
pub(crate) fn read_pieces<R>(
    from: R,
    on_piece: impl FnMut(&[u8]) + Send + 'static,
) -> JoinHandle<()>
where
    R: AsyncRead + Send + Unpin + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "ends with the program")]
    tokio::spawn(async move {
        let (mut from, mut on_piece) = (from, on_piece);
        let mut piece = vec![0; LINE_MAX];
        while let Ok(read @ 1..) = from.read(&mut piece).await {
            on_piece(piece.get(..read).unwrap_or_default());
        }
    })
}

/// What has not ended yet.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn add(&mut self, piece: &[u8], tell: &impl Fn(&str)) {
        for byte in piece {
            if *byte == b'\n' {
                self.end(tell);
                continue;
            }
            self.0.push(*byte);
            if self.0.len() >= LINE_MAX {
                self.end(tell);
            }
        }
    }

    fn end(&mut self, tell: &impl Fn(&str)) {
        if !self.0.is_empty() {
            tell(String::from_utf8_lossy(&self.0).trim_end_matches('\r'));
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn lines_are_put_together_and_cut() {
        let told = RefCell::new(Vec::new());
        let tell = |line: &str| told.borrow_mut().push(line.to_owned());
        let mut lines = Lines::default();
        lines.add(b"on", &tell);
        lines.add(b"e\r\ntwo\n\nthr", &tell);
        lines.add(&vec![b'x'; LINE_MAX], &tell);
        lines.end(&tell);
        let told = told.into_inner();
        assert_eq!(told[..2], ["one", "two"]);
        assert_eq!(told[2].len(), LINE_MAX);
        assert_eq!(told[3], "xxx");
    }
}
