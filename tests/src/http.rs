//! A small HTTP/1.1 client over a plain socket. It keeps a connection open between requests, never
//! retries, and gives the socket away to tests that want to break something.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// No answer takes longer than this, unless a test says so.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A request as a value.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

impl Request {
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        let (method, path) = (method.to_owned(), path.to_owned());
        Self { method, path, query: Vec::new(), headers: Vec::new(), body: None }
    }

    #[must_use]
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    #[must_use]
    pub fn post(path: &str) -> Self {
        Self { body: Some(Vec::new()), ..Self::new("POST", path) }
    }

    #[must_use]
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// The request without a header of this name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    /// The request with this header instead of another of the same name.
    #[must_use]
    pub fn with(self, name: &str, value: impl ToString) -> Self {
        self.without(name).header(name, value)
    }

    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.body(body.to_string())
    }

    /// Path and query as they stand in the first line.
    #[must_use]
    pub fn target(&self) -> String {
        let mut target = self.path.clone();
        for (index, (name, value)) in self.query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            let _ = write!(target, "{}={}", escape(name), escape(value));
        }
        target
    }

    /// Everything up to the body, with these headers that say how long it is.
    #[must_use]
    pub fn head(&self, framing: &str) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: lockd\r\n", self.method, self.target());
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str(framing);
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// The whole request.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let Some(body) = &self.body else { return self.head("") };
        let mut bytes = self.head(&format!("content-length: {}\r\n", body.len()));
        bytes.extend_from_slice(body);
        bytes
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{error} in the answer {}: {}", self.status, self.text())
        })
    }

    /// The error code, or nothing when the answer is no refusal of ours.
    #[must_use]
    pub fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["error"].as_str().unwrap_or_default().to_owned()
    }

    /// Status and code together, for comparing.
    #[must_use]
    pub fn says(&self) -> (u16, String) {
        (self.status, self.code())
    }

    /// Checks that it is a success, and hands it on.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{}", self.text());
        self
    }

    /// Checks that this is the refusal it should be.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) {
        assert_eq!(self.says(), (status, code.to_owned()), "{}", self.text());
    }
}

/// A socket of either kind.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

macro_rules! each {
    ($socket:expr, $stream:ident => $act:expr) => {
        match $socket {
            Socket::Tcp($stream) => $act,
            Socket::Unix($stream) => $act,
        }
    };
}

impl Socket {
    pub fn open(place: &Place) -> io::Result<Self> {
        let socket = match place {
            Place::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, PATIENCE)?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
            Place::Unix(path) => Self::Unix(UnixStream::connect(path)?),
        };
        socket.patience(PATIENCE)?;
        Ok(socket)
    }

    /// How long reads and writes wait.
    pub fn patience(&self, time: Duration) -> io::Result<()> {
        each!(self, stream => stream.set_read_timeout(Some(time)))?;
        each!(self, stream => stream.set_write_timeout(Some(time)))
    }

    /// Tells the other side that nothing more will be sent.
    pub fn finish_sending(&self) -> io::Result<()> {
        each!(self, stream => stream.shutdown(Shutdown::Write))
    }

    /// Ends the connection the hard way: whatever is under way is thrown away on both sides.
    pub fn reset(self) {
        if let Self::Tcp(stream) = &self {
            let set = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
            set.expect("a socket option");
        }
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        each!(self, stream => stream.read(buf))
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        each!(self, stream => stream.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        each!(self, stream => stream.flush())
    }
}

/// One connection, with what was read ahead.
#[derive(Debug)]
pub struct Connection {
    pub socket: Socket,
    ahead: Vec<u8>,
}

impl Connection {
    pub fn open(place: &Place) -> io::Result<Self> {
        Ok(Self { socket: Socket::open(place)?, ahead: Vec::new() })
    }

    pub fn send(&mut self, request: &Request) -> io::Result<()> {
        self.socket.write_all(&request.bytes())
    }

    pub fn call(&mut self, request: &Request) -> io::Result<Reply> {
        self.send(request)?;
        self.reply()
    }

    /// Status line and headers of the next answer.
    pub fn reply_head(&mut self) -> io::Result<Reply> {
        let first = self.line()?;
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let Some(status) = status else { return Err(broken(&format!("status line {first:?}"))) };
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Reply { status, headers, body: Vec::new() });
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(broken(&format!("header {line:?}")));
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// The next answer as a whole.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut reply = self.reply_head()?;
        self.body(&mut reply, |_| {})?;
        Ok(reply)
    }

    /// The next answer, whose body goes piece by piece to `take` instead of into memory.
    pub fn reply_to(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<Reply> {
        let mut reply = self.reply_head()?;
        if reply.status != 200 {
            self.body(&mut reply, |_| {})?;
            return Ok(reply);
        }
        let length: usize =
            reply.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut left = length;
        while left > 0 {
            if self.ahead.is_empty() {
                self.read_ahead()?;
            }
            let count = left.min(self.ahead.len());
            take(&self.ahead[..count]);
            self.ahead.drain(..count);
            left -= count;
        }
        Ok(reply)
    }

    fn body(&mut self, reply: &mut Reply, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        if reply.status == 204 || reply.status == 304 {
            return Ok(());
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk()? {
                each(&chunk);
                reply.body.extend_from_slice(&chunk);
            }
            return Ok(());
        }
        match reply.header("content-length").map(str::parse) {
            Some(Ok(length)) => reply.body = self.exactly(length)?,
            Some(Err(_)) => return Err(broken("content-length")),
            None => {
                while self.read_ahead().is_ok() {}
                reply.body = std::mem::take(&mut self.ahead);
            }
        }
        Ok(())
    }

    /// The next chunk of a chunked body, `None` at its end.
    pub fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let size = usize::from_str_radix(line.trim(), 16);
        let size = size.map_err(|_| broken(&format!("chunk size {line:?}")))?;
        let chunk = self.exactly(size)?;
        self.line()?;
        Ok((size > 0).then_some(chunk))
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.ahead.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
            }
            self.read_ahead()?;
        }
    }

    fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() < count {
            self.read_ahead()?;
        }
        Ok(self.ahead.drain(..count).collect())
    }

    fn read_ahead(&mut self) -> io::Result<()> {
        let mut piece = [0; 64 * 1024];
        let count = self.socket.read(&mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.ahead.extend_from_slice(&piece[..count]);
        Ok(())
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: {what}"))
}

/// Calls one after the other over one connection, opened again after it broke.
#[derive(Debug)]
pub struct Client {
    place: Place,
    connection: Option<Connection>,
}

impl Client {
    #[must_use]
    pub fn new(place: &Place) -> Self {
        Self { place: place.clone(), connection: None }
    }

    pub fn try_call(&mut self, request: &Request) -> io::Result<Reply> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.place)?,
        };
        let reply = connection.call(request)?;
        if reply.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(reply)
    }

    #[track_caller]
    pub fn call(&mut self, request: &Request) -> Reply {
        match self.try_call(request) {
            Ok(reply) => reply,
            Err(error) => panic!("{} {}: {error}", request.method, request.target()),
        }
    }
}
