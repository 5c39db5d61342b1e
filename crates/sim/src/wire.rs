//! Asks as HTTP requests and answers out of HTTP responses. Written by hand against the wire
//! types, so that neither the server's nor the SDK's own conversions judge themselves.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use lockd_wire::lease::{
    AcquireReply, AcquireRequest, KeepaliveReply, KeepaliveRequest, ReleaseRequest, RevokeReply,
    RevokeRequest,
};
use lockd_wire::state::{
    DescribeReply, Metadata, MetadataReply, MutateRequest, ReadReply, ReadRequest, RemoveReply,
    UpdateReply,
};
use lockd_wire::{ErrorBody, header as names, path};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answer::{Answer, Described, Document, Entry, Refused};
use crate::call::{Ask, Block, Fence, Held, Then, What, Write};

/// An answer that is none: a defect, and it may have happened all the same.
const GARBLED: &str = "garbled";

/// A request in the making.
struct Draft {
    method: Method,
    path: &'static str,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    streamed: bool,
}

impl Draft {
    fn new(method: Method, path: &'static str) -> Self {
        let (query, headers) = (Vec::new(), Vec::new());
        Self { method, path, query, headers, body: Bytes::new(), streamed: false }
    }

    fn post(path: &'static str) -> Self {
        Self::new(Method::POST, path)
    }

    fn query(mut self, name: &'static str, value: Option<&str>) -> Self {
        self.query.extend(value.map(|value| (name, value.to_owned())));
        self
    }

    fn header(mut self, name: &'static str, value: Option<String>) -> Self {
        self.headers.extend(value.map(|value| (name, value)));
        self
    }

    fn proof(self, held: &Held) -> Self {
        self.header(names::LEASE_ID, Some(held.lease_id.clone()))
            .header(names::TXN_ID, Some(held.txn_id.clone()))
            .header(names::FENCING_TOKEN, Some(held.token.to_string()))
    }

    fn fences(mut self, fences: &[Fence]) -> Self {
        for fence in fences {
            self.headers.push((names::FENCE_KEY, fence.name.clone()));
            self.headers.push((names::FENCE_TOKEN, fence.token.to_string()));
        }
        self
    }

    fn idem(self, idem: Option<&str>) -> Self {
        self.header(names::IDEMPOTENCY_KEY, idem.map(str::to_owned))
    }

    fn json(mut self, body: &impl Serialize) -> Self {
        // The wire's requests have string keys and no failing serializers.
        self.body = serde_json::to_vec(body).unwrap_or_default().into();
        self
    }

    fn finish(self, base: &str) -> Result<Request<Bytes>, http::Error> {
        let mut uri = format!("{base}{}", self.path);
        for (index, (name, value)) in self.query.iter().enumerate() {
            let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
            uri.push_str(&format!("{}{name}={value}", if index == 0 { '?' } else { '&' }));
        }
        let mut request = Request::builder().method(self.method).uri(uri);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        if !self.streamed {
            request = request.header(http::header::CONTENT_LENGTH, self.body.len());
        }
        request.body(self.body)
    }
}

/// The request for an ask; `base` is empty for a service in this process.
///
/// # Errors
/// When a name or a value does not fit into HTTP.
pub fn request(ask: &Ask, base: &str) -> Result<Request<Bytes>, http::Error> {
    draft(ask).finish(base)
}

fn draft(ask: &Ask) -> Draft {
    match ask {
        Ask::Acquire(acquire) => {
            let body = AcquireRequest {
                key: Some(acquire.key.clone()),
                owner: acquire.owner.clone(),
                ttl_ms: acquire.ttl_ms,
                block_seconds: Some(match acquire.block {
                    Block::No => -1,
                    Block::Forever => 0,
                    Block::Seconds(seconds) => seconds.into(),
                }),
                if_not_exists: acquire.if_not_exists,
                txn_id: acquire.txn.clone(),
                ..AcquireRequest::default()
            };
            Draft::post(path::ACQUIRE).idem(acquire.idem.as_deref()).json(&body)
        }
        Ask::Keepalive { key, held, ttl_ms } => {
            let body = KeepaliveRequest {
                key: key.clone(),
                lease_id: held.lease_id.clone(),
                ttl_ms: *ttl_ms,
                txn_id: key.as_ref().map(|_| held.txn_id.clone()),
                ..KeepaliveRequest::default()
            };
            let token = key.as_ref().map(|_| held.token.to_string());
            Draft::post(path::KEEPALIVE).header(names::FENCING_TOKEN, token).json(&body)
        }
        Ask::Write(write) => write_draft(write),
        Ask::Release(release) => {
            let body = ReleaseRequest {
                key: release.key.clone(),
                lease_id: release.held.lease_id.clone(),
                txn_id: release.key.as_ref().map(|_| release.held.txn_id.clone()),
                rollback: release.rollback,
                ..ReleaseRequest::default()
            };
            let token = release.key.as_ref().map(|_| release.held.token.to_string());
            Draft::post(path::RELEASE)
                .header(names::FENCING_TOKEN, token)
                .fences(&release.fences)
                .idem(release.idem.as_deref())
                .json(&body)
        }
        Ask::Get { key } => {
            Draft::post(path::GET).query("key", Some(key)).query("public", Some("1"))
        }
        Ask::View { key: Some(key), held } => {
            Draft::post(path::GET).query("key", Some(key)).proof(held)
        }
        Ask::View { key: None, held } => {
            Draft::post(path::GET_STATE).header(names::LEASE_ID, Some(held.lease_id.clone()))
        }
        Ask::Describe { key } => Draft::new(Method::GET, path::DESCRIBE).query("key", Some(key)),
        Ask::Read { keys } => {
            let body = ReadRequest { keys: keys.clone(), ..ReadRequest::default() };
            Draft::post(path::READ).json(&body)
        }
        Ask::Revoke { key, reason } => {
            let body = RevokeRequest { key: key.clone(), reason: reason.clone(), namespace: None };
            Draft::post(path::LEASES_REVOKE).json(&body)
        }
    }
}

fn write_draft(write: &Write) -> Draft {
    let path = match (&write.what, &write.key) {
        (What::Document(_), Some(_)) => path::UPDATE,
        (What::Document(_), None) => path::UPDATE_STATE,
        (What::Remove, _) => path::REMOVE,
        (What::Metadata, _) => path::METADATA,
        (What::Mutate(_), _) => path::MUTATE,
    };
    let then = match write.then {
        Then::Commit if write.key.is_some() => Some("commit"),
        Then::Release => Some("release"),
        Then::Stage | Then::Commit => None,
    };
    let by_header = write.hidden.filter(|_| write.what != What::Metadata);
    let mut draft = Draft::post(path).query("key", write.key.as_deref()).query("then", then);
    draft = match &write.key {
        Some(_) => draft.proof(&write.held),
        None => draft.header(names::LEASE_ID, Some(write.held.lease_id.clone())),
    };
    draft = draft
        .header(names::IF_VERSION, write.if_version.map(|version| version.to_string()))
        .header(names::IF_STATE_ETAG, write.if_etag.clone())
        .header(names::QUERY_HIDDEN, by_header.map(|hidden| hidden.to_string()))
        .fences(&write.fences)
        .idem(write.idem.as_deref());
    draft.streamed = write.streamed;
    match &write.what {
        What::Document(text) => draft.body = Bytes::copy_from_slice(text.as_bytes()),
        What::Remove => {}
        What::Metadata => draft = draft.json(&Metadata { query_hidden: write.hidden }),
        What::Mutate(expressions) => {
            let mutations = expressions.clone();
            draft = draft.json(&MutateRequest { namespace: None, mutations });
        }
    }
    draft
}

/// A response, read to its end.
#[derive(Clone, Debug)]
pub struct Heard {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The wall time then, where it is known.
    pub now: Option<u64>,
}

/// The answer in a response.
#[must_use]
pub fn answer(ask: &Ask, heard: &Heard) -> Answer {
    let parsed =
        if heard.status.is_success() { accepted(ask, heard) } else { refused(&heard.body) };
    parsed.unwrap_or_else(|detail| {
        let detail = format!("status {}: {detail}", heard.status);
        Answer::Refused(Refused { detail, unknown: true, ..Refused::code(GARBLED) })
    })
}

fn refused(body: &[u8]) -> Result<Answer, String> {
    let body: ErrorBody = json(body)?;
    Ok(Answer::Refused(Refused {
        code: body.error,
        detail: body.detail,
        version: body.current_version,
        token: body.current_fencing_token,
        unknown: body.outcome.as_deref() == Some("unknown"),
    }))
}

fn accepted(ask: &Ask, heard: &Heard) -> Result<Answer, String> {
    let body: &[u8] = &heard.body;
    Ok(match ask {
        Ask::Acquire(_) => {
            let reply: AcquireReply = json(body)?;
            let (lease_id, txn_id) = (reply.lease_id, reply.txn_id);
            Answer::Granted {
                held: Held { lease_id, txn_id, token: reply.fencing_token },
                version: reply.version,
                etag: reply.state_etag,
                ttl_ms: reply.ttl_ms,
            }
        }
        Ask::Keepalive { .. } => {
            let reply: KeepaliveReply = json(body)?;
            Answer::Renewed { ttl_ms: reply.ttl_ms }
        }
        Ask::Write(write) => written(write, body)?,
        Ask::Release(_) => Answer::Released,
        Ask::Get { .. } | Ask::View { .. } if heard.status == StatusCode::NO_CONTENT => {
            Answer::Document(None)
        }
        Ask::Get { .. } | Ask::View { .. } => {
            let version = heard.headers.get(names::KEY_VERSION);
            let version = version.and_then(|value| value.to_str().ok());
            let version = version.and_then(|text| text.parse().ok()).ok_or("no version")?;
            let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
            Answer::Document(Some(Document { version, text: text.into() }))
        }
        Ask::Describe { .. } => Answer::Described(described(json(body)?, heard.now)),
        Ask::Read { .. } => {
            let reply: ReadReply = json(body)?;
            let entries = reply.entries.into_iter().map(|entry| Entry {
                key: entry.key,
                version: entry.version,
                text: entry.state.map(|state| state.get().into()),
            });
            Answer::Entries(entries.collect())
        }
        Ask::Revoke { .. } => {
            let reply: RevokeReply = json(body)?;
            let owner = if reply.revoked { Some(reply.owner.unwrap_or_default()) } else { None };
            Answer::Revoked { owner, token: reply.fencing_token }
        }
    })
}

fn written(write: &Write, body: &[u8]) -> Result<Answer, String> {
    Ok(match write.what {
        What::Document(_) | What::Mutate(_) => {
            let reply: UpdateReply = json(body)?;
            Answer::Written {
                version: reply.new_version,
                etag: Some(reply.new_state_etag),
                bytes: reply.bytes,
                hidden: reply.metadata.query_hidden.unwrap_or(false),
            }
        }
        What::Remove => {
            let reply: RemoveReply = json(body)?;
            Answer::Removed { version: reply.new_version.filter(|_| reply.removed) }
        }
        What::Metadata => {
            let reply: MetadataReply = json(body)?;
            let hidden = reply.metadata.query_hidden.unwrap_or(false);
            Answer::Marked { version: reply.version, hidden }
        }
    })
}

/// What is known about a key; what is left of its lease only for those who know the time.
#[must_use]
pub fn described(reply: DescribeReply, now: Option<u64>) -> Described {
    let end = reply.expires_at_unix_ms;
    Described {
        owner: reply.owner,
        left_ms: end.zip(now).map(|(end, now)| end.saturating_sub(now)),
        token: reply.fencing_token.unwrap_or_default(),
        version: reply.version,
        etag: reply.state_etag,
        hidden: reply.metadata.query_hidden.unwrap_or(false),
    }
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}
