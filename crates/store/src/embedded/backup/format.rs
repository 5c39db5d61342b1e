//! The bytes of a backup: entries in a row, each with its length and a checksum that covers its
//! place in the row, and at the end a trailer that counts them. It is written and read as a
//! stream; a file that ends early, or goes on behind the trailer, is not a backup.

use std::io::{Read, Write};

use bytes::Bytes;

use super::BackupError;
use crate::embedded::frame::Reader;

pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"lkdback\n";
/// Kind (1), length (4), checksum (4).
const ENTRY_HEADER_BYTES: usize = 9;
/// No entry is longer: the largest commit and some.
const ENTRY_BYTES_MAX: u32 = 80 << 20;

const START: u8 = 1;
const RECORD: u8 = 2;
const BLOB: u8 = 3;
const CONTENT: u8 = 4;
const BLOB_END: u8 = 5;
const BLOB_DAMAGED: u8 = 6;
const TRAILER: u8 = 7;

/// What a backup is made of, in this order: start, records by name, blobs by name, trailer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    Start {
        version: u32,
        revision: u64,
    },
    Record {
        name: String,
        revision: u64,
        bytes: Bytes,
    },
    /// Contents follow until the end.
    Blob {
        name: String,
    },
    Content(Bytes),
    BlobEnd {
        bytes: u64,
    },
    /// The blob could not be read to its end; it is not part of the backup.
    BlobDamaged,
    Trailer {
        records: u64,
        blobs: u64,
        blob_bytes: u64,
    },
}

impl Item {
    fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let mut number = |number: u64| out.extend_from_slice(&number.to_le_bytes());
        let kind = match self {
            Self::Start { version, revision } => {
                number(u64::from(*version));
                number(*revision);
                START
            }
            Self::Record { name, revision, bytes } => {
                number(*revision);
                number(name.len() as u64);
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(bytes);
                RECORD
            }
            Self::Blob { name } => {
                out.extend_from_slice(name.as_bytes());
                BLOB
            }
            Self::Content(bytes) => {
                out.extend_from_slice(bytes);
                CONTENT
            }
            Self::BlobEnd { bytes } => {
                number(*bytes);
                BLOB_END
            }
            Self::BlobDamaged => BLOB_DAMAGED,
            Self::Trailer { records, blobs, blob_bytes } => {
                number(*records);
                number(*blobs);
                number(*blob_bytes);
                TRAILER
            }
        };
        (kind, out)
    }

    fn decode(kind: u8, payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        Some(match kind {
            START => {
                let version = u32::try_from(reader.u64()?).ok()?;
                Self::Start { version, revision: reader.u64()? }
            }
            RECORD => {
                let revision = reader.u64()?;
                let len = usize::try_from(reader.u64()?).ok()?;
                let name = text(reader.take(len)?)?;
                Self::Record { name, revision, bytes: Bytes::copy_from_slice(reader.0) }
            }
            BLOB => Self::Blob { name: text(payload)? },
            CONTENT => Self::Content(Bytes::copy_from_slice(payload)),
            BLOB_END => Self::BlobEnd { bytes: reader.u64()? },
            BLOB_DAMAGED => Self::BlobDamaged,
            TRAILER => Self::Trailer {
                records: reader.u64()?,
                blobs: reader.u64()?,
                blob_bytes: reader.u64()?,
            },
            _ => return None,
        })
    }
}

fn checksum(index: u64, kind: u8, payload: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(&index.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &[kind]);
    crc32c::crc32c_append(crc, payload)
}

/// Writes items one after the other.
pub(super) struct ItemWriter<'a> {
    sink: &'a mut dyn Write,
    index: u64,
    pub(super) bytes: u64,
}

impl<'a> ItemWriter<'a> {
    pub(super) fn new(sink: &'a mut dyn Write) -> Result<Self, BackupError> {
        sink.write_all(&MAGIC)?;
        Ok(Self { sink, index: 0, bytes: MAGIC.len() as u64 })
    }

    pub(super) fn write(&mut self, item: &Item) -> Result<(), BackupError> {
        let (kind, payload) = item.encode();
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.sink.write_all(&[kind])?;
        self.sink.write_all(&len.to_le_bytes())?;
        self.sink.write_all(&checksum(self.index, kind, &payload).to_le_bytes())?;
        self.sink.write_all(&payload)?;
        self.index += 1;
        self.bytes += (ENTRY_HEADER_BYTES + payload.len()) as u64;
        Ok(())
    }
}

/// Reads items, each verified.
pub(super) struct ItemReader<R> {
    source: R,
    index: u64,
}

impl<R: Read> ItemReader<R> {
    pub(super) fn new(mut source: R) -> Result<Self, BackupError> {
        let mut magic = [0; MAGIC.len()];
        fill(&mut source, &mut magic)?;
        if magic != MAGIC {
            return Err(BackupError::Damaged("this is not a backup of lockd".into()));
        }
        Ok(Self { source, index: 0 })
    }

    pub(super) fn next(&mut self) -> Result<Item, BackupError> {
        let mut header = [0; ENTRY_HEADER_BYTES];
        fill(&mut self.source, &mut header)?;
        let [kind, len @ .., _, _, _, _] = header;
        let [.., a, b, c, d] = header;
        let len = u32::from_le_bytes(len);
        if len > ENTRY_BYTES_MAX {
            return Err(self.damaged());
        }
        let mut payload = Vec::new();
        // Not all at once: a wrong length must not cost its size in memory.
        let wanted = u64::from(len);
        if (&mut self.source).take(wanted).read_to_end(&mut payload)? as u64 != wanted {
            return Err(ended());
        }
        if checksum(self.index, kind, &payload) != u32::from_le_bytes([a, b, c, d]) {
            return Err(self.damaged());
        }
        let item = Item::decode(kind, &payload).ok_or_else(|| self.damaged())?;
        self.index += 1;
        Ok(item)
    }

    /// Makes sure that nothing follows.
    pub(super) fn end(mut self) -> Result<(), BackupError> {
        let mut more = [0; 1];
        match self.source.read(&mut more)? {
            0 => Ok(()),
            _ => Err(BackupError::Damaged("there is something behind the end".into())),
        }
    }

    pub(super) fn damaged(&self) -> BackupError {
        BackupError::Damaged(format!("entry {} is not what was written", self.index))
    }
}

fn ended() -> BackupError {
    BackupError::Damaged("the file ends too early".into())
}

fn fill(source: &mut impl Read, place: &mut [u8]) -> Result<(), BackupError> {
    source.read_exact(place).map_err(|error| {
        let short = error.kind() == std::io::ErrorKind::UnexpectedEof;
        if short { ended() } else { error.into() }
    })
}
