//! Refuses a connection for which there is no slot, in a few bytes that need no request to have
//! been read.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::connection::Socket;
use crate::linger_close::linger_close;

/// How long a refusal may take, with a handshake before it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
/// Refusals in progress at once. Above that a connection is closed without a word.
pub(crate) const MAX: usize = 64;

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
retry-after: 1\r\nconnection: close\r\ncontent-length: 100\r\n\r\n\
{\"error\":\"too_many_connections\",\"detail\":\"the server has no room for more\",\"retry_after_seconds\":1}\n";
/// The same over HTTP/2: our settings, then GOAWAY for stream 0 with ENHANCE_YOUR_CALM.
const FULL_H2: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
\0\0\x1c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0btoo_many_connections";

pub(crate) async fn refuse(mut socket: impl Socket, speaks_h2: bool) {
    let words = if speaks_h2 { FULL_H2 } else { FULL };
    if socket.write_all(words).await.is_ok() {
        linger_close(socket).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{FULL, FULL_H2};

    #[test]
    fn the_refusal_counts_its_bytes_right() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
    }

    #[test]
    fn the_refusal_over_http2_counts_its_bytes_right() {
        let (settings, goaway) = FULL_H2.split_at(9);
        assert_eq!(settings, [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let (head, payload) = goaway.split_at(9);
        assert_eq!(head, [0, 0, u8::try_from(payload.len()).unwrap(), 7, 0, 0, 0, 0, 0]);
        assert_eq!(payload, b"\0\0\0\0\0\0\0\x0btoo_many_connections");
    }
}
