//! Every route asked by every kind of caller: who is refused, and with which code. What each
//! route needs is written here once more by hand, so that a changed table is a changed test.

use lockd_pki::Role;
use lockd_wire::{ErrorCode, path};
use serde_json::{Value, json};

use super::{Ask, Who, World, client, in_role};
use crate::http::router::ROUTES;

/// What the caller of a route must have, for the namespace `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// Any claim at all; the answer shows only what the claims allow to see.
    Claims,
    R,
    W,
    Rw,
    Everything,
    Coordinator,
    /// A coordinator that may read and write the namespace of each participant.
    CoordinatorRw,
    /// A coordinator with a claim on everything.
    CoordinatorEverything,
    Server,
}

use Needs::{
    Claims, Coordinator, CoordinatorEverything, CoordinatorRw, Everything, Nothing, R, Rw, Server,
    W,
};

fn post(path: &str, body: &Value) -> Ask {
    Ask::new("POST", path).json(body)
}

fn under_lease(method: &'static str, path: &str) -> Ask {
    Ask::new(method, format!("{path}?namespace=a&key=k&name=n"))
        .with("x-lease-id", "l")
        .with("x-txn-id", "00000000000000000000")
        .with("x-fencing-token", "1")
}

fn message() -> Value {
    json!({"namespace": "a", "queue": "q", "lease_id": "l", "message_id": TXN})
}

fn consumer() -> Value {
    json!({"namespace": "a", "queue": "q", "owner": "o", "wait_seconds": -1})
}

pub(super) const TXN: &str = "00000000000000000000";

/// A request about the namespace `a` for every route and method, and what it needs.
pub(super) fn cases() -> Vec<(Needs, Ask)> {
    let mut all = leases_and_documents();
    all.extend(queues());
    all.extend(operators());
    all.extend(coordinators());
    all
}

fn leases_and_documents() -> Vec<(Needs, Ask)> {
    let lease = json!({"namespace": "a", "key": "k", "lease_id": "l", "txn_id": TXN,
        "ttl_seconds": 30});
    let release = json!({"namespace": "a", "key": "k", "lease_id": "l", "txn_id": TXN});
    let acquire = json!({"namespace": "a", "key": "k", "owner": "o", "ttl_seconds": 30,
        "block_seconds": -1});
    let doc = |path| under_lease("POST", path).json(&json!({}));
    let mutate = json!({"mutations": ["/n=1"]});
    let hidden = json!({"query_hidden": true});
    vec![
        (W, post(path::ACQUIRE, &acquire)),
        (W, post(path::KEEPALIVE, &lease).with("x-fencing-token", "1")),
        (W, post(path::RELEASE, &release).with("x-fencing-token", "1")),
        (R, under_lease("POST", path::GET)),
        (R, Ask::new("POST", format!("{}?namespace=a&key=k&public=1", path::GET))),
        (R, under_lease("POST", path::GET_STATE)),
        (W, doc(path::UPDATE)),
        (W, doc(path::UPDATE_STATE)),
        (W, under_lease("POST", path::MUTATE).json(&mutate)),
        (W, under_lease("POST", path::METADATA).json(&hidden)),
        (W, under_lease("POST", path::REMOVE)),
        (R, Ask::new("GET", format!("{}?namespace=a&key=k", path::DESCRIBE))),
        (R, post(path::READ, &json!({"namespace": "a", "keys": ["k"]}))),
        (W, under_lease("POST", path::ATTACHMENTS)),
        (R, under_lease("GET", path::ATTACHMENTS)),
        (R, Ask::new("GET", format!("{}?namespace=a&key=k&public=1", path::ATTACHMENTS))),
        (W, under_lease("DELETE", path::ATTACHMENTS)),
        (R, under_lease("GET", path::ATTACHMENT)),
        (R, Ask::new("GET", format!("{}?namespace=a&key=k&name=n&public=1", path::ATTACHMENT))),
        (W, under_lease("DELETE", path::ATTACHMENT)),
    ]
}

fn queues() -> Vec<(Needs, Ask)> {
    let queue = || json!({"namespace": "a", "queue": "q"});
    let payload = format!("{}?namespace=a&queue=q&message_id={TXN}", path::QUEUE_PAYLOAD);
    let enqueue = Ask::new("POST", path::QUEUE_ENQUEUE).message(&queue(), "x");
    let all = json!({"namespace": "a", "queue": "q", "all": true});
    vec![
        (W, enqueue),
        // Consuming shows payloads and changes the queue.
        (Rw, post(path::QUEUE_DEQUEUE, &consumer())),
        (Rw, post(path::QUEUE_DEQUEUE_STATE, &consumer())),
        (Rw, post(path::QUEUE_SUBSCRIBE, &consumer())),
        (Rw, post(path::QUEUE_SUBSCRIBE_STATE, &consumer())),
        (W, post(path::QUEUE_ACK, &message())),
        (W, post(path::QUEUE_NACK, &message())),
        (W, post(path::QUEUE_EXTEND, &message())),
        (R, post(path::QUEUE_WATCH, &queue())),
        (R, post(path::QUEUE_STATS, &queue())),
        (R, post(path::QUEUE_PEEK, &queue())),
        (R, Ask::new("GET", payload)),
        (Rw, post(path::QUEUE_PURGE, &queue())),
        (R, post(path::QUEUE_DLQ, &queue())),
        (Rw, post(path::QUEUE_DLQ_REDRIVE, &all)),
        (Rw, post(path::QUEUE_DLQ_DELETE, &all)),
        (R, Ask::new("GET", format!("{}?namespace=a", path::QUEUES))),
    ]
}

fn operators() -> Vec<(Needs, Ask)> {
    let get = |path: &str| Ask::new("GET", format!("{path}?namespace=a"));
    let revoke = json!({"namespace": "a", "key": "k", "reason": "test"});
    let named = || json!({"namespace": "a"});
    vec![
        (R, get(path::LEASES)),
        (Claims, Ask::new("GET", path::LEASES)),
        (Rw, post(path::LEASES_REVOKE, &revoke)),
        (R, get(path::KEYS)),
        (Claims, Ask::new("GET", path::NAMESPACES)),
        (R, get(path::WATCH)),
        (R, Ask::new("GET", format!("{}?namespace=a&key=k", path::WATCH))),
        (Everything, Ask::new("POST", path::BACKUP)),
        (R, get(path::QUERY)),
        (R, post(path::QUERY, &named())),
        (Rw, post(path::INDEX_FLUSH, &named())),
        (Rw, get(path::NAMESPACE)),
        (Rw, post(path::NAMESPACE, &named())),
        (Nothing, Ask::new("GET", path::OPENAPI)),
        (Nothing, Ask::new("GET", path::HEALTHZ)),
        (Nothing, Ask::new("GET", path::READYZ)),
    ]
}

fn coordinators() -> Vec<(Needs, Ask)> {
    let one = json!({"txn_id": TXN, "state": "rollback",
        "participants": [{"namespace": "a", "key": "k"}]});
    let bare = json!({"txn_id": TXN, "state": "rollback"});
    let mut all = vec![
        (Coordinator, Ask::new("GET", path::TC_LEADER)),
        (Coordinator, Ask::new("GET", path::TC_CLUSTER_LIST)),
        (Coordinator, Ask::new("GET", path::TC_RM_LIST)),
        (Everything, Ask::new("GET", path::TXNS)),
        (Everything, Ask::new("GET", path::TXN.replace("{id}", TXN))),
    ];
    let tc = [path::TC_LEASE_ACQUIRE, path::TC_LEASE_RENEW, path::TC_LEASE_RELEASE];
    all.extend(tc.map(|path| (Coordinator, Ask::new("POST", path))));
    let servers = [
        path::TC_CLUSTER_ANNOUNCE,
        path::TC_CLUSTER_LEAVE,
        path::TC_RM_REGISTER,
        path::TC_RM_UNREGISTER,
    ];
    all.extend(servers.map(|path| (Server, Ask::new("POST", path))));
    for path in [path::TXN_DECIDE, path::TXN_COMMIT, path::TXN_ROLLBACK, path::TXN_REPLAY] {
        all.push((CoordinatorRw, post(path, &one)));
        all.push((CoordinatorEverything, post(path, &bare)));
    }
    all
}

/// What a set of claims allows in the namespace `a`.
struct Grants {
    claims: &'static [&'static str],
    read: bool,
    write: bool,
    everything: bool,
}

const GRANTS: &[Grants] = &[
    Grants { claims: &[], read: false, write: false, everything: false },
    Grants { claims: &["a=r"], read: true, write: false, everything: false },
    Grants { claims: &["a=w"], read: false, write: true, everything: false },
    Grants { claims: &["a=rw"], read: true, write: true, everything: false },
    Grants { claims: &["b=rw"], read: false, write: false, everything: false },
    Grants { claims: &["a=r", "b=rw"], read: true, write: false, everything: false },
    Grants { claims: &["ALL=r"], read: true, write: false, everything: false },
    Grants { claims: &["ALL=w"], read: false, write: true, everything: false },
    Grants { claims: &["ALL=rw"], read: true, write: true, everything: true },
    // A claim on a namespace counts before the one on all, also where it is weaker.
    Grants { claims: &["ALL=rw", "a=r"], read: true, write: false, everything: false },
    Grants { claims: &["ALL=rw", "a=w"], read: false, write: true, everything: false },
    Grants { claims: &["ALL=r", "a=rw"], read: true, write: true, everything: false },
];

fn refusal(needs: Needs, grants: &Grants, role: &Role) -> Option<ErrorCode> {
    let &Grants { claims, read, write, everything } = grants;
    let coordinates = !matches!(role, Role::Sdk(_));
    let allowed = match needs {
        Nothing => true,
        Claims => !claims.is_empty(),
        R => read,
        W => write,
        Rw => read && write,
        Everything => everything,
        Coordinator | CoordinatorRw | CoordinatorEverything if !coordinates => {
            return Some(ErrorCode::TcClientRequired);
        }
        Coordinator => true,
        CoordinatorRw => read && write,
        CoordinatorEverything => everything,
        Server if !matches!(role, Role::Server(_)) => return Some(ErrorCode::TcServerRequired),
        Server => true,
    };
    (!allowed).then_some(ErrorCode::NamespaceForbidden)
}

#[tokio::test]
async fn every_route_is_refused_to_every_caller_without_the_right() {
    let cases = cases();
    for route in ROUTES {
        for method in route.methods {
            let asked = cases.iter().any(|(_, ask)| {
                let path = ask.target.split('?').next().unwrap_or_default();
                ask.method == method.as_str() && path == route.path.replace("{id}", TXN)
            });
            assert!(asked, "no case for {method} {}", route.path);
        }
    }
    let mut wrong = Vec::new();
    let world = World::new().await;
    for grants in GRANTS {
        let sdk = client(grants.claims);
        let name = || "n".to_owned();
        for role in [Role::Sdk(name()), Role::Tc(name()), Role::Server(name())] {
            let who: Who = in_role(&sdk, role.clone());
            for (needs, ask) in &cases {
                let answer = world.send(&who, ask).await;
                let status = answer.status;
                let body = if status == 403 { answer.json().await } else { Value::Null };
                // Refusals of another kind, of a lease for instance, come after the question of
                // rights.
                let rights = [
                    ErrorCode::NamespaceForbidden,
                    ErrorCode::TcClientRequired,
                    ErrorCode::TcServerRequired,
                ];
                let got = rights.into_iter().find(|code| body["error"] == code.as_str());
                let expected = refusal(*needs, grants, &role);
                if got != expected {
                    let Grants { claims, .. } = grants;
                    let (method, target) = (ask.method, &ask.target);
                    wrong.push(format!(
                        "{role} {claims:?} {method} {target}: {status} {got:?}, not {expected:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn without_mutual_tls_no_route_asks_for_a_right() {
    let world = World::new().await;
    for (_, ask) in cases() {
        let answer = world.send(&None, &ask).await;
        let status = answer.status;
        let body = if status == 403 { answer.json().await } else { Value::Null };
        assert_ne!(body["error"], ErrorCode::NamespaceForbidden.as_str(), "{ask:?}");
        assert_ne!(body["error"], ErrorCode::TcClientRequired.as_str(), "{ask:?}");
    }
}
