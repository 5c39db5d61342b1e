//! Moto: S3 as Python people test against it. It keeps objects in memory, honours conditions on
//! PUT, and does not check signatures.

use super::process::{Process, ask};

/// Moto answers on many threads, and looks at a condition before it writes: under load two writers
/// can both pass. What is written therefore comes one at a time; large uploads, which have no
/// conditions, go on side by side.
const ONE_AT_A_TIME: &str = r#"
import io, threading
import moto.server as server

run, lock = server.run_simple, threading.Lock()
SMALL = 1 << 20

def in_turn(app):
    def serve(environ, start):
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if environ["REQUEST_METHOD"] not in ("PUT", "DELETE") or length > SMALL:
            return app(environ, start)
        if length:
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with lock:
            return app(environ, start)
    return serve

server.run_simple = lambda host, port, app, **more: run(host, port, in_turn(app), **more)
server.main()
"#;

/// Killed when it goes.
#[derive(Debug)]
pub struct Moto(Process);

impl Moto {
    /// With a bucket `lockd`. Panics with what to do if it is not installed.
    pub async fn start() -> Self {
        tokio::task::spawn_blocking(Self::start_now).await.expect("moto")
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now() -> Self {
        let arguments = |port: u16| {
            vec!["-c".into(), ONE_AT_A_TIME.into(), "-H127.0.0.1".into(), format!("-p{port}")]
        };
        Self(Process::start("moto/bin/python", arguments, |address| {
            ask(address, "PUT /lockd HTTP/1.1") == Some(200)
        }))
    }

    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.0.address)
    }
}
