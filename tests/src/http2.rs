//! Just enough HTTP/2 to send requests, to reset a stream and to hold back an answer: frames by
//! hand, over any connection. Headers are sent as they stand, and those of answers not looked at.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use crate::http::Request;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: u16 = 4;
const CANCEL: u32 = 8;
/// What each side may send before it hears otherwise.
const WINDOW: i64 = 65_535;
/// Frames that are written at once.
const BATCH: usize = 32;

/// A connection that speaks HTTP/2.
#[derive(Debug)]
pub struct Http2<S> {
    socket: S,
    next: u32,
    /// What the server takes of bodies: on all streams, and on the one in use.
    room: [i64; 2],
    stream_room: i64,
    /// The server has answered the last ping.
    is_heard: bool,
    bodies: HashMap<u32, Vec<u8>>,
    begun: Vec<u32>,
    ended: Vec<u32>,
}

impl<S: Read + Write> Http2<S> {
    /// Says hello; each stream takes so many bytes of an answer's body.
    #[must_use]
    pub fn open(mut socket: S, window: u32) -> Self {
        socket.write_all(PREFACE).expect("sent");
        let mut connection = Self {
            socket,
            next: 1,
            room: [WINDOW; 2],
            stream_room: WINDOW,
            is_heard: false,
            bodies: HashMap::new(),
            begun: Vec::new(),
            ended: Vec::new(),
        };
        let mut setting = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        setting.extend(window.to_be_bytes());
        connection.frame(SETTINGS, 0, 0, &setting);
        connection
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.write(&frame(kind, flags, stream, payload)).expect("sent");
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)?;
        self.socket.flush()
    }

    /// Sends a request and returns its stream.
    pub fn send(&mut self, request: &Request) -> u32 {
        let stream = self.send_head(request);
        if let Some(body) = &request.body {
            self.frame(DATA, END_STREAM, stream, body);
        }
        stream
    }

    /// Sends a request with a frame for each byte of its body, no faster than the server reads
    /// them, and reads the head of the answer. Fails when the server finds that too much.
    pub fn call_in_single_bytes(&mut self, request: &Request) -> io::Result<()> {
        let stream = self.send_head(request);
        self.room[1] = self.stream_room;
        for bytes in request.body.iter().flatten().collect::<Vec<_>>().chunks(BATCH) {
            let count = i64::try_from(bytes.len()).expect("few");
            let frames = bytes.iter().flat_map(|byte| frame(DATA, 0, stream, &[**byte]));
            let mut batch = frames.collect::<Vec<u8>>();
            batch.extend(frame(PING, 0, 0, &[0; 8]));
            self.write(&batch)?;
            self.room = self.room.map(|room| room - count);
            self.is_heard = false;
            let is_full = |room: &i64| *room < i64::try_from(BATCH).expect("few");
            while !self.is_heard || self.room.iter().any(is_full) {
                self.try_read()?;
                if self.begun.contains(&stream) {
                    return Ok(());
                }
            }
        }
        self.write(&frame(DATA, END_STREAM, stream, &[]))?;
        while !self.begun.contains(&stream) {
            self.try_read()?;
        }
        Ok(())
    }

    fn send_head(&mut self, request: &Request) -> u32 {
        let stream = self.next;
        self.next += 2;
        let mut head = Vec::new();
        field(&mut head, ":method", &request.method);
        field(&mut head, ":scheme", "https");
        field(&mut head, ":path", &request.target());
        field(&mut head, ":authority", "lockd");
        for (name, value) in &request.headers {
            field(&mut head, name, value);
        }
        let end = if request.body.is_none() { END_STREAM } else { 0 };
        self.frame(HEADERS, END_HEADERS | end, stream, &head);
        stream
    }

    pub fn reset(&mut self, stream: u32) {
        self.frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
    }

    /// Reads until the head of an answer has come.
    pub fn await_answer(&mut self, stream: u32) {
        while !self.begun.contains(&stream) {
            self.read();
        }
    }

    /// Reads an answer to its end.
    pub fn await_body(&mut self, stream: u32) -> Vec<u8> {
        while !self.ended.contains(&stream) {
            self.read();
        }
        self.bodies.remove(&stream).unwrap_or_default()
    }

    fn read(&mut self) {
        self.try_read().expect("a frame");
    }

    fn try_read(&mut self) -> io::Result<()> {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.socket.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes(stream);
        match kind {
            SETTINGS if flags & ACK == 0 => {
                self.settle(&payload);
                self.write(&frame(SETTINGS, ACK, 0, &[]))?;
            }
            WINDOW_UPDATE => {
                let more = payload.as_slice().try_into().map_or(0, u32::from_be_bytes);
                self.room[usize::from(stream != 0)] += i64::from(more);
            }
            PING if flags & ACK == 0 => self.write(&frame(PING, ACK, 0, &payload))?,
            PING => self.is_heard = true,
            GOAWAY => return Err(io::Error::other(String::from_utf8_lossy(&payload).into_owned())),
            HEADERS => self.begun.push(stream),
            DATA => self.bodies.entry(stream).or_default().extend_from_slice(&payload),
            _ => {}
        }
        if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
            self.ended.push(stream);
        }
        Ok(())
    }

    /// The server may change how much it takes on each stream.
    fn settle(&mut self, settings: &[u8]) {
        for setting in settings.chunks_exact(6) {
            if setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes() {
                let window = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                self.room[1] += i64::from(window) - self.stream_room;
                self.stream_room = i64::from(window);
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A header as it stands, without compression.
fn field(head: &mut Vec<u8>, name: &str, value: &str) {
    head.push(0);
    for text in [name, value] {
        head.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("short"));
        head.extend_from_slice(text.as_bytes());
    }
}
