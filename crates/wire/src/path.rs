//! The paths of the API.

pub const ACQUIRE: &str = "/v1/acquire";
pub const KEEPALIVE: &str = "/v1/keepalive";
pub const RELEASE: &str = "/v1/release";
pub const GET: &str = "/v1/get";
pub const GET_STATE: &str = "/v1/get_state";
pub const UPDATE: &str = "/v1/update";
pub const UPDATE_STATE: &str = "/v1/update_state";
pub const MUTATE: &str = "/v1/mutate";
pub const METADATA: &str = "/v1/metadata";
pub const REMOVE: &str = "/v1/remove";
pub const ATTACHMENTS: &str = "/v1/attachments";
pub const ATTACHMENT: &str = "/v1/attachment";
pub const QUEUE_ENQUEUE: &str = "/v1/queue/enqueue";
pub const QUEUE_DEQUEUE: &str = "/v1/queue/dequeue";
pub const QUEUE_DEQUEUE_STATE: &str = "/v1/queue/dequeueWithState";
pub const QUEUE_SUBSCRIBE: &str = "/v1/queue/subscribe";
pub const QUEUE_SUBSCRIBE_STATE: &str = "/v1/queue/subscribeWithState";
pub const QUEUE_ACK: &str = "/v1/queue/ack";
pub const QUEUE_NACK: &str = "/v1/queue/nack";
pub const QUEUE_EXTEND: &str = "/v1/queue/extend";
pub const QUEUE_WATCH: &str = "/v1/queue/watch";
pub const QUEUE_STATS: &str = "/v1/queue/stats";
pub const QUEUE_PEEK: &str = "/v1/queue/peek";
pub const QUEUE_PAYLOAD: &str = "/v1/queue/payload";
pub const QUEUE_PURGE: &str = "/v1/queue/purge";
pub const QUEUE_DLQ: &str = "/v1/queue/dlq";
pub const QUEUE_DLQ_REDRIVE: &str = "/v1/queue/dlq/redrive";
pub const QUEUE_DLQ_DELETE: &str = "/v1/queue/dlq/delete";
pub const QUEUES: &str = "/v1/queues";
pub const DESCRIBE: &str = "/v1/describe";
pub const READ: &str = "/v1/read";
pub const WATCH: &str = "/v1/watch";
pub const LEASES: &str = "/v1/leases";
pub const LEASES_REVOKE: &str = "/v1/leases/revoke";
pub const KEYS: &str = "/v1/keys";
pub const NAMESPACES: &str = "/v1/namespaces";
pub const BACKUP: &str = "/v1/store/backup";
pub const QUERY: &str = "/v1/query";
pub const INDEX_FLUSH: &str = "/v1/index/flush";
pub const NAMESPACE: &str = "/v1/namespace";
pub const TC_LEADER: &str = "/v1/tc/leader";
pub const TC_LEASE_ACQUIRE: &str = "/v1/tc/lease/acquire";
pub const TC_LEASE_RENEW: &str = "/v1/tc/lease/renew";
pub const TC_LEASE_RELEASE: &str = "/v1/tc/lease/release";
pub const TC_CLUSTER_LIST: &str = "/v1/tc/cluster/list";
pub const TC_CLUSTER_ANNOUNCE: &str = "/v1/tc/cluster/announce";
pub const TC_CLUSTER_LEAVE: &str = "/v1/tc/cluster/leave";
pub const TC_RM_LIST: &str = "/v1/tc/rm/list";
pub const TC_RM_REGISTER: &str = "/v1/tc/rm/register";
pub const TC_RM_UNREGISTER: &str = "/v1/tc/rm/unregister";
pub const TXN_DECIDE: &str = "/v1/txn/decide";
pub const TXN_COMMIT: &str = "/v1/txn/commit";
pub const TXN_ROLLBACK: &str = "/v1/txn/rollback";
pub const TXN_REPLAY: &str = "/v1/txn/replay";
pub const TXNS: &str = "/v1/txns";
/// Ends in the id of a transaction.
pub const TXN: &str = "/v1/txns/{id}";
pub const OPENAPI: &str = "/v1/openapi.json";
pub const HEALTHZ: &str = "/healthz";
pub const READYZ: &str = "/readyz";
pub const METRICS: &str = "/metrics";

/// Every path that the API listener serves.
pub const ALL: &[&str] = &[
    ACQUIRE,
    KEEPALIVE,
    RELEASE,
    GET,
    GET_STATE,
    UPDATE,
    UPDATE_STATE,
    MUTATE,
    METADATA,
    REMOVE,
    ATTACHMENTS,
    ATTACHMENT,
    QUEUE_ENQUEUE,
    QUEUE_DEQUEUE,
    QUEUE_DEQUEUE_STATE,
    QUEUE_SUBSCRIBE,
    QUEUE_SUBSCRIBE_STATE,
    QUEUE_ACK,
    QUEUE_NACK,
    QUEUE_EXTEND,
    QUEUE_WATCH,
    QUEUE_STATS,
    QUEUE_PEEK,
    QUEUE_PAYLOAD,
    QUEUE_PURGE,
    QUEUE_DLQ,
    QUEUE_DLQ_REDRIVE,
    QUEUE_DLQ_DELETE,
    QUEUES,
    DESCRIBE,
    READ,
    WATCH,
    LEASES,
    LEASES_REVOKE,
    KEYS,
    NAMESPACES,
    BACKUP,
    QUERY,
    INDEX_FLUSH,
    NAMESPACE,
    TC_LEADER,
    TC_LEASE_ACQUIRE,
    TC_LEASE_RENEW,
    TC_LEASE_RELEASE,
    TC_CLUSTER_LIST,
    TC_CLUSTER_ANNOUNCE,
    TC_CLUSTER_LEAVE,
    TC_RM_LIST,
    TC_RM_REGISTER,
    TC_RM_UNREGISTER,
    TXN_DECIDE,
    TXN_COMMIT,
    TXN_ROLLBACK,
    TXN_REPLAY,
    TXNS,
    TXN,
    OPENAPI,
    HEALTHZ,
    READYZ,
];
