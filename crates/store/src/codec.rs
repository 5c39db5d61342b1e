//! The stored bytes of records: magic, format version, checksum, then the fields in order.
//! Whatever does not check out is damage and is never handed out. The one place that knows both
//! the record and its bytes; each format version keeps a fixture in `fixtures/`.

mod read;
mod write;

use bytes::Bytes;
use lockd_core::message::Enqueued;
use lockd_core::record::KeyRecord;
use lockd_core::time::{BootId, Timeline};
use lockd_core::txn::TxnRecord;

use read::Reader;

const MAGIC: [u8; 2] = *b"LK";
const TXN_MAGIC: [u8; 2] = *b"LT";
const ENQUEUED_MAGIC: [u8; 2] = *b"LE";
const VERSION: u8 = 1;
/// Magic, version, CRC-32C of the rest.
const HEADER_BYTES: usize = 7;

/// What is wrong with stored bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("not a record of this kind")]
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
    let room = 256 + write::inline_bytes(record);
    sealed(MAGIC, room, |out| write::record(out, record, boot))
}

/// Reads a record back and puts its lease on the present timeline. A small document stays part of
/// the bytes it was read from.
///
/// # Errors
/// When the bytes are not what `encode` wrote.
pub fn decode(bytes: &Bytes, timeline: &Timeline) -> Result<KeyRecord, CodecError> {
    opened(MAGIC, bytes, |reader| read::record(reader, timeline))
}

/// Writes the record of a transaction.
#[must_use]
pub fn encode_txn(record: &TxnRecord) -> Bytes {
    sealed(TXN_MAGIC, 64 + 64 * record.participants.len(), |out| write::txn(out, record))
}

/// Reads the record of a transaction back.
///
/// # Errors
/// When the bytes are not what `encode_txn` wrote.
pub fn decode_txn(bytes: &Bytes) -> Result<TxnRecord, CodecError> {
    opened(TXN_MAGIC, bytes, read::txn)
}

/// Writes the answer to an enqueue.
#[must_use]
pub fn encode_enqueued(answer: &Enqueued) -> Bytes {
    sealed(ENQUEUED_MAGIC, 64, |out| write::enqueued(out, answer))
}

/// Reads the answer to an enqueue back.
///
/// # Errors
/// When the bytes are not what `encode_enqueued` wrote.
pub fn decode_enqueued(bytes: &Bytes) -> Result<Enqueued, CodecError> {
    opened(ENQUEUED_MAGIC, bytes, read::enqueued)
}

fn sealed(magic: [u8; 2], room: usize, write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(HEADER_BYTES + room);
    out.extend_from_slice(&magic);
    out.push(VERSION);
    out.extend_from_slice(&[0; 4]);
    write(&mut out);
    let checksum = crc32c::crc32c(out.get(HEADER_BYTES..).unwrap_or_default());
    if let Some(slot) = out.get_mut(3..HEADER_BYTES) {
        slot.copy_from_slice(&checksum.to_le_bytes());
    }
    Bytes::from(out)
}

fn opened<T>(
    magic: [u8; 2],
    bytes: &Bytes,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, CodecError>,
) -> Result<T, CodecError> {
    let (header, body) = bytes.split_at_checked(HEADER_BYTES).ok_or(CodecError::Magic)?;
    let [m0, m1, version, c0, c1, c2, c3] = *header else { return Err(CodecError::Magic) };
    if [m0, m1] != magic {
        return Err(CodecError::Magic);
    }
    if version != VERSION {
        return Err(CodecError::Version(version));
    }
    if crc32c::crc32c(body) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(CodecError::Checksum);
    }
    let mut reader = Reader::new(bytes, body);
    let record = read(&mut reader)?;
    reader.finish()?;
    Ok(record)
}

#[cfg(test)]
mod tests;
