//! What a cluster costs Redis.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockd_coordinator::Settings;
use lockd_elect::redis::Redis;
use redis::cmd;

use super::site::{SOON, Site, ms, one_leads, short, until, view};

/// Counts what comes from outside; what scripts call is not a round trip.
struct Listener {
    heard: Arc<Mutex<Vec<String>>>,
}

impl Listener {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        (&stream).write_all(b"MONITOR\r\n").expect("sent");
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("+OK"));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if !line.contains(" lua]") {
                    told.lock().expect("a list").push(line);
                }
            }
        });
        Self { heard }
    }

    fn take(&self) -> usize {
        self.take_all().len()
    }

    fn take_all(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().expect("a list"))
    }
}

/// How many are counted until one was undisturbed. Too many commands are too many in each.
const MINUTES_MAX: usize = 3;

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
    // Whoever is held up asks again, and that is counted too: another minute is counted then.
    let in_a_minute = async |expected: RangeInclusive<usize>| {
        let mut heard = Vec::new();
        for _ in 0..MINUTES_MAX {
            tokio::time::sleep(minute / 2).await;
            listener.take();
            tokio::time::sleep(minute).await;
            heard = listener.take_all();
            if expected.contains(&heard.len()) {
                return heard.len();
            }
        }
        panic!("not {expected:?} but {}: {heard:#?}", heard.len());
    };
    // Four heartbeats, six looks at the leader's key, numbers twice. The leader renews instead,
    // and six times looks after all, adds up and reads the tasks.
    let of_leader = in_a_minute(28..=40).await;
    let mut followers = Vec::new();
    for number in 0..10 {
        followers.push(site.start_with(fast(&format!("f{number}")), site.address()).await);
    }
    let of_all = in_a_minute(of_leader + 90..=of_leader + 140).await;
    let of_follower = (of_all - of_leader) as f64 / 10.0;
    println!("commands a minute: leader {of_leader}, follower {of_follower:.1}");
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
    // Time enough for a renewal on a machine that has much else to do.
    let settings = Settings { leader_ttl: ms(3_000), ..short("ours") };
    let ours = site.start_with(settings, site.address()).await;
    one_leads(&[&ours]).await;
    until(SOON, "all are seen", async || view(&ours).await.members.len() == 10_001).await;
    // Heartbeats and renewals go on meanwhile.
    let failed = ours.health().heartbeats_failed;
    for _ in 0..40 {
        assert!(ours.is_leader());
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(ours.health().heartbeats_failed, failed);
    let grown = lockd_tests::process::resident(std::process::id()).saturating_sub(before);
    assert!(grown < 150 << 20, "{} MiB", grown >> 20);
}
