//! Fencing tokens, and conditions on the tokens of other keys: a write may demand that somebody
//! else's token is still the one it saw.

use crate::key::KeyName;

/// A key's fencing token: the number of grants it has ever seen. It only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// "Only if the token of `key` is still `token`."
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceCondition {
    pub key: KeyName,
    pub token: Fence,
}

/// A condition did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fencing token of {key} is {current}, not {expected}", current = current.0, expected = expected.0)]
pub struct FenceRefused {
    pub key: KeyName,
    pub expected: Fence,
    pub current: Fence,
}

/// The tokens of other keys, read together with the record that is decided upon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceFacts(Vec<(KeyName, Fence)>);

impl FenceFacts {
    #[must_use]
    pub fn new(facts: Vec<(KeyName, Fence)>) -> Self {
        Self(facts)
    }

    /// The token of `key`; a key that was never granted has token zero.
    #[must_use]
    pub fn token(&self, key: &KeyName) -> Fence {
        self.0.iter().find(|(known, _)| known == key).map_or(Fence(0), |(_, token)| *token)
    }

    /// # Errors
    /// Names the first condition that does not hold.
    pub fn check(&self, conditions: &[FenceCondition]) -> Result<(), FenceRefused> {
        for condition in conditions {
            let current = self.token(&condition.key);
            if current != condition.token {
                return Err(FenceRefused {
                    key: condition.key.clone(),
                    expected: condition.token,
                    current,
                });
            }
        }
        Ok(())
    }
}
