//! Answering for a message: done, not done, or more time is needed.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::hold::{GiveBack, Hold, Receipt};
use crate::client::Client;
use crate::error::{Error, Failed, Failure, SettleKind};
use crate::lease::Lease;
use crate::write::Fence;

/// A message that was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nacked {
    /// It failed too often and is dead now.
    pub dead: bool,
}

/// A message that has more time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extended {
    /// How long the consumer has it from now on, by the server's clock.
    pub visibility: Duration,
    pub expires_at_unix: u64,
    pub expires_at_unix_ms: u64,
    /// To be shown with the next call by those who keep a [`Receipt`] of their own.
    pub meta_etag: String,
}

/// Acknowledges a message; await it. Under a transaction this commits the whole of it.
#[derive(Debug)]
#[must_use = "nothing is acknowledged before it is awaited"]
pub struct Ack {
    hold: Arc<Hold>,
    fences: Vec<Fence>,
}

impl Ack {
    pub(super) fn new(hold: &Arc<Hold>) -> Self {
        Self { hold: Arc::clone(hold), fences: Vec::new() }
    }

    /// Only if the lease is still the latest of its key, tested in the same step.
    pub fn fenced_by(self, other: &Lease) -> Self {
        let full_name = format!("{}/{}", other.namespace(), other.key());
        self.fence(full_name, other.token())
    }

    /// Only if the latest token of that key, written `namespace/key`, is still this one.
    pub fn fence(mut self, full_name: impl Into<String>, token: u64) -> Self {
        self.fences.push(Fence { full_name: full_name.into(), token });
        self
    }
}

impl IntoFuture for Ack {
    type Output = Result<(), Error<SettleKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.hold.ack(&self.fences).await?) })
    }
}

/// Gives a message back, which counts as a failure unless told otherwise; await it. Under a
/// transaction this rolls the whole of it back.
#[derive(Debug)]
#[must_use = "nothing is given back before it is awaited"]
pub struct Nack {
    hold: Arc<Hold>,
    how: Result<GiveBack, Failed>,
}

impl Nack {
    pub(super) fn new(hold: &Arc<Hold>) -> Self {
        Self { hold: Arc::clone(hold), how: Ok(GiveBack::default()) }
    }

    /// Not delivered again before so much time has passed.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|how| how.delay = delay)
    }

    /// Not a failure: it only has to be done later, or by somebody else. Not with an error.
    pub fn defer(self) -> Self {
        self.with(|how| how.defer = true)
    }

    /// Why it failed, as any value that has a form in JSON; a text is one.
    pub fn error<T: Serialize + ?Sized>(mut self, error: &T) -> Self {
        match serde_json::value::to_raw_value(error) {
            Ok(raw) => self.with(|how| how.error = Some(raw)),
            Err(error) => {
                let why = "the error cannot be written as JSON";
                self.how = Err(Failure::source(why, error));
                self
            }
        }
    }

    fn with(mut self, change: impl FnOnce(&mut GiveBack)) -> Self {
        if let Ok(how) = &mut self.how {
            change(how);
        }
        self
    }
}

impl IntoFuture for Nack {
    type Output = Result<Nacked, Error<SettleKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.hold.nack(&self.how?).await?) })
    }
}

/// A message that was delivered elsewhere: nothing is extended or given back by itself.
#[derive(Clone, Debug)]
pub struct RawMessage {
    hold: Arc<Hold>,
}

impl RawMessage {
    pub(crate) fn new(client: Client, receipt: Receipt) -> Self {
        Self { hold: Arc::new(Hold::raw(client, receipt)) }
    }

    /// What is shown with the next call.
    pub fn receipt(&self) -> Receipt {
        self.hold.receipt()
    }

    /// The work is done: the message is removed.
    pub fn ack(&self) -> Ack {
        Ack::new(&self.hold)
    }

    /// The work is not done: the message goes to the next consumer.
    pub fn nack(&self) -> Nack {
        Nack::new(&self.hold)
    }

    /// Gives the message so much time, counted from now; as much as the delivery was for when none
    /// is named.
    ///
    /// # Errors
    /// When the message is not the caller's any more, or no server could be asked.
    pub async fn extend(&self, by: Option<Duration>) -> Result<Extended, Error<SettleKind>> {
        Ok(self.hold.extend(by, self.hold.patience()).await?)
    }
}
