//! What a cluster costs Redis.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockd_coordinator::Settings;
use lockd_elect::redis::Redis;
use redis::cmd;

use super::site::{SOON, Site, ms, one_leads, short, until, view};

/// Counts what comes from outside; what scripts call is not a round trip.
struct Listener {
    counted: Arc<AtomicUsize>,
}

impl Listener {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        (&stream).write_all(b"MONITOR\r\n").expect("sent");
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("+OK"));
        let counted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&counted);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if !line.contains(" lua]") {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self { counted }
    }

    fn take(&self) -> usize {
        self.counted.swap(0, Ordering::SeqCst)
    }
}

/// The usual constants, twenty times as fast: three seconds stand for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_sends_a_dozen_commands_a_minute() {
    let site = Site::redis().await;
    let fast = |id: &str| {
        let usual = Settings::new(id);
        Settings {
            heartbeat_interval: usual.heartbeat_interval / 20,
            heartbeat_ttl: usual.heartbeat_ttl / 20,
            leader_ttl: usual.leader_ttl / 20,
            leader_renew_interval: usual.leader_renew_interval / 20,
            drift_threshold: usual.drift_threshold / 20,
            stale_threshold: usual.stale_threshold / 20,
            metrics_push_interval: usual.metrics_push_interval / 20,
            ..usual
        }
    };
    let minute = Duration::from_secs(3);
    let listener = Listener::to(site.address());
    let leader = site.start_with(fast("leader"), site.address()).await;
    one_leads(&[&leader]).await;
    tokio::time::sleep(minute / 2).await;
    listener.take();
    tokio::time::sleep(minute).await;
    let of_leader = listener.take();
    let mut followers = Vec::new();
    for number in 0..10 {
        followers.push(site.start_with(fast(&format!("f{number}")), site.address()).await);
    }
    tokio::time::sleep(minute / 2).await;
    listener.take();
    tokio::time::sleep(minute).await;
    let of_follower = (listener.take() - of_leader) as f64 / 10.0;
    println!("commands a minute: leader {of_leader}, follower {of_follower:.1}");
    // Four heartbeats, six looks at the leader's key, numbers twice. The leader renews instead,
    // and six times looks after all, adds up and reads the tasks.
    assert!((9.0..=14.0).contains(&of_follower), "a follower sends {of_follower}");
    assert!((28..=40).contains(&of_leader), "the leader sends {of_leader}");
    assert!(leader.is_leader());
}

async fn fill(redis: &Redis, count: usize) {
    for chunk in (0..count).collect::<Vec<_>>().chunks(1_000) {
        let mut set = cmd("HSET");
        set.arg("waf:cluster:instances");
        for number in chunk {
            let id = format!("waf-{number}");
            set.arg(&id).arg(format!(
                r#"{{"instance_id":"{id}","started_at":1,"last_heartbeat":1,"status":"active","worker_count":4}}"#
            ));
            let mut beat = cmd("SETEX");
            beat.arg(format!("waf:cluster:instance:{id}:heartbeat")).arg(600).arg(1);
            let _ok: String = redis.send(&beat).await.expect("a heartbeat");
        }
        let _new: i64 = redis.send(&set).await.expect("registered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_a_thousand_takes_two_round_trips_at_most() {
    let site = Site::redis().await;
    let redis = site.commands();
    fill(&redis, 1_000).await;
    // One that does nothing by itself for a while.
    let settings = Settings::new("ours");
    let ours = site.start_with(settings, site.address()).await;
    one_leads(&[&ours]).await;
    tokio::time::sleep(ms(1_500)).await;
    let listener = Listener::to(site.address());
    let status = ours.cluster_status().await.expect("a status");
    tokio::time::sleep(ms(100)).await;
    let trips = listener.take();
    assert_eq!(status.instance_count, 1_001);
    assert!((1..=2).contains(&trips), "{trips} round trips");
    // Whoever asks within a second is given the same.
    for _ in 0..100 {
        ours.cluster_status().await.expect("a status");
    }
    tokio::time::sleep(ms(100)).await;
    assert!(listener.take() <= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_instances_are_looked_after() {
    let site = Site::redis().await;
    let redis = site.commands();
    fill(&redis, 10_000).await;
    let before = lockd_tests::process::resident(std::process::id());
    let ours = site.start_with(short("ours"), site.address()).await;
    one_leads(&[&ours]).await;
    until(SOON, "all are seen", async || view(&ours).await.members.len() == 10_001).await;
    // Heartbeats and renewals go on meanwhile.
    let failed = ours.health().heartbeats_failed;
    for _ in 0..20 {
        assert!(ours.is_leader());
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(ours.health().heartbeats_failed, failed);
    let grown = lockd_tests::process::resident(std::process::id()).saturating_sub(before);
    assert!(grown < 150 << 20, "{} MiB", grown >> 20);
}
