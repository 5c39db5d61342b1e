//! What connects a guard with its starter: a socket that is the guard's standard input. The starter
//! begins with the program's input, then asks; the guard tells which program it has started and how
//! it ended. Nothing here waits for the other side, but for the guard's first word.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::fs::MemfdFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Sent first, with the program's input beside it if there is one.
const BEGIN: u8 = b'B';
/// Sent to have the program asked to end.
pub(crate) const TERMINATE: u8 = b'T';
/// The most that a guard has to tell.
const TOLD_MAX: u64 = 1024;

/// What a guard tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The program runs, in a group with this number.
    Group(i32),
    /// It has ended by itself.
    Code(i32),
    /// It was killed.
    Signal(i32),
    /// It could not be started, with the system's number for why.
    Failed(i32),
}

impl Word {
    fn text(self) -> String {
        match self {
            Self::Group(id) => format!("G{id}\n"),
            Self::Code(code) => format!("C{code}\n"),
            Self::Signal(signal) => format!("S{signal}\n"),
            Self::Failed(number) => format!("F{number}\n"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let number = line.get(1..)?.parse().ok()?;
        match line.as_bytes().first()? {
            b'G' => Some(Self::Group(number)),
            b'C' => Some(Self::Code(number)),
            b'S' => Some(Self::Signal(number)),
            b'F' => Some(Self::Failed(number)),
            _ => None,
        }
    }
}

/// A file without a name that holds the input: it never blocks whoever reads it, and nobody has to
/// read it.
pub(crate) fn input_file(input: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(input)?;
    file.rewind()?;
    Ok(file)
}

/// The starter's end.
#[derive(Debug)]
pub(crate) struct Tether {
    socket: UnixStream,
    heard: Vec<u8>,
}

impl Tether {
    /// Both ends; the program's input is on its way already.
    pub(crate) fn pair(input: Option<&[u8]>) -> io::Result<(Self, OwnedFd)> {
        let (ours, guards) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let file = input.map(input_file).transpose()?;
        let files: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        rustix::net::sendmsg(&ours, &[IoSlice::new(&[BEGIN])], &mut beside, SendFlags::NOSIGNAL)?;
        Ok((Self { socket: ours, heard: Vec::new() }, guards.into()))
    }

    /// Has the program asked to end. A guard that is gone has ended everything.
    pub(crate) fn ask_to_terminate(&self) {
        let _asked = rustix::net::send(&self.socket, &[TERMINATE], SendFlags::NOSIGNAL).is_ok();
    }

    /// Has the guard end everything. What it tells can still be heard.
    pub(crate) fn cut(&self) {
        let _cut = self.socket.shutdown(Shutdown::Write).is_ok();
    }

    /// What the guard has told so far.
    pub(crate) fn heard(&mut self) -> Vec<Word> {
        // Whatever ends it, what came before is kept.
        let _all = (&self.socket).take(TOLD_MAX).read_to_end(&mut self.heard).is_ok();
        String::from_utf8_lossy(&self.heard).lines().filter_map(Word::parse).collect()
    }
}

/// How the program ended: as the guard tells it, or as the guard itself did.
pub(crate) fn truth(heard: &[Word], guard: io::Result<ExitStatus>) -> io::Result<ExitStatus> {
    for word in heard {
        match *word {
            Word::Group(_) => {}
            Word::Code(code) => return Ok(ExitStatus::from_raw((code & 0xff) << 8)),
            Word::Signal(signal) => return Ok(ExitStatus::from_raw(signal & 0x7f)),
            Word::Failed(number) => return Err(io::Error::from_raw_os_error(number)),
        }
    }
    guard
}

/// The guard's end.
pub(crate) struct Starter(Option<OwnedFd>);

impl Starter {
    /// Whoever holds the other end of standard input; nobody listens at one that is no socket.
    pub(crate) fn find() -> Self {
        let stdin = io::stdin();
        let speaks = rustix::net::sockopt::socket_type(&stdin).is_ok();
        Self(speaks.then(|| stdin.as_fd().try_clone_to_owned().ok()).flatten())
    }

    /// Waits for the beginning: the program's input, if it has one.
    pub(crate) fn input(&self) -> io::Result<Option<OwnedFd>> {
        let Some(socket) = &self.0 else { return Ok(None) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut into = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let came = rustix::net::recvmsg(socket, &mut into, &mut beside, flags)?;
        if came.bytes != 1 || byte != [BEGIN] {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for one in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = one {
                return Ok(files.next());
            }
        }
        Ok(None)
    }

    pub(crate) fn tell(&self, word: Word) {
        if let Some(socket) = &self.0 {
            let text = word.text();
            let _told = rustix::net::send(socket, text.as_bytes(), SendFlags::NOSIGNAL).is_ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_understood() {
        for word in [Word::Group(7), Word::Code(0), Word::Signal(9), Word::Failed(2)] {
            assert_eq!(Word::parse(word.text().trim_end()), Some(word));
        }
        for wrong in ["", "G", "X1", "Cx", "\u{e9}1"] {
            assert_eq!(Word::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_guards_word_counts_more_than_its_own_end() {
        let guard = || Ok(ExitStatus::from_raw(9));
        assert_eq!(truth(&[Word::Group(3), Word::Code(5)], guard()).unwrap().code(), Some(5));
        assert_eq!(truth(&[Word::Signal(15)], guard()).unwrap().signal(), Some(15));
        assert_eq!(truth(&[Word::Group(3)], guard()).unwrap().signal(), Some(9));
        assert_eq!(truth(&[Word::Failed(2)], guard()).unwrap_err().raw_os_error(), Some(2));
    }
}
