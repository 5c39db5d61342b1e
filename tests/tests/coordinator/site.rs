//! Places where clusters are kept, instances that take part, and what can be done to both.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use lockd_cloud::Redis as RedisServer;
use lockd_coordinator::{Backend, ClusterView, Coordinator, Settings, State};
use lockd_elect::redis::{Address, Redis, RedisSettings};
use lockd_tests::{Options, Place, Server};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub const PREFIX: &str = "waf:cluster";

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// As usual, but sixty times as fast.
pub fn short(id: &str) -> Settings {
    Settings {
        heartbeat_interval: ms(250),
        heartbeat_ttl: ms(1_500),
        leader_ttl: ms(1_000),
        leader_renew_interval: ms(300),
        drift_threshold: ms(1_000),
        stale_threshold: ms(5_000),
        metrics_push_interval: ms(500),
        grace: ms(2_000),
        ..Settings::new(id)
    }
}

/// Where a cluster is kept.
pub enum Site {
    Redis(RedisServer),
    Lockd(Box<Server>),
}

impl Site {
    pub async fn redis() -> Self {
        Self::Redis(RedisServer::start().await)
    }

    pub async fn lockd() -> Self {
        // In memory: a disk may keep whoever renews waiting for longer than a lease lives.
        let started = tokio::task::spawn_blocking(|| Server::start(Options::in_memory()));
        Self::Lockd(Box::new(started.await.expect("a server")))
    }

    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Redis(redis) => redis.address(),
            Self::Lockd(server) => match server.place {
                Place::Tcp(address) => address,
                Place::Unix(_) => panic!("not over the network"),
            },
        }
    }

    /// As the instance reaches it through this address.
    pub fn backend(&self, address: SocketAddr, settings: &Settings) -> Backend {
        match self {
            Self::Redis(_) => {
                let address = Address::parse(&format!("redis://{address}/0")).expect("an address");
                let redis = RedisSettings { timeout: ms(400), ..RedisSettings::new(address) };
                Backend::redis_with(redis, settings).expect("a backend")
            }
            Self::Lockd(_) => {
                let client = lockd_client::Client::builder()
                    .endpoint(format!("http://{address}"))
                    .attempts(1)
                    .build()
                    .expect("a client");
                Backend::lockd(&client, settings).expect("a backend")
            }
        }
    }

    pub async fn start(&self, id: &str) -> Coordinator {
        self.start_with(short(id), self.address()).await
    }

    pub async fn start_with(&self, settings: Settings, address: SocketAddr) -> Coordinator {
        let backend = self.backend(address, &settings);
        Coordinator::start(settings, backend).await.expect("started")
    }

    /// A connection that is nobody's.
    pub fn commands(&self) -> Redis {
        let url = format!("redis://{}/0", self.address());
        Redis::new(RedisSettings::new(Address::parse(&url).expect("an address")))
    }
}

/// Until it holds; fails with what was seen after the deadline.
pub async fn until(
    deadline: Duration,
    what: &str,
    mut holds: impl AsyncFnMut() -> bool,
) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(ms(5)).await;
    }
    start.elapsed()
}

pub const SOON: Duration = Duration::from_secs(40);

pub fn leaders<'a>(all: &[&'a Coordinator]) -> Vec<&'a Coordinator> {
    all.iter().copied().filter(|one| one.is_leader()).collect()
}

/// Until exactly one of them leads.
pub async fn one_leads<'a>(all: &[&'a Coordinator]) -> &'a Coordinator {
    until(SOON, "one leads", async || leaders(all).len() == 1).await;
    leaders(all)[0]
}

pub async fn view(of: &Coordinator) -> ClusterView {
    of.cluster().await.unwrap_or(ClusterView { leader: None, members: Vec::new() })
}

pub async fn state(of: &Coordinator, id: &str) -> Option<State> {
    let view = view(of).await;
    view.members.iter().find(|member| member.instance_id == id).map(|member| member.status)
}

/// A way to a place that can be cut: nothing goes through any more, and nobody is told.
pub struct Way {
    pub address: SocketAddr,
    open: watch::Sender<bool>,
}

impl Way {
    pub async fn to(place: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let is_open = is_open.clone();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(place).await else { return };
                    let (near_in, near_out) = near.into_split();
                    let (far_in, far_out) = far.into_split();
                    tokio::join!(
                        carry(near_in, far_out, is_open.clone()),
                        carry(far_in, near_out, is_open)
                    );
                });
            }
        });
        Self { address, open }
    }

    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    pub fn mend(&self) {
        self.open.send_replace(true);
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
) {
    let mut piece = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        if open.wait_for(|open| *open).await.is_err() || to.write_all(&piece[..read]).await.is_err()
        {
            return;
        }
    }
}

/// An instance in a process of its own.
pub struct Instance {
    child: Child,
    lines: Receiver<String>,
}

impl Instance {
    pub fn start(url: &str, id: &str, leader_ttl: u64, tasks: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_instance"));
        command.args([url, id, &leader_ttl.to_string()]).args(tasks).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().expect("an instance");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let (told, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line that begins so, without its beginning.
    pub fn says(&self, beginning: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(beginning) {
                        return rest.trim().to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("it did not say {beginning:?}")
                }
            }
        }
    }

    /// Whether it has said so by now.
    pub fn has_said(&self, beginning: &str) -> bool {
        self.lines.try_iter().any(|line| line.starts_with(beginning))
    }

    pub fn signal(&self, signal: Signal) {
        lockd_tests::process::signal(&self.child, signal);
    }

    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _may_be_gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
