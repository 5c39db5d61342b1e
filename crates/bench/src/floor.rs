//! The floor: what the same HTTP stack costs when nothing is decided. A durable request drains its
//! body, appends one record of 1 KiB to a log that is synced for all who wait at once, and answers
//! as many bytes as it was asked for. It knows no keys, no leases and no versions.

mod journal;

use std::convert::Infallible;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::floor::journal::Journal;
use crate::request::ANSWER_BYTES;

const ANSWER_BYTES_DEFAULT: usize = 200;
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const READ_BYTES: usize = 1024;
/// Frames of a streamed body on their way to the disk.
const FRAMES_WAITING_MAX: usize = 16;

/// The driver takes the lease for its next request from here, as it does from lockd's answer.
const ANSWER_START: &str = "{\"lease_id\":\"00000000000000000000\",\
    \"txn_id\":\"00000000000000000000\",\"fencing_token\":1,\"version\":1}";

type Answer = Response<Full<Bytes>>;

#[derive(Debug)]
pub(crate) struct Floor {
    journal: Journal,
    dir: PathBuf,
    streams: AtomicU64,
    /// Every answer is a piece of this.
    answer: Bytes,
}

/// Serves until the process ends, and says on standard output where.
pub(crate) async fn serve(listen: SocketAddr, dir: &Path) -> Result<()> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("bind {listen}"))?;
    let floor = Floor::open(dir)?;
    println!("listening on {}", listener.local_addr()?);
    accept(listener, floor).await
}

pub(crate) async fn accept(listener: TcpListener, floor: Arc<Floor>) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        stream.set_nodelay(true)?;
        let floor = Arc::clone(&floor);
        let service = service_fn(move |request| {
            let floor = Arc::clone(&floor);
            async move { Ok::<_, Infallible>(floor.serve(request).await) }
        });
        // A connection that breaks is the client's affair, and the driver sees it there.
        tokio::spawn(async move {
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

impl Floor {
    pub(crate) fn open(dir: &Path) -> Result<Arc<Self>> {
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let mut answer = ANSWER_START.as_bytes().to_vec();
        answer.resize(ANSWER_BYTES_MAX, b' ');
        Ok(Arc::new(Self {
            journal: Journal::open(&dir.join("floor.log"))?,
            dir: dir.to_path_buf(),
            streams: AtomicU64::new(0),
            answer: answer.into(),
        }))
    }

    async fn serve(&self, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        match head.uri.path() {
            "/v1/get" => self.read(body).await,
            "/stream" => self.stream(&head.headers, body).await,
            "/hold" => {
                drop(head);
                hold(body).await
            }
            _ => self.durable(&head.headers, body).await,
        }
    }

    async fn durable(&self, headers: &HeaderMap, body: Incoming) -> Answer {
        if !drain(body).await {
            return refused(StatusCode::BAD_REQUEST);
        }
        match self.journal.append().await {
            Ok(()) => self.answer(headers),
            Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    async fn read(&self, body: Incoming) -> Answer {
        if !drain(body).await {
            return refused(StatusCode::BAD_REQUEST);
        }
        json(self.answer.slice(..READ_BYTES))
    }

    async fn stream(&self, headers: &HeaderMap, mut body: Incoming) -> Answer {
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("body-{number}"));
        let (frames, waiting) = mpsc::channel(FRAMES_WAITING_MAX);
        let written = tokio::task::spawn_blocking({
            let path = path.clone();
            move || write_synced(&path, waiting)
        });
        let mut is_whole = true;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame.map(hyper::body::Frame::into_data) else {
                is_whole = false;
                break;
            };
            let Ok(bytes) = frame else { continue };
            if frames.send(bytes).await.is_err() {
                break;
            }
        }
        drop(frames);
        let written = written.await;
        // The file is not needed again; its removal is not a part of the request.
        tokio::task::spawn_blocking(move || std::fs::remove_file(path));
        match written {
            Ok(Ok(())) if is_whole => self.answer(headers),
            Ok(Ok(())) => refused(StatusCode::BAD_REQUEST),
            Ok(Err(_)) | Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    fn answer(&self, headers: &HeaderMap) -> Answer {
        let wanted = headers.get(ANSWER_BYTES).and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = wanted.unwrap_or(ANSWER_BYTES_DEFAULT).min(ANSWER_BYTES_MAX);
        json(self.answer.slice(..bytes))
    }
}

/// Never answers; ends with the connection.
async fn hold(body: Incoming) -> Answer {
    drain(body).await;
    std::future::pending().await
}

fn write_synced(path: &Path, mut frames: mpsc::Receiver<Bytes>) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    while let Some(frame) = frames.blocking_recv() {
        file.write_all(&frame)?;
    }
    file.sync_all()
}

/// Reads the body to its end; false if it broke off.
async fn drain(mut body: Incoming) -> bool {
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return false;
        }
    }
    true
}

fn refused(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn json(body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    let kind = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
