//! Bounds that hold everywhere, with the relations between them asserted.

use crate::time::Span;

/// Longest component of a name: a namespace, or one segment of a key.
pub const COMPONENT_BYTES_MAX: usize = 128;
/// Longest key, all segments and slashes together.
pub const KEY_BYTES_MAX: usize = 128;
/// Longest owner text.
pub const OWNER_BYTES_MAX: usize = 512;
/// Longest lease id that is looked at.
pub const LEASE_ID_BYTES_MAX: usize = 128;
/// Longest idempotency key.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// Longest reason of a revocation.
pub const REASON_BYTES_MAX: usize = 512;
/// State up to this size lives inside its record.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Nesting of JSON documents.
pub const JSON_DEPTH_MAX: u32 = 512;
/// Answers remembered per key for repeated requests.
pub const ANSWERS_MAX: usize = 16;
/// Fence conditions on one commit.
pub const FENCES_MAX: usize = 16;
/// Writes under way that hold the token of one key still.
pub const PINS_MAX: usize = 512;
/// Records that one of them names.
pub const PIN_TARGETS_MAX: usize = 1_000;
/// Keys that take part in one transaction.
pub const PARTICIPANTS_MAX: usize = 1_000;
/// Attachments of one key.
pub const ATTACHMENTS_MAX: usize = 256;
/// Longest name of an attachment, and its longest content type.
pub const ATTACHMENT_NAME_BYTES_MAX: usize = 255;
/// Attachments up to this size live inside the record of their key.
pub const ATTACHMENT_INLINE_BYTES_MAX: usize = 1024;
/// Longest content type of a payload, longest attributes and longest last error of a message.
pub const CONTENT_TYPE_BYTES_MAX: usize = 255;
pub const ATTRIBUTES_BYTES_MAX: usize = 16 * 1024;
pub const LAST_ERROR_BYTES_MAX: usize = 16 * 1024;
/// The longest delay and the longest life of a message: a year.
pub const DELAY_MAX: Span = Span::secs(366 * 24 * 3_600);
/// Failed deliveries that a message may be allowed.
pub const ATTEMPTS_MAX: u32 = 1_000_000;
/// A lease shorter than this could not be renewed over a real network.
pub const TTL_MIN: Span = Span(10);
/// The longest time to live that a server may be configured to grant: 30 days.
pub const TTL_MAX: Span = Span::secs(30 * 24 * 3_600);

const _: () = assert!(KEY_BYTES_MAX >= COMPONENT_BYTES_MAX);
const _: () = assert!(TTL_MIN.0 > 0 && TTL_MIN.0 < TTL_MAX.0);
