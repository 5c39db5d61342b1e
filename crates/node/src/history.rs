//! What a node became and why. The latest are kept in memory, and in a file if there is a folder.
//! Writing never holds anybody up: a line that finds no room is left out of the file.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use lockd_wire::node::{History, Transition};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How many are kept.
pub(crate) const KEPT_MAX: usize = 1_000;
/// The file is written anew when it has this many lines.
const LINES_MAX: usize = 4 * KEPT_MAX;
/// Lines on their way to the file.
const WAITING_MAX: usize = 64;
/// The longest text for people in one entry.
const DETAIL_MAX: usize = 500;
const FILE: &str = "history.jsonl";

#[derive(Debug)]
pub(crate) struct Chronicle {
    kept: Mutex<VecDeque<Transition>>,
    file: Option<mpsc::Sender<Transition>>,
}

impl Chronicle {
    /// With what the folder remembers, and whoever writes to it from now on.
    pub(crate) fn open(folder: Option<&Path>) -> (Self, Option<Writer>) {
        let path = folder.map(|folder| folder.join(FILE));
        let text = path.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        let lines = text.as_deref().unwrap_or_default().lines();
        let mut kept: VecDeque<Transition> = lines
            .clone()
            .rev()
            .take(KEPT_MAX)
            .filter_map(|it| serde_json::from_str(it).ok())
            .collect();
        kept.make_contiguous().reverse();
        let written = lines.count();
        let (file, writer) = match path {
            None => (None, None),
            Some(path) => {
                let (file, waiting) = mpsc::channel(WAITING_MAX);
                let recent = kept.clone();
                (Some(file), Some(Writer { path, waiting, recent, written }))
            }
        };
        (Self { kept: Mutex::new(kept), file }, writer)
    }

    pub(crate) fn add(&self, mut transition: Transition) {
        if let Some((end, _)) = transition.detail.char_indices().nth(DETAIL_MAX) {
            transition.detail.truncate(end);
        }
        if let Some(file) = &self.file
            && file.try_send(transition.clone()).is_err()
        {
            tracing::warn!("the history is not written down: the disk is too slow");
        }
        let mut kept = self.kept.lock();
        kept.push_back(transition);
        while kept.len() > KEPT_MAX {
            kept.pop_front();
        }
    }

    /// The latest last.
    pub(crate) fn all(&self) -> History {
        History { transitions: self.kept.lock().iter().cloned().collect() }
    }
}

/// Brings lines to the file.
pub(crate) struct Writer {
    path: PathBuf,
    waiting: mpsc::Receiver<Transition>,
    recent: VecDeque<Transition>,
    written: usize,
}

impl Writer {
    /// Until the end; what waits then is written still.
    pub(crate) async fn run(mut self, ends: CancellationToken) {
        loop {
            let first = tokio::select! {
                first = self.waiting.recv() => first,
                () = ends.cancelled() => None,
            };
            let is_last = first.is_none();
            let mut lines = Vec::from_iter(first);
            while let Ok(more) = self.waiting.try_recv() {
                lines.push(more);
            }
            if !lines.is_empty()
                && let Err(error) = self.write(lines).await
            {
                tracing::warn!(%error, "the history could not be written down");
            }
            if is_last {
                return;
            }
        }
    }

    async fn write(&mut self, lines: Vec<Transition>) -> std::io::Result<()> {
        self.written += lines.len();
        let mut text: String = lines.iter().map(line).collect();
        self.recent.extend(lines);
        let more = self.recent.len().saturating_sub(KEPT_MAX);
        self.recent.drain(..more);
        let path = self.path.clone();
        if self.written <= LINES_MAX {
            return blocking(move || append(&path, &text)).await;
        }
        text = self.recent.iter().map(line).collect();
        self.written = self.recent.len();
        blocking(move || replace(&path, &text)).await
    }
}

fn line(transition: &Transition) -> String {
    let mut line = serde_json::to_string(transition).unwrap_or_default();
    line.push('\n');
    line
}

fn append(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// Either the old or the new one is there, whatever happens.
pub(crate) fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let beside = path.with_extension("new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(beside, path)
}

pub(crate) async fn blocking(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at_unix_ms: u64) -> Transition {
        Transition { at_unix_ms, cause: "elected".into(), ..Transition::default() }
    }

    #[tokio::test]
    async fn the_latest_are_kept_through_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (chronicle, writer) = Chronicle::open(Some(folder.path()));
        let writing = writer.unwrap();
        for at in 0..10 {
            chronicle.add(entry(at));
        }
        let ends = CancellationToken::new();
        ends.cancel();
        writing.run(ends).await;
        let (chronicle, _writer) = Chronicle::open(Some(folder.path()));
        let all = chronicle.all().transitions;
        assert_eq!(all.first().map(|it| it.at_unix_ms), Some(0));
        assert_eq!(all.last().map(|it| it.at_unix_ms), Some(9));
    }

    #[tokio::test]
    async fn the_file_does_not_grow_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let (_chronicle, writer) = Chronicle::open(Some(folder.path()));
        let mut writer = writer.unwrap();
        let many = u64::try_from(LINES_MAX).unwrap();
        writer.write((0..many).map(entry).collect()).await.unwrap();
        writer.write(vec![entry(many)]).await.unwrap();
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert_eq!(text.lines().count(), KEPT_MAX);
        assert!(text.lines().last().unwrap().contains(&format!("\"at_unix_ms\":{many},")));
    }
}
