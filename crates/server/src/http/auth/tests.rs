//! The table of who may call what.

use std::sync::Arc;

use http_body_util::BodyExt;
use jiff::Timestamp;
use lockd_pki::bootstrap::{CLIENT_FILE, SERVER_FILE};
use lockd_pki::issue::Authority;
use lockd_pki::{
    Access, Admitted, Bundle, Claim, Claims, ClientRequest, Credentials, Denylist, Peer,
    ServerRequest, Trust, files,
};
use lockd_wire::ErrorCode;

use super::{Right, TcRules, Who, enter, permit};
use crate::http::body::Body;
use crate::http::call::Origin;
use crate::http::router::Handler;
use crate::{Server, Settings};

const OWN: TcRules = TcRules { own_ca: true, any_ca: false };
const STRICT: TcRules = TcRules { own_ca: false, any_ca: false };
const LAX: TcRules = TcRules { own_ca: false, any_ca: true };

fn caller(peer: &Peer, trust: Trust) -> Who {
    Some(Arc::new(Admitted { peer: peer.clone(), trust }))
}

fn code(outcome: Result<(), crate::http::error::ApiError>) -> Option<String> {
    outcome.err().map(|error| error.body.error.clone())
}

/// One certificate of each kind.
struct Callers {
    server: Peer,
    tc: Peer,
    sdk: Peer,
}

fn callers(claims: &[&str]) -> Callers {
    let now = Timestamp::now();
    let authority = Authority::create("lockd-ca", now).unwrap();
    let claims = claims.iter().map(|claim| Claim::parse(claim).unwrap()).collect();
    let server = ServerRequest::new(&["localhost".into()], None);
    let client = |ask: ClientRequest| authority.issue_client(&ask, now).unwrap().peer;
    Callers {
        server: authority.issue_server(&server, None, now).unwrap().peer,
        tc: client(ClientRequest::tc("coordinator")),
        sdk: client(ClientRequest::sdk("worker", claims)),
    }
}

const BY_OWN_CA: Trust = Trust { own: true, tc: false };
const BY_TC_CA: Trust = Trust { own: false, tc: true };

#[test]
fn roles_and_trust_decide_who_may_speak_to_the_coordinator() {
    let Callers { server, tc, sdk } = callers(&["ALL=rw"]);
    let no_client = Some(ErrorCode::TcClientRequired);
    let no_server = Some(ErrorCode::TcServerRequired);
    for (right, peer, trust, rules, refused) in [
        (Right::TcClient, &tc, BY_OWN_CA, OWN, None),
        (Right::TcClient, &tc, BY_TC_CA, STRICT, None),
        (Right::TcClient, &server, BY_OWN_CA, OWN, None),
        (Right::TcClient, &tc, BY_OWN_CA, STRICT, Some(ErrorCode::TcForbidden)),
        (Right::TcClient, &tc, BY_OWN_CA, LAX, None),
        (Right::TcClient, &sdk, BY_OWN_CA, OWN, no_client),
        (Right::TcClient, &sdk, BY_TC_CA, STRICT, no_client),
        (Right::TcClient, &sdk, BY_TC_CA, LAX, no_client),
        (Right::TcServer, &server, BY_OWN_CA, OWN, None),
        (Right::TcServer, &server, BY_OWN_CA, STRICT, Some(ErrorCode::TcForbidden)),
        (Right::TcServer, &tc, BY_OWN_CA, LAX, no_server),
        (Right::TcServer, &sdk, BY_TC_CA, LAX, no_server),
    ] {
        let outcome = code(enter(&caller(peer, trust), right, rules));
        let expected = refused.map(|code| code.as_str().to_owned());
        assert_eq!(outcome, expected, "{right:?} {:?} {trust:?} {rules:?}", peer.role);
    }
}

#[test]
fn claims_decide_about_namespaces() {
    let all = [Access::Any, Access::Read, Access::Write, Access::ReadWrite];
    for (claims, namespace, allowed) in [
        (&["a=rw"][..], "a", [true, true, true, true]),
        (&["a=r"], "a", [true, true, false, false]),
        (&["a=w"], "a", [true, false, true, false]),
        (&["a=rw"], "b", [false; 4]),
        (&["ALL=r"], "b", [true, true, false, false]),
        // The claim on a namespace counts before the one on all, also where it is weaker.
        (&["ALL=rw", "a=r"], "a", [true, true, false, false]),
        (&["ALL=rw", "a=r"], "b", [true, true, true, true]),
    ] {
        let sdk = caller(&callers(claims).sdk, BY_OWN_CA);
        for (access, allowed) in all.into_iter().zip(allowed) {
            let outcome = code(permit(&sdk, namespace, access));
            let expected = (!allowed).then(|| "namespace_forbidden".to_owned());
            assert_eq!(outcome, expected, "{claims:?} {namespace} {access:?}");
        }
        assert_eq!(code(enter(&sdk, Right::Open, OWN)), None);
        let everything = claims == ["ALL=rw"];
        assert_eq!(code(enter(&sdk, Right::Everything, OWN)).is_none(), everything, "{claims:?}");
    }
}

#[test]
fn without_mutual_tls_there_is_nobody_to_refuse() {
    for right in [
        Right::Open,
        Right::Namespace(Access::ReadWrite),
        Right::Everything,
        Right::TcClient,
        Right::TcServer,
    ] {
        assert_eq!(code(enter(&None, right, STRICT)), None, "{right:?}");
    }
    assert_eq!(code(permit(&None, "any", Access::ReadWrite)), None);
}

#[test]
fn claims_that_cannot_be_read_allow_nothing() {
    let fault = Claim::parse("a=everything").unwrap_err();
    let sdk = callers(&["a=rw"]).sdk;
    let sdk = caller(&Peer { claims: Claims::Malformed(fault), ..sdk }, BY_OWN_CA);
    let refused = Some("invalid_namespace_claims".to_owned());
    assert_eq!(code(enter(&sdk, Right::Namespace(Access::Any), OWN)), refused);
    assert_eq!(code(permit(&sdk, "a", Access::Any)), refused);
}

#[tokio::test]
async fn a_request_on_a_connection_older_than_a_revocation_hears_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::embedded_defaults();
    settings.mtls = true;
    settings.identity.config_dir = Some(folder.path().to_owned());
    let server = Server::new(settings).await.unwrap();
    let Handler(entry) = server.handler();
    let Bundle::Client(client) = files::load(&folder.path().join(CLIENT_FILE)).unwrap().0 else {
        panic!("not a client's bundle");
    };
    let peer = &client.leaf().peer;
    let ask = || {
        let request = http::Request::get("/v1/describe?key=k").body(Body::empty()).unwrap();
        Arc::clone(&entry).handle(request, Origin { who: caller(peer, BY_OWN_CA), outbox: None })
    };
    assert_eq!(ask().await.status(), 200);
    let path = folder.path().join(SERVER_FILE);
    let Bundle::Server(mut bundle) = files::load(&path).unwrap().0 else {
        panic!("not a server's bundle");
    };
    bundle.revoke(peer.serial);
    let live = entry.api.live.as_ref().unwrap();
    live.replace(Credentials::server(&bundle, &[], &Denylist::default()).unwrap());
    let answer = ask().await;
    assert_eq!(answer.status(), 403);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(br#"{"error":"certificate_revoked""#), "{body:?}");
}
