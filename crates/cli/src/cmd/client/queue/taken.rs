//! A message as commands hand it on: the variables that describe it, and the receipt that is made
//! of them again.
//!
//! The lease in the environment belongs to the message in the environment, and is never shown for
//! another one.

use clap::Args;
use lockd_client::{Message, Receipt};

use super::super::Session;
use super::QueueFlag;
use crate::context::QUEUE_PREFIX;
use crate::exit::{Done, Problem};

/// A message as flags name it.
#[derive(Clone, Debug, Args)]
pub(super) struct MessageFlags {
    #[command(flatten)]
    which: QueueFlag,
    /// Id of the message [env: LOCKD_QUEUE_MESSAGE_ID]
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    message: Option<String>,
    /// Id of its lease [env: LOCKD_QUEUE_LEASE]
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    lease: Option<String>,
    /// Its fencing token [env: LOCKD_QUEUE_FENCING_TOKEN]
    #[arg(long, value_name = "N")]
    fencing_token: Option<u64>,
    /// Its transaction [env: LOCKD_QUEUE_TXN_ID]
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    txn_id: Option<String>,
    /// Only if the message has not changed since it had this etag
    #[arg(long, value_name = "ETAG")]
    meta_etag: Option<String>,
    /// Id of the lease of its state [env: LOCKD_QUEUE_STATE_LEASE]
    #[arg(long, value_name = "ID", value_parser = crate::context::name)]
    state_lease: Option<String>,
    /// Fencing token of its state [env: LOCKD_QUEUE_STATE_FENCING_TOKEN]
    #[arg(long, value_name = "N")]
    state_fencing_token: Option<u64>,
    /// Etag of its state [env: LOCKD_QUEUE_STATE_ETAG]
    #[arg(long, value_name = "ETAG")]
    state_etag: Option<String>,
}

impl MessageFlags {
    /// What is shown for the message, from flags and environment.
    pub(super) fn receipt(self, session: &Session) -> Done<Receipt> {
        let environment = &session.environment;
        let known = match self.message {
            Some(_) => environment.of_queue("MESSAGE_ID"),
            None => environment.named_of_queue("MESSAGE_ID")?,
        };
        let missing = |what: &str| {
            Problem::usage(format!("no {what}")).hint(
                "run eval \"$(lockd client queue dequeue QUEUE)\", or give --message, --lease \
                 and --fencing-token",
            )
        };
        let message_id = self.message.or_else(|| known.map(str::to_owned));
        let message_id = message_id.ok_or_else(|| missing("message"))?;
        let same = known == Some(message_id.as_str());
        let given = |flag: Option<String>, name: &str| {
            flag.or_else(|| environment.of_queue(name).filter(|_| same).map(str::to_owned))
        };
        let lease_id = given(self.lease.clone(), "LEASE").ok_or_else(|| match known {
            Some(other) if !same => Problem::usage(format!(
                "no lease for {message_id}: the one in the environment is for {other}"
            ))
            .hint("give --lease and --fencing-token as well"),
            Some(_) | None => missing("lease"),
        })?;
        // The other parts go with the lease they were delivered with.
        let same = same && environment.of_queue("LEASE") == Some(lease_id.as_str());
        let given = |flag: Option<String>, name: &str| {
            flag.or_else(|| environment.of_queue(name).filter(|_| same).map(str::to_owned))
        };
        let number = |flag: Option<u64>, name: &str| match given(None, name) {
            _ if flag.is_some() => Ok(flag),
            None => Ok(None),
            Some(text) => text.trim().parse().map(Some).map_err(|_| {
                Problem::usage(format!("{QUEUE_PREFIX}{name} is not a number: {text:?}"))
            }),
        };
        let queue = match self.which.queue {
            Some(queue) => Some(queue),
            None => environment.named_of_queue("NAME")?.map(str::to_owned),
        };
        let queue = queue.ok_or_else(|| Problem::usage("no queue").hint("name it with --queue"))?;
        let namespace = if same { session.queue_namespace()? } else { session.namespace() };
        Ok(Receipt {
            namespace: namespace.map(str::to_owned),
            queue,
            message_id,
            token: number(self.fencing_token, "FENCING_TOKEN")?,
            txn_id: given(self.txn_id, "TXN_ID"),
            meta_etag: self.meta_etag,
            state_etag: given(self.state_etag, "STATE_ETAG"),
            state_lease_id: given(self.state_lease, "STATE_LEASE"),
            state_token: number(self.state_fencing_token, "STATE_FENCING_TOKEN")?,
            lease_id,
        })
    }
}

/// The variables that hand a message on to other commands.
pub(super) fn exports(message: &Message, payload_path: Option<&str>) -> Vec<(String, String)> {
    let delivered = message.delivered();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let mut exports = vec![
        ("NAMESPACE", delivered.namespace.clone()),
        ("NAME", delivered.queue.clone()),
        ("MESSAGE_ID", delivered.message_id.clone()),
        ("LEASE", delivered.lease_id.clone()),
        ("FENCING_TOKEN", delivered.fencing_token.to_string()),
        ("TXN_ID", delivered.txn_id.clone()),
        ("META_ETAG", delivered.meta_etag.clone()),
        ("ATTEMPTS", delivered.attempts.to_string()),
        ("FAILURES", delivered.failure_attempts.to_string()),
        ("CONTENT_TYPE", delivered.payload_content_type.clone()),
        ("ATTRIBUTES", delivered.attributes.as_ref().map_or("", |raw| raw.get()).to_owned()),
        ("CORRELATION_ID", delivered.correlation_id.clone()),
        ("PAYLOAD_PATH", payload_path.unwrap_or_default().to_owned()),
        // Empty rather than absent, so that nothing is left over from the message before.
        ("CURSOR", String::new()),
        ("STATE_LEASE", text(&delivered.state_lease_id)),
        (
            "STATE_FENCING_TOKEN",
            delivered.state_fencing_token.map(|token| token.to_string()).unwrap_or_default(),
        ),
        ("STATE_ETAG", text(&delivered.state_etag)),
        ("STATE_TXN_ID", text(&delivered.state_txn_id)),
    ];
    let state_key = message.state().map(|state| state.context().key.clone());
    exports.push(("STATE_KEY", state_key.unwrap_or_default()));
    exports.into_iter().map(|(name, value)| (format!("{QUEUE_PREFIX}{name}"), value)).collect()
}
