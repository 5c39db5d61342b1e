//! What the front answers by itself.

use http::Method;
use lockd_front::Gate;
use lockd_wire::node::Role;
use serde_json::json;

use crate::controller::nowhere;
use crate::stand::{Stand, leader};

#[tokio::test]
async fn a_standby_says_what_it_is() {
    let stand = Stand::before(nowhere().await).await;
    let role = stand.ask(Method::GET, "/role").await;
    assert_eq!(role.status, 200);
    let said = json!({"node_id": "n1", "role": "STANDBY", "leader_epoch": null, "leader_id": null});
    assert_eq!(role.json(), said);
    for (path, status, text) in [("/leader", 503, "not leader\n"), ("/standby", 200, "standby\n")] {
        let answer = stand.ask(Method::GET, path).await;
        assert_eq!((answer.status, answer.text()), (status, text));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("x-node-id"), Some("n1"));
        assert_eq!(answer.header("x-role"), Some("STANDBY"));
        assert_eq!(answer.header("x-leader-epoch"), None);
    }
}

#[tokio::test]
async fn a_node_leads_for_balancers_while_its_gate_is_open() {
    let stand = Stand::before(nowhere().await).await;
    let gate = stand.lead();
    let said = stand.ask(Method::GET, "/role").await.json();
    assert_eq!((&said["role"], &said["leader_epoch"]), (&json!("LEADER"), &json!(7)));
    let answer = stand.ask(Method::GET, "/leader").await;
    assert_eq!((answer.status, answer.text()), (200, "leader\n"));
    assert_eq!(answer.header("x-leader-epoch"), Some("7"));
    assert_eq!(answer.header("x-leader-id"), Some("n1"));
    assert_eq!(stand.ask(Method::GET, "/standby").await.status, 503);

    stand.standing.send_modify(|standing| standing.role.role = Role::Draining);
    assert_eq!(stand.ask(Method::GET, "/leader").await.status, 200);
    gate.shut();
    assert_eq!(stand.ask(Method::GET, "/leader").await.status, 503);
    stand.standing.send_replace(leader("n1", None));
    assert_eq!(stand.ask(Method::GET, "/leader").await.status, 503);
    stand.standing.send_replace(leader("n1", Some(Gate::new())));
    assert_eq!(stand.ask(Method::GET, "/leader").await.status, 200);
}

#[tokio::test]
async fn health_is_that_of_the_controller() {
    let stand = Stand::before(nowhere().await).await;
    let answer = stand.ask(Method::GET, "/healthz").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({"node_id": "n1", "role": "STANDBY", "controller": "healthy"}));
    stand.healthy.send_replace(false);
    let answer = stand.ask(Method::GET, "/healthz").await;
    assert_eq!(answer.status, 503);
    let said = answer.json();
    assert_eq!(said["controller"], "unhealthy");
    assert_eq!(said["error"], "controller_unavailable");
    assert_eq!(stand.ask(Method::GET, "/standby").await.status, 503);
}

#[tokio::test]
async fn own_paths_are_only_read() {
    let stand = Stand::before(nowhere().await).await;
    for path in ["/role", "/leader", "/standby", "/healthz"] {
        let head = stand.ask(Method::HEAD, path).await;
        let get = stand.ask(Method::GET, path).await;
        assert_eq!((head.status, head.text()), (get.status, ""));
        assert_eq!(head.header("content-length"), get.header("content-length"));
        for method in [Method::POST, Method::DELETE, Method::OPTIONS] {
            let answer = stand.ask(method, path).await;
            assert_eq!(answer.status, 405);
            assert_eq!(answer.header("allow"), Some("GET, HEAD"));
            assert_eq!(answer.json()["error"], "method_not_allowed");
            assert_eq!(answer.header("x-node-id"), Some("n1"));
        }
    }
}

#[tokio::test]
async fn the_nodes_own_routes_are_its_own() {
    let stand = Stand::before(nowhere().await).await;
    let answer = stand.ask(Method::GET, "/ha/status").await;
    assert_eq!((answer.status, answer.text()), (200, "own"));
    assert_eq!(answer.header("x-role"), Some("STANDBY"));
    let answer = stand.ask(Method::POST, "/ha/switchover/now").await;
    assert_eq!((answer.status, answer.text()), (200, "other"));
    let refused = stand.ask(Method::POST, "/ha/status").await;
    assert_eq!(refused.status, 405);
    // All else is the controller's, and there is none.
    for path in ["/ha", "/HA/status", "/%68a/status", "//ha/status", "/role/", "/"] {
        let answer = stand.ask(Method::GET, path).await;
        assert_eq!(
            (answer.status, answer.json()["error"].as_str()),
            (503, Some("controller_unavailable"))
        );
    }
    stand.stop().await;
}
