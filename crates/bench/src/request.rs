//! The requests of the measures as bytes, and the few fields that are needed from their answers.
//!
//! Floor and lockd get the very same bytes: the header that tells the floor how much to answer is
//! sent to both, and the floor's answer carries the lease fields that the next request needs.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::parse::find;

/// Bytes of a floor's answer body, so that its answer is as long as lockd's.
pub(crate) const ANSWER_BYTES: &str = "x-answer-bytes";

/// How long a lease lives; longer than any slot, so that no lease runs out under load.
const TTL_SECONDS: u32 = 300;

/// What the holder of a key has to show.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) id: String,
    pub(crate) txn: String,
    pub(crate) token: String,
}

impl Lease {
    /// Takes the lease out of an acquire answer, reusing the strings.
    pub(crate) fn read(&mut self, answer: &[u8]) -> Result<()> {
        for (field, into) in [
            ("lease_id", &mut self.id),
            ("txn_id", &mut self.txn),
            ("fencing_token", &mut self.token),
        ] {
            let value = field_of(answer, field)
                .with_context(|| format!("no {field} in {:?}", String::from_utf8_lossy(answer)))?;
            into.clear();
            into.push_str(value);
        }
        Ok(())
    }
}

/// A message that was delivered.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) id: String,
    pub(crate) lease: Lease,
}

impl Delivered {
    /// The messages in the answer to a dequeue.
    pub(crate) fn all(answer: &[u8]) -> Result<Vec<Self>> {
        let mut messages = Vec::new();
        let mut rest = answer;
        while let Some(at) = find(rest, b"{\"message\":") {
            rest = rest.get(at + 1..).unwrap_or_default();
            let mut lease = Lease::default();
            lease.read(rest)?;
            let id = field_of(rest, "message_id").context("no message_id")?.to_owned();
            messages.push(Self { id, lease });
        }
        Ok(messages)
    }
}

/// The text of a string or number field of a flat JSON object whose strings have no escapes.
fn field_of<'a>(json: &'a [u8], name: &str) -> Option<&'a str> {
    let mut rest = json;
    loop {
        let at = find(rest, name.as_bytes())?;
        let before = at.checked_sub(1).and_then(|quote| rest.get(quote));
        rest = rest.get(at + name.len()..)?;
        if before != Some(&b'"') {
            continue;
        }
        // A value may read like the name; only a name is followed by a colon.
        let after = rest.strip_prefix(b"\"").map(<[u8]>::trim_ascii_start);
        let Some(value) = after.and_then(|after| after.strip_prefix(b":")) else { continue };
        let value = value.trim_ascii_start();
        let (value, ends): (_, &[u8]) = match value.strip_prefix(b"\"") {
            Some(text) => (text, b"\""),
            None => (value, b",} \r\n"),
        };
        let end = value.iter().position(|byte| ends.contains(byte))?;
        return std::str::from_utf8(value.get(..end)?).ok();
    }
}

/// What an update does after it has staged its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Stage,
    Release,
}

/// How long an acquire waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    Seconds(u32),
}

/// Writes requests into one buffer that is used again for each of them.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    head: String,
    body: String,
    bytes: Vec<u8>,
}

impl Requests {
    pub(crate) fn acquire(&mut self, key: &str, wait: Wait, answer_bytes: usize) -> &[u8] {
        self.acquire_at("/v1/acquire", key, wait, answer_bytes)
    }

    /// An acquire's bytes for the floor's endpoint that never answers.
    pub(crate) fn hold(&mut self, key: &str, wait: Wait) -> &[u8] {
        self.acquire_at("/hold", key, wait, 0)
    }

    /// An acquire that takes part in a transaction.
    pub(crate) fn join(&mut self, key: &str, txn: &str) -> &[u8] {
        self.start("/v1/acquire", 0);
        put(
            &mut self.body,
            format_args!(
                "{{\"key\":\"{key}\",\"ttl_seconds\":{TTL_SECONDS},\"owner\":\"bench\",\
                 \"block_seconds\":-1,\"txn_id\":\"{txn}\"}}"
            ),
        );
        self.finish_json()
    }

    fn acquire_at(&mut self, path: &str, key: &str, wait: Wait, answer_bytes: usize) -> &[u8] {
        let block = match wait {
            Wait::No => -1,
            Wait::Seconds(seconds) => i64::from(seconds),
        };
        self.start(path, answer_bytes);
        put(
            &mut self.body,
            format_args!(
                "{{\"key\":\"{key}\",\"ttl_seconds\":{TTL_SECONDS},\"owner\":\"bench\",\
                 \"block_seconds\":{block}}}"
            ),
        );
        self.finish_json()
    }

    pub(crate) fn release(&mut self, key: &str, lease: &Lease, answer_bytes: usize) -> &[u8] {
        self.start("/v1/release", answer_bytes);
        put(&mut self.head, format_args!("x-fencing-token: {}\r\n", lease.token));
        put(
            &mut self.body,
            format_args!(
                "{{\"key\":\"{key}\",\"lease_id\":\"{}\",\"txn_id\":\"{}\"}}",
                lease.id, lease.txn
            ),
        );
        self.finish_json()
    }

    pub(crate) fn update(
        &mut self,
        key: &str,
        lease: &Lease,
        then: Then,
        document: &[u8],
        answer_bytes: usize,
    ) -> &[u8] {
        self.update_head(&format!("/v1/update?key={key}{}", then.query()), lease, answer_bytes);
        self.finish(document.len());
        self.bytes.extend_from_slice(document);
        &self.bytes
    }

    /// Only the head of an update, for a body that is sent on its own.
    pub(crate) fn upload(&mut self, target: &str, lease: &Lease, body_bytes: usize) -> &[u8] {
        self.update_head(target, lease, 100);
        self.finish(body_bytes);
        &self.bytes
    }

    pub(crate) fn read(&mut self, key: &str) -> &[u8] {
        self.head.clear();
        put(
            &mut self.head,
            format_args!("POST /v1/get?key={key}&public=1 HTTP/1.1\r\nhost: bench\r\n"),
        );
        self.finish(0);
        &self.bytes
    }

    /// A message of two parts.
    pub(crate) fn enqueue(&mut self, queue: &str, payload: &[u8], answer_bytes: usize) -> &[u8] {
        self.start("/v1/queue/enqueue", answer_bytes);
        // The last header of its name counts for nobody: say it once.
        self.head = self.head.replace(
            "content-type: application/json",
            "content-type: multipart/related; boundary=bench",
        );
        put(
            &mut self.body,
            format_args!(
                "--bench\r\nContent-Disposition: form-data; name=\"meta\"\r\n\
                 Content-Type: application/json\r\n\r\n{{\"queue\":\"{queue}\"}}\n\
                 \r\n--bench\r\nContent-Disposition: form-data; name=\"payload\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            ),
        );
        let end = b"\r\n--bench--\r\n";
        self.finish(self.body.len() + payload.len() + end.len());
        self.bytes.extend_from_slice(self.body.as_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes.extend_from_slice(end);
        &self.bytes
    }

    /// Waits a second for up to so many messages.
    pub(crate) fn dequeue(&mut self, queue: &str, count: usize) -> &[u8] {
        self.start("/v1/queue/dequeue", 0);
        put(
            &mut self.body,
            format_args!(
                "{{\"queue\":\"{queue}\",\"owner\":\"bench\",\"wait_seconds\":1,\
                 \"visibility_timeout_seconds\":{TTL_SECONDS},\"page_size\":{count}}}"
            ),
        );
        self.finish_json()
    }

    pub(crate) fn stats(&mut self, queue: &str) -> &[u8] {
        self.start("/v1/queue/stats", 0);
        put(&mut self.body, format_args!("{{\"queue\":\"{queue}\"}}"));
        self.finish_json()
    }

    pub(crate) fn ack(&mut self, queue: &str, messages: &[Delivered]) -> &[u8] {
        self.start("/v1/queue/ack", 0);
        if let [message] = messages {
            put(
                &mut self.body,
                format_args!(
                    "{{\"queue\":\"{queue}\",\"message_id\":\"{}\",\"lease_id\":\"{}\",\
                     \"fencing_token\":{}}}",
                    message.id, message.lease.id, message.lease.token
                ),
            );
            return self.finish_json();
        }
        put(&mut self.body, format_args!("{{\"queue\":\"{queue}\",\"messages\":["));
        for (index, message) in messages.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            put(
                &mut self.body,
                format_args!(
                    "{comma}{{\"message_id\":\"{}\",\"lease_id\":\"{}\",\"fencing_token\":{}}}",
                    message.id, message.lease.id, message.lease.token
                ),
            );
        }
        self.body.push_str("]}");
        self.finish_json()
    }

    fn update_head(&mut self, target: &str, lease: &Lease, answer_bytes: usize) {
        self.start(target, answer_bytes);
        put(
            &mut self.head,
            format_args!(
                "x-lease-id: {}\r\nx-txn-id: {}\r\nx-fencing-token: {}\r\n",
                lease.id, lease.txn, lease.token
            ),
        );
    }

    fn start(&mut self, target: &str, answer_bytes: usize) {
        self.head.clear();
        self.body.clear();
        put(
            &mut self.head,
            format_args!(
                "POST {target} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
                 {ANSWER_BYTES}: {answer_bytes}\r\n"
            ),
        );
    }

    fn finish_json(&mut self) -> &[u8] {
        self.finish(self.body.len());
        self.bytes.extend_from_slice(self.body.as_bytes());
        &self.bytes
    }

    fn finish(&mut self, body_bytes: usize) {
        put(&mut self.head, format_args!("content-length: {body_bytes}\r\n\r\n"));
        self.bytes.clear();
        self.bytes.extend_from_slice(self.head.as_bytes());
    }
}

impl Then {
    fn query(self) -> &'static str {
        match self {
            Self::Stage => "",
            Self::Release => "&then=release",
        }
    }
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    text.write_fmt(what).ok();
}

pub(crate) const READYZ: &[u8] = b"GET /readyz HTTP/1.1\r\nhost: bench\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_read_whatever_the_order_of_fields() {
        let mut lease = Lease::default();
        lease
            .read(
                b"{\"owner\":\"lease_id\", \"fencing_token\" : 42,\"version\":7,\
                  \"txn_id\":\"t1\",\"lease_id\": \"l1\"}\n",
            )
            .unwrap();
        assert_eq!(lease, Lease { id: "l1".into(), txn: "t1".into(), token: "42".into() });
    }

    #[test]
    fn an_answer_without_a_lease_is_refused() {
        for answer in ["", "{}", "{\"lease_id\":\"l1\",\"txn_id\":\"t1\"}", "{\"lease_id\":"] {
            assert!(Lease::default().read(answer.as_bytes()).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn lengths_are_those_of_the_bodies() {
        let lease = Lease { id: "l1".into(), txn: "t1".into(), token: "3".into() };
        let mut requests = Requests::default();
        let all = [
            requests.acquire("k", Wait::No, 300).to_vec(),
            requests.acquire("k", Wait::Seconds(60), 300).to_vec(),
            requests.update("k", &lease, Then::Release, b"{\"a\":1}", 100).to_vec(),
            requests.release("k", &lease, 30).to_vec(),
            requests.read("k").to_vec(),
            requests.dequeue("q", 32).to_vec(),
            requests.ack("q", &[Delivered { id: "m".into(), lease: lease.clone() }]).to_vec(),
            requests.ack("q", &vec![Delivered { id: "m".into(), lease }; 3]).to_vec(),
        ];
        for request in all {
            let text = String::from_utf8(request).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{text}");
            if !body.is_empty() {
                serde_json::from_str::<serde_json::Value>(body).unwrap();
            }
        }
    }

    #[test]
    fn waiting_is_said_in_seconds() {
        let mut requests = Requests::default();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text(requests.acquire("k", Wait::No, 0)).contains("\"block_seconds\":-1}"));
        assert!(text(requests.acquire("k", Wait::Seconds(9), 0)).contains("\"block_seconds\":9}"));
    }
}
