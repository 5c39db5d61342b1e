//! How far an upload or download has come, for a person who waits: on standard error, when that is
//! a terminal, and only for what takes longer than a second.

use std::io::{self, IsTerminal as _};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::io::{AsyncRead, ReadBuf};

/// What is quicker needs no progress.
const WORTH_SHOWING: Duration = Duration::from_secs(1);

/// A transfer under way. It leaves nothing behind on the terminal when it is dropped.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
    wanted: bool,
}

impl Progress {
    /// A transfer of so many bytes, if that is known.
    #[must_use]
    pub fn new(total: Option<u64>) -> Self {
        Self::seen_by(total, io::stderr().is_terminal())
    }

    /// For data that goes to standard output: not when the same terminal shows the data itself.
    #[must_use]
    pub fn beside_output(total: Option<u64>) -> Self {
        Self::seen_by(total, io::stderr().is_terminal() && !io::stdout().is_terminal())
    }

    fn seen_by(total: Option<u64>, wanted: bool) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let template = match total {
            Some(_) => "{bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            None => "{bytes}, {bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, wanted }
    }

    /// So many more bytes have passed.
    pub fn add(&self, bytes: usize) {
        self.bar.inc(bytes as u64);
        if self.wanted && self.bar.is_hidden() && self.bar.elapsed() >= WORTH_SHOWING {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// It begins again, from the start.
    fn restart(&self) {
        self.bar.set_position(0);
    }

    /// What is read through the result counts.
    pub fn count<R>(&self, reader: R) -> Counted<R> {
        self.restart();
        Counted { reader, progress: self.clone() }
    }

    /// Takes it off the terminal, before something else is said there.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// A reader whose bytes are counted.
#[derive(Debug)]
pub struct Counted<R> {
    reader: R,
    progress: Progress,
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.reader).poll_read(context, buffer);
        self.progress.add(buffer.filled().len().saturating_sub(before));
        polled
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::Progress;

    #[tokio::test]
    async fn what_is_read_is_counted_and_a_second_try_begins_again() {
        let progress = Progress::seen_by(Some(10), true);
        for _ in 0..2 {
            let mut text = Vec::new();
            progress.count(&b"0123456789"[..]).read_to_end(&mut text).await.unwrap();
            assert_eq!((text.len(), progress.bar.position()), (10, 10));
        }
        assert!(progress.bar.is_hidden(), "it was quick");
    }
}
