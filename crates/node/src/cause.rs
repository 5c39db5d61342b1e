//! Why a node became something else, in words that programs can count by.

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The supervisor began.
    Started,
    /// The lock was granted.
    Elected,
    /// The lock says that it is not, or no longer, this node's.
    LockLost,
    /// The lock could not be renewed in time.
    LockExpired,
    /// Somebody asked for a hand-over.
    Resigned,
    /// A node that is preferred asked for it.
    Preferred,
    /// The controller keeps dying, or does not open.
    ControllerFailed,
    /// The supervisor was told to stop.
    Stopping,
    /// The store knows an epoch that is not lower than the lock's.
    Behind,
    /// A rule did not hold: everything was closed.
    Broken,
}

impl Cause {
    pub const ALL: [Self; 10] = [
        Self::Started,
        Self::Elected,
        Self::LockLost,
        Self::LockExpired,
        Self::Resigned,
        Self::Preferred,
        Self::ControllerFailed,
        Self::Stopping,
        Self::Behind,
        Self::Broken,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Elected => "elected",
            Self::LockLost => "lock_lost",
            Self::LockExpired => "lock_expired",
            Self::Resigned => "resigned",
            Self::Preferred => "preferred",
            Self::ControllerFailed => "controller_failed",
            Self::Stopping => "stopping",
            Self::Behind => "behind",
            Self::Broken => "broken",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == text)
    }
}

impl EncodeLabelValue for Cause {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_read_as_they_are_written() {
        for cause in Cause::ALL {
            assert_eq!(Cause::parse(cause.as_str()), Some(cause));
        }
        assert_eq!(Cause::parse("bored"), None);
    }
}
