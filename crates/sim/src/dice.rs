//! The only randomness here: a small generator whose numbers never change with a library, so that
//! a seed means the same history for ever. Each concern has a stream of its own.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The stream of one concern under a seed.
    #[must_use]
    pub fn new(seed: u64, salt: u64) -> Self {
        let mut dice = Self(seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Neighbouring seeds begin alike; a few throws tear them apart.
        dice.next();
        Self(dice.next())
    }

    /// The next number (splitmix64).
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; zero when there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// A place in a list of that length.
    pub fn place(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Whether something happens that does so this often in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.place(choices.len()))
    }

    /// One of these, each as often as its weight says.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> Option<T> {
        let total = choices.iter().map(|(weight, _)| weight).sum();
        let mut throw = self.below(total);
        for (weight, choice) in choices {
            if throw < *weight {
                return Some(*choice);
            }
            throw -= weight;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Dice;

    #[test]
    fn a_seed_always_throws_the_same() {
        let mut dice = Dice::new(7, 1);
        assert_eq!(
            [dice.next(), dice.next()],
            [3_190_831_930_266_419_087, 5_717_100_232_498_355_051]
        );
    }

    #[test]
    fn weights_are_kept_to() {
        let mut dice = Dice::new(1, 1);
        let heads = (0..1_000).filter(|_| dice.weighted(&[(9, true), (1, false)]) == Some(true));
        assert!((850..950).contains(&heads.count()));
        assert_eq!(dice.weighted::<u8>(&[]), None);
    }
}
