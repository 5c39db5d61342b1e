//! The scheduler: decides, step by step, who goes on. First things go wrong; then everything heals
//! and must be served; then, after one more restart, an auditor looks at what is left.

use std::sync::Arc;
use std::time::Duration;

use lockd_core::time::{BootId, Now, Span, Tick, UnixMillis};
use lockd_server::clock::{Clock, ManualClock};
use lockd_store::faulty::{Faulty, Stop};
use lockd_store::{MemStore, Store};

use super::client::Client;
use super::gate::Fault;
use super::plan::Plan;
use super::process::{Birth, Edges, Out, Process};
use crate::call::{Acquire, Ask, Block, Release};
use crate::dice::Dice;
use crate::history::{Happening, History};

const TICK: Duration = Duration::from_millis(1);
/// Long enough for everything that is tried again to be tried again.
const LONG: Duration = Duration::from_millis(400);
const HOUR_MS: u64 = 3_600_000;
/// A history whose clients only wait for each other ends here.
const STEPS_MAX: usize = 6_000;

/// Plays the history of a plan.
///
/// # Errors
/// When the server does not start.
pub fn play(plan: &Plan, edges: &Edges) -> Result<History, String> {
    let mut world = World::new(plan, edges);
    world.start(true)?;
    world.trouble()?;
    world.heal()?;
    world.audit()?;
    world.end();
    Ok(world.history)
}

/// A server, its clients, and everything around them.
pub struct World<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    history: History,
    now_us: u64,
    clock: ManualClock,
    boot: u128,
    store: Arc<dyn Store>,
    process: Option<Process>,
    processes: u64,
    /// The store of this process may stop for good.
    fused: bool,
    /// This process was told to stop.
    draining: bool,
    clients: Vec<(Client, Option<usize>)>,
    asked: usize,
    watch: Option<usize>,
    resume: Option<String>,
    in_line: Vec<usize>,
    deadlines: Vec<u64>,
    order: Dice,
    work: Dice,
    faults: Dice,
}

#[derive(Clone, Copy)]
enum Step {
    Store,
    Ask,
    Advance,
    Wall,
    Crash,
    Reboot,
    Drain,
    GiveUp,
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, edges: &'a Edges) -> Self {
        let start = Now { tick: Tick(5_000_000), wall: UnixMillis(1_750_000_000_000) };
        Self {
            plan,
            edges,
            history: History::default(),
            now_us: 0,
            clock: ManualClock::at(start),
            boot: 1,
            store: (edges.store)(Arc::new(MemStore::new())),
            process: None,
            processes: 0,
            fused: false,
            draining: false,
            clients: (0..plan.clients).map(|number| (Client::new(number), None)).collect(),
            asked: 0,
            watch: None,
            resume: None,
            in_line: Vec::new(),
            deadlines: Vec::new(),
            order: Dice::new(plan.seed, 2),
            work: Dice::new(plan.seed, 3),
            faults: Dice::new(plan.seed, 4),
        }
    }

    fn start(&mut self, may_stop: bool) -> Result<(), String> {
        self.processes += 1;
        let number = self.processes;
        self.fused = may_stop && self.faults.chance(self.plan.stops);
        let store: Arc<dyn Store> = if self.fused {
            let stop = if self.faults.chance(500) { Stop::Before } else { Stop::After };
            // The first writes of a process are its own.
            let at = self.faults.between(8, 60);
            Arc::new(Faulty::new(Arc::clone(&self.store), at, stop))
        } else {
            Arc::clone(&self.store)
        };
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let (plan, edges) = (self.plan, self.edges);
        let process = Process::start(Birth { number, plan, store, clock, edges })?;
        self.process = Some(process);
        self.draining = false;
        self.history.happened(self.now_us, Happening::Started { process: number });
        if self.plan.watches {
            self.watch();
        }
        self.settle(TICK);
        Ok(())
    }

    fn watch(&mut self) {
        let Some(process) = &self.process else { return };
        let resume = self.resume.take().filter(|_| self.work.chance(700));
        let watch = self.history.watching(process.number, resume.is_some());
        process.watch(watch, resume);
        self.watch = Some(watch);
    }

    /// Lets the server go on, and takes down what comes out of it.
    fn settle(&mut self, span: Duration) {
        let Some(process) = &self.process else { return };
        for out in process.settle(span) {
            match out {
                Out::Answer { op, answer } => {
                    self.history.heard(self.now_us, op, answer);
                    self.over(op);
                }
                Out::Told { watch, told, id } => {
                    self.history.told(self.now_us, watch, told);
                    self.resume = id.or(self.resume.take());
                }
                Out::WatchEnded { watch } => {
                    self.history.watch_ended(self.now_us, watch);
                    self.watch = None;
                }
            }
        }
        self.look_at_lines();
    }

    /// The client of an ask hears, or stops to listen.
    fn over(&mut self, number: usize) {
        let Some(op) = self.history.ops.get(number) else { return };
        if let (Ask::Acquire(ask), true) = (&op.ask, op.is_done()) {
            self.deadlines.push(self.now_us / 1_000 + ask.ttl_ms.unwrap_or(0));
        }
        for (client, pending) in &mut self.clients {
            if *pending == Some(number) {
                *pending = None;
                client.learn(op);
            }
        }
    }

    /// When nothing is under way, whoever has no answer stands in line.
    fn look_at_lines(&mut self) {
        if self.process.as_ref().is_none_or(|process| process.gate.waiting() > 0) {
            return;
        }
        let waits = |op: &usize| {
            let ask = self.history.ops.get(*op).map(|op| &op.ask);
            matches!(
                ask,
                Some(Ask::Acquire(Acquire { block: Block::Forever | Block::Seconds(_), .. }))
            )
        };
        let pending = self.clients.iter().filter_map(|(_, pending)| *pending);
        let ops: Vec<usize> = pending.filter(waits).collect();
        if ops != self.in_line {
            self.in_line.clone_from(&ops);
            if !ops.is_empty() {
                self.history.happened(self.now_us, Happening::InLine { ops });
            }
        }
    }

    fn trouble(&mut self) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            if self.asked >= self.plan.asks {
                break;
            }
            match self.choose() {
                Step::Store => self.serve_store(),
                Step::Ask => self.ask(),
                Step::Advance => self.advance(),
                Step::Wall => self.step_wall(),
                Step::Crash => self.crash(false)?,
                Step::Reboot => self.crash(true)?,
                Step::Drain => self.drain(),
                Step::GiveUp => self.give_up(),
            }
            self.settle(TICK);
            if self.process.as_ref().is_some_and(Process::has_stopped) {
                self.crash(false)?;
            }
            if self.watch.is_none() && self.plan.watches && self.order.chance(50) {
                self.watch();
            }
        }
        Ok(())
    }

    fn choose(&mut self) -> Step {
        let waiting = self.process.as_ref().map_or(0, |process| process.gate.waiting());
        let idle = self.clients.iter().filter(|(_, pending)| pending.is_none()).count();
        let busy = self.clients.len() - idle;
        let plan = self.plan;
        let when = |can: bool, weight: u64| if can { weight } else { 0 };
        // Nobody can go on: only time helps.
        let stuck = if waiting == 0 && idle == 0 { 1_000 } else { 0 };
        let steps = [
            (when(waiting > 0, 700), Step::Store),
            (when(idle > 0, 250), Step::Ask),
            (plan.advances + stuck, Step::Advance),
            (plan.wall_steps, Step::Wall),
            (plan.crashes, Step::Crash),
            (plan.reboots, Step::Reboot),
            (when(!self.draining, plan.drains), Step::Drain),
            (when(busy > 0, plan.gives_up), Step::GiveUp),
        ];
        self.order.weighted(&steps).unwrap_or(Step::Advance)
    }

    /// One call of the store is carried out, or answered, or both.
    fn serve_store(&mut self) {
        let Some(process) = &self.process else { return };
        let gate = &process.gate;
        let place = self.order.place(gate.waiting());
        if gate.is_carried_out(place) {
            gate.answer(place);
            return;
        }
        let fault = match self.faults.chance(self.plan.faults) {
            false => Fault::None,
            true if !gate.writes(place) => Fault::Unavailable,
            true => {
                let faults = [Fault::Unavailable, Fault::UnknownLost, Fault::UnknownDone];
                self.faults.pick(&faults).copied().unwrap_or(Fault::None)
            }
        };
        gate.carry_out(place, fault);
        if !self.order.chance(self.plan.delays) {
            gate.answer(place);
        }
    }

    fn ask(&mut self) {
        let idle = self.clients.iter().enumerate().filter(|(_, (_, pending))| pending.is_none());
        let idle: Vec<usize> = idle.map(|(number, _)| number).collect();
        let Some(number) = self.work.pick(&idle).copied() else { return };
        let Some((client, _)) = self.clients.get_mut(number) else { return };
        let ask = client.next(self.plan, &mut self.work);
        let op = self.send(number, ask);
        if let Some((_, pending)) = self.clients.get_mut(number) {
            *pending = Some(op);
        }
        self.asked += 1;
    }

    fn send(&mut self, client: usize, ask: Ask) -> usize {
        let op = self.history.sent(self.now_us, client, self.processes, ask.clone());
        if let Some(process) = &mut self.process {
            process.ask(op, ask);
        }
        op
    }

    fn advance(&mut self) {
        let now = self.now_us / 1_000;
        self.deadlines.retain(|deadline| *deadline > now);
        let ms = match self.order.pick(&self.deadlines).copied() {
            // To the end of a lease, or a moment before or after.
            Some(deadline) if self.order.chance(300) => {
                (deadline + self.order.below(3)).saturating_sub(now + 1)
            }
            Some(_) | None => self.order.between(1, self.plan.advance_ms),
        };
        self.go_on(ms);
    }

    fn go_on(&mut self, ms: u64) {
        self.now_us += ms * 1_000;
        self.clock.advance(Span(ms));
    }

    fn step_wall(&mut self) {
        let by_ms = if self.order.chance(500) { 3_600_000 } else { -3_600_000 };
        let wall = self.clock.now().wall.0;
        let wall = if by_ms > 0 { wall + HOUR_MS } else { wall.saturating_sub(HOUR_MS) };
        self.clock.set_wall(UnixMillis(wall));
        self.history.happened(self.now_us, Happening::WallStepped { by_ms });
    }

    fn drain(&mut self) {
        let Some(process) = &self.process else { return };
        process.drain(Duration::from_millis(self.order.between(1, 60)));
        self.draining = true;
        self.history.happened(self.now_us, Happening::Draining { process: process.number });
    }

    /// The process dies and another one starts.
    fn crash(&mut self, reboot: bool) -> Result<(), String> {
        self.kill();
        let downtime = self.order.below(800);
        self.go_on(downtime);
        if reboot {
            self.boot += 1;
            self.history.happened(self.now_us, Happening::Rebooted);
        }
        self.clock.restart(BootId(self.boot));
        self.start(true)
    }

    fn kill(&mut self) {
        let Some(process) = self.process.take() else { return };
        let gate = process.gate.clone();
        for place in 0..gate.waiting() {
            // A write that was under way may have arrived all the same.
            if gate.writes(place) && self.faults.chance(500) {
                gate.carry_out(place, Fault::None);
            }
        }
        let number = process.number;
        process.die();
        self.history.happened(self.now_us, Happening::Crashed { process: number });
        if let Some(watch) = self.watch.take() {
            self.history.watch_ended(self.now_us, watch);
        }
        self.in_line.clear();
        let pending: Vec<usize> = self.clients.iter().filter_map(|(_, op)| *op).collect();
        for op in pending {
            self.over(op);
        }
    }

    fn give_up(&mut self) {
        let pending: Vec<usize> = self.clients.iter().filter_map(|(_, op)| *op).collect();
        let Some(op) = self.order.pick(&pending).copied() else { return };
        if let Some(process) = &mut self.process {
            process.hang_up(op);
        }
        self.history.gave_up(self.now_us, op);
        self.over(op);
    }

    /// From here on nothing fails: whoever waits must be served.
    fn heal(&mut self) -> Result<(), String> {
        if self.fused || self.draining {
            self.kill();
            self.clock.restart(BootId(self.boot));
            self.start(false)?;
        }
        self.history.happened(self.now_us, Happening::Healed);
        self.flush();
        if self.watch.is_none() && self.plan.watches {
            self.watch();
        }
        for _ in 0..=self.clients.len() {
            let waiting = self.clients.iter().any(|(_, pending)| pending.is_some());
            self.go_on(self.plan.ttl_ms.1 + 1_000);
            self.settle(LONG);
            if !waiting {
                break;
            }
        }
        self.history.happened(self.now_us, Happening::AtRest);
        Ok(())
    }

    /// Answers everything the store was asked, and lets further calls pass.
    fn flush(&mut self) {
        if let Some(process) = &self.process {
            let gate = &process.gate;
            gate.set_open(true);
            while gate.waiting() > 0 {
                gate.carry_out(0, Fault::None);
                gate.answer(0);
            }
        }
        self.settle(LONG);
    }

    /// After one more restart: what is there, and is it served?
    fn audit(&mut self) -> Result<(), String> {
        self.kill();
        self.clock.restart(BootId(self.boot));
        self.start(false)?;
        self.flush();
        let auditor = self.clients.len();
        self.audited(auditor, Ask::Read { keys: self.plan.keys.clone() });
        for key in self.plan.keys.clone() {
            self.audited(auditor, Ask::Get { key: key.clone() });
            self.audited(auditor, Ask::Describe { key: key.clone() });
            let acquire = Acquire {
                key: key.clone(),
                owner: "auditor".into(),
                ttl_ms: Some(10_000),
                block: Block::No,
                if_not_exists: false,
                txn: None,
                idem: None,
            };
            let op = self.audited(auditor, Ask::Acquire(acquire));
            let answer = self.history.ops.get(op).and_then(|op| op.answer()).cloned();
            if let Some(crate::answer::Answer::Granted { held, .. }) = answer {
                self.audited(auditor, Ask::View { key: Some(key.clone()), held: held.clone() });
                let (rollback, fences, idem) = (false, Vec::new(), None);
                let release = Release { key: Some(key), held, rollback, fences, idem };
                self.audited(auditor, Ask::Release(release));
            }
        }
        Ok(())
    }

    fn audited(&mut self, auditor: usize, ask: Ask) -> usize {
        let op = self.send(auditor, ask);
        self.settle(TICK);
        op
    }

    fn end(&mut self) {
        if let Some(process) = self.process.take() {
            process.die();
        }
    }
}
