//! Transactions, for coordinators and operators. Those who hold keys never come here: releasing a
//! key decides its transaction.

use http::StatusCode;
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::time::UnixMillis;
use lockd_core::txn::{By, Outcome, Settle, TxnRecord, TxnState, Why};
use lockd_pki::Access;
use lockd_wire::txn::{TxnParticipant, TxnReply, TxnRequest, TxnView, TxnsReply};
use lockd_wire::{ErrorBody, ErrorCode};

use super::body::{Body, Response};
use super::call::Call;
use super::cursor::Listing;
use super::error::ApiError;
use super::reply;
use super::request::{self, COMMAND_BYTES_MAX, bad};
use crate::app::list::Page;
use crate::app::txn as app;
use crate::app::{Refused, TxnRefused};

const NOT_FOUND: Refused = Refused::Txn(TxnRefused::NotFound);
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// What is asked about a transaction, read and permitted.
struct Ask {
    txn: TxnId,
    keys: Vec<KeyName>,
    expires_at: Option<UnixMillis>,
    term: u64,
    state: String,
    fences: Vec<lockd_core::fence::FenceCondition>,
}

async fn read(call: &Call, body: Body) -> Result<Ask, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<TxnRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let params = call.params();
    let id = Some(ask.txn_id.trim()).filter(|id| !id.is_empty()).or_else(|| params.get("txn_id"));
    let Some(id) = id else {
        return Err(bad(ErrorCode::MissingTxnId, "txn_id says which transaction is meant"));
    };
    let state = match ask.state.trim() {
        "" => params.get("state").unwrap_or_default().to_ascii_lowercase(),
        state => state.to_ascii_lowercase(),
    };
    let mut keys = Vec::with_capacity(ask.participants.len());
    for participant in &ask.participants {
        let hash = participant.backend_hash.as_deref().unwrap_or_default();
        if !hash.trim().is_empty() {
            let detail = format!("this server does not have the store {hash}");
            let code = ErrorCode::TxnBackendMismatch;
            return Err(ApiError::new(StatusCode::CONFLICT, code, detail));
        }
        let key = app.key(participant.namespace.as_deref(), &participant.key)?;
        call.permit_to(key.namespace(), Access::ReadWrite)?;
        keys.push(key);
    }
    if keys.is_empty() {
        call.permit_everywhere()?;
    }
    let txn = id_of(id)?;
    permit_recorded(call, txn).await?;
    Ok(Ask {
        txn,
        keys,
        expires_at: ask.expires_at_unix.map(|seconds| UnixMillis(seconds.saturating_mul(1_000))),
        term: ask.tc_term.unwrap_or(0),
        state,
        fences: request::fences(call)?,
    })
}

/// A decision reaches every participant, also those that the request does not name.
async fn permit_recorded(call: &Call, txn: TxnId) -> Result<(), ApiError> {
    if call.permit_everywhere().is_ok() {
        return Ok(());
    }
    let known = call.api.app.txn(txn).await?;
    let participants = known.iter().flat_map(|known| &known.record.participants);
    let mut namespaces = participants.map(|one| one.key.namespace());
    let allowed = |namespace| call.permit_to(namespace, Access::ReadWrite).is_ok();
    if namespaces.all(allowed) {
        return Ok(());
    }
    let detail = "the transaction has participants in namespaces that the certificate has no \
                  claim to read and write";
    Err(ApiError::new(StatusCode::FORBIDDEN, ErrorCode::NamespaceForbidden, detail))
}

fn id_of(text: &str) -> Result<TxnId, ApiError> {
    TxnId::parse(text).map_err(|error| bad(ErrorCode::InvalidTxnId, error.to_string()))
}

/// Decide a transaction, or, as `pending`, add participants to it.
#[utoipa::path(
    post, path = "/v1/txn/decide", tag = "transactions", request_body = TxnRequest,
    params(
        ("X-Fence-Key" = Option<String>, Header, description = "namespace/key whose token must be the one given"),
        ("X-Fence-Token" = Option<u64>, Header, description = "That token"),
    ),
    responses(
        (status = 200, description = "How it stands now", body = TxnReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 403, description = "Not a coordinator, or not one that is trusted", body = ErrorBody),
        (status = 404, description = "`txn_not_found`", body = ErrorBody),
        (status = 409, description = "Decided otherwise, or a fence condition failed", body = ErrorBody),
    )
)]
pub(super) async fn decide(call: Call, body: Body) -> Result<Response, ApiError> {
    let ask = read(&call, body).await?;
    let outcome = match ask.state.as_str() {
        "pending" => None,
        "commit" => Some(Outcome::Commit),
        "rollback" => Some(Outcome::Rollback(Why::Asked)),
        _ => {
            let detail = "state is pending, commit or rollback";
            return Err(bad(ErrorCode::InvalidState, detail));
        }
    };
    settle(&call, ask, outcome).await
}

/// Bring a commit to its participants here.
#[utoipa::path(
    post, path = "/v1/txn/commit", tag = "transactions", request_body = TxnRequest,
    responses(
        (status = 200, description = "Committed", body = TxnReply),
        (status = 404, description = "`txn_not_found`", body = ErrorBody),
        (status = 409, description = "Not decided, or decided otherwise", body = ErrorBody),
    )
)]
pub(super) async fn commit(call: Call, body: Body) -> Result<Response, ApiError> {
    apply(call, body, Outcome::Commit).await
}

/// Bring a rollback to its participants here.
#[utoipa::path(
    post, path = "/v1/txn/rollback", tag = "transactions", request_body = TxnRequest,
    responses(
        (status = 200, description = "Rolled back; one that was unknown cannot begin any more", body = TxnReply),
        (status = 409, description = "Not decided, or decided otherwise", body = ErrorBody),
    )
)]
pub(super) async fn rollback(call: Call, body: Body) -> Result<Response, ApiError> {
    apply(call, body, Outcome::Rollback(Why::Asked)).await
}

/// Without participants only what was decided before is applied. A rollback of a transaction that
/// is unknown here is kept, so that no key joins it after the others were rolled back.
async fn apply(call: Call, body: Body, outcome: Outcome) -> Result<Response, ApiError> {
    let ask = read(&call, body).await?;
    if ask.keys.is_empty() {
        match call.api.app.txn(ask.txn).await? {
            Some(known) if known.record.state == TxnState::Pending => {
                return Err(Refused::Txn(TxnRefused::Pending).into());
            }
            None if outcome == Outcome::Commit => return Err(NOT_FOUND.into()),
            Some(_) | None => {}
        }
    }
    settle(&call, ask, Some(outcome)).await
}

async fn settle(call: &Call, ask: Ask, outcome: Option<Outcome>) -> Result<Response, ApiError> {
    let app = &call.api.app;
    if !ask.keys.is_empty() {
        app.enlist(ask.txn, ask.keys, ask.expires_at, outcome.clone()).await?;
    }
    let Some(outcome) = outcome else {
        let known = app.txn(ask.txn).await?.ok_or(NOT_FOUND)?;
        return Ok(said(ask.txn, &known.record));
    };
    let by = By::Client;
    let settle = Settle { txn: ask.txn, outcome, by, fences: ask.fences, term: ask.term };
    let record = app.decide(settle).await?;
    Ok(said(ask.txn, &record))
}

fn said(txn: TxnId, record: &TxnRecord) -> Response {
    reply::ok(&TxnReply {
        txn_id: txn.as_str().to_owned(),
        state: name_of(&record.state).to_owned(),
        unknown: record.participants.is_empty() && record.outcome().is_some(),
    })
}

fn name_of(state: &TxnState) -> &'static str {
    match state {
        TxnState::Pending => "pending",
        TxnState::Decided(Outcome::Commit) => "commit",
        TxnState::Decided(Outcome::Rollback(_)) => "rollback",
    }
}

/// Finish a transaction: bring its decision to all keys, or roll it back if nobody holds it.
#[utoipa::path(
    post, path = "/v1/txn/replay", tag = "transactions", request_body = TxnRequest,
    responses(
        (status = 200, description = "How it stands now", body = TxnReply),
        (status = 404, description = "`txn_not_found`", body = ErrorBody),
    )
)]
pub(super) async fn replay(call: Call, body: Body) -> Result<Response, ApiError> {
    let ask = read(&call, body).await?;
    let app = &call.api.app;
    app.finish_txn(ask.txn).await?;
    let known = app.txn(ask.txn).await?.ok_or(NOT_FOUND)?;
    Ok(said(ask.txn, &known.record))
}

/// Transactions that have a record, by pages.
#[utoipa::path(
    get, path = "/v1/txns", tag = "transactions",
    params(("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query)),
    responses(
        (status = 200, description = "A page in the order of ids", body = TxnsReply),
        (status = 403, description = "Needs a claim on all namespaces", body = ErrorBody),
    )
)]
pub(super) async fn txns(call: Call, _body: Body) -> Result<Response, ApiError> {
    let params = call.params();
    let limit = params.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let listing = Listing::new("txns", ["", ""]);
    let after = listing.last(params.get("cursor"), |last| TxnId::parse(&last).ok())?;
    let after = after.as_ref().map(TxnId::as_str);
    let page = Page::of(call.api.app.txns(after, limit + 1).await?, limit);
    let next_cursor = page.end().map(|last| listing.cursor(last.txn.as_str()));
    Ok(reply::ok(&TxnsReply { txns: page.rows.iter().map(view).collect(), next_cursor }))
}

/// One transaction whole.
#[utoipa::path(
    get, path = "/v1/txns/{id}", tag = "transactions",
    params(("id" = String, Path, description = "The transaction id")),
    responses(
        (status = 200, description = "State, participants, times", body = TxnView),
        (status = 403, description = "Needs a claim on all namespaces", body = ErrorBody),
        (status = 404, description = "`txn_not_found`", body = ErrorBody),
    )
)]
pub(super) async fn txn(call: Call, _body: Body) -> Result<Response, ApiError> {
    let id = call.path().rsplit('/').next().unwrap_or_default();
    let known = call.api.app.txn(id_of(id)?).await?.ok_or(NOT_FOUND)?;
    Ok(reply::ok(&view(&known)))
}

fn view(known: &app::TxnView) -> TxnView {
    let TxnRecord { state, participants, term, created_at, updated_at, expires_at } = &known.record;
    let reason = match state {
        TxnState::Decided(Outcome::Rollback(Why::Asked)) => Some("asked"),
        TxnState::Decided(Outcome::Rollback(Why::Lapsed)) => Some("lapsed"),
        TxnState::Decided(Outcome::Rollback(Why::Revoked { .. })) => Some("revoked"),
        TxnState::Pending | TxnState::Decided(Outcome::Commit) => None,
    };
    let participants = participants.iter().map(|one| TxnParticipant {
        namespace: Some(one.key.namespace().to_owned()),
        key: one.key.key().to_owned(),
        backend_hash: None,
        applied: one.applied,
    });
    TxnView {
        txn_id: known.txn.as_str().to_owned(),
        state: name_of(state).to_owned(),
        reason: reason.map(str::to_owned),
        participants: participants.collect(),
        tc_term: *term,
        created_at_unix_ms: created_at.0,
        updated_at_unix_ms: updated_at.0,
        expires_at_unix_ms: expires_at.0,
    }
}
