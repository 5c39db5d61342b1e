//! Answers of nodes, for people.

use jiff::Timestamp;
use lockd_wire::node::{HaStatus, History, NodeView, SwitchoverDone, Transition};

use crate::ui;

/// Whoever was silent for longer may be gone.
pub(super) const SILENT_MS: u64 = 10_000;

pub(super) fn status(status: &HaStatus) -> String {
    let leader = match (&status.leader_id, status.leader_epoch) {
        (Some(leader), Some(epoch)) => format!("{leader} leads under epoch {epoch}"),
        (Some(leader), None) => format!("{leader} leads"),
        (None, _) => "nobody leads".into(),
    };
    let paused = if status.paused { ", paused" } else { "" };
    let row = |node: &NodeView| {
        let tags = [(node.preferred, "preferred"), (node.never_lead, "never leads")];
        let tags: Vec<&str> =
            tags.into_iter().filter_map(|(has, tag)| has.then_some(tag)).collect();
        let heard = match node.silent_ms {
            0..=SILENT_MS => "now".into(),
            silent => format!("{} s ago", silent / 1_000),
        };
        vec![
            node.node_id.clone(),
            node.role.as_str().into(),
            node.controller.clone(),
            node.agent.clone(),
            heard,
            tags.join(", "),
            node.url.clone(),
        ]
    };
    let headings = ["NODE", "ROLE", "CONTROLLER", "AGENT", "HEARD", "TAGS", "URL"];
    let nodes = ui::table(Some(&headings), status.nodes.iter().map(row).collect());
    format!("{leader}{paused}\n{nodes}")
}

pub(super) fn switchover(done: &SwitchoverDone) -> String {
    let under = done.leader_epoch.map(|epoch| format!(" under epoch {epoch}")).unwrap_or_default();
    format!("{} leads{under}, after {}; it took {} ms", done.to, done.from, done.took_ms)
}

pub(super) fn history(history: &History) -> String {
    let row = |one: &Transition| {
        vec![
            at(one.at_unix_ms),
            one.node_id.clone(),
            format!("{} -> {}", one.from.as_str(), one.to.as_str()),
            one.leader_epoch.map(|epoch| epoch.to_string()).unwrap_or_default(),
            one.cause.clone(),
            format!("{} ms", one.took_ms),
            one.detail.clone(),
        ]
    };
    let headings = ["AT", "NODE", "BECAME", "EPOCH", "CAUSE", "TOOK", "DETAIL"];
    ui::table(Some(&headings), history.transitions.iter().map(row).collect())
}

fn at(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string()).unwrap_or_default()
}
