//! Locks, stores, and nodes as processes.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockd_cloud::{Etcd, Postgres, Recorder, Redis, free_port};
use lockd_pki::{Bundle, files};
use lockd_tests::http::Connection;
use lockd_tests::process;
use lockd_tests::tunnel::Tunnel;
use lockd_tests::wait::try_within;
use lockd_tests::{Client, Options, Place, Reply, Request, Server};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::way::Way;

pub const SOON: Duration = Duration::from_secs(30);

/// What keeps the lock, or the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Lockd,
    Postgres,
    Etcd,
    Redis,
}

pub enum Keeper {
    Lockd(Box<Server>),
    Postgres(Postgres),
    Etcd(Etcd),
    Redis(Redis),
}

impl Keeper {
    pub fn start(kind: Kind) -> Self {
        match kind {
            Kind::Lockd => {
                let port = free_port().to_string();
                Self::Lockd(Box::new(Server::start(Options::new().plain().listen(&port))))
            }
            Kind::Postgres => Self::Postgres(Postgres::start_now()),
            Kind::Etcd => Self::Etcd(Etcd::start_now()),
            Kind::Redis => Self::Redis(Redis::start_now()),
        }
    }

    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Lockd(server) => match server.place {
                Place::Tcp(address) => address,
                Place::Unix(_) => panic!("not over the network"),
            },
            Self::Postgres(postgres) => postgres.address(),
            Self::Etcd(etcd) => etcd.address(),
            Self::Redis(redis) => redis.address(),
        }
    }

    /// As it is reached through this address.
    pub fn url(&self, address: SocketAddr) -> String {
        match self {
            Self::Lockd(_) => format!("lockd://{address}?insecure=1"),
            Self::Postgres(_) => format!("postgres://lockd@{address}/postgres"),
            Self::Etcd(_) => format!("etcd://{address}"),
            Self::Redis(_) => format!("redis://{address}/0"),
        }
    }

    /// Killed and started again, with what it has kept.
    pub fn restart(&mut self) {
        match self {
            Self::Lockd(server) => {
                server.kill();
                server.start_again();
            }
            Self::Postgres(postgres) => postgres.start_again(),
            Self::Etcd(etcd) => etcd.start_again(),
            Self::Redis(redis) => {
                redis.save();
                redis.start_again();
            }
        }
    }

    /// Killed and started again, without anything it has kept of leaders.
    pub fn forget(&mut self) {
        match self {
            Self::Lockd(server) => {
                server.kill();
                std::fs::remove_dir_all(server.store()).ok();
                server.start_again();
            }
            Self::Postgres(postgres) => {
                postgres.run("DROP TABLE IF EXISTS lockd_leader");
                postgres.start_again();
            }
            Self::Etcd(etcd) => {
                etcd.kill();
                etcd.forget();
                etcd.start_again();
            }
            Self::Redis(redis) => {
                redis.forget_saved();
                redis.start_again();
            }
        }
    }
}

/// How nodes are started.
#[derive(Clone, Debug)]
pub struct Plan {
    pub lock_ttl: &'static str,
    pub lease_ttl: &'static str,
    pub moonlight: bool,
    pub more: Vec<String>,
    /// Nodes are told the wrong time by it.
    pub clocks: bool,
    /// What reaches a lockd store is written down.
    pub record: bool,
    /// Everybody shows a certificate.
    pub secure: bool,
    /// The program behind the front, instead of lockd's own.
    pub controller: Option<fn(u16) -> String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            lock_ttl: "2s",
            lease_ttl: "3s",
            moonlight: true,
            more: Vec::new(),
            clocks: false,
            record: false,
            secure: false,
            controller: None,
        }
    }
}

/// One node: its supervisor, and what that has started.
pub struct Node {
    pub id: String,
    pub front: SocketAddr,
    pub controller: SocketAddr,
    /// For tests, which do not speak TLS.
    tunnel: Option<Tunnel>,
    /// Its ways to lock and store.
    pub lock: Way,
    pub store: Way,
    command: Vec<String>,
    clock: Option<PathBuf>,
    home: Arc<tempfile::TempDir>,
    child: Option<Child>,
    log: Arc<Mutex<String>>,
}

impl Node {
    /// Starts its supervisor.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs", self.id);
        let mut command = Command::new(lockd_tests::binary::lockd());
        command.env_clear().env("HOME", self.home.path()).env("PATH", "/usr/bin:/bin:/usr/sbin");
        if let Some(clock) = &self.clock {
            command.env("LD_PRELOAD", process::faketime()).env("FAKETIME_TIMESTAMP_FILE", clock);
            command.env("FAKETIME_NO_CACHE", "1").env("DONT_FAKE_MONOTONIC", "1");
        }
        command.args(&self.command).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("a node");
        let said = BufReader::new(child.stderr.take().expect("its log"));
        let log = Arc::clone(&self.log);
        std::thread::spawn(move || {
            for line in said.split(b'\n').map_while(Result::ok) {
                let mut log = log.lock().expect("the log");
                log.push_str(&String::from_utf8_lossy(&line));
                log.push('\n');
            }
        });
        self.child = Some(child);
    }

    /// One more word of its command line, for its next start.
    pub fn add(&mut self, word: &str) {
        self.command.push(word.to_owned());
    }

    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    pub fn place(&self) -> Place {
        Place::Tcp(self.tunnel.as_ref().map_or(self.front, |tunnel| tunnel.entrance))
    }

    pub fn call(&self, request: &Request) -> Reply {
        Client::new(&self.place()).call(request)
    }

    /// Without waiting for one that is stopped.
    pub fn try_call(&self, request: &Request) -> Option<Reply> {
        let mut connection = Connection::open(&self.place()).ok()?;
        connection.socket.patience(Duration::from_secs(2)).ok()?;
        connection.call(request).ok()
    }

    pub fn get(&self, path: &str) -> Reply {
        self.call(&Request::get(path))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.call(&Request::post(path).json(body))
    }

    /// Has it take a job in.
    #[track_caller]
    pub fn submit(&self, job: &Value) -> Value {
        let reply = self.post("/v1/jobs", job);
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.json()
    }

    /// What it says it is; nothing if it does not answer.
    pub fn role(&self) -> Value {
        let role = self.try_call(&Request::get("/role"));
        role.filter(|role| role.status == 200).map(|role| role.json()).unwrap_or_default()
    }

    pub fn leads(&self) -> bool {
        self.role()["role"] == "LEADER"
    }

    pub fn epoch(&self) -> u64 {
        self.role()["leader_epoch"].as_u64().unwrap_or(0)
    }

    pub fn supervisor(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// All processes of it, the supervisor first.
    pub fn processes(&self) -> Vec<u32> {
        descendants(self.supervisor())
    }

    /// The processes whose command line has this word, the guards left out.
    pub fn programs(&self, word: &str) -> Vec<u32> {
        let is = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.get(1).is_some_and(|second| *second == word.as_bytes())
        };
        self.processes().into_iter().filter(is).collect()
    }

    pub fn signal_all(&self, signal: Signal) {
        for pid in self.processes() {
            send(pid, signal);
        }
    }

    pub fn signal(&self, signal: Signal) {
        send(self.supervisor(), signal);
    }

    /// Ends the supervisor at once; what it has started must end by itself.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            process::signal(&child, Signal::KILL);
            child.wait().expect("gone");
        }
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            process::signal(&child, Signal::TERM);
            let ended = try_within(SOON, || child.try_wait().expect("a child"));
            let status =
                ended.unwrap_or_else(|| panic!("{} does not stop:\n{}", self.id, self.log()));
            assert!(status.success(), "{}: {status}\n{}", self.id, self.log());
        }
    }

    /// Sets its clock, as `+3600` or `-1d`.
    pub fn set_clock(&self, by: &str) {
        std::fs::write(self.clock.as_ref().expect("a clock of its own"), by).expect("a clock");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // What is stopped cannot notice that its supervisor is gone.
            for pid in descendants(child.id()) {
                send(pid, Signal::CONT);
            }
            child.kill().ok();
            child.wait().ok();
        }
        let log = self.log();
        if std::thread::panicking() {
            let lines: Vec<&str> = log.lines().collect();
            let end = lines.len().saturating_sub(60);
            println!("the log of {} ends with:\n{}", self.id, lines[end..].join("\n"));
        } else {
            assert!(!log.contains("panicked at"), "{} panicked:\n{log}", self.id);
            assert!(!log.contains("cause=\"broken\""), "{} broke a rule:\n{log}", self.id);
        }
    }
}

/// Several nodes, a lock and a store.
pub struct Site {
    // Nodes first: they go before what they need.
    pub nodes: Vec<Node>,
    pub lock: Keeper,
    pub store: Keeper,
    pub recorder: Option<Recorder>,
    pub home: Arc<tempfile::TempDir>,
}

impl Site {
    pub fn start(lock: Kind, store: Kind, nodes: usize, plan: &Plan) -> Self {
        let mut site = Self::prepare(lock, store, nodes, plan);
        for node in &mut site.nodes {
            node.start();
        }
        site.leader();
        site
    }

    /// As [`Site::start`], with no node running.
    pub fn prepare(lock: Kind, store: Kind, nodes: usize, plan: &Plan) -> Self {
        let (lock, store) = std::thread::scope(|scope| {
            let lock = scope.spawn(|| Keeper::start(lock));
            let store = Keeper::start(store);
            (lock.join().expect("a lock"), store)
        });
        let home = Arc::new(tempfile::tempdir().expect("a folder"));
        if plan.secure {
            let here = ["127.0.0.1".to_owned()];
            lockd_pki::bootstrap(home.path(), &here, jiff::Timestamp::now()).expect("bundles");
        }
        let recorder = (plan.record && matches!(store, Keeper::Lockd(_))).then(|| {
            Recorder::start_now(&format!("http://{}", store.address()), super::judge::is_wanted)
        });
        let place = recorder.as_ref().map_or_else(
            || store.address(),
            |recorder| recorder.endpoint().replace("http://", "").parse().expect("an address"),
        );
        let names = ["a", "b", "c"];
        let nodes = names.iter().take(nodes).map(|id| {
            let ways = (Way::to(lock.address()), Way::to(place));
            let urls = (lock.url(ways.0.address), store.url(ways.1.address));
            node(id, ways, urls, plan, &home)
        });
        Self { nodes: nodes.collect(), lock, store, recorder, home }
    }

    /// The one that leads, once exactly one of those that answer does.
    pub fn leader(&self) -> usize {
        self.leader_but(&BTreeSet::new())
    }

    /// As [`Site::leader`], leaving some of them out.
    pub fn leader_but(&self, out: &BTreeSet<usize>) -> usize {
        let found = try_within(SOON, || {
            let asked = self
                .nodes
                .iter()
                .enumerate()
                .filter(|(number, node)| !out.contains(number) && node.runs());
            let leaders: Vec<usize> =
                asked.filter(|(_, node)| node.leads()).map(|(number, _)| number).collect();
            (leaders.len() == 1).then(|| leaders[0])
        });
        found.unwrap_or_else(|| {
            let roles: Vec<Value> = self.nodes.iter().map(Node::role).collect();
            panic!("nobody leads: {roles:?}")
        })
    }

    /// Until another than this one leads.
    pub fn leader_after(&self, before: usize) -> usize {
        self.leader_but(&BTreeSet::from([before]))
    }

    /// Until the leader has heard of all others: then it can hand over.
    pub fn all_known(&self) {
        let leader = &self.nodes[self.leader()];
        let known = try_within(SOON, || {
            let status = leader.try_call(&Request::get("/ha/status"))?.json();
            let nodes = status["nodes"].as_array()?;
            let well = nodes.iter().filter(|node| node["controller"] != "down").count();
            (well == self.nodes.len()).then_some(())
        });
        assert!(known.is_some(), "not all are known: {}", leader.get("/ha/status").text());
    }

    pub fn two(&self) -> (&Node, &Node) {
        let leader = self.leader();
        (&self.nodes[leader], &self.nodes[1 - leader])
    }
}

/// A bundle that all nodes of a site have.
pub fn bundle(home: &Path, whose: &str) -> String {
    home.join(format!("{whose}.pem")).display().to_string()
}

/// A way to a port that asks for certificates.
fn tunnel(home: &Path, front: SocketAddr) -> Tunnel {
    match files::load(Path::new(&bundle(home, "client"))).expect("a bundle").0 {
        Bundle::Client(client) => Tunnel::dig(front, &client),
        other => panic!("the bundle of a {}", other.kind()),
    }
}

fn node(
    id: &str,
    (lock, store): (Way, Way),
    (lock_url, store_url): (String, String),
    plan: &Plan,
    home: &Arc<tempfile::TempDir>,
) -> Node {
    let (front, controller) = (free_port(), free_port());
    let lockd = lockd_tests::binary::lockd().display().to_string();
    let mut own = format!(
        "{lockd} controller --listen {controller} --store {store_url} --lease-ttl {}",
        plan.lease_ttl
    );
    let mut agent = format!("{lockd} agent --slots 4 --grace 1s");
    let mut scheme = "http";
    let mut certificates = Vec::new();
    if plan.secure {
        let (server, client) = (bundle(home.path(), "server"), bundle(home.path(), "client"));
        scheme = "https";
        own = format!("{own} --peer-bundle {client}");
        agent = format!("{agent} --bundle {client}");
        certificates = vec![format!("--bundle={server}"), format!("--peer-bundle={client}")];
    }
    let command = plan.controller.map_or(own, |foreign| foreign(controller.port()));
    let mut words = vec![
        "node-controller".to_owned(),
        format!("--node-id={id}"),
        format!("--listen={front}"),
        format!("--url={scheme}://{front}"),
        format!("--lock={lock_url}"),
        format!("--lock-ttl={}", plan.lock_ttl),
        format!("--controller={command}"),
        format!("--controller-url=http://{controller}"),
        "--drain-grace=2s".to_owned(),
        "--stop-grace=2s".to_owned(),
        format!("--state={}", home.path().join(id).display()),
        "--log-level=info,lockd_node=debug".to_owned(),
    ];
    words.extend(certificates);
    if plan.controller.is_none() {
        words.push("--role-change=follow".to_owned());
    }
    if plan.moonlight {
        words.extend([format!("--agent={agent}"), "--moonlight".to_owned()]);
    }
    // What is given twice is meant as it was given last.
    let name = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    let given: Vec<String> = plan.more.iter().map(|word| name(word)).collect();
    words.retain(|word| !given.contains(&name(word)));
    words.extend(plan.more.iter().cloned());
    let clock = plan.clocks.then(|| {
        let clock = home.path().join(format!("clock-{id}"));
        std::fs::write(&clock, "+0").expect("a clock");
        clock
    });
    Node {
        id: id.to_owned(),
        front,
        controller,
        tunnel: plan.secure.then(|| tunnel(home.path(), front)),
        lock,
        store,
        command: words,
        clock,
        home: Arc::clone(home),
        child: None,
        log: Arc::default(),
    }
}

/// An agent that belongs to no node.
pub struct Helper(Child);

impl Helper {
    pub fn start(site: &Site) -> Self {
        let mut command = Command::new(lockd_tests::binary::lockd());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", site.home.path());
        command.args(["agent", "--name", "helper", "--slots", "4"]);
        for node in &site.nodes {
            command.arg(format!("--controller=http://{}", node.front));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("an agent"))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may be gone.
        kill_process(pid, signal).ok();
    }
}

pub fn is_there(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // What is dead and not reaped is gone.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// A process and all below it.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        let threads =
            std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    all
}

/// A job that does nothing.
pub fn nothing() -> Value {
    json!({"command": ["true"]})
}

/// Until a job is in this state.
pub fn until_state(node: &Node, id: &str, state: &str) -> Value {
    let start = Instant::now();
    loop {
        let reply = node.try_call(&Request::get(&format!("/v1/jobs/{id}")));
        let job = reply.map(|reply| reply.json()).unwrap_or_default();
        if job["state"] == state {
            return job;
        }
        assert!(start.elapsed() < SOON, "not {state}: {job}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
