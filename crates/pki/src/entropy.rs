//! The one place that asks the system for random bytes: seeds of keys, serials, node ids, salts
//! and nonces. Nothing here is seeded by us, so nothing here can be predicted.

use rand::TryRng;
use rand::rngs::SysRng;

use crate::error::IssueError;

/// Random bytes from the operating system.
pub(crate) fn fill(buffer: &mut [u8]) -> Result<(), IssueError> {
    SysRng.try_fill_bytes(buffer).map_err(|error| IssueError::Entropy(error.to_string()))
}

/// The same, as an array.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], IssueError> {
    let mut buffer = [0; N];
    fill(&mut buffer)?;
    Ok(buffer)
}
