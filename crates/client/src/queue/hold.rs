//! A delivered message as its consumer has it: what is shown with each call about it, and what
//! became of it.
//!
//! There is one call about a message at a time, so that an extension and an acknowledgement cannot
//! overtake each other. What one call learns, the next one shows.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockd_wire::queue::{
    AckReply, AckRequest, DeliveredMessage, ExtendReply, ExtendRequest, NackReply, NackRequest,
};
use lockd_wire::{ErrorCode, path};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::runtime::Handle;

use super::settle::{Extended, Nacked};
use crate::call::{Call, Patience, Repeat};
use crate::capped::Limit;
use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Cause, Failed, Failure};
use crate::lease::{Lost, LostReason, Tenure};
use crate::ttl::WireSpan;
use crate::write::{Fence, fences};

/// How long and how often a dropped message is tried to be given back.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
const FAREWELL_PASSES: u32 = 3;

/// What the consumer of a message shows. Whoever knows it can act as the consumer.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// `None` for the server's default.
    pub namespace: Option<String>,
    pub queue: String,
    pub message_id: String,
    pub lease_id: String,
    /// The fencing token.
    pub token: Option<u64>,
    pub txn_id: Option<String>,
    /// Changes with every extension.
    pub meta_etag: Option<String>,
    pub state_etag: Option<String>,
    pub state_lease_id: Option<String>,
    pub state_token: Option<u64>,
}

/// What became of a message, as far as is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// An answer was sent and not confirmed.
    Doubtful,
    Acked,
    GivenBack,
}

/// What the calls about a message have led to.
#[derive(Debug)]
struct Course {
    stage: Stage,
    /// Whether the etag in the receipt is the latest. After an extension that was not confirmed it
    /// may not be, and is not shown: the lease proves enough.
    etag_sure: bool,
}

/// How a message is given back.
#[derive(Debug, Default)]
pub(super) struct GiveBack {
    pub(super) delay: Duration,
    /// Without counting it as a failure.
    pub(super) defer: bool,
    pub(super) error: Option<Box<RawValue>>,
}

impl GiveBack {
    pub(super) fn deferred() -> Self {
        Self { defer: true, ..Self::default() }
    }
}

pub(super) struct Hold {
    client: Client,
    receipt: Mutex<Receipt>,
    /// Kept locked during a call: that is what makes calls follow each other.
    course: tokio::sync::Mutex<Course>,
    /// None where somebody else counts the time.
    tenure: Option<Arc<Tenure>>,
    /// When the work on it last made progress.
    moved: Mutex<Moment>,
    runtime: Option<Handle>,
}

impl Hold {
    pub(super) fn new(client: Client, delivered: &DeliveredMessage, tenure: Arc<Tenure>) -> Self {
        Self::of(client, receipt(delivered), Some(tenure))
    }

    /// Of a message that was delivered elsewhere.
    pub(super) fn raw(client: Client, receipt: Receipt) -> Self {
        Self::of(client, receipt, None)
    }

    fn of(client: Client, receipt: Receipt, tenure: Option<Arc<Tenure>>) -> Self {
        Self {
            moved: Mutex::new(client.clock().now()),
            client,
            receipt: Mutex::new(receipt),
            course: tokio::sync::Mutex::new(Course { stage: Stage::Open, etag_sure: true }),
            tenure,
            runtime: Handle::try_current().ok(),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn receipt(&self) -> Receipt {
        self.receipt.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn progress(&self) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = self.client.clock().now();
    }

    /// How long there was no progress.
    pub(super) fn stood_still(&self) -> Duration {
        let moved = *self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        self.client.clock().now().since(moved)
    }

    /// Whether it was acknowledged or given back.
    pub(super) async fn is_settled(&self) -> bool {
        matches!(self.course.lock().await.stage, Stage::Acked | Stage::GivenBack)
    }

    pub(super) async fn ack(&self, conditions: &[Fence]) -> Result<(), Failed> {
        let mut course = self.course.lock().await;
        match course.stage {
            Stage::Acked => return Ok(()),
            Stage::GivenBack => return Err(Failure::invalid("the message was given back already")),
            Stage::Open | Stage::Doubtful => self.still_ours()?,
        }
        let shown = self.shown(&course);
        let request = AckRequest {
            namespace: shown.namespace,
            queue: shown.queue,
            message_id: shown.message_id,
            lease_id: shown.lease_id,
            txn_id: shown.txn_id,
            fencing_token: shown.token,
            meta_etag: shown.meta_etag,
            state_etag: shown.state_etag,
            state_lease_id: shown.state_lease_id,
            state_fencing_token: shown.state_token,
            messages: Vec::new(),
        };
        let repeated = Arc::new(AtomicBool::new(false));
        let patience = self.while_ours(self.client.patience(), Some(&repeated));
        let call = self.call(path::QUEUE_ACK, patience);
        let call = fences(call.repeat(Repeat::Named), conditions)?;
        let was = std::mem::replace(&mut course.stage, Stage::Doubtful);
        let acked: Result<AckReply, Failed> = self.send(call, &request).await;
        match acked {
            Ok(reply) if !reply.acked => {
                Err(Failure::garbled("it neither acknowledged the message nor said why"))
            }
            Ok(_) => {
                self.end(&mut course, Stage::Acked);
                Ok(())
            }
            // The first of several attempts has removed it.
            Err(failure) if repeated.load(Ordering::Relaxed) && is_gone(&failure) => {
                self.end(&mut course, Stage::Acked);
                Ok(())
            }
            Err(failure) => Err(self.failed(&mut course, was, failure)),
        }
    }

    pub(super) async fn nack(&self, how: &GiveBack) -> Result<Nacked, Failed> {
        self.nack_within(how, self.client.patience()).await
    }

    async fn nack_within(&self, how: &GiveBack, patience: Patience) -> Result<Nacked, Failed> {
        let mut course = self.course.lock().await;
        match course.stage {
            Stage::Acked => return Err(Failure::invalid("the message was acknowledged already")),
            Stage::GivenBack => return Ok(Nacked { dead: false }),
            Stage::Open | Stage::Doubtful => self.still_ours()?,
        }
        let shown = self.shown(&course);
        let delay = Some(how.delay).filter(|delay| delay.as_millis() > 0);
        let delay = delay.map(WireSpan::of).transpose()?.unwrap_or_default();
        let request = NackRequest {
            namespace: shown.namespace,
            queue: shown.queue,
            message_id: shown.message_id,
            lease_id: shown.lease_id,
            txn_id: shown.txn_id,
            fencing_token: shown.token,
            meta_etag: shown.meta_etag,
            state_etag: shown.state_etag,
            state_lease_id: shown.state_lease_id,
            state_fencing_token: shown.state_token,
            delay_seconds: delay.seconds,
            delay_ms: delay.ms,
            intent: how.defer.then(|| "defer".to_owned()),
            last_error: how.error.clone(),
        };
        let repeated = Arc::new(AtomicBool::new(false));
        let patience = self.while_ours(patience, Some(&repeated));
        let call = self.call(path::QUEUE_NACK, patience).repeat(Repeat::Named);
        let was = std::mem::replace(&mut course.stage, Stage::Doubtful);
        let given_back: Result<NackReply, Failed> = self.send(call, &request).await;
        match given_back {
            Ok(reply) => {
                self.end(&mut course, Stage::GivenBack);
                Ok(Nacked { dead: reply.dead })
            }
            // The first of several attempts has given it back: its time was not over.
            Err(failure)
                if repeated.load(Ordering::Relaxed)
                    && has_code(&failure, ErrorCode::QueueMessageLeaseMismatch)
                    && self.tenure.as_ref().is_some_and(|tenure| tenure.is_held()) =>
            {
                self.end(&mut course, Stage::GivenBack);
                Ok(Nacked { dead: false })
            }
            Err(failure) => Err(self.failed(&mut course, was, failure)),
        }
    }

    /// Gives it so much time from now on; none named: as much as the delivery was for.
    pub(super) async fn extend(
        &self,
        by: Option<Duration>,
        patience: Patience,
    ) -> Result<Extended, Failed> {
        let mut course = self.course.lock().await;
        match course.stage {
            Stage::Acked | Stage::GivenBack => {
                return Err(Failure::invalid("the message is settled already"));
            }
            Stage::Open | Stage::Doubtful => self.still_ours()?,
        }
        let shown = self.shown(&course);
        let asked = WireSpan::ttl(by)?;
        let mut request = ExtendRequest {
            namespace: shown.namespace,
            queue: shown.queue,
            message_id: shown.message_id,
            lease_id: shown.lease_id,
            txn_id: shown.txn_id,
            fencing_token: shown.token,
            meta_etag: shown.meta_etag,
            state_lease_id: shown.state_lease_id,
            state_fencing_token: shown.state_token,
            extend_by_seconds: asked.seconds,
            extend_by_ms: asked.ms,
        };
        let sent = self.client.clock().now();
        let call = self.call(path::QUEUE_EXTEND, patience.clone()).repeat(Repeat::Unsent);
        let was_sure = std::mem::replace(&mut course.etag_sure, false);
        let reply: ExtendReply = match self.send(call, &request).await {
            Ok(reply) => reply,
            // It may have happened, and then the etag is another.
            Err(failure) if failure.unknown && self.still_ours().is_ok() => {
                request.meta_etag = None;
                let again = self.send(self.call(path::QUEUE_EXTEND, patience), &request).await;
                again.map_err(|failure| self.observe(failure))?
            }
            Err(failure) => {
                course.etag_sure = was_sure && !failure.unknown;
                return Err(self.observe(failure));
            }
        };
        course.etag_sure = true;
        let visibility = span(reply.visibility_timeout_ms, reply.visibility_timeout_seconds);
        self.client.settings().caps.check(Limit::Visibility, by, visibility);
        self.receipt.lock().unwrap_or_else(PoisonError::into_inner).meta_etag =
            Some(reply.meta_etag.clone());
        if let Some(tenure) = &self.tenure {
            tenure.extend(sent, visibility);
        }
        Ok(Extended {
            visibility,
            expires_at_unix: reply.lease_expires_at_unix,
            expires_at_unix_ms: reply.lease_expires_at_unix_ms,
            meta_etag: reply.meta_etag,
        })
    }

    /// Gives the message back in the background, if nobody has answered for it.
    pub(super) fn part(self: &Arc<Self>, how: GiveBack) {
        let unanswered = self.course.try_lock().is_ok_and(|course| course.stage == Stage::Open);
        let lost = self.tenure.as_ref().is_some_and(|tenure| tenure.lost_yet().is_some());
        let (true, false, Some(runtime)) = (unanswered, lost, &self.runtime) else { return };
        let hold = Arc::clone(self);
        self.client.spawn_farewell(runtime, async move {
            let mut patience = hold.client.patience();
            patience.silence = Some(hold.client.settings().timeout.min(FAREWELL_MAX));
            patience.passes = FAREWELL_PASSES;
            patience.passes_reached = FAREWELL_PASSES;
            patience.until = Some(hold.client.clock().now().plus(FAREWELL_MAX));
            if let Err(failure) = hold.nack_within(&how, patience).await {
                let message_id = hold.receipt().message_id;
                tracing::debug!(message_id, %failure, "dropped message not given back");
            }
        });
    }

    /// The usual patience, while the message is ours.
    pub(super) fn patience(&self) -> Patience {
        self.while_ours(self.client.patience(), None)
    }

    /// Not longer than the message is ours. Notes when a call is made again.
    fn while_ours(&self, mut patience: Patience, repeated: Option<&Arc<AtomicBool>>) -> Patience {
        let (tenure, repeated) = (self.tenure.clone(), repeated.cloned());
        patience.worth = Some(Arc::new(move || {
            if let Some(repeated) = &repeated {
                repeated.store(true, Ordering::Relaxed);
            }
            tenure.as_ref().is_none_or(|tenure| tenure.is_held())
        }));
        patience
    }

    fn call(&self, path: &'static str, patience: Patience) -> Call {
        Call::new(http::Method::POST, path, patience)
    }

    async fn send<T: Serialize, R: DeserializeOwned>(
        &self,
        call: Call,
        request: &T,
    ) -> Result<R, Failed> {
        self.client.fetch(&call.json(request)?).await?.json()
    }

    /// The receipt as the next call shows it.
    fn shown(&self, course: &Course) -> Receipt {
        let mut receipt = self.receipt();
        receipt.meta_etag = receipt.meta_etag.filter(|_| course.etag_sure);
        receipt
    }

    fn still_ours(&self) -> Result<(), Failed> {
        match self.tenure.as_ref().and_then(|tenure| tenure.lost_yet()) {
            Some(lost) => Err(Failure::new(Cause::Lost(lost))),
            None => Ok(()),
        }
    }

    fn end(&self, course: &mut Course, how: Stage) {
        course.stage = how;
        if let Some(tenure) = &self.tenure {
            tenure.end(LostReason::Released);
        }
    }

    /// An answer for the message was refused, or did not arrive.
    fn failed(&self, course: &mut Course, was: Stage, failure: Failed) -> Failed {
        if !failure.unknown {
            course.stage = was;
        }
        self.observe(failure)
    }

    /// Notes when a failure says that the message is not ours any more.
    fn observe(&self, failure: Failed) -> Failed {
        if let Some(tenure) = &self.tenure {
            tenure.observe(&failure);
        }
        if !is_gone(&failure) {
            return failure;
        }
        let detail = failure.to_string();
        if let Some(tenure) = &self.tenure {
            tenure.lose(LostReason::Gone, &detail);
        }
        let at_unix_ms = self.client.clock().unix_ms();
        let held_for = Duration::ZERO;
        let lost = Lost { reason: LostReason::Gone, detail, at_unix_ms, held_for };
        Failure::new(Cause::Lost(lost))
    }
}

/// How long the consumer has it.
pub(super) fn visibility(delivered: &DeliveredMessage) -> Duration {
    span(delivered.visibility_timeout_ms, delivered.visibility_timeout_seconds)
}

/// Milliseconds are finer, where they are told.
fn span(ms: u64, seconds: u64) -> Duration {
    if ms > 0 { Duration::from_millis(ms) } else { Duration::from_secs(seconds) }
}

/// Whether there is no such message any more.
fn is_gone(failure: &Failure) -> bool {
    has_code(failure, ErrorCode::NotFound)
}

pub(super) fn has_code(failure: &Failure, code: ErrorCode) -> bool {
    failure.refusal().is_some_and(|refusal| refusal.body.error == code.as_str())
}

fn receipt(delivered: &DeliveredMessage) -> Receipt {
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    Receipt {
        namespace: some(&delivered.namespace),
        queue: delivered.queue.clone(),
        message_id: delivered.message_id.clone(),
        lease_id: delivered.lease_id.clone(),
        token: Some(delivered.fencing_token),
        txn_id: some(&delivered.txn_id),
        meta_etag: some(&delivered.meta_etag),
        state_etag: delivered.state_etag.clone(),
        state_lease_id: delivered.state_lease_id.clone(),
        state_token: delivered.state_fencing_token,
    }
}

/// Without the lease ids and the transaction, which are secrets.
impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt")
            .field("namespace", &self.namespace)
            .field("queue", &self.queue)
            .field("message_id", &self.message_id)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("receipt", &self.receipt()).finish_non_exhaustive()
    }
}
