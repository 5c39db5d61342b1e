//! The bytes of a blob file: a header with a nonce, frames with a checksum each, and a trailer
//! that counts them. Without the trailer, or with another length than it says, a file is not a
//! blob; a frame that is not the one written in its place is damage.

use crate::embedded::frame::Reader;

/// The most content in one frame.
pub(crate) const FRAME_BYTES: usize = 256 << 10;
/// Length (4), checksum (4).
pub(super) const FRAME_HEADER_BYTES: usize = 8;
pub(super) const HEADER_BYTES: usize = 24;
pub(super) const TRAILER_BYTES: usize = 24;

const MAGIC: [u8; 8] = *b"lkdblob\x01";
const TRAILER_MARK: u32 = u32::MAX;

/// The nonce binds frames to their file: bytes in a blob cannot pass for its frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nonce(pub(super) u64);

impl Nonce {
    fn checksum(self, index: u64, content: &[u8]) -> u32 {
        let mut crc = crc32c::crc32c(&self.0.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &index.to_le_bytes());
        crc32c::crc32c_append(crc, content)
    }

    /// The mark tells which store and which name the file is of; zero says nothing.
    pub(super) fn header(self, mark: u32) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&self.0.to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        header.extend_from_slice(&mark.to_le_bytes());
        header
    }

    /// The mark in a header.
    pub(super) fn mark(header: &[u8; HEADER_BYTES]) -> u32 {
        let [.., one, two, three, four] = *header;
        u32::from_le_bytes([one, two, three, four])
    }

    /// The header's nonce, if it is a header.
    pub(super) fn parse(header: &[u8]) -> Option<Self> {
        let covered = header.get(..16)?;
        let mut reader = Reader(header);
        if reader.take(8)? != MAGIC {
            return None;
        }
        let nonce = reader.u64()?;
        (reader.u32()? == crc32c::crc32c(covered)).then_some(Self(nonce))
    }

    /// Fills in the header of a frame whose content stands behind it.
    fn seal(self, index: u64, frame: &mut [u8]) {
        let Some((header, content)) = frame.split_at_mut_checked(FRAME_HEADER_BYTES) else {
            return;
        };
        let len = u32::try_from(content.len()).unwrap_or(TRAILER_MARK);
        let fields =
            len.to_le_bytes().into_iter().chain(self.checksum(index, content).to_le_bytes());
        for (place, byte) in header.iter_mut().zip(fields) {
            *place = byte;
        }
    }

    /// Whether this is the content of frame `index`.
    pub(super) fn verify(self, index: u64, crc: u32, content: &[u8]) -> bool {
        self.checksum(index, content) == crc
    }

    pub(super) fn trailer(self, whole: Whole) -> Vec<u8> {
        let mut body = whole.frames.to_le_bytes().to_vec();
        body.extend_from_slice(&whole.bytes.to_le_bytes());
        let mut trailer = TRAILER_MARK.to_le_bytes().to_vec();
        trailer.extend_from_slice(&self.checksum(u64::MAX, &body).to_le_bytes());
        trailer.extend_from_slice(&body);
        trailer
    }

    /// What the trailer says, if it is a trailer and fits a file of this length.
    pub(super) fn parse_trailer(self, trailer: &[u8], file_len: u64) -> Option<Whole> {
        let mut reader = Reader(trailer);
        if reader.u32()? != TRAILER_MARK {
            return None;
        }
        let crc = reader.u32()?;
        if !self.verify(u64::MAX, crc, reader.0) {
            return None;
        }
        let whole = Whole { frames: reader.u64()?, bytes: reader.u64()? };
        (whole.file_len() == file_len).then_some(whole)
    }
}

/// The size of a finished blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Whole {
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

impl Whole {
    fn file_len(self) -> u64 {
        let frames = self.frames.saturating_mul(FRAME_HEADER_BYTES as u64);
        let ends = (HEADER_BYTES + TRAILER_BYTES) as u64;
        frames.saturating_add(self.bytes).saturating_add(ends)
    }
}

/// Some frames on their way into a file, each with room for its header in front.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    bytes: Vec<u8>,
}

const STRIDE: usize = FRAME_HEADER_BYTES + FRAME_BYTES;
const PIECE_FRAMES: usize = 4;

impl Piece {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= PIECE_FRAMES * STRIDE
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes content, up to the end of a frame. Returns how much.
    pub(crate) fn fill(&mut self, content: &[u8]) -> usize {
        if self.bytes.len().is_multiple_of(STRIDE) {
            self.bytes.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
        }
        let room = STRIDE - self.bytes.len() % STRIDE;
        let taken = content.get(..room).unwrap_or(content);
        self.bytes.extend_from_slice(taken);
        taken.len()
    }

    /// Numbers and seals the frames and adds them to the count. The result goes into the file.
    pub(super) fn seal(&mut self, nonce: Nonce, whole: &mut Whole) -> &[u8] {
        for frame in self.bytes.chunks_mut(STRIDE) {
            nonce.seal(whole.frames, frame);
            whole.frames += 1;
            whole.bytes += frame.len().saturating_sub(FRAME_HEADER_BYTES) as u64;
        }
        &self.bytes
    }
}

/// Length and checksum in a frame's header; `None` is the trailer's mark or nonsense.
pub(super) fn parse_frame_header(header: &[u8]) -> Option<(usize, u32)> {
    let mut reader = Reader(header);
    let len = reader.u32()? as usize;
    let crc = reader.u32()?;
    (len <= FRAME_BYTES).then_some((len, crc))
}
