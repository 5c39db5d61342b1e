//! What changes something: asked of the leader only.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use http::StatusCode;
use lockd_wire::error::ErrorCode;
use lockd_wire::header::IDEMPOTENCY_KEY;
use lockd_wire::job::{LeaseAsk, LeaseClaim, ResultReport};
use serde::Deserialize;

use super::answer::{Answered, Refused, json, no_work, nothing, with_status, wrong};
use super::body::{self, BODY_MAX, RESULT_MAX, Submission};
use super::routes::Api;
use super::view::{AgentView, JobView};
use crate::controller::{Office, Refusal};

pub(super) async fn submit(State(api): State<Arc<Api>>, request: Request) -> Answered {
    let office = api.office()?;
    let (parts, body) = request.into_parts();
    let key = match parts.headers.get(IDEMPOTENCY_KEY).map(|key| key.to_str()) {
        None => None,
        Some(Ok(key)) => Some(key.to_owned()),
        Some(Err(_)) => return Err(api.refused(Refusal::Key)),
    };
    let submission: Submission = body::read(body, BODY_MAX).await?;
    let (spec, leader_epoch) = submission.parts();
    let submitted = office.submit(key.as_deref(), spec, leader_epoch).await;
    let taken_in = submitted.map_err(|refusal| api.refused(refusal))?;
    let status = if taken_in.again { StatusCode::OK } else { StatusCode::CREATED };
    Ok(with_status(status, &taken_in.submitted))
}

/// For requests without a body: the leader that they are meant for.
#[derive(Deserialize)]
pub(super) struct Meant {
    leader_epoch: Option<u64>,
}

type MeantFor = Result<Query<Meant>, QueryRejection>;

/// The office, if it is the one that is meant.
fn meant(api: &Api, meant: MeantFor) -> Result<Arc<Office>, Refused> {
    let office = api.office()?;
    let Query(meant) =
        meant.map_err(|error| wrong(ErrorCode::InvalidParams, &error.body_text()))?;
    office.is_meant(meant.leader_epoch).map_err(|refusal| api.refused(refusal))?;
    Ok(office)
}

pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    asked: MeantFor,
) -> Answered {
    let office = meant(&api, asked)?;
    let job = office.cancel(&id).await.map_err(|refusal| api.refused(refusal))?;
    Ok(json(&JobView::whole(job)))
}

pub(super) async fn lease(State(api): State<Arc<Api>>, request: Request) -> Answered {
    let office = api.office()?;
    let ask: LeaseAsk = body::read(request.into_body(), BODY_MAX).await?;
    match office.ask(&ask).await.map_err(|refusal| api.refused(refusal))? {
        Some(grant) => Ok(json(&grant)),
        None => Ok(no_work(office.is_draining())),
    }
}

pub(super) async fn renew(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let office = api.office()?;
    let claim: LeaseClaim = body::read(request.into_body(), BODY_MAX).await?;
    let renewed = office.renew(&id, &claim).await.map_err(|refusal| api.refused(refusal))?;
    Ok(json(&renewed))
}

pub(super) async fn release(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let office = api.office()?;
    let claim: LeaseClaim = body::read(request.into_body(), BODY_MAX).await?;
    office.release(&id, &claim).await.map_err(|refusal| api.refused(refusal))?;
    Ok(nothing())
}

pub(super) async fn conclude(State(api): State<Arc<Api>>, request: Request) -> Answered {
    let office = api.office()?;
    let report: ResultReport = body::read(request.into_body(), RESULT_MAX).await?;
    let kept = office.conclude(report).await.map_err(|refusal| api.refused(refusal))?;
    Ok(json(&kept))
}

pub(super) async fn delete_agent(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    asked: MeantFor,
) -> Answered {
    let office = meant(&api, asked)?;
    let deleted = office.delete_agent(&name).await.map_err(|refusal| api.refused(refusal))?;
    Ok(json(&AgentView::kept(&deleted.kept)))
}
