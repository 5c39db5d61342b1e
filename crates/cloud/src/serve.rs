//! An HTTP/1.1 server on a free port with a thread of its own. It ends, with all its connections
//! and what it still had to do, when it goes.

use std::error::Error;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Which connection of a service a request came on, in the order in which they were accepted; an
/// extension of each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionNumber(pub(crate) u64);

/// Instead of an answer: the connection is closed.
#[derive(Debug)]
pub(crate) struct Hangup;

impl fmt::Display for Hangup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer, on purpose")
    }
}

impl Error for Hangup {}

#[derive(Debug)]
pub(crate) struct Service {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Service {
    /// Not async although it starts tasks: they run on a runtime of their own.
    pub(crate) fn start<H, F, B>(handle: H) -> Self
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Response<B>, Hangup>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockd-cloud")
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a listener that does not block");
        let address = listener.local_addr().expect("an address");
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            let mut accepted = 0;
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).ok();
                let (number, handle) = (ConnectionNumber(accepted), handle.clone());
                accepted += 1;
                let service = service_fn(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(number);
                    handle(request)
                });
                // Answers have the date that the handler gives them, or none.
                let mut builder = http1::Builder::new();
                let builder = builder.auto_date_header(false);
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    // It fails when the client goes or when we hang up; both are daily business.
                    connection.await.ok();
                });
            }
        });
        Self { address, runtime: Some(runtime) }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
