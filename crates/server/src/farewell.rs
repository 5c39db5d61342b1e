//! Closing a connection so that the last word on it is heard. A socket that is closed over bytes
//! nobody has read is reset, and a reset takes with it what the other side has not read yet.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How long, and for how many bytes, the other side may take to notice.
const PATIENCE: Duration = Duration::from_secs(1);
const BYTES_MAX: u64 = 64 * 1024;

/// Says that nothing more follows, and takes in what was on its way.
pub(crate) async fn part<S: AsyncRead + AsyncWrite + Unpin>(mut socket: S) {
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

    use super::part;

    #[tokio::test]
    async fn the_last_word_is_heard_although_nobody_read_the_question() {
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
        let ((), heard) = tokio::join!(part(server), hearing);
        assert_eq!(heard, "no");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stays_is_left_after_a_while() {
        let (server, _client) = tokio::io::duplex(16);
        part(server).await;
    }
}
