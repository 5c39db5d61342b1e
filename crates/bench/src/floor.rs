//! The floor: what the same HTTP stack costs when nothing is decided. A durable request drains its
//! body, appends one record of 1 KiB to a log that is synced for all who wait at once, and answers
//! as many bytes as it was asked for. It knows no keys, no leases and no versions.

mod journal;

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
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

#[derive(Debug)]
struct Floor {
    journal: Journal,
    dir: PathBuf,
    streams: AtomicU64,
    /// Every answer is a piece of this.
    answer: Bytes,
}

/// Serves until the process ends, and says on standard output where.
pub(crate) async fn serve(listen: SocketAddr, dir: &Path) -> Result<()> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("bind {listen}"))?;
    let router = router(dir)?;
    println!("listening on {}", listener.local_addr()?);
    accept(listener, router).await
}

pub(crate) fn router(dir: &Path) -> Result<Router> {
    std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut answer = ANSWER_START.as_bytes().to_vec();
    answer.resize(ANSWER_BYTES_MAX, b' ');
    let floor = Floor {
        journal: Journal::open(&dir.join("floor.log"))?,
        dir: dir.to_path_buf(),
        streams: AtomicU64::new(0),
        answer: answer.into(),
    };
    Ok(Router::new()
        .route("/v1/get", any(read))
        .route("/stream", post(stream))
        .route("/hold", post(hold))
        .fallback(post(durable))
        .with_state(Arc::new(floor)))
}

pub(crate) async fn accept(listener: TcpListener, router: Router) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        stream.set_nodelay(true)?;
        let service = TowerToHyperService::new(router.clone());
        // A connection that breaks is the client's affair, and the driver sees it there.
        tokio::spawn(async move {
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

async fn durable(State(floor): State<Arc<Floor>>, headers: HeaderMap, body: Body) -> Response {
    if !drain(body).await {
        return StatusCode::BAD_REQUEST.into_response();
    }
    match floor.journal.append().await {
        Ok(()) => floor.answer(&headers),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

async fn read(State(floor): State<Arc<Floor>>, body: Body) -> Response {
    if !drain(body).await {
        return StatusCode::BAD_REQUEST.into_response();
    }
    json(floor.answer.slice(..READ_BYTES))
}

/// Never answers; ends with the connection.
async fn hold(body: Body) -> Response {
    drain(body).await;
    std::future::pending().await
}

async fn stream(State(floor): State<Arc<Floor>>, headers: HeaderMap, mut body: Body) -> Response {
    let number = floor.streams.fetch_add(1, Ordering::Relaxed);
    let path = floor.dir.join(format!("body-{number}"));
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
        Ok(Ok(())) if is_whole => floor.answer(&headers),
        Ok(Ok(())) => StatusCode::BAD_REQUEST.into_response(),
        Ok(Err(_)) | Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

fn write_synced(path: &Path, mut frames: mpsc::Receiver<Bytes>) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    while let Some(frame) = frames.blocking_recv() {
        file.write_all(&frame)?;
    }
    file.sync_all()
}

/// Reads the body to its end; false if it broke off.
async fn drain(mut body: Body) -> bool {
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return false;
        }
    }
    true
}

impl Floor {
    fn answer(&self, headers: &HeaderMap) -> Response {
        let wanted = headers.get(ANSWER_BYTES).and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = wanted.unwrap_or(ANSWER_BYTES_DEFAULT).min(ANSWER_BYTES_MAX);
        json(self.answer.slice(..bytes))
    }
}

fn json(body: Bytes) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}
