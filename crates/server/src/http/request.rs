//! Reading requests: query parameters, headers and small JSON bodies, each with its own error.
//! What comes out of here is valid; nothing below looks at text again.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use lockd_core::answer::Stamp;
use lockd_core::fence::{Fence, FenceCondition};
use lockd_core::ids::{LeaseId, TxnId};
use lockd_core::key::KeyName;
use lockd_core::lease::Proof;
use lockd_core::limits::{FENCES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, LEASE_ID_BYTES_MAX, TTL_MIN};
use lockd_core::record::Version;
use lockd_core::state::{Guard, Then};
use lockd_core::time::Span;
use lockd_pki::Access;
use lockd_wire::ErrorCode;
use lockd_wire::header as names;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::body::Body;
use super::call::Call;
use super::error::ApiError;
use super::intake::{Intake, Whole};
use crate::app::App;
use crate::app::document::{Expected, Pieces};

/// The largest JSON body of a command (not of a document).
pub(super) const COMMAND_BYTES_MAX: usize = 1024 * 1024;

pub(super) fn bad(code: ErrorCode, detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, code, detail)
}

/// Query parameters; the first of a name counts.
pub(super) struct Params<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Params<'a> {
    pub(super) fn of(query: Option<&'a str>) -> Self {
        Self(form_urlencoded::parse(query.unwrap_or_default().as_bytes()).take(32).collect())
    }

    /// The value of a parameter, unless it is absent or blank.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.given(name).filter(|value| !value.is_empty())
    }

    /// The value of a parameter, blank or not. Names are read with this: a blank one is refused,
    /// where an absent one may have a default.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        Some(value.trim())
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| {
            ["1", "true", "on", "yes"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
        })
    }

    pub(super) fn limit(&self, default: usize, max: usize) -> Result<usize, ApiError> {
        let Some(text) = self.get("limit") else { return Ok(default) };
        match text.parse::<usize>() {
            Ok(limit) if limit > 0 => Ok(limit.min(max)),
            Ok(_) | Err(_) => {
                Err(bad(ErrorCode::InvalidParams, "limit is a whole number above zero"))
            }
        }
    }
}

/// A header as text; absent, blank and unreadable ones are `None`.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    Some(text).filter(|text| !text.is_empty())
}

/// A header that names something: `None` only when it is absent. One that is blank, or cannot be
/// read, is the empty text, which no name is.
fn given<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    Some(headers.get(name)?.to_str().unwrap_or_default().trim())
}

/// The lease in the headers of a request that may do without.
pub(super) fn lease_header(headers: &HeaderMap) -> Result<Option<LeaseId>, ApiError> {
    let named = given(headers, names::LEASE_ID);
    named.map(|named| lease_id(Some(named), "X-Lease-ID")).transpose()
}

/// The transaction that a request joins, by its body or else by its headers.
pub(super) fn joined_txn<'a>(
    body: Option<&'a str>,
    headers: &'a HeaderMap,
) -> Result<Option<TxnId>, ApiError> {
    txn(body.or_else(|| given(headers, names::TXN_ID)))
}

pub(super) fn fence(headers: &HeaderMap) -> Result<Option<Fence>, ApiError> {
    if !headers.contains_key(names::FENCING_TOKEN) {
        return Ok(None);
    }
    let token = text(headers, names::FENCING_TOKEN).and_then(parse_token);
    token.map(|token| Some(Fence(token))).ok_or_else(|| {
        bad(ErrorCode::InvalidFencingToken, "X-Fencing-Token is a whole number, as acquire gave it")
    })
}

fn parse_token(text: &str) -> Option<u64> {
    let number: i64 = text.parse().ok()?;
    // A negative number parses but fences nothing: zero was never granted.
    Some(u64::try_from(number).unwrap_or(0))
}

/// A transaction that is named; an empty name is no transaction, and not none.
pub(super) fn txn(text: Option<&str>) -> Result<Option<TxnId>, ApiError> {
    let Some(text) = text.map(str::trim) else { return Ok(None) };
    match TxnId::parse(text) {
        Ok(txn) => Ok(Some(txn)),
        Err(error) => Err(bad(ErrorCode::InvalidTxn, error.to_string())),
    }
}

/// A lease id is only compared; one that is too long cannot be ours.
pub(super) fn lease_id(text: Option<&str>, what: &str) -> Result<LeaseId, ApiError> {
    match text.map(str::trim) {
        Some(text) if !text.is_empty() && text.len() <= LEASE_ID_BYTES_MAX => {
            Ok(LeaseId::new(text))
        }
        Some(_) | None => {
            Err(bad(ErrorCode::MissingLease, format!("{what} names the lease, as acquire gave it")))
        }
    }
}

fn missing_token() -> ApiError {
    bad(ErrorCode::MissingFencingToken, "send the fencing token of your lease in X-Fencing-Token")
}

/// The proof in the headers of a state operation: lease, transaction and token.
pub(super) fn proof(headers: &HeaderMap) -> Result<Proof, ApiError> {
    let lease = lease_id(text(headers, names::LEASE_ID), "X-Lease-ID")?;
    let Some(fence) = fence(headers)? else { return Err(missing_token()) };
    let Some(txn) = txn(text(headers, names::TXN_ID))? else {
        let detail = "send the txn_id of your lease in X-Txn-ID";
        return Err(bad(ErrorCode::MissingTxn, detail));
    };
    Ok(Proof { lease, fence: Some(fence), txn: Some(txn) })
}

/// The proof in the body of keepalive and release. A lease named without a key needs nothing
/// else: its id is a secret.
pub(super) fn body_proof(
    headers: &HeaderMap,
    lease: &str,
    txn_text: Option<&str>,
    by_key: bool,
) -> Result<Proof, ApiError> {
    let lease = lease_id(Some(lease), "lease_id")?;
    let fence = fence(headers)?;
    if by_key && fence.is_none() {
        return Err(missing_token());
    }
    let named = given(headers, names::TXN_ID).or(txn_text.map(str::trim));
    if named.map_or(by_key, str::is_empty) {
        return Err(bad(ErrorCode::MissingTxn, "txn_id is the one that acquire gave"));
    }
    let txn = txn(named)?;
    Ok(Proof { lease, fence, txn })
}

pub(super) fn guard(headers: &HeaderMap) -> Result<Guard, ApiError> {
    let version = match headers.get(names::IF_VERSION) {
        None => None,
        Some(_) => {
            let number: Option<i64> =
                text(headers, names::IF_VERSION).and_then(|text| text.parse().ok());
            let number = number
                .ok_or_else(|| bad(ErrorCode::InvalidVersion, "X-If-Version is a whole number"))?;
            // No version is negative: such a guard never holds.
            Some(Version(u64::try_from(number).unwrap_or(u64::MAX)))
        }
    };
    let etag = headers.get(names::IF_STATE_ETAG).map(|value| {
        let text = value.to_str().unwrap_or("?");
        text.trim_matches(|c: char| c == '"' || c.is_whitespace()).into()
    });
    Ok(Guard { version, etag })
}

pub(super) fn expected(headers: &HeaderMap) -> Result<Expected, ApiError> {
    let mut expected = Expected::default();
    if headers.contains_key(names::EXPECTED_BYTES) {
        let bytes = text(headers, names::EXPECTED_BYTES).and_then(|text| text.parse().ok());
        expected.bytes = Some(bytes.ok_or_else(|| {
            bad(ErrorCode::InvalidExpectedBytes, "X-Expected-Bytes is a whole number of bytes")
        })?);
    }
    if headers.contains_key(names::EXPECTED_SHA256) {
        let hash = text(headers, names::EXPECTED_SHA256).and_then(parse_sha256);
        expected.sha256 = Some(hash.ok_or_else(|| {
            bad(ErrorCode::InvalidExpectedSha256, "X-Expected-SHA256 has 64 hexadecimal digits")
        })?);
    }
    Ok(expected)
}

fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// `X-Fence-Key` and `X-Fence-Token` pair up in the order in which they come; one header may also
/// carry several, separated by commas.
pub(super) fn fences(call: &Call) -> Result<Vec<FenceCondition>, ApiError> {
    let headers = call.headers();
    if !headers.contains_key(names::FENCE_KEY) && !headers.contains_key(names::FENCE_TOKEN) {
        return Ok(Vec::new());
    }
    let refused = |detail: &str| bad(ErrorCode::InvalidFence, detail);
    let all = |name: &str| -> Option<Vec<String>> {
        let mut values = Vec::new();
        for value in headers.get_all(name) {
            values.extend(value.to_str().ok()?.split(',').map(|part| part.trim().to_owned()));
        }
        Some(values)
    };
    let keys = all(names::FENCE_KEY).ok_or_else(|| refused("X-Fence-Key is namespace/key"))?;
    let tokens = all(names::FENCE_TOKEN).ok_or_else(|| refused("X-Fence-Token is a number"))?;
    if keys.len() != tokens.len() {
        return Err(refused("send one X-Fence-Token for each X-Fence-Key"));
    }
    if keys.len() > FENCES_MAX {
        return Err(refused("at most 16 fence conditions go with one request"));
    }
    let pair = |(key, token): (&String, &String)| {
        let key = KeyName::parse_full(key).map_err(|_| refused("X-Fence-Key is namespace/key"))?;
        call.permit_to(key.namespace(), Access::Any)?;
        let token: u64 = token.parse().map_err(|_| refused("X-Fence-Token is a number"))?;
        Ok(FenceCondition { key, token: Fence(token) })
    };
    keys.iter().zip(&tokens).map(pair).collect()
}

pub(super) fn hidden(headers: &HeaderMap) -> Result<Option<bool>, ApiError> {
    if !headers.contains_key(names::QUERY_HIDDEN) {
        return Ok(None);
    }
    match text(headers, names::QUERY_HIDDEN) {
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
        Some(_) | None => {
            let detail = "X-Lockd-Meta-Query-Hidden is true or false";
            Err(bad(ErrorCode::InvalidMetadata, detail))
        }
    }
}

pub(super) fn then(params: &Params<'_>) -> Result<Then, ApiError> {
    match params.get("then") {
        None => Ok(Then::Stage),
        Some("commit") => Ok(Then::Commit),
        Some("release") => Ok(Then::Release),
        Some(_) => Err(bad(ErrorCode::InvalidParams, "then is commit or release")),
    }
}

/// Seconds and milliseconds to a time to live within the server's limits.
pub(super) fn ttl(app: &App, seconds: Option<i64>, ms: Option<u64>) -> Result<Span, ApiError> {
    let asked = match (ms, seconds) {
        (Some(ms), _) if ms > 0 => Span(ms),
        (_, Some(seconds)) if seconds > 0 => Span::secs(seconds.unsigned_abs()),
        (_, _) => app.limits.default_ttl,
    };
    if asked < TTL_MIN {
        let detail = format!("a lease lives for at least {} ms", TTL_MIN.0);
        return Err(bad(ErrorCode::InvalidTtl, detail));
    }
    Ok(asked.min(app.limits.max_ttl))
}

/// The stamp of a request that may be repeated: who asks what under which idempotency key, and a
/// hash of everything else that matters.
pub(super) fn stamp(
    call: &Call,
    operation: &str,
    request: &[&[u8]],
) -> Result<Option<Stamp>, ApiError> {
    let headers = call.headers();
    if !headers.contains_key(names::IDEMPOTENCY_KEY) {
        return Ok(None);
    }
    let key = text(headers, names::IDEMPOTENCY_KEY);
    let Some(key) = key.filter(|key| key.len() <= IDEMPOTENCY_KEY_BYTES_MAX) else {
        let detail = "X-Idempotency-Key has 1 to 256 printable characters";
        return Err(bad(ErrorCode::InvalidIdempotencyKey, detail));
    };
    let caller = call.who().as_ref().map(|who| who.peer.role.to_string()).unwrap_or_default();
    let id = hash(&[operation.as_bytes(), caller.as_bytes(), key.as_bytes()]);
    Ok(Some(Stamp { id, request: hash(request) }))
}

/// The headers that make a request another one without changing what it writes.
pub(super) fn conditions(headers: &HeaderMap) -> Vec<&[u8]> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for name in [names::FENCE_KEY, names::FENCE_TOKEN, names::QUERY_HIDDEN] {
        let values = headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
        // The name keeps the values of one header apart from those of the next.
        parts.push(name.as_bytes());
        parts.extend(values);
    }
    parts
}

fn hash(parts: &[&[u8]]) -> u128 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let [low @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _]: [u8; 32] =
        hash.finalize().into();
    u128::from_le_bytes(low)
}

/// The whole body of a command, within its limit and the pace of bodies.
pub(super) async fn bytes(app: &App, body: Body, max: usize) -> Result<Bytes, ApiError> {
    match Intake::new(app, body).whole(max).await? {
        Whole::Bytes(bytes) => Ok(bytes),
        Whole::TooLarge(rest) => {
            rest.drain().await;
            let detail = format!("the body of this request may have at most {max} bytes");
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            Err(ApiError::new(status, ErrorCode::BodyTooLarge, detail))
        }
    }
}

/// One JSON object with no unknown fields and nothing behind it.
pub(super) async fn json<T: DeserializeOwned>(
    app: &App,
    body: Body,
    max: usize,
) -> Result<(T, Bytes), ApiError> {
    let bytes = bytes(app, body, max).await?;
    match object(&bytes) {
        Ok(value) => Ok((value, bytes)),
        Err(error) => {
            Err(bad(ErrorCode::InvalidBody, format!("the body is not what this takes: {error}")))
        }
    }
}

/// A list would be read field by field, in an order that nobody promised.
pub(super) fn object<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    if text.trim_ascii_start().first() == Some(&b'[') {
        return Err(serde::de::Error::custom("expected an object, not a list"));
    }
    serde_json::from_slice(text)
}

/// A document body, piece by piece.
pub(super) fn pieces(app: &App, body: Body) -> Pieces {
    Intake::new(app, body).into_pieces()
}
