//! Nodes of which one leads: what they say of themselves, to clients, to each other, to operators
//! and to the programs that they run.

use serde::{Deserialize, Serialize};

pub const ROLE: &str = "/role";
/// For load balancers: 200 on the leader only, 200 on the others only.
pub const LEADER: &str = "/leader";
pub const STANDBY: &str = "/standby";
pub const HEALTH: &str = "/healthz";
/// For operators and other nodes.
pub const HA: &str = "/ha/";

/// On every answer of a node.
pub const NODE_ID_HEADER: &str = "x-node-id";
pub const ROLE_HEADER: &str = "x-role";
pub const LEADER_EPOCH_HEADER: &str = "x-leader-epoch";
/// Set by a front for clients that have shown a certificate; what a client says of it itself does
/// not get past a front.
pub const CERTIFIED_HEADER: &str = "x-lockd-certified";
pub const LEADER_ID_HEADER: &str = "x-leader-id";

/// What a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Role {
    #[default]
    Standby,
    Leader,
    /// It leads, gives out no new work, and is about to hand over.
    Draining,
}

impl Role {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "STANDBY",
            Self::Leader => "LEADER",
            Self::Draining => "DRAINING",
        }
    }
}

/// What a node is, as another one sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum SeenRole {
    Standby,
    Leader,
    Draining,
    /// It led, another leads by now, and it has not said since what it is: perhaps it is dead.
    #[default]
    #[serde(other)]
    Unknown,
}

impl SeenRole {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "STANDBY",
            Self::Leader => "LEADER",
            Self::Draining => "DRAINING",
            Self::Unknown => "UNKNOWN",
        }
    }
}

impl From<Role> for SeenRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Standby => Self::Standby,
            Role::Leader => Self::Leader,
            Role::Draining => Self::Draining,
        }
    }
}

/// What a node, or its controller, says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleReply {
    pub node_id: String,
    pub role: Role,
    pub leader_epoch: Option<u64>,
    pub leader_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_url: Option<String>,
    /// Of a controller: the version of the assignment that it acts on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment: Option<u64>,
    /// Of a controller that was to lead and may not: the epoch that its store knows, which is not
    /// lower than the one it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_epoch: Option<u64>,
}

pub const NOT_LEADER: &str = "NOT_LEADER";

/// 409 `NOT_LEADER`: a change was asked of a node that does not lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotLeader {
    pub error: String,
    pub leader_id: Option<String>,
    pub leader_url: Option<String>,
    pub leader_epoch: Option<u64>,
    pub node_id: String,
    pub role: Role,
}

impl NotLeader {
    /// By a node that is this, and knows so much of the leader.
    #[must_use]
    pub fn of(role: &RoleReply) -> Self {
        Self {
            error: NOT_LEADER.into(),
            leader_id: role.leader_id.clone(),
            leader_url: role.leader_url.clone(),
            leader_epoch: role.leader_epoch,
            node_id: role.node_id.clone(),
            role: Role::Standby,
        }
    }
}

/// What the program beside a node learns from it at the local endpoint: `GET /assignment`, with
/// `after` (a version) and `wait_ms` to hear of the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Grows with every change of what follows, but for `lease_ms`.
    pub version: u64,
    pub node_id: String,
    /// What the program is to be.
    pub role: Role,
    /// Under which epoch it leads; of the leader, where that is another.
    pub leader_epoch: Option<u64>,
    pub leader_id: Option<String>,
    pub leader_url: Option<String>,
    /// How long the program may lead unless it hears more, counted from before it asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// The variables in which programs learn where they run.
pub mod environment {
    pub const ROLE: &str = "LOCKD_HA_ROLE";
    pub const EPOCH: &str = "LOCKD_HA_EPOCH";
    pub const NODE_ID: &str = "LOCKD_HA_NODE_ID";
    /// The URL of the node itself: its front.
    pub const URL: &str = "LOCKD_HA_URL";
    /// The local endpoint, and what to show there as a bearer.
    pub const ENDPOINT: &str = "LOCKD_HA_ENDPOINT";
    pub const TOKEN: &str = "LOCKD_HA_TOKEN";
}

/// A node, as the others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    pub node_id: String,
    pub url: String,
    pub role: SeenRole,
    /// `open`, `opening`, `closing`, `closed`, `down` or `unknown`.
    pub controller: String,
    /// `on`, `stopping`, `off`, `none` or `unknown`.
    pub agent: String,
    #[serde(default)]
    pub preferred: bool,
    #[serde(default)]
    pub never_lead: bool,
    #[serde(default)]
    pub paused: bool,
    pub version: String,
    /// How long nothing was heard of it.
    #[serde(default)]
    pub silent_ms: u64,
}

/// A cluster of nodes, as one of them sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaStatus {
    /// Who answers.
    pub node_id: String,
    pub leader_id: Option<String>,
    pub leader_url: Option<String>,
    pub leader_epoch: Option<u64>,
    pub paused: bool,
    pub nodes: Vec<NodeView>,
}

/// A standby tells the leader that it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub node: NodeView,
}

/// What it hears back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloReply {
    pub leader_id: Option<String>,
    pub leader_epoch: Option<u64>,
    /// Whether the cluster is paused: nobody but its last leader takes office.
    pub paused: bool,
    /// Everybody the leader knows, itself included.
    pub nodes: Vec<NodeView>,
}

/// The office is to be handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchoverAsk {
    /// To whom; without it, to anybody who can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// It was handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchoverDone {
    pub from: String,
    pub to: String,
    pub leader_epoch: Option<u64>,
    pub took_ms: u64,
}

/// Between nodes: whoever is to lead next stops its agent; the others let it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// Who is to lead next.
    pub successor: String,
    /// How long this holds.
    pub for_ms: u64,
}

/// The cluster is to be paused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseAsk {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A node became something else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    pub node_id: String,
    pub at_unix_ms: u64,
    pub from: Role,
    pub to: Role,
    pub leader_epoch: Option<u64>,
    /// A word that programs can count by.
    pub cause: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// From what caused it to its end.
    pub took_ms: u64,
}

/// What nodes became, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub transitions: Vec<Transition>,
}
