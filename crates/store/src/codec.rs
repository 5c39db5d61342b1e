//! The stored bytes of a key record: magic, format version, checksum, then the fields in order.
//! Whatever does not check out is damage and is never handed out. The one place that knows both
//! the record and its bytes; each format version keeps a fixture in `fixtures/`.

mod read;
mod write;

use bytes::Bytes;
use lockd_core::record::KeyRecord;
use lockd_core::time::{BootId, Timeline};

use read::Reader;

const MAGIC: [u8; 2] = *b"LK";
const VERSION: u8 = 1;
/// Magic, version, CRC-32C of the rest.
const HEADER_BYTES: usize = 7;

/// What is wrong with stored bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("not a key record")]
    Magic,
    #[error("written in format {0}, which this program does not know; use a newer one")]
    Version(u8),
    #[error("bad checksum")]
    Checksum,
    #[error("ends too early or makes no sense at byte {0}")]
    Malformed(usize),
}

/// Writes a record whose ticks belong to `boot`.
#[must_use]
pub fn encode(record: &KeyRecord, boot: BootId) -> Bytes {
    let mut out = Vec::with_capacity(256 + write::inline_bytes(record));
    out.extend_from_slice(&MAGIC);
    out.push(VERSION);
    out.extend_from_slice(&[0; 4]);
    write::record(&mut out, record, boot);
    let checksum = crc32c::crc32c(out.get(HEADER_BYTES..).unwrap_or_default());
    if let Some(slot) = out.get_mut(3..HEADER_BYTES) {
        slot.copy_from_slice(&checksum.to_le_bytes());
    }
    Bytes::from(out)
}

/// Reads a record back and puts its lease on the present timeline. A small document stays part of
/// the bytes it was read from.
///
/// # Errors
/// When the bytes are not what `encode` wrote.
pub fn decode(bytes: &Bytes, timeline: &Timeline) -> Result<KeyRecord, CodecError> {
    let (header, body) = bytes.split_at_checked(HEADER_BYTES).ok_or(CodecError::Magic)?;
    let [m0, m1, version, c0, c1, c2, c3] = *header else { return Err(CodecError::Magic) };
    if [m0, m1] != MAGIC {
        return Err(CodecError::Magic);
    }
    if version != VERSION {
        return Err(CodecError::Version(version));
    }
    if crc32c::crc32c(body) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(CodecError::Checksum);
    }
    let mut reader = Reader::new(bytes, body);
    let record = read::record(&mut reader, timeline)?;
    reader.finish()?;
    Ok(record)
}

#[cfg(test)]
mod tests;
