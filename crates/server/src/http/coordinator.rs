//! The endpoints of the transaction coordinator. Who may call them is decided already; there is
//! no coordinator here that could answer.

use http::StatusCode;
use lockd_wire::{ErrorBody, ErrorCode};

use super::body::{Body, Response};
use super::call::Call;
use super::error::ApiError;

fn unavailable() -> Result<Response, ApiError> {
    let detail = "this server takes part in no transaction coordination";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::TcUnavailable, detail))
}

macro_rules! endpoints {
    ($($handler:ident $method:ident $path:literal $what:literal,)+) => {$(
        #[doc = $what]
        #[utoipa::path(
            $method, path = $path, tag = "coordinator",
            responses(
                (status = 403, description = "Not a coordinator, or not one that is trusted", body = ErrorBody),
                (status = 503, description = "`tc_unavailable`: there is no coordinator here", body = ErrorBody),
            )
        )]
        pub(super) async fn $handler(_call: Call, body: Body) -> Result<Response, ApiError> {
            body.drain().await;
            unavailable()
        }
    )+};
}

endpoints! {
    tc_leader get "/v1/tc/leader" "Who leads the coordinators.",
    tc_lease_acquire post "/v1/tc/lease/acquire" "Vote for a leader.",
    tc_lease_renew post "/v1/tc/lease/renew" "Renew a leader's lease.",
    tc_lease_release post "/v1/tc/lease/release" "Give a leader's lease back.",
    tc_cluster_list get "/v1/tc/cluster/list" "The members.",
    tc_cluster_announce post "/v1/tc/cluster/announce" "Become or stay a member.",
    tc_cluster_leave post "/v1/tc/cluster/leave" "Leave.",
    tc_rm_list get "/v1/tc/rm/list" "Who serves which store.",
    tc_rm_register post "/v1/tc/rm/register" "Serve a store.",
    tc_rm_unregister post "/v1/tc/rm/unregister" "Serve it no longer.",
}
