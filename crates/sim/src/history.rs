//! What happened, as the clients saw it: every ask with when it was sent and what was heard when,
//! and what befell the server meanwhile. The checker reads this and nothing else.

use std::fmt;

use crate::answer::Answer;
use crate::call::{Ask, Then, What};

/// A place on the one timeline of a history. It goes on through restarts and reboots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Microseconds since the beginning.
    pub at: u64,
    /// Tells apart what happened in the same microsecond; zero comes before all of it.
    pub seq: u64,
}

/// One ask and what became of it.
#[derive(Clone, Debug)]
pub struct Op {
    pub client: usize,
    pub ask: Ask,
    pub sent: Moment,
    pub heard: Option<(Moment, Answer)>,
    /// The client stopped listening; the server may not have noticed.
    pub gave_up: Option<Moment>,
    /// Which process of the server it was sent to.
    pub process: u64,
}

impl Op {
    #[must_use]
    pub fn answer(&self) -> Option<&Answer> {
        self.heard.as_ref().map(|(_, answer)| answer)
    }

    /// It certainly had no effect.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.answer().and_then(Answer::refused).is_some_and(|refused| !refused.unknown)
    }

    /// It had its effect.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.answer().is_some_and(|answer| answer.refused().is_none())
    }

    /// Nobody knows.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_refused() && !self.is_done()
    }

    /// It was refused because the lease was not there any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        const LOST: [&str; 4] = ["lease_required", "lease_expired", "revoked", "fencing_mismatch"];
        let refused = self.answer().and_then(Answer::refused);
        refused.is_some_and(|refused| LOST.contains(&refused.code.as_str()))
    }
}

/// What befell the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    Started {
        process: u64,
    },
    /// Told to stop: it grants nothing new and sends away who waits.
    Draining {
        process: u64,
    },
    Crashed {
        process: u64,
    },
    Rebooted,
    WallStepped {
        by_ms: i64,
    },
    /// At this moment nothing is under way in the server; these asks stand in line.
    InLine {
        ops: Vec<usize>,
    },
    /// Nothing fails from here on.
    Healed,
    /// Everything that would happen by itself has happened.
    AtRest,
}

/// What a watcher was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Reset { complete: bool },
    State { key: String, version: u64, snapshot: bool },
    Removed { key: String, version: u64, snapshot: bool },
    Lease { key: String, change: String, token: u64, snapshot: bool },
}

/// One connection of a watcher.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    pub process: u64,
    /// It went on from where an earlier one had ended.
    pub resumed: bool,
    pub told: Vec<(Moment, Told)>,
    /// It broke off, or the server ended it.
    pub ended: Option<Moment>,
}

/// A whole history.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub ops: Vec<Op>,
    pub happenings: Vec<(Moment, Happening)>,
    pub watches: Vec<Watched>,
    /// The server counts in steps of so many microseconds; a holder leaves that much out.
    pub grain: u64,
    seq: u64,
}

impl History {
    /// The next moment at this time.
    pub fn moment(&mut self, at: u64) -> Moment {
        self.seq += 1;
        Moment { at, seq: self.seq }
    }

    /// A client asks; the number of its ask.
    pub fn sent(&mut self, at: u64, client: usize, process: u64, ask: Ask) -> usize {
        let sent = self.moment(at);
        self.ops.push(Op { client, ask, sent, heard: None, gave_up: None, process });
        self.ops.len() - 1
    }

    pub fn heard(&mut self, at: u64, op: usize, answer: Answer) {
        let moment = self.moment(at);
        if let Some(op) = self.ops.get_mut(op) {
            op.heard = Some((moment, answer));
        }
    }

    pub fn gave_up(&mut self, at: u64, op: usize) {
        let moment = self.moment(at);
        if let Some(op) = self.ops.get_mut(op) {
            op.gave_up = Some(moment);
        }
    }

    pub fn happened(&mut self, at: u64, what: Happening) {
        let moment = self.moment(at);
        self.happenings.push((moment, what));
    }

    /// Starts to write down a watch; its number.
    pub fn watching(&mut self, process: u64, resumed: bool) -> usize {
        self.watches.push(Watched { process, resumed, ..Watched::default() });
        self.watches.len() - 1
    }

    pub fn told(&mut self, at: u64, watch: usize, told: Told) {
        let moment = self.moment(at);
        if let Some(watch) = self.watches.get_mut(watch) {
            watch.told.push((moment, told));
        }
    }

    pub fn watch_ended(&mut self, at: u64, watch: usize) {
        let moment = self.moment(at);
        if let Some(watch) = self.watches.get_mut(watch) {
            watch.ended.get_or_insert(moment);
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<(Moment, String)> = Vec::new();
        for (number, op) in self.ops.iter().enumerate() {
            let Op { client, process, .. } = op;
            let ask = Shown(&op.ask);
            lines.push((op.sent, format!("c{client} #{number} -> p{process} {ask}")));
            if let Some((heard, answer)) = &op.heard {
                lines.push((*heard, format!("c{client} #{number} <- {answer}")));
            }
            if let Some(gave_up) = op.gave_up {
                lines.push((gave_up, format!("c{client} #{number} gives up")));
            }
        }
        for (moment, what) in &self.happenings {
            lines.push((*moment, format!("-- {what:?}")));
        }
        for (number, watch) in self.watches.iter().enumerate() {
            for (moment, told) in &watch.told {
                lines.push((*moment, format!("w{number} p{} {told:?}", watch.process)));
            }
            lines.extend(watch.ended.map(|moment| (moment, format!("w{number} ended"))));
        }
        lines.sort_by_key(|(moment, _)| (moment.seq, moment.at));
        for (moment, line) in lines {
            let (ms, us) = (moment.at / 1_000, moment.at % 1_000);
            writeln!(f, "{:>5} {ms:>7}.{us:03} {line}", moment.seq)?;
        }
        Ok(())
    }
}

/// An ask in short.
struct Shown<'a>(&'a Ask);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = |key: &Option<String>| key.clone().unwrap_or_else(|| "?".into());
        match self.0 {
            Ask::Acquire(ask) => {
                write!(f, "acquire {} ttl={:?} {:?}", ask.key, ask.ttl_ms, ask.block)?;
            }
            Ask::Keepalive { key: name, held, ttl_ms } => {
                write!(f, "keepalive {} token={} ttl={ttl_ms:?}", key(name), held.token)?;
            }
            Ask::Write(ask) => {
                let what = match &ask.what {
                    What::Document(text) => text.get(..text.len().min(60)).unwrap_or_default(),
                    What::Remove => "remove",
                    What::Metadata => "metadata",
                    What::Mutate(_) => "mutate",
                };
                let then = match ask.then {
                    Then::Stage => "stage",
                    Then::Commit => "commit",
                    Then::Release => "finish",
                };
                write!(f, "{then} {} token={} {what}", key(&ask.key), ask.held.token)?;
                if let Some(version) = ask.if_version {
                    write!(f, " if_version={version}")?;
                }
                for fence in &ask.fences {
                    write!(f, " fence={}:{}", fence.name, fence.token)?;
                }
            }
            Ask::Release(ask) => {
                let verb = if ask.rollback { "rollback" } else { "release" };
                write!(f, "{verb} {} token={}", key(&ask.key), ask.held.token)?;
                for fence in &ask.fences {
                    write!(f, " fence={}:{}", fence.name, fence.token)?;
                }
            }
            Ask::Get { key } => write!(f, "get {key}")?,
            Ask::View { key: name, held } => write!(f, "view {} token={}", key(name), held.token)?,
            Ask::Describe { key } => write!(f, "describe {key}")?,
            Ask::Read { keys } => write!(f, "read {}", keys.join(" "))?,
            Ask::Revoke { key, .. } => write!(f, "revoke {key}")?,
        }
        match self.0.idem() {
            Some(idem) => write!(f, " idem={idem}"),
            None => Ok(()),
        }
    }
}
