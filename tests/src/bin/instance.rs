//! An instance of a cluster in a process of its own, so that it can be killed and stopped. Its
//! settings are short, its tasks do nothing, or take as long as they are told. What happens to it
//! goes to standard output, a line each.
//!
//! Arguments: the address of Redis, the name, the leader's time to live in ms, then tasks as
//! `name:interval_ms:policy:takes_ms`.

use std::io::Write as _;
use std::time::Duration;

use lockd_coordinator::{Backend, Coordinator, Missed, Schedule, Settings, Task};

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next();
    let url = next().expect("an address");
    let mut settings = Settings::new(next().expect("a name"));
    let leader_ttl: u64 = next().expect("a time").parse().expect("ms");
    settings.leader_ttl = ms(leader_ttl);
    settings.leader_renew_interval = ms(leader_ttl / 4);
    settings.heartbeat_interval = ms(leader_ttl / 2);
    settings.heartbeat_ttl = ms(leader_ttl * 3);
    settings.drift_threshold = ms(leader_ttl * 2);
    settings.stale_threshold = ms(leader_ttl * 6);
    settings.task_history = 10_000;
    let backend = Backend::redis(&url, &settings).expect("a backend");
    let coordinator = Coordinator::start(settings, backend).await.expect("started");
    while let Some(task) = next() {
        let parts: Vec<&str> = task.split(':').collect();
        let [name, every, policy, takes] = parts[..] else { panic!("{task}") };
        let missed = match policy {
            "all" => Missed::All,
            "once" => Missed::Once,
            _ => Missed::Skip,
        };
        let takes = ms(takes.parse().expect("ms"));
        let every = Schedule::every(ms(every.parse().expect("ms"))).expect("an interval");
        let body = move |task: lockd_coordinator::TaskContext| async move {
            if !takes.is_zero() {
                say(&format!("begins {} {}", task.name, task.scheduled_at_ms));
                tokio::time::sleep(takes).await;
            }
            Ok::<_, String>(())
        };
        coordinator.register(Task::new(name, every, body).missed(missed)).expect("registered");
    }
    let mut leadership = coordinator.leadership();
    let mut led = None;
    loop {
        let now = coordinator.epoch();
        if now != led {
            say(&now.map_or_else(|| "follows".into(), |epoch| format!("leads {epoch}")));
            led = now;
        }
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _written = writeln!(out, "{line}").and_then(|()| out.flush());
}
