//! What kind of history a seed makes. No two are alike on purpose: one has no faults and much
//! waiting, the next many crashes and one key, so that rare things meet often somewhere.

use crate::dice::Dice;

/// How often things happen, per mille where nothing else is said.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: usize,
    pub keys: Vec<String>,
    /// How many asks are made in all.
    pub asks: usize,
    /// Times to live, in milliseconds.
    pub ttl_ms: (u64, u64),
    /// How far time goes on at once.
    pub advance_ms: u64,
    pub advances: u64,
    pub wall_steps: u64,
    pub crashes: u64,
    pub reboots: u64,
    pub gives_up: u64,
    /// Calls of the store that fail.
    pub faults: u64,
    /// Processes whose store stops for good at some write.
    pub stops: u64,
    /// Answers of the store that wait for a step of their own.
    pub delays: u64,
    /// Asks that carry an idempotency key.
    pub named: u64,
    /// Acquires that wait.
    pub waits: u64,
    /// Asks under leases that are over.
    pub stale: u64,
    pub revokes: u64,
    /// Documents that do not fit into a record.
    pub large: u64,
    pub watches: bool,
    /// Processes that are told to stop.
    pub drains: u64,
    /// Whether unused blobs are collected and the index swept while it goes on.
    pub tidies: bool,
}

impl Plan {
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 1);
        let keys = dice.between(1, 3);
        let calm = dice.chance(300);
        let trouble = |dice: &mut Dice, most: u64| if calm { 0 } else { dice.below(most + 1) };
        let slow = dice.chance(200);
        Self {
            seed,
            clients: usize::try_from(dice.between(2, 5)).unwrap_or(2),
            keys: (0..keys).map(|number| format!("k{number}")).collect(),
            asks: usize::try_from(dice.between(25, 60)).unwrap_or(40),
            ttl_ms: if slow { (20_000, 60_000) } else { (500, 6_000) },
            advance_ms: dice.between(200, 3_000),
            advances: dice.between(10, 120),
            wall_steps: trouble(&mut dice, 20),
            crashes: trouble(&mut dice, 15),
            reboots: trouble(&mut dice, 6),
            gives_up: trouble(&mut dice, 30),
            faults: if dice.chance(500) { trouble(&mut dice, 120) } else { 0 },
            stops: trouble(&mut dice, 400),
            delays: dice.below(700),
            named: dice.below(900),
            waits: dice.below(900),
            stale: dice.below(120),
            revokes: dice.below(30),
            large: if dice.chance(100) { 150 } else { 0 },
            watches: dice.chance(350),
            tidies: dice.chance(200),
            drains: trouble(&mut dice, 8),
        }
    }
}
