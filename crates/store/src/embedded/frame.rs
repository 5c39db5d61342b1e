//! The bytes of the log. A frame holds all commits of one group commit and is valid whole or not
//! at all; its checksum covers the segment's id and salt and the frame's number, so that bytes
//! left over from an earlier use of the file, or crafted by a client, never pass for a frame.

use std::sync::Arc;

use bytes::Bytes;

use super::manifest::StoreId;
use crate::port::{Name, Op, Write};

/// Number (8), payload length (4), checksum of the payload (4), of the header (4), zeros (4).
pub(super) const FRAME_HEADER_BYTES: usize = 24;
/// Frames begin at multiples of this.
pub(super) const FRAME_ALIGN: usize = 8;
/// Magic (8), store (16), segment (8), salt (8), size of the file (8), checksum (4), zeros.
pub(super) const SEGMENT_HEADER_BYTES: usize = 64;
const SEGMENT_MAGIC: [u8; 8] = *b"lkdlog\0\x02";

const OP_PUT: u8 = 1;
const OP_DELETE: u8 = 2;

/// What a checksum is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) segment: u64,
    pub(super) salt: u64,
}

impl Seal {
    /// Covers the header on its own, so that a search for frames costs nothing per byte of
    /// whatever lies there.
    fn header_checksum(self, number: u64, len: u32, payload_crc: u32) -> u32 {
        let mut crc = crc32c::crc32c(&self.segment.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &self.salt.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &len.to_le_bytes());
        crc32c::crc32c_append(crc, &payload_crc.to_le_bytes())
    }

    fn header(self, number: u64, payload: &[u8]) -> [u8; FRAME_HEADER_BYTES] {
        let len = u32::from_le_bytes(length(payload.len()));
        let payload_crc = crc32c::crc32c(payload);
        let mut header = [0; FRAME_HEADER_BYTES];
        let fields = number
            .to_le_bytes()
            .into_iter()
            .chain(len.to_le_bytes())
            .chain(payload_crc.to_le_bytes())
            .chain(self.header_checksum(number, len, payload_crc).to_le_bytes());
        for (place, byte) in header.iter_mut().zip(fields) {
            *place = byte;
        }
        header
    }
}

/// The beginning of a segment, durable before the segment is named in the manifest: a file
/// without it was lost, and one with another is that of another store or of another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) store: StoreId,
    pub(super) seal: Seal,
    pub(super) bytes: u64,
}

impl SegmentHeader {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut header = SEGMENT_MAGIC.to_vec();
        header.extend_from_slice(&self.store.0.to_le_bytes());
        header.extend_from_slice(&self.seal.segment.to_le_bytes());
        header.extend_from_slice(&self.seal.salt.to_le_bytes());
        header.extend_from_slice(&self.bytes.to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        header.resize(SEGMENT_HEADER_BYTES, 0);
        header
    }

    /// The header of these bytes of a segment.
    pub(super) fn parse(segment: &[u8]) -> Option<Self> {
        let mut reader = Reader(segment.get(..SEGMENT_HEADER_BYTES)?);
        if reader.take(8)? != SEGMENT_MAGIC {
            return None;
        }
        let store = StoreId(u128::from_le_bytes(reader.take(16)?.try_into().ok()?));
        let seal = Seal { segment: reader.u64()?, salt: reader.u64()? };
        let header = Self { store, seal, bytes: reader.u64()? };
        (header.encode() == segment.get(..SEGMENT_HEADER_BYTES)?).then_some(header)
    }

    /// Why a segment that should begin with this header does not; `None` if it does.
    pub(super) fn fault_of(self, segment: &[u8]) -> Option<String> {
        let length = segment.len() as u64;
        if length != self.bytes {
            return Some(format!("it has {length} bytes instead of {}", self.bytes));
        }
        let Some(found) = Self::parse(segment) else {
            let zeros = segment.iter().take(SEGMENT_HEADER_BYTES).all(|byte| *byte == 0);
            let what = if zeros { "it was zeroed" } else { "its header is not what was written" };
            return Some(what.to_owned());
        };
        if found.store != self.store {
            Some("it is a segment of another store".to_owned())
        } else if found != self {
            Some(format!("it is a copy of segment {:016x}", found.seal.segment))
        } else {
            None
        }
    }
}

/// A frame under construction. The buffer is used again for the next one.
#[derive(Debug, Default)]
pub(super) struct FrameBuilder {
    bytes: Vec<u8>,
}

impl FrameBuilder {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(FRAME_HEADER_BYTES, 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() <= FRAME_HEADER_BYTES
    }

    /// The size of the frame in the file.
    pub(super) fn len(&self) -> usize {
        self.bytes.len().next_multiple_of(FRAME_ALIGN)
    }

    /// Adds the writes of one commit.
    pub(super) fn push(&mut self, revision: u64, ops: &[Op]) {
        let writes = ops.iter().filter(|op| !matches!(op.write, Write::Check));
        self.bytes.extend_from_slice(&revision.to_le_bytes());
        self.bytes.extend_from_slice(&length(writes.clone().count()));
        for op in writes {
            match &op.write {
                Write::Put(bytes) => {
                    self.bytes.push(OP_PUT);
                    self.push_text(op.name.as_bytes());
                    self.push_text(bytes);
                }
                Write::Delete => {
                    self.bytes.push(OP_DELETE);
                    self.push_text(op.name.as_bytes());
                }
                Write::Check => {}
            }
        }
    }

    fn push_text(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(&length(text.len()));
        self.bytes.extend_from_slice(text);
    }

    /// Puts number and checksum in front; the result is what goes into the file.
    pub(super) fn seal(&mut self, seal: Seal, number: u64) -> &[u8] {
        let payload_end = self.bytes.len();
        let payload = self.bytes.get(FRAME_HEADER_BYTES..).unwrap_or_default();
        let header = seal.header(number, payload);
        if let Some(place) = self.bytes.get_mut(..FRAME_HEADER_BYTES) {
            place.copy_from_slice(&header);
        }
        self.bytes.resize(payload_end.next_multiple_of(FRAME_ALIGN), 0);
        &self.bytes
    }
}

/// Lengths are bounded far below 4 GiB before anything is built.
fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

/// A valid frame found in a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) number: u64,
    pub(super) payload: &'a [u8],
    /// Where the next frame begins.
    pub(super) end: usize,
}

/// The frame that begins at `offset`, if there is a valid one.
pub(super) fn frame_at(segment: &[u8], offset: usize, seal: Seal) -> Option<Frame<'_>> {
    let mut reader = Reader(segment.get(offset..)?);
    let number = reader.u64()?;
    let len = reader.u32()?;
    let payload_crc = reader.u32()?;
    let header_crc = reader.u32()?;
    reader.u32()?;
    if number == 0 || seal.header_checksum(number, len, payload_crc) != header_crc {
        return None;
    }
    let payload = reader.take(len as usize)?;
    let end = (offset + FRAME_HEADER_BYTES + payload.len()).next_multiple_of(FRAME_ALIGN);
    (crc32c::crc32c(payload) == payload_crc).then_some(Frame { number, payload, end })
}

/// Looks for a valid frame numbered from `least` on that begins at or behind `offset`. Used
/// where a frame is invalid: if there is a later one, the log was damaged and not cut short.
pub(super) fn later_frame(
    segment: &[u8],
    offset: usize,
    least: u64,
    seal: Seal,
) -> Option<(usize, u64)> {
    (offset.next_multiple_of(FRAME_ALIGN)..segment.len()).step_by(FRAME_ALIGN).find_map(|at| {
        let frame = frame_at(segment, at, seal).filter(|frame| frame.number >= least)?;
        Some((at, frame.number))
    })
}

/// One write read back from the log; `None` is a deletion.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Logged {
    pub(super) revision: u64,
    pub(super) name: Name,
    pub(super) bytes: Option<Bytes>,
}

/// Reads the writes of a frame. `None` if the payload is not what `push` builds, which a valid
/// checksum rules out.
pub(super) fn each_write(payload: &[u8], mut act: impl FnMut(Logged)) -> Option<()> {
    let mut reader = Reader(payload);
    while !reader.0.is_empty() {
        let revision = reader.u64()?;
        for _ in 0..reader.u32()? {
            let kind = reader.take(1)?.first().copied()?;
            let name_len = reader.u32()? as usize;
            let name: Name = Arc::from(std::str::from_utf8(reader.take(name_len)?).ok()?);
            let bytes = match kind {
                OP_PUT => {
                    let len = reader.u32()? as usize;
                    Some(Bytes::copy_from_slice(reader.take(len)?))
                }
                OP_DELETE => None,
                _ => return None,
            };
            act(Logged { revision, name, bytes });
        }
    }
    Some(())
}

/// Takes fields off the front of a slice.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}
