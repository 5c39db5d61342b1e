//! Leaders that write under their token. Once somebody leads with a new token, nothing comes
//! through any more that was written under an older one, however late it arrives.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockd_tests::{Ask, Client, Dice, Held, Request};
use lockd_wire::header;
use serde_json::{Value, json};

use super::Fleet;

const LEADER: &str = "reign/leader";
const LEDGERS: usize = 4;

/// What became of the writes of all leaders.
#[derive(Default)]
pub struct Chronicle {
    /// When each token was known to its holder.
    heard: Mutex<Vec<(u64, Instant)>>,
    /// Writes that were refused because of their token: which, and when that was known.
    deposed: Mutex<Vec<(u64, Instant)>>,
    written: AtomicUsize,
}

impl Chronicle {
    pub fn has_written(&self) -> bool {
        self.written.load(Ordering::Relaxed) > 0
    }
}

fn ledger(number: usize) -> String {
    format!("reign/ledger-{number}")
}

/// Leads for a moment, and writes into some ledgers.
pub fn lead(fleet: &Fleet, dice: &mut Dice, chronicle: &Chronicle) {
    let mut client = fleet.client(dice);
    let ask = Ask::new(LEADER, "leader").block(1).ttl_ms(fleet.ttl.as_millis() as u64);
    let Some(leader) = granted(&mut client, &ask) else { return };
    chronicle.heard.lock().expect("a chronicle").push((leader.token, Instant::now()));
    let before: Vec<Option<Value>> = (0..LEDGERS).map(|one| read(&mut client, one)).collect();
    for _ in 0..1 + dice.below(3) {
        if dice.one_in(3) {
            client = fleet.client(dice);
        }
        write(&mut client, dice, (&leader, fleet.ttl), chronicle);
    }
    for (number, before) in before.into_iter().enumerate() {
        let after = read(&mut client, number);
        let (Some(before), Some(after)) = (before, after) else { continue };
        let by = after["epoch"].as_u64().unwrap_or(0);
        assert!(
            before == after || by >= leader.token,
            "ledger {number} changed from {before} to {after} under {}",
            leader.token
        );
    }
    if dice.one_in(2) {
        let _may_fail = client.try_call(&leader.release());
    }
}

/// `None` when it could not be read; a ledger that is not there yet reads as nothing.
fn read(client: &mut Client, number: usize) -> Option<Value> {
    let reply = client.try_call(&lockd_tests::lease::public_get(&ledger(number))).ok()?;
    match reply.status {
        200 => Some(reply.json()),
        204 | 404 => Some(Value::Null),
        _ => None,
    }
}

fn granted(client: &mut Client, ask: &Ask) -> Option<Held> {
    let reply = client.try_call(&ask.request()).ok()?;
    assert!([200, 409, 503].contains(&reply.status), "{}", reply.text());
    (reply.status == 200).then(|| Held::of(&reply))
}

fn write(
    client: &mut Client,
    dice: &mut Dice,
    (leader, ttl): (&Held, Duration),
    chronicle: &Chronicle,
) {
    let ask = Ask::new(&ledger(dice.below(LEDGERS)), "leader").ttl_ms(ttl.as_millis() as u64);
    let Some(held) = granted(client, &ask) else { return };
    if dice.one_in(10) {
        // Others may lead by now.
        std::thread::sleep(ttl.mul_f64(0.8));
    }
    let entry = json!({ "epoch": leader.token, "number": dice.next() }).to_string();
    let fenced = |request: Request| {
        let key = format!("default/{LEADER}");
        request.header(header::FENCE_KEY, key).header(header::FENCE_TOKEN, leader.token)
    };
    let begun = Instant::now();
    let request = if dice.one_in(2) {
        fenced(held.update(entry).query("then", "release"))
    } else {
        match client.try_call(&fenced(held.update(entry))) {
            Ok(reply) if reply.status == 200 => held.release(),
            Ok(_) | Err(_) => return,
        }
    };
    let Ok(reply) = client.try_call(&request) else { return };
    if reply.status == 200 {
        chronicle.written.fetch_add(1, Ordering::Relaxed);
        for (token, heard) in &*chronicle.heard.lock().expect("a chronicle") {
            let late = begun.saturating_duration_since(*heard);
            assert!(
                *token <= leader.token || late == Duration::ZERO,
                "written under {} although {token} was heard of {late:?} before",
                leader.token
            );
        }
    } else if reply.code() == "fence_failed" {
        chronicle.deposed.lock().expect("a chronicle").push((leader.token, Instant::now()));
    }
}

/// Nobody was told that its token is old before there was a newer one.
pub fn judge(chronicle: &Chronicle) {
    let mut heard = chronicle.heard.lock().expect("a chronicle").clone();
    heard.sort();
    assert!(heard.windows(2).all(|two| two[0].0 < two[1].0), "a token twice: {heard:?}");
    let deposed = chronicle.deposed.lock().expect("a chronicle");
    let written = chronicle.written.load(Ordering::Relaxed);
    println!("{} leaders, {written} writes, {} too late", heard.len(), deposed.len());
}
