//! Closes a connection so that its last bytes arrive. A socket that is closed with unread bytes is
//! reset, and a reset discards what the peer has not read yet.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How long, and for how many bytes, the peer may take to notice.
const PATIENCE: Duration = Duration::from_secs(1);
const BYTES_MAX: u64 = 64 * 1024;

/// Shuts down writing, and discards what is still arriving.
pub(crate) async fn linger_close<S: AsyncRead + AsyncWrite + Unpin>(mut socket: S) {
    let parting = async {
        if socket.shutdown().await.is_ok() {
            let rest = &mut socket.take(BYTES_MAX);
            let _gone = tokio::io::copy(rest, &mut tokio::io::sink()).await;
        }
    };
    let _late = tokio::time::timeout(PATIENCE, parting).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::linger_close;

    #[tokio::test]
    async fn the_last_bytes_arrive_although_the_request_was_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(&[b'?'; 1024]).await.unwrap();
        server.readable().await.unwrap();
        server.write_all(b"no").await.unwrap();
        let hearing = async {
            client.write_all(&[b'?'; 1024]).await.unwrap();
            let mut heard = String::new();
            client.read_to_string(&mut heard).await.unwrap();
            drop(client);
            heard
        };
        let ((), heard) = tokio::join!(linger_close(server), hearing);
        assert_eq!(heard, "no");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stays_is_left_after_a_while() {
        let (server, _client) = tokio::io::duplex(16);
        linger_close(server).await;
    }
}
