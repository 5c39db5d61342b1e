//! Every way to reach Redis: with rights for what is needed only, over TLS, through sentinels, in a
//! cluster, in another database.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lockd_cloud::Redis as RedisServer;
use lockd_coordinator::{Backend, Coordinator, Settings};
use lockd_elect::Tls;
use lockd_elect::redis::{Address, RedisSettings};

use super::site::{SOON, ms, one_leads, short, until, view};

/// Whatever a cluster does: two instances, a leader, tasks, a hand-over.
async fn it_works(url: &str, prefix: &str, authorities: Option<Vec<u8>>) {
    let settings = |id: &str| Settings { prefix: prefix.into(), ..short(id) };
    let start = async |id: &str| {
        let redis = RedisSettings {
            tls: Tls { authorities: authorities.clone(), identity: None },
            timeout: ms(500),
            ..RedisSettings::new(Address::parse(url).expect("an address"))
        };
        let backend = Backend::redis_with(redis, &settings(id)).expect("a backend");
        Coordinator::start(settings(id), backend).await.expect("started")
    };
    let (a, b) = (start("a").await, start("b").await);
    for one in [&a, &b] {
        one.set_metric("rps", 1.0).expect("set");
        let body = |_| async { Ok::<_, String>(()) };
        one.register_for_leader_task("tick", ms(100), Duration::ZERO, body).expect("registered");
    }
    let first = one_leads(&[&a, &b]).await;
    until(SOON, "both are there", async || view(first).await.is_healthy()).await;
    until(SOON, "it works", async || first.runs("tick", 5).await.is_ok_and(|it| it.len() > 2))
        .await;
    until(SOON, "it adds up", async || {
        let global = first.global_metrics().await.expect("an answer");
        global.is_some_and(|it| it.metrics.contains_key("rps"))
    })
    .await;
    let other = if std::ptr::eq(first, &a) { &b } else { &a };
    first.deregister().await;
    let took = until(SOON, "the other leads", async || other.is_leader()).await;
    assert!(took < ms(1_000), "it was not told: {took:?}");
    assert_eq!(other.health().heartbeats_failed, 0, "{:?}", other.health().fault);
    other.deregister().await;
}

/// The line that the documentation has.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_documented_rights() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/coordinator.md");
    let docs = fs::read_to_string(docs).expect("the documentation");
    let line = docs.lines().find(|line| line.starts_with("ACL SETUSER ")).expect("an ACL line");
    let redis = RedisServer::start().await;
    let words: Vec<&str> = line.split_whitespace().collect();
    let name = words[2];
    let password = words.iter().find_map(|word| word.strip_prefix('>')).expect("a password");
    assert_eq!(redis.ask(&words), "OK");
    let url = redis.url().replace("redis://", &format!("redis://{name}:{password}@"));
    it_works(&url, "waf:cluster", None).await;
    // Not more than that.
    let mut other = Settings::new("x");
    other.prefix = "another".into();
    let backend = Backend::redis(&url, &other).expect("a backend");
    let refused = Coordinator::start(other, backend).await.expect_err("no rights");
    assert!(refused.to_string().contains("NoPerm"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_database() {
    let redis = RedisServer::start().await;
    it_works(&redis.url().replace("/0", "/5"), "waf:cluster", None).await;
    assert_eq!(redis.ask(&["DBSIZE"]), "0", "nothing is in the first");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls() {
    let _chosen = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().expect("a folder");
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("signed");
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&cert, signed.cert.pem()).expect("a file");
    fs::write(&key, signed.signing_key.serialize_pem()).expect("a file");
    let port = lockd_cloud::free_port().port().to_string();
    let (cert_path, key_path) = (cert.to_str().expect("a path"), key.to_str().expect("a path"));
    let arguments = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        cert_path,
        "--tls-key-file",
        key_path,
        "--tls-auth-clients",
        "no",
        "--tls-ca-cert-file",
        cert_path,
    ];
    let _redis = tokio::task::block_in_place(|| RedisServer::start_with(&arguments));
    let url = format!("rediss://localhost:{port}/0");
    it_works(&url, "waf:cluster", Some(fs::read(&cert).expect("a certificate"))).await;
    // Whoever is not trusted is not believed.
    let settings = short("x");
    let backend = Backend::redis(&url, &settings).expect("a backend");
    let started = Coordinator::start(settings, backend).await;
    let health = started.as_ref().map(Coordinator::health);
    assert!(health.is_err() || health.is_ok_and(|health| health.heartbeats == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_redis() {
    let arguments = ["--cluster-enabled", "yes"];
    let redis = tokio::task::block_in_place(|| RedisServer::start_with(&arguments));
    assert_eq!(redis.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    until(SOON, "the cluster is up", async || {
        redis.ask(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    })
    .await;
    let url = format!("redis-cluster://{}", redis.address());
    it_works(&url, "{waf:cluster}", None).await;
}

/// The first server is killed; the sentinels name another, which may have forgotten something.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_name_another_server() {
    let mut first = RedisServer::start().await;
    let address = first.address();
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = ["--replicaof", &host, &port];
    let replica = tokio::task::block_in_place(|| RedisServer::start_with(&arguments));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sentinel.conf");
    let text = format!(
        "sentinel monitor main {host} {port} 1\nsentinel down-after-milliseconds main 500\n\
         sentinel failover-timeout main 2000\n"
    );
    fs::write(&file, text).expect("a file");
    let sentinel = tokio::task::block_in_place(|| RedisServer::sentinel(&file));
    until(SOON, "the replica follows", async || {
        replica.ask(&["INFO", "replication"]).contains("master_link_status:up")
            && sentinel.ask(&["INFO", "sentinel"]).contains("slaves=1")
    })
    .await;
    let url = format!("redis-sentinel://{}/main/0", sentinel.address());
    let settings = short("a");
    let backend = Backend::redis(&url, &settings).expect("a backend");
    let coordinator = Coordinator::start(settings, backend).await.expect("started");
    one_leads(&[&coordinator]).await;
    let epoch = coordinator.epoch();
    first.kill();
    until(Duration::from_secs(30), "it leads again, elsewhere", async || {
        coordinator.epoch() > epoch && replica.ask(&["ROLE"]).contains("master")
    })
    .await;
    until(SOON, "it is there", async || view(&coordinator).await.is_healthy()).await;
}
