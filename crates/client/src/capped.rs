//! Times that the server capped: what was asked for, and what the server gave instead. Each answer
//! has the effective value; here it is compared with the wish, so that a wish that was cut does not
//! go unnoticed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Which time was capped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// The time to live of a lease.
    Ttl,
    /// How long a message is with its consumer.
    Visibility,
    /// How long a message stays in its queue.
    MessageTtl,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ttl => "time to live of the lease",
            Self::Visibility => "visibility of the message",
            Self::MessageTtl => "time to live of the message",
        })
    }
}

/// A time that the server capped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capped {
    pub limit: Limit,
    pub asked: Duration,
    pub granted: Duration,
}

type Callback = Arc<dyn Fn(&Capped) + Send + Sync>;

/// Reports capped times: to the callback of the application, else to the log.
#[derive(Clone, Default)]
pub(crate) struct Caps {
    callback: Option<Callback>,
    /// The latest report for each limit. A worker asks for the same again and again.
    reported: Arc<Mutex<Vec<Capped>>>,
}

impl fmt::Debug for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caps").field("callback", &self.callback.is_some()).finish_non_exhaustive()
    }
}

impl Caps {
    pub(crate) fn reporting_to(callback: impl Fn(&Capped) + Send + Sync + 'static) -> Self {
        Self { callback: Some(Arc::new(callback)), reported: Arc::default() }
    }

    /// Compares a wish with what was granted. Zero: the server did not say.
    pub(crate) fn check(&self, limit: Limit, asked: Option<Duration>, granted: Duration) {
        let Some(asked) = asked.filter(|asked| *asked > granted && !granted.is_zero()) else {
            return;
        };
        let capped = Capped { limit, asked, granted };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        match reported.iter_mut().find(|known| known.limit == limit) {
            Some(known) if *known == capped => return,
            Some(known) => *known = capped,
            None => reported.push(capped),
        }
        drop(reported);
        match &self.callback {
            Some(callback) => callback(&capped),
            None => tracing::warn!(%limit, ?asked, ?granted, "time capped by the server"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_reported_once_and_what_was_granted_in_full_is_not() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heard);
        let caps = Caps::reporting_to(move |capped| kept.lock().unwrap().push(*capped));
        let (hour, minute) = (Duration::from_secs(3_600), Duration::from_secs(60));
        caps.check(Limit::Ttl, None, minute);
        caps.check(Limit::Ttl, Some(minute), minute);
        caps.check(Limit::Ttl, Some(minute), Duration::ZERO);
        assert_eq!(*heard.lock().unwrap(), []);
        let capped = Capped { limit: Limit::Ttl, asked: hour, granted: minute };
        caps.check(Limit::Ttl, Some(hour), minute);
        caps.check(Limit::Ttl, Some(hour), minute);
        caps.check(Limit::Visibility, Some(hour), minute);
        assert_eq!(*heard.lock().unwrap(), [capped, Capped { limit: Limit::Visibility, ..capped }]);
    }
}
