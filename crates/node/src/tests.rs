//! Nodes over a lock in memory, with shell scripts for programs and a server in the test for what
//! their controllers would answer.

mod cluster;
mod lock;
mod office;
mod programs;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lockd_front::{FrontSettings, Rules, Standing};
use lockd_serve::{Bound, Door, Serving};
use lockd_wire::node::{Assignment, Role, RoleReply};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::Notify;

use self::lock::World;
use crate::{Node, NodeSettings, RoleChange};

/// Long enough for a busy machine; nothing waits for it to pass.
const LIMIT: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(2);

/// Until it is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "never: {what}");
}

/// How a controller's HTTP side behaves.
struct Fake {
    healthy: AtomicBool,
    /// Whether it answers `/role`.
    knows_roles: AtomicBool,
    /// Whether it does as it is told, or goes on as it is.
    obeys: AtomicBool,
    last: Mutex<RoleReply>,
    /// What its store knows.
    store_epoch: Mutex<u64>,
    /// Whether changes are held back, and how they go on.
    slow: AtomicBool,
    go_on: Notify,
    entered: Notify,
    folder: PathBuf,
    client: reqwest::Client,
}

impl Fake {
    /// Where the program was told to ask, and what to show there.
    fn told(&self) -> Option<(String, String)> {
        let text = std::fs::read_to_string(self.folder.join("endpoint")).ok()?;
        let (endpoint, token) = text.trim().split_once(' ')?;
        Some((endpoint.into(), token.into()))
    }

    async fn assignment(&self, query: &str) -> Option<Assignment> {
        let (endpoint, token) = self.told()?;
        let url = format!("{endpoint}/assignment{query}");
        self.client.get(url).bearer_auth(token).send().await.ok()?.json().await.ok()
    }

    async fn role(&self) -> Option<RoleReply> {
        if self.obeys.load(Ordering::SeqCst) {
            let now = self.assignment("").await?;
            let mut role = RoleReply {
                node_id: now.node_id,
                role: now.role,
                leader_epoch: now.leader_epoch,
                assignment: Some(now.version),
                ..RoleReply::default()
            };
            let mut store = self.store_epoch.lock();
            if now.role != Role::Standby && now.leader_epoch.is_some_and(|it| it < *store) {
                (role.role, role.store_epoch) = (Role::Standby, Some(*store));
            } else if now.role != Role::Standby {
                *store = now.leader_epoch.unwrap_or(*store);
            }
            *self.last.lock() = role;
        }
        Some(self.last.lock().clone())
    }
}

async fn fake_role(State(fake): State<Arc<Fake>>) -> Response {
    if !fake.knows_roles.load(Ordering::SeqCst) {
        return StatusCode::NOT_FOUND.into_response();
    }
    match fake.role().await {
        Some(role) => Json(role).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn fake_health(State(fake): State<Arc<Fake>>) -> StatusCode {
    match fake.healthy.load(Ordering::SeqCst) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn fake_change(State(fake): State<Arc<Fake>>) -> &'static str {
    if fake.slow.load(Ordering::SeqCst) {
        fake.entered.notify_one();
        fake.go_on.notified().await;
    }
    "changed"
}

/// A node to be, with all it needs.
struct Bench {
    world: World,
    folder: TempDir,
    fake: Arc<Fake>,
    settings: Option<NodeSettings>,
    ttl: Duration,
    address: SocketAddr,
    _server: Serving,
}

/// Notes where it may ask, says what it is, and goes on until it is told to end.
const CONTROLLER: &str = r#"
    echo "$LOCKD_HA_ENDPOINT $LOCKD_HA_TOKEN" > $D/endpoint.new; mv $D/endpoint.new $D/endpoint
    trap 'echo "controller ends" >> $D/log; exit 0' TERM
    trap 'echo "controller hears" >> $D/log' HUP
    echo "controller $LOCKD_HA_ROLE ${LOCKD_HA_EPOCH:-none} $$" >> $D/log
    while :; do sleep 0.02; done
"#;
const AGENT: &str = r#"
    trap 'echo "agent ends" >> $D/log; exit 0' TERM
    echo "agent begins $$" >> $D/log
    while :; do sleep 0.02; done
"#;

fn shell(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(String::from).to_vec()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Bench {
    async fn new(world: &World, node_id: &str, role_change: RoleChange) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = Arc::new(Fake {
            healthy: AtomicBool::new(true),
            knows_roles: AtomicBool::new(true),
            obeys: AtomicBool::new(true),
            last: Mutex::default(),
            store_epoch: Mutex::default(),
            slow: AtomicBool::new(false),
            go_on: Notify::new(),
            entered: Notify::new(),
            folder: folder.path().into(),
            client: http_client(),
        });
        let router = Router::new()
            .route("/healthz", get(fake_health))
            .route("/role", get(fake_role))
            .route("/v1/things", post(fake_change))
            .with_state(Arc::clone(&fake));
        let server = Bound::bind("127.0.0.1:0").await.unwrap().serve(&Door::Plain, router).unwrap();
        let controller = format!("http://{}", server.address).parse().unwrap();
        let front = FrontSettings::new(controller, Rules::new(&[], &[]).unwrap());
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let url = format!("http://{address}");
        let mut settings =
            NodeSettings::new(node_id, url, address.to_string(), shell(CONTROLLER), front);
        settings.role_change = role_change;
        settings.stop_grace = Duration::from_secs(3);
        settings.environment = vec![("D".into(), folder.path().to_str().unwrap().to_owned())];
        let (world, settings) = (world.clone(), Some(settings));
        Self { world, folder, fake, settings, ttl: TTL, address, _server: server }
    }

    fn with(mut self, change: impl FnOnce(&mut NodeSettings)) -> Self {
        change(self.settings.as_mut().unwrap());
        self
    }

    fn with_agent(self) -> Self {
        self.with(|settings| settings.agent = Some(shell(AGENT)))
    }

    async fn start(&mut self) -> Node {
        let settings = self.settings.take().unwrap();
        let lock = self.world.lock(&settings.candidate_id(), self.ttl);
        Node::start(settings, lock).await.unwrap()
    }

    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        text.lines().map(Into::into).collect()
    }

    fn place(&self, begins: &str) -> Option<usize> {
        self.log().iter().position(|line| line.starts_with(begins))
    }

    fn count(&self, begins: &str) -> usize {
        self.log().iter().filter(|line| line.starts_with(begins)).count()
    }

    async fn logged(&self, begins: &str) {
        until(begins, || self.place(begins).is_some()).await;
    }

    /// Asks at its port.
    async fn post(&self, path: &str, body: &str) -> (u16, String) {
        let url = format!("http://{}{path}", self.address);
        let sent = http_client().post(url).body(body.to_owned()).send().await.unwrap();
        (sent.status().as_u16(), sent.text().await.unwrap())
    }

    async fn get(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.address);
        http_client().get(url).send().await.unwrap().text().await.unwrap()
    }
}

fn http_client() -> reqwest::Client {
    let nobody = rustls::RootCertStore::empty();
    let config = rustls::ClientConfig::builder().with_root_certificates(nobody);
    let builder = reqwest::Client::builder();
    builder.tls_backend_preconfigured(config.with_no_client_auth()).no_proxy().build().unwrap()
}

async fn becomes(node: &Node, role: Role) -> Standing {
    let mut standing = node.handle().standing();
    let found = standing.wait_for(|it| it.role.role == role);
    let found = tokio::time::timeout(LIMIT, found).await;
    found.unwrap_or_else(|_| panic!("never {role:?}")).unwrap().clone()
}

fn causes(node: &Node) -> Vec<String> {
    let all = node.handle().history().transitions;
    all.iter().map(|it| format!("{}>{} {}", it.from.as_str(), it.to.as_str(), it.cause)).collect()
}
