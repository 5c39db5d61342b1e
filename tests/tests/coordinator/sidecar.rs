//! `lockd coordinator` as a process: what it says, what it refuses, and what it leaves behind.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

use lockd_cloud::Redis as RedisServer;
use lockd_tests::server::{command, run};
use lockd_tests::{Client, Place, Reply, Request, eventually_some, within};
use rustix::process::Signal;

use super::site::SOON;

/// A sidecar, killed when it goes.
pub struct Sidecar {
    child: Child,
    client: Client,
    folder: tempfile::TempDir,
}

impl Sidecar {
    pub fn start(redis: &RedisServer, id: &str, flags: &[&str]) -> Self {
        Self::configured(redis, id, "", flags)
    }

    /// With a settings file.
    pub fn configured(redis: &RedisServer, id: &str, file: &str, flags: &[&str]) -> Self {
        let url = redis.url();
        let mut all = vec!["--redis", &url, "--instance-id", id];
        all.extend(flags);
        Self::with(file, &all, &[])
    }

    pub fn with(file: &str, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("c.yaml"), file).expect("a file");
        let log = File::create(folder.path().join("log")).expect("a file");
        let mut command = command(folder.path());
        command.args(["coordinator", "--config", "c.yaml"]).args(flags);
        if !flags.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(environment.iter().copied()).stderr(log).stdout(Stdio::null());
        let mut child = command.spawn().expect("a sidecar");
        let address = eventually_some("it listens", || {
            let log = std::fs::read_to_string(folder.path().join("log")).expect("a log");
            assert!(child.try_wait().expect("a state").is_none(), "it ended: {log}");
            let rest = log.split_once("listening on ")?.1.split_once('\n')?.0.to_owned();
            rest.replace("0.0.0.0", "127.0.0.1").parse().ok()
        });
        Self { child, client: Client::new(&Place::Tcp(address)), folder }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("a log")
    }

    #[track_caller]
    pub fn log_has(&self, text: &str) {
        within(SOON, text, || self.log().contains(text));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn call(&mut self, request: &Request) -> Reply {
        self.client.call(request)
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.call(&Request::get(path))
    }

    pub fn signal(&self, signal: Signal) {
        lockd_tests::process::signal(&self.child, signal);
    }

    /// How it ended.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        eventually_some("it ends", || self.child.try_wait().expect("a state"))
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _may_be_gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

const SHORT: [&str; 14] = [
    "--heartbeat-interval",
    "0.3",
    "--heartbeat-ttl",
    "1.5s",
    "--leader-ttl",
    "1s",
    "--leader-renew-interval",
    "300ms",
    "--drift-threshold",
    "1",
    "--stale-threshold",
    "2.5",
    "--grace",
    "1s",
];

#[test]
fn the_log_is_worded_as_others_word_it() {
    let mut redis = RedisServer::start_now();
    let first = Sidecar::start(&redis, "forms-waf-0", &SHORT);
    first.log_has("INFO");
    first.log_has("instance_coordinator: registered instance 'forms-waf-0'");
    first.log_has("instance_coordinator: instance 'forms-waf-0' acquired leadership");
    let second = Sidecar::start(&redis, "forms-waf-1", &SHORT);
    second.signal(Signal::STOP);
    first.log_has("instance_coordinator: cluster status - 1 active, 1 drifted instances");
    first.log_has("instance_coordinator: removing stale instance 'forms-waf-1'");
    second.signal(Signal::CONT);
    first.log_has("instance_coordinator: cluster status - ");
    // Somebody else takes the key away.
    let _ok = redis.ask(&["SET", "waf:cluster:leader", "somebody", "PX", "1500"]);
    first.log_has("instance_coordinator: failed to renew leadership: not leader");
    redis.kill();
    first.log_has("instance_coordinator: heartbeat failed: ");
    within(SOON, "it says why", || first.log().to_lowercase().contains("connection refused"));
    let failed = first.log().matches("heartbeat failed").count();
    assert!(failed < 50, "no busy loop");
    redis.start_again();
}

#[test]
fn it_leaves_in_order() {
    let redis = RedisServer::start_now();
    let mut first = Sidecar::start(&redis, "a", &[]);
    first.log_has("acquired leadership");
    let second = Sidecar::start(&redis, "b", &[]);
    first.signal(Signal::TERM);
    assert_eq!(first.ended().code(), Some(0));
    second.log_has("acquired leadership");
    assert_eq!(redis.ask(&["HLEN", "waf:cluster:instances"]), "1");
    assert_eq!(redis.ask(&["EXISTS", "waf:cluster:instance:a:heartbeat"]), "0");
}

fn refused(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    std::fs::write(home.path().join("bad.yaml"), "tasks:\n  - name: a\n    evry: 1s\n")
        .expect("a file");
    let mut all = vec!["coordinator"];
    all.extend(args);
    run(home.path(), &all, environment)
}

#[track_caller]
fn says(output: &Output, code: i32, part: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(part), "{text}");
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn what_cannot_work_is_refused_with_a_reason() {
    let redis = RedisServer::start_with(&["--requirepass", "secret"]);
    let url = redis.url();
    says(&refused(&["--redis", &url], &[]), 1, "NOAUTH");
    says(
        &refused(&["--redis", &url], &[("REDIS_PASSWORD", "wrong")]),
        1,
        "Password authentication failed",
    );
    says(&refused(&["--redis", "http://x"], &[]), 2, "redis://");
    says(&refused(&["--redis", "redis-cluster://127.0.0.1:1"], &[]), 2, "hash tag");
    says(&refused(&["--heartbeat-interval", "soon"], &[]), 2, "soon");
    says(&refused(&["--leader-ttl", "5s"], &[]), 2, "leader_renew_interval");
    says(&refused(&["--instance-id", "a b"], &[]), 2, "instance id");
    says(&refused(&["--config", "none.yaml"], &[]), 2, "none.yaml");
    says(&refused(&["--config", "bad.yaml"], &[]), 2, "evry");
    says(&refused(&["--nonsense"], &[]), 2, "--nonsense");
    let open = RedisServer::start_now();
    let url = open.url();
    says(&refused(&["--redis", &url, "--listen", "0.0.0.0:0"], &[]), 2, "other machines");
    says(&refused(&["--redis", &url, "--listen", "256.0.0.1:0"], &[]), 1, "cannot listen");
    assert_eq!(open.ask(&["HLEN", "waf:cluster:instances"]), "0", "nobody is left behind");
    let _ok = open.ask(&["SET", "waf:cluster:instances", "not a hash"]);
    let wrong = refused(&["--redis", &url], &[]);
    says(&wrong, 1, "another type");
    says(&wrong, 1, "--key-prefix");
}

#[test]
fn the_variables_that_others_read_are_read() {
    let redis = RedisServer::start_with(&["--requirepass", "secret"]);
    let port = redis.address().port().to_string();
    let environment =
        [("REDIS_HOST", "127.0.0.1"), ("REDIS_PORT", port.as_str()), ("REDIS_PASSWORD", "secret")];
    let mut sidecar = Sidecar::with("", &["--instance-id", "pod-7"], &environment);
    assert_eq!(sidecar.get("/api/cluster/this").json()["instance_id"], "pod-7");
    within(SOON, "it was let in", || sidecar.get("/readyz").status == 200);
}

#[test]
fn an_instance_is_named_as_the_machine_not_as_a_variable_says() {
    let redis = RedisServer::start_now();
    let uname = rustix::system::uname();
    let machine = uname.nodename().to_str().expect("a name");
    for environment in [&[][..], &[("HOSTNAME", "exported")]] {
        let url = redis.url();
        let mut unnamed = Sidecar::with("", &["--redis", &url], environment);
        assert_eq!(unnamed.get("/api/cluster/this").json()["instance_id"], machine);
    }
}

#[test]
fn without_a_redis_it_waits_for_one() {
    let mut redis = RedisServer::start_now();
    redis.kill();
    let mut sidecar = Sidecar::start(&redis, "a", &SHORT);
    sidecar.log_has("instance_coordinator: heartbeat failed: ");
    sidecar.get("/api/cluster/status").refused(503, "registry_unavailable");
    sidecar.get("/readyz").refused(503, "registry_unavailable");
    assert_eq!(sidecar.get("/healthz").status, 200);
    assert_eq!(sidecar.get("/leader").status, 503);
    redis.start_again();
    sidecar.log_has("instance_coordinator: registered instance 'a'");
    within(SOON, "it leads", || sidecar.get("/leader").status == 200);
    assert_eq!(sidecar.get("/readyz").status, 200);
}

const TASKS: &str = r#"
tasks:
  - name: works
    every: 300ms
    command: ["sh", "-c", "echo $LOCKD_TASK_NAME $LOCKD_TASK_EPOCH $LOCKD_TASK_SCHEDULED_AT_MS $LOCKD_INSTANCE_ID $MORE >> ran"]
    env: {MORE: more}
  - name: fails
    every: 1h
    command: ["sh", "-c", "echo on purpose >&2; exit 3"]
  - name: hangs
    every: 1h
    timeout: 300ms
    command: ["sh", "-c", "sleep 1234567 & sleep 1234567"]
  - name: missing
    every: 1h
    command: ["no-such-program"]
  - name: calls
    every: 1h
    http: {url: "http://127.0.0.1:1/hook"}
"#;

/// A number of seconds to sleep for that nobody else on this machine uses.
fn own(seconds: u32) -> u32 {
    seconds + std::process::id()
}

/// Processes that sleep for so many seconds.
fn sleepers(seconds: u32) -> usize {
    let command = format!("sleep\0{seconds}");
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let lines = processes.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
    lines.filter(|line| line.starts_with(command.as_bytes())).count()
}

#[test]
fn commands_run_on_the_leader_and_nothing_is_left_of_them() {
    let redis = RedisServer::start_now();
    let tasks = TASKS.replace("1234567", &own(1_234_567).to_string());
    let mut sidecar = Sidecar::configured(&redis, "a", &tasks, &SHORT);
    let outcome = |sidecar: &mut Sidecar, task: &str| {
        let runs = sidecar.get(&format!("/api/cluster/tasks/{task}/runs")).json();
        (runs["runs"][0]["outcome"].clone(), runs["runs"][0]["error"].clone())
    };
    for (task, ended, why) in [
        ("works", "ok", ""),
        ("fails", "failed", "exit status: 3: on purpose"),
        ("hangs", "timeout", ""),
        ("missing", "failed", "no-such-program"),
        ("calls", "failed", "refused"),
    ] {
        within(SOON, task, || outcome(&mut sidecar, task).0 == ended);
        let told = outcome(&mut sidecar, task).1.to_string().to_lowercase();
        assert!(told.contains(why), "{task}: {told}");
    }
    within(SOON, "those that hang are gone", || sleepers(own(1_234_567)) == 0);
    let ran = std::fs::read_to_string(sidecar.path("ran")).expect("it ran");
    let words: Vec<&str> = ran.lines().next().expect("a line").split(' ').collect();
    assert_eq!((words[0], words[3], words[4]), ("works", "a", "more"), "{ran}");
    assert!(words[1].parse::<u64>().is_ok() && words[2].parse::<u64>().is_ok());
    sidecar.log_has("on purpose");
}

const HANGS: &str = r#"
tasks:
  - name: hangs
    every: 1h
    command: ["sh", "-c", "sleep 7654321 & trap '' TERM; sleep 7654321; sleep 7654321"]
"#;

#[test]
fn commands_end_with_their_sidecar_however_it_ends() {
    let redis = RedisServer::start_now();
    for signal in [Signal::TERM, Signal::KILL] {
        let tasks = HANGS.replace("7654321", &own(7_654_321).to_string());
        let mut sidecar = Sidecar::configured(&redis, "a", &tasks, &SHORT);
        within(SOON, "it runs", || sleepers(own(7_654_321)) == 2);
        sidecar.signal(signal);
        sidecar.ended();
        within(SOON, "nothing is left", || sleepers(own(7_654_321)) == 0);
        let _ok = redis.ask(&["FLUSHALL"]);
    }
}

#[test]
fn no_redis_is_needed() {
    let mut sidecar = Sidecar::with(
        TASKS,
        &[
            "--backend",
            "lockd",
            "--instance-id",
            "alone",
            "--leader-ttl",
            "1s",
            "--leader-renew-interval",
            "0.3",
            "--heartbeat-interval",
            "0.3",
        ],
        &[],
    );
    within(SOON, "it leads", || sidecar.get("/leader").status == 200);
    let config = sidecar.get("/api/cluster/config").json();
    assert!(config["lockd_url"].as_str().is_some_and(|url| url.starts_with("unix://")));
    within(SOON, "healthy", || {
        sidecar.get("/api/cluster/status").json()["cluster_healthy"] == true
    });
    within(SOON, "it works", || {
        let runs = sidecar.get("/api/cluster/tasks/works/runs").json();
        runs["runs"].as_array().is_some_and(|runs| runs.len() > 2)
    });
    // Others on the same machine find it, or learn its address.
    let url = config["lockd_url"].as_str().expect("a URL").to_owned();
    let home = sidecar.folder.path().join(".lockd").display().to_string();
    let found = [("LOCKD_CONFIG_DIR", home.as_str())];
    let _second = Sidecar::with("", &["--backend", "lockd", "--instance-id", "second"], &found);
    let joins = ["--backend", "lockd", "--server", &url, "--instance-id", "third"];
    let _third = Sidecar::with("", &joins, &[]);
    within(SOON, "all are there", || {
        sidecar.get("/api/cluster/status").json()["active_instances"] == 3
    });
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().code(), Some(0));
}

/// What a person sees.
#[test]
fn the_cluster_is_looked_at_from_a_shell() {
    let redis = RedisServer::start_now();
    let sidecar = Sidecar::configured(&redis, "a", TASKS, &SHORT);
    let other = Sidecar::start(&redis, "b", &SHORT);
    sidecar.log_has("acquired leadership");
    let address = sidecar.log().split_once("listening on ").expect("it listens").1.to_owned();
    let url = format!("http://{}", address.lines().next().expect("an address"));
    let home = tempfile::tempdir().expect("a folder");
    let ask = |args: &[&str]| {
        let mut all = vec!["cluster"];
        all.extend(args);
        run(home.path(), &all, &[("LOCKD_COORDINATOR_URL", &url)])
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    within(SOON, "healthy", || ask(&["status"]).status.code() == Some(0));
    let status = ask(&["status"]);
    assert!(text(&status).contains("healthy") && text(&status).contains("a since"), "{status:?}");
    assert_eq!(text(&ask(&["leader"])).trim(), "a");
    within(SOON, "both are there", || text(&ask(&["instances"])).lines().count() == 2);
    let json: serde_json::Value =
        serde_json::from_slice(&ask(&["instances", "--output", "json"]).stdout).expect("JSON");
    assert_eq!(json["total"], 2);
    within(SOON, "the tasks are known", || text(&ask(&["tasks"])).lines().count() == 5);
    within(SOON, "the leader has them", || {
        ask(&["tasks", "run", "fails"]).status.code() == Some(0)
    });
    within(SOON, "it ran", || text(&ask(&["tasks", "runs", "fails"])).contains("failed"));
    says(&ask(&["tasks", "run", "nothing"]), 1, "no task");
    other.signal(Signal::STOP);
    within(SOON, "not healthy", || ask(&["status"]).status.code() == Some(3));
    says(&ask(&["status"]), 3, "no heartbeats from b");
    let mut nowhere = vec!["--url", "http://127.0.0.1:1", "status"];
    says(&ask(&nowhere), 69, "lockd coordinator");
    nowhere[1] = "nonsense";
    says(&ask(&nowhere), 2, "nonsense");
    let mut watching = command(home.path());
    watching.args(["cluster", "--url", &url, "leader", "--watch", "--interval", "0.1"]);
    let mut watching = watching.stdout(Stdio::piped()).spawn().expect("started");
    let out = watching.stdout.take().expect("its output");
    let lines = std::io::BufRead::lines(std::io::BufReader::new(out));
    assert_eq!(lines.take(3).filter(|line| line.as_ref().is_ok_and(|line| line == "a")).count(), 3);
    within(SOON, "it ends when nobody reads", || watching.try_wait().expect("a state").is_some());
}

#[test]
fn certificates_are_asked_for() {
    let redis = RedisServer::start_now();
    let (ours, theirs) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("one"));
    for folder in [&ours, &theirs] {
        lockd_pki::bootstrap(folder.path(), &[], jiff::Timestamp::now()).expect("bundles");
    }
    let bundle = |folder: &tempfile::TempDir, name: &str| {
        folder.path().join(name).to_str().expect("a path").to_owned()
    };
    let server = bundle(&ours, "server.pem");
    let sidecar = Sidecar::start(&redis, "a", &["--bundle", &server, "--listen", "0.0.0.0:0"]);
    let address = sidecar.log().split_once("0.0.0.0:").expect("it listens").1.to_owned();
    let url = format!("https://127.0.0.1:{}", address.lines().next().expect("a port"));
    let home = tempfile::tempdir().expect("a folder");
    let ask = |client: &str| {
        run(home.path(), &["cluster", "--url", &url, "--bundle", client, "instances"], &[])
    };
    within(SOON, "it answers", || ask(&bundle(&ours, "client.pem")).status.success());
    says(&ask(&bundle(&theirs, "client.pem")), 69, "cannot be asked");
    says(&ask(&server), 2, "");
    let as_client = bundle(&ours, "client.pem");
    let url = redis.url();
    let wrong = refused(&["--redis", &url, "--bundle", &as_client], &[]);
    says(&wrong, 2, "bundle of a client");
}
