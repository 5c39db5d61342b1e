//! A thousand runs while instances are killed.

use std::collections::BTreeSet;

use lockd_coordinator::Run;
use lockd_tests::Dice;
use lockd_tests::dice::rounds;
use redis::cmd;

use super::site::{Instance, SOON, Site, ms, until};

const EVERY: u64 = 20;

async fn runs_of(site: &Site, task: &str) -> Vec<Run> {
    let key = format!("waf:cluster:task:{task}:runs");
    let runs: Vec<String> =
        site.commands().send(cmd("LRANGE").arg(key).arg(0).arg(-1)).await.expect("runs");
    runs.iter().map(|run| serde_json::from_str(run).expect("a run")).collect()
}

/// Each time at most once; with `all` each exactly once, without a gap from the first to the last.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_runs_with_kills() {
    let mut dice = Dice::announced("a_thousand_runs_with_kills");
    let site = Site::redis().await;
    let url = format!("redis://{}/0", site.address());
    let tasks =
        [format!("all:{EVERY}:all:0"), format!("skip:{EVERY}:skip:0"), "long:100:all:70".into()];
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let start = |number: usize| Instance::start(&url, &format!("i{number}"), 400, &tasks);
    let mut instances: Vec<Instance> = (0..3).map(start).collect();
    until(SOON, "it begins", async || !runs_of(&site, "all").await.is_empty()).await;
    let (mut kills, wanted) = (0, 1_000 * rounds(1));
    while runs_of(&site, "all").await.len() < wanted {
        tokio::time::sleep(ms(dice.between(50, 900) as u64)).await;
        let at = dice.below(instances.len());
        let killed = std::mem::replace(&mut instances[at], start(at));
        killed.kill();
        kills += 1;
    }
    let all = runs_of(&site, "all").await;
    let times: BTreeSet<u64> = all.iter().map(|run| run.scheduled_at_ms).collect();
    assert_eq!(times.len(), all.len(), "two records of one time");
    let (first, last) = (times.first().expect("a time"), times.last().expect("a time"));
    assert_eq!((last - first) / EVERY + 1, times.len() as u64, "some are missing");
    for task in ["skip", "long"] {
        let runs = runs_of(&site, task).await;
        let times: BTreeSet<u64> = runs.iter().map(|run| run.scheduled_at_ms).collect();
        assert_eq!(times.len(), runs.len(), "two records of one time");
        assert!(runs.len() > 20, "{task} ran {} times", runs.len());
    }
    let epochs: BTreeSet<u64> = all.iter().map(|run| run.epoch).collect();
    println!("{} runs under {} leaders, {kills} kills", all.len(), epochs.len());
    assert!(epochs.len() > 2, "leaders were killed");
}
