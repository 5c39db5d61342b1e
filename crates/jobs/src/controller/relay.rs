//! A standby passes on the events of the leader, under the same ids: whoever listens can go on at
//! any node, also after the leader has changed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lockd_wire::job::EVENTS;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::events::{Event, EventId};
use super::follow::told;

/// Pauses between two tries: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(5);
/// A leader that is just gone is not worth a word, so many failures in a row are.
const FAILURES_TOLD: u32 = 4;
/// Leaders are never silent for so long.
const SILENCE: Duration = Duration::from_secs(45);
/// The longest event.
const EVENT_MAX: usize = 64 * 1024;

/// A client that trusts nobody unless it is told whom. `None` when it cannot be made.
pub(crate) fn client(tls: Option<rustls::ClientConfig>) -> Option<reqwest::Client> {
    let nobody = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions();
        let roots = rustls::RootCertStore::empty();
        config.ok().map(|config| config.with_root_certificates(roots).with_no_client_auth())
    };
    let config = tls.or_else(nobody)?;
    let built = reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .redirect(reqwest::redirect::Policy::none())
        .tls_backend_preconfigured(config)
        .build();
    built.inspect_err(|error| tracing::error!(%error, "no client can be made")).ok()
}

/// Until it is stopped.
pub(crate) async fn relay(shared: Arc<Shared>, leader: String, stop: CancellationToken) {
    let relaying = async {
        let Some(client) = client(shared.settings.relaying.tls.clone()) else { return };
        let mut pause = PAUSE_MIN;
        let mut in_vain = 0_u32;
        loop {
            let mut heard = false;
            let ended = listen(&shared, &client, &leader, &mut heard).await;
            in_vain = if heard { 0 } else { in_vain.saturating_add(1) };
            if let Err(error) = ended {
                if in_vain == FAILURES_TOLD {
                    let hint = hint(&shared, &leader);
                    tracing::warn!(%error, leader, "the leader's events are not heard here{hint}");
                } else {
                    tracing::debug!(%error, leader, "the leader's events cannot be heard");
                }
            }
            pause = if heard { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = shared.stop.cancelled() => {}
        () = stop.cancelled() => {}
        () = relaying => {}
    }
}

fn hint(shared: &Shared, leader: &str) -> &'static str {
    let is_secure = leader.starts_with("https:");
    if is_secure && shared.settings.relaying.tls.is_none() { ": pass --peer-bundle" } else { "" }
}

async fn listen(
    shared: &Shared,
    client: &reqwest::Client,
    leader: &str,
    heard: &mut bool,
) -> Result<(), String> {
    let after = shared.events.latest().unwrap_or(EventId::START);
    let url = format!("{}{EVENTS}", leader.trim_end_matches('/'));
    let mut request = client.get(url).header("last-event-id", after.to_string());
    if let Some(token) = &shared.settings.relaying.token {
        request = request.bearer_auth(token);
    }
    let answer = tokio::time::timeout(CONNECT, request.send()).await;
    let answer = answer.map_err(|_| "no answer".to_owned())?.map_err(told)?;
    if !answer.status().is_success() {
        return Err(format!("answered {}", answer.status()));
    }
    let mut stream = answer.bytes_stream();
    let mut lines = Lines::default();
    loop {
        let chunk = tokio::time::timeout(SILENCE, stream.next()).await;
        let Some(chunk) = chunk.map_err(|_| "silent for too long".to_owned())? else {
            return Ok(());
        };
        *heard = true;
        for told in lines.push(&chunk.map_err(told)?)? {
            match told {
                Told::Event(event) => shared.events.relay(event),
                Told::Reset => shared.events.reset(),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Event(Event),
    Reset,
}

/// Cuts events out of bytes.
#[derive(Debug, Default)]
struct Lines {
    buffer: Vec<u8>,
    id: Option<EventId>,
    kind: String,
    data: String,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Result<Vec<Told>, String> {
        let mut all = Vec::new();
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.buffer);
                all.extend(self.line(&String::from_utf8_lossy(&line)));
            } else if *byte != b'\r' {
                self.buffer.push(*byte);
            }
            if self.buffer.len() + self.data.len() > EVENT_MAX {
                return Err("an event is too long".into());
            }
        }
        Ok(all)
    }

    fn line(&mut self, line: &str) -> Option<Told> {
        if line.is_empty() {
            let (id, kind) = (self.id.take(), std::mem::take(&mut self.kind));
            let data = std::mem::take(&mut self.data);
            if kind == "reset" {
                return Some(Told::Reset);
            }
            return id.map(|id| Told::Event(Event { id, kind, data }));
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.id = EventId::parse(value),
            "event" => value.clone_into(&mut self.kind),
            "data" => self.data.push_str(value),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_out_of_pieces_of_every_size() {
        let text = ": alive\n\nevent: reset\ndata: {}\n\nid: 4-7\r\nevent: job\r\ndata: {\"a\":1}\r\n\r\n\
                    id: 4-8\nevent: job\ndata: 2\n\n";
        let event = |seq, data: &str| {
            let id = EventId { epoch: 4, seq };
            Told::Event(Event { id, kind: "job".into(), data: data.into() })
        };
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let told: Vec<Told> =
                text.as_bytes().chunks(size).flat_map(|piece| lines.push(piece).unwrap()).collect();
            assert_eq!(told, [Told::Reset, event(7, "{\"a\":1}"), event(8, "2")], "{size}");
        }
        assert!(Lines::default().push(&vec![b'x'; EVENT_MAX + 1]).is_err());
    }
}
