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
    OPENAPI,
    HEALTHZ,
    READYZ,
];
