//! Starting, asking to end, and ending.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::clear::Mark;
use crate::tether::{self, Tether, Word};
use crate::{files, guard, lines};

/// How long the last of the output is waited for.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// How long one that was killed may take to be gone. A guard that takes longer is killed itself.
const GONE_WITHIN: Duration = Duration::from_secs(3);

/// What is to be run.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Set in its environment, besides that of this process.
    pub environment: Vec<(String, String)>,
    /// Taken out of its environment first: secrets of this process.
    pub hidden: Vec<String>,
    /// A command that runs [`guard`](crate::guard) on the arguments after it.
    pub guard: Vec<OsString>,
}

/// Where a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

/// A program that runs. Dropped, it is killed with everything it has started.
#[derive(Debug)]
pub struct Child {
    child: tokio::process::Child,
    reach: Reach,
    readers: Vec<JoinHandle<()>>,
    is_killed: bool,
}

/// How signals get to it.
#[derive(Debug)]
enum Reach {
    /// To its group.
    Group(Option<Pid>),
    /// Through its guard, which ends everything when this is closed: also when this process ends,
    /// however it ends.
    Guard(Tether, Mark),
}

impl Child {
    /// Starts it, with nothing to read. Every line that it writes is handed over, cut to
    /// [`LINE_MAX`](crate::LINE_MAX).
    ///
    /// # Errors
    /// When it cannot be started. Of one under a guard only [`Child::wait`] tells.
    pub fn start(
        program: &Program,
        on_line: impl Fn(Stream, &str) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let mut started = Self::spawn(program, None, (Stdio::piped(), Stdio::piped()))?;
        if let Some(output) = started.child.stdout.take() {
            started.readers.push(lines::read(output, Stream::Output, on_line.clone()));
        }
        if let Some(error) = started.child.stderr.take() {
            started.readers.push(lines::read(error, Stream::Error, on_line));
        }
        Ok(started)
    }

    /// Starts it with this to read, of any size; whether it reads it is its own affair. What it
    /// writes, as output or as errors, goes into one pipe and is handed over in pieces as it comes,
    /// byte for byte.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn start_with_input(
        program: &Program,
        input: &[u8],
        on_piece: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<Self> {
        let (from, into) = io::pipe()?;
        let from = pipe::Receiver::from_owned_fd(OwnedFd::from(from))?;
        let writers = (Stdio::from(into.try_clone()?), Stdio::from(into));
        let mut started = Self::spawn(program, Some(input), writers)?;
        started.readers.push(lines::read_pieces(from, on_piece));
        Ok(started)
    }

    fn spawn(
        program: &Program,
        input: Option<&[u8]>,
        (output, error): (Stdio, Stdio),
    ) -> io::Result<Self> {
        let is_guarded = !program.guard.is_empty();
        let mut words =
            program.guard.iter().cloned().chain(program.command.iter().map(OsString::from));
        let mut command = Command::new(words.next().ok_or_else(guard::no_command)?);
        for name in &program.hidden {
            command.env_remove(name);
        }
        command
            .args(words)
            .envs(program.environment.iter().map(|(name, value)| (name, value)))
            .stdout(output)
            .stderr(error)
            .process_group(0)
            // A guard has something to do before it ends.
            .kill_on_drop(!is_guarded);
        let mut guarded = None;
        if is_guarded {
            let (mark, (ours, guards)) = (Mark::new(), Tether::pair(input)?);
            let (name, value) = mark.variable();
            command.env(name, value).stdin(guards);
            if let Some(before) = files::before() {
                command.env(files::VARIABLE, before);
            }
            guarded = Some(Reach::Guard(ours, mark));
        } else {
            let file = input.map(tether::input_file).transpose()?;
            command.stdin(file.map_or_else(Stdio::null, Stdio::from));
        }
        let child = command.spawn()?;
        let group = || child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let reach = guarded.unwrap_or_else(|| Reach::Group(group()));
        Ok(Self { child, reach, readers: Vec::new(), is_killed: false })
    }

    /// Until it has ended, all of it, and its output was handed over. After [`Child::kill`] this
    /// takes some seconds at most.
    ///
    /// # Errors
    /// When its guard could not start it, or the system does not tell how it ended.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let ended = self.ended().await;
        self.kill();
        let ended = match &mut self.reach {
            Reach::Group(_) => ended,
            Reach::Guard(tether, mark) => {
                let heard = tether.heard();
                // One that ends by itself has cleared away everything.
                if !ended.as_ref().is_ok_and(|status| status.signal().is_none()) {
                    let (mark, group) = (mark.clone(), group_of(&heard));
                    let cleared = tokio::task::spawn_blocking(move || mark.clear(group));
                    let _cleared = cleared.await.is_ok();
                }
                tether::truth(&heard, ended)
            }
        };
        while let Some(reader) = self.readers.last_mut() {
            // Somebody who got away may hold the pipe.
            if tokio::time::timeout(LAST_OUTPUT, &mut *reader).await.is_err() {
                reader.abort();
            }
            self.readers.pop();
        }
        ended
    }

    /// How the process that was started here ended.
    async fn ended(&mut self) -> io::Result<ExitStatus> {
        if !self.is_killed {
            return self.child.wait().await;
        }
        if let Ok(ended) = tokio::time::timeout(GONE_WITHIN, self.child.wait()).await {
            return ended;
        }
        self.child.start_kill()?;
        let ended = tokio::time::timeout(GONE_WITHIN, self.child.wait()).await;
        ended.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Asks all of its group to end.
    pub async fn terminate(&mut self) {
        match &self.reach {
            Reach::Group(group) => signal(*group, Signal::TERM),
            Reach::Guard(tether, _) => tether.ask_to_terminate(),
        }
    }

    /// Ends all of it at once.
    pub fn kill(&mut self) {
        self.is_killed = true;
        match &mut self.reach {
            Reach::Group(group) => signal(group.take(), Signal::KILL),
            Reach::Guard(tether, _) => tether.cut(),
        }
    }

    /// Its process id, while it runs; that of its guard where it has one.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn group_of(heard: &[Word]) -> Option<Pid> {
    heard.iter().find_map(|word| match *word {
        Word::Group(id) => Pid::from_raw(id),
        Word::Code(_) | Word::Signal(_) | Word::Failed(_) => None,
    })
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // Nobody may be left.
        let _sent = rustix::process::kill_process_group(group, signal).is_ok();
    }
}
