//! Running a scenario in a ring. The runner keeps who was granted which lease; a ring only
//! answers.

use std::collections::HashMap;

use super::step::{Case, Command, Event, Step, Under};
use crate::answer::Answer;
use crate::call::{Acquire, Ask, Block, Held, Release, Write, txn_of};

/// Something that answers: the bare rules, a server, the SDK.
pub trait Ring {
    fn name(&self) -> &'static str;

    fn ask(&mut self, ask: &Ask) -> Answer;

    /// Both clocks go on.
    fn advance(&mut self, ms: u64);

    /// Somebody sets the wall clock.
    fn step_wall(&mut self, by_ms: i64);

    /// The process starts anew; after a reboot the machine did, too.
    fn restart(&mut self, reboot: bool);
}

/// Runs all steps.
///
/// # Errors
/// Tells the first line that was answered otherwise, and how.
pub fn run(case: &Case, ring: &mut dyn Ring) -> Result<(), String> {
    let mut leases = Leases::default();
    let mut now = 0;
    for step in &case.steps {
        if step.at_ms > now {
            ring.advance(step.at_ms - now);
            now = step.at_ms;
        }
        match &step.event {
            Event::Restart => ring.restart(false),
            Event::Reboot => ring.restart(true),
            Event::Wall { by_ms } => ring.step_wall(*by_ms),
            Event::Command { actor, command, expected } => {
                let ask = leases.resolve(actor, command);
                let answer = ring.ask(&ask);
                leases.remember(actor, command, &answer);
                if !answer.fits(expected) {
                    return Err(differs(case, step, ring.name(), expected, &answer));
                }
            }
        }
    }
    Ok(())
}

fn differs(case: &Case, step: &Step, ring: &str, expected: &[String], answer: &Answer) -> String {
    let detail = answer.refused().map_or("", |refused| refused.detail.as_str());
    format!(
        "{}:{} in the {ring}: expected `{}`, got `{answer}` {detail}",
        case.name,
        step.line,
        expected.join(" "),
    )
}

/// Who was granted what.
#[derive(Debug, Default)]
struct Leases(HashMap<String, Held>);

impl Leases {
    /// The latest lease of an actor on a key has this name.
    fn latest(actor: &str, key: &str) -> String {
        format!("{actor} {key}")
    }

    fn remember(&mut self, actor: &str, command: &Command, answer: &Answer) {
        let (Command::Acquire { key, label, .. }, Answer::Granted { held, .. }) = (command, answer)
        else {
            return;
        };
        self.0.insert(Self::latest(actor, key), held.clone());
        if let Some(label) = label {
            self.0.insert(label.clone(), held.clone());
        }
    }

    /// What is shown for a lease. Who was never granted one shows something all the same.
    fn held(&self, actor: &str, key: &str, under: &Under) -> Held {
        let name = under.label.clone().unwrap_or_else(|| Self::latest(actor, key));
        let stranger = Held { lease_id: "stranger".into(), txn_id: txn_of("stranger"), token: 1 };
        let mut held = self.0.get(&name).cloned().unwrap_or(stranger);
        if let Some(token) = under.token {
            held.token = token;
        }
        if let Some(txn) = &under.txn {
            held.txn_id = txn_of(txn);
        }
        held
    }

    fn resolve(&self, actor: &str, command: &Command) -> Ask {
        match command {
            Command::Acquire { key, ttl_ms, if_not_exists, txn, idem, label: _ } => {
                Ask::Acquire(Acquire {
                    key: key.clone(),
                    owner: actor.to_owned(),
                    ttl_ms: *ttl_ms,
                    block: Block::No,
                    if_not_exists: *if_not_exists,
                    txn: txn.as_deref().map(|name| match name.strip_prefix("of:") {
                        Some(first) => self.held(actor, first, &Under::default()).txn_id,
                        None => txn_of(name),
                    }),
                    idem: idem.clone(),
                })
            }
            Command::Keepalive { key, under, ttl_ms } => Ask::Keepalive {
                key: named(key, under),
                held: self.held(actor, key, under),
                ttl_ms: *ttl_ms,
            },
            Command::Write { key, under, what, then, conditions } => Ask::Write(Write {
                key: named(key, under),
                held: self.held(actor, key, under),
                what: what.clone(),
                then: *then,
                if_version: conditions.if_version,
                if_etag: conditions.if_etag.clone(),
                fences: conditions.fences.clone(),
                hidden: conditions.hidden,
                idem: conditions.idem.clone(),
                streamed: conditions.streamed,
            }),
            Command::Release { key, under, rollback, conditions } => Ask::Release(Release {
                key: named(key, under),
                held: self.held(actor, key, under),
                rollback: *rollback,
                fences: conditions.fences.clone(),
                idem: conditions.idem.clone(),
            }),
            Command::Get { key } => Ask::Get { key: key.clone() },
            Command::View { key, under } => {
                Ask::View { key: named(key, under), held: self.held(actor, key, under) }
            }
            Command::Describe { key } => Ask::Describe { key: key.clone() },
            Command::Read { keys } => Ask::Read { keys: keys.clone() },
            Command::Revoke { key, reason } => {
                Ask::Revoke { key: key.clone(), reason: reason.clone() }
            }
        }
    }
}

fn named(key: &str, under: &Under) -> Option<String> {
    (!under.by_id).then(|| key.to_owned())
}
