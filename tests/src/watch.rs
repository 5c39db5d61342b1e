//! Reads server-sent events as a watcher does.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use lockd_wire::path;
use serde_json::Value;

use crate::http::{Connection, Place, Request};

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub kind: String,
    pub id: Option<String>,
    pub data: Value,
}

impl Event {
    /// The event in short, for comparing: `lease granted 3`, `state 2`, `reset start`.
    #[must_use]
    pub fn short(&self) -> String {
        let data = &self.data;
        let snapshot = if data["snapshot"] == true { "snapshot " } else { "" };
        match self.kind.as_str() {
            "lease" => {
                let change = data["change"].as_str().unwrap_or_default();
                format!("{snapshot}lease {change} {}", data["fencing_token"])
            }
            "reset" if data["complete"] == true => "complete".to_owned(),
            "reset" => format!("reset {}", data["reason"].as_str().unwrap_or_default()),
            kind => format!("{snapshot}{kind} {}", data["version"]),
        }
    }
}

/// A watch over one connection.
#[derive(Debug)]
pub struct Watch {
    connection: Connection,
    text: String,
    ready: VecDeque<Event>,
    patience: Duration,
}

impl Watch {
    /// Follows what `query` names, from the beginning or after an event.
    pub fn open(place: &Place, query: &[(&str, &str)], after: Option<&str>) -> io::Result<Self> {
        let mut request = Request::get(path::WATCH);
        for (name, value) in query {
            request = request.query(name, value);
        }
        if let Some(id) = after {
            request = request.header("last-event-id", id);
        }
        let mut connection = Connection::open(place)?;
        connection.send(&request)?;
        let head = connection.reply_head()?;
        assert_eq!(head.status, 200, "a watch was refused");
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        let (text, ready, patience) = (String::new(), VecDeque::new(), Duration::from_secs(30));
        Ok(Self { connection, text, ready, patience })
    }

    /// The next event; an error when the connection ends or nothing comes in time.
    pub fn try_next(&mut self) -> io::Result<Event> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            // Signs of life come all the time; they are no events.
            if start.elapsed() > self.patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let Some(chunk) = self.connection.chunk()? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            self.text.push_str(&String::from_utf8_lossy(&chunk));
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                self.ready.extend(parse(block));
                self.text = rest.to_owned();
            }
        }
    }

    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "it fails instead of ending")]
    pub fn next(&mut self) -> Event {
        match self.try_next() {
            Ok(event) => event,
            Err(error) => panic!("no further event: {error}"),
        }
    }

    /// Reads a snapshot to its end: what was in it, and the place where the events begin.
    #[track_caller]
    pub fn snapshot(&mut self, reason: &str) -> (Vec<Event>, String) {
        let first = self.next();
        assert_eq!(first.short(), format!("reset {reason}"));
        let mut events = Vec::new();
        loop {
            let event = self.next();
            if event.short() == "complete" {
                return (events, event.id.expect("a place to resume from"));
            }
            assert_eq!(event.data["snapshot"], true, "{event:?}");
            events.push(event);
        }
    }
}

fn parse(block: &str) -> Option<Event> {
    let (mut kind, mut id, mut data) = (None, None, None);
    for line in block.lines() {
        match line.split_once(": ") {
            Some(("event", text)) => kind = Some(text.to_owned()),
            Some(("id", text)) => id = Some(text.to_owned()),
            Some(("data", text)) => data = serde_json::from_str(text).ok(),
            Some(_) | None => {}
        }
    }
    Some(Event { kind: kind?, id, data: data? })
}
