//! Chance that can be repeated: every random test prints its seed, and `LOCKD_TEST_SEED` brings
//! it back.

/// A small generator (splitmix64), good enough to choose what to do next.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Seeded by the environment or else by the clock; says so, for the log of a failed test.
    #[must_use]
    pub fn announced(test: &str) -> Self {
        let given = std::env::var("LOCKD_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            u64::try_from(now.map_or(0, |since| since.as_nanos()) & u128::from(u64::MAX >> 12))
                .unwrap_or(0)
        });
        println!("{test}: repeat with LOCKD_TEST_SEED={seed}");
        Self::seeded(seed)
    }

    /// Another generator, for another thread.
    pub fn fork(&mut self) -> Self {
        Self::seeded(self.next())
    }

    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap_or(0)
    }

    pub fn between(&mut self, start: usize, end: usize) -> usize {
        start + self.below(end - start)
    }

    /// True once in `times` throws.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() & 0xff) as u8).collect()
    }
}

/// How many rounds a test has: its own number, or what `LOCKD_TEST_ROUNDS` says.
#[must_use]
pub fn rounds(usual: usize) -> usize {
    let given = std::env::var("LOCKD_TEST_ROUNDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(usual)
}
