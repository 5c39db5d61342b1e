//! Names of queues and of what belongs to them. A message has a key of its own,
//! `q/<queue>/msg/<id>`, and so has the state that its consumers may keep beside it,
//! `q/<queue>/state/<id>`. Nobody but the queue leases them.

use std::fmt;
use std::sync::Arc;

use crate::key::{KeyName, NameRefused, is_component, parse_namespace};
use crate::time::UnixMillis;

/// A queue in its namespace, written `namespace/queue`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName {
    full: Arc<str>,
    namespace_len: usize,
}

/// The id of a message: a time-ordered UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u128);

/// What a key is to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Message,
    /// Beside a message.
    State,
}

/// The text is not a UUID in lower-case hyphenated form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message id is a UUID, as enqueue gave it")]
pub struct BadMessageId;

impl QueueName {
    /// # Errors
    /// When a part breaks the rule for names.
    pub fn parse(namespace: &str, queue: &str) -> Result<Self, NameRefused> {
        let mut full = parse_namespace(namespace)?;
        let queue = queue.trim();
        if !is_component(queue) {
            return Err(NameRefused::Queue);
        }
        let namespace_len = full.len();
        full.push('/');
        full.push_str(&queue.to_ascii_lowercase());
        Ok(Self { full: full.into(), namespace_len })
    }

    /// The queue that a message or its state belongs to.
    #[must_use]
    pub fn of(key: &KeyName) -> Option<(Self, MessageId, Role)> {
        let (queue, id, role) = structure(key.key())?;
        let namespace = key.namespace();
        let full = [namespace, "/", queue].concat().into();
        Some((Self { full, namespace_len: namespace.len() }, id, role))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.full
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        self.full.get(..self.namespace_len).unwrap_or_default()
    }

    #[must_use]
    pub fn queue(&self) -> &str {
        self.full.get(self.namespace_len + 1..).unwrap_or_default()
    }

    #[must_use]
    pub fn message_key(&self, id: MessageId) -> KeyName {
        self.key("msg", id)
    }

    #[must_use]
    pub fn state_key(&self, id: MessageId) -> KeyName {
        self.key("state", id)
    }

    fn key(&self, kind: &str, id: MessageId) -> KeyName {
        let mut text = [0; ID_BYTES];
        let parts = [self.namespace(), "/q/", self.queue(), "/", kind, "/", id.text(&mut text)];
        KeyName::structural(parts.concat().into(), self.namespace_len)
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

/// What a key is to a queue, if anything.
#[must_use]
pub fn role(key: &KeyName) -> Option<Role> {
    structure(key.key()).map(|(_, _, role)| role)
}

/// Queue, id and role in a key without its namespace.
pub(crate) fn structure(key: &str) -> Option<(&str, MessageId, Role)> {
    let rest = key.strip_prefix("q/")?;
    let mut parts = rest.split('/');
    let (queue, kind, id) = (parts.next()?, parts.next()?, parts.next()?);
    let role = match kind {
        "msg" => Role::Message,
        "state" => Role::State,
        _ => return None,
    };
    let id = MessageId::parse(id).ok()?;
    (parts.next().is_none() && is_component(queue)).then_some((queue, id, role))
}

const ID_BYTES: usize = 36;
/// The lengths of the groups of a UUID, in digits.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

impl MessageId {
    /// # Errors
    /// When the text is no UUID.
    pub fn parse(text: &str) -> Result<Self, BadMessageId> {
        let mut groups = text.split('-');
        let mut value: u128 = 0;
        for length in GROUPS {
            let group = groups.next().filter(|group| group.len() == length).ok_or(BadMessageId)?;
            for byte in group.bytes() {
                let digit = match byte {
                    b'0'..=b'9' => byte - b'0',
                    b'a'..=b'f' => byte - b'a' + 10,
                    _ => return Err(BadMessageId),
                };
                value = (value << 4) | u128::from(digit);
            }
        }
        if groups.next().is_some() { Err(BadMessageId) } else { Ok(Self(value)) }
    }

    /// When it was made, by the clock of its maker.
    #[must_use]
    pub fn made_at(self) -> UnixMillis {
        UnixMillis(u64::try_from(self.0 >> 80).unwrap_or(0))
    }

    fn text(self, out: &mut [u8; ID_BYTES]) -> &str {
        let mut shift = 128;
        let mut places = out.iter_mut();
        for (index, length) in GROUPS.into_iter().enumerate() {
            if index > 0
                && let Some(place) = places.next()
            {
                *place = b'-';
            }
            for place in places.by_ref().take(length) {
                shift -= 4;
                let digit = ((self.0 >> shift) & 15).to_le_bytes()[0];
                *place = if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
            }
        }
        std::str::from_utf8(out).unwrap_or_default()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(&mut [0; ID_BYTES]))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::{MessageId, QueueName, Role, role};
    use crate::key::{KeyName, NameRefused};

    const ID: &str = "0190b3a4-7c1d-7000-8000-00000000abcd";

    #[test]
    fn an_id_is_read_and_written_the_same() {
        let id = MessageId::parse(ID).unwrap();
        assert_eq!(id.to_string(), ID);
        assert_eq!(id.0, 0x0190_b3a4_7c1d_7000_8000_0000_0000_abcd);
        let upper = ID.to_ascii_uppercase();
        for bad in ["", "0190b3a47c1d70008000000000000000", upper.as_str(), &ID[1..], "a-b-c-d-e"] {
            assert!(MessageId::parse(bad).is_err(), "{bad}");
        }
        assert!(MessageId::parse(&format!("{ID}-0")).is_err());
    }

    #[test]
    fn a_message_key_tells_its_queue() {
        let queue = QueueName::parse("NS", " Orders ").unwrap();
        assert_eq!((queue.namespace(), queue.queue()), ("ns", "orders"));
        let id = MessageId::parse(ID).unwrap();
        let key = queue.message_key(id);
        assert_eq!(key.as_str(), format!("ns/q/orders/msg/{ID}"));
        assert_eq!(KeyName::parse_full(key.as_str()), Ok(key.clone()));
        assert_eq!(QueueName::of(&key), Some((queue.clone(), id, Role::Message)));
        assert_eq!(role(&queue.state_key(id)), Some(Role::State));
    }

    #[test]
    fn the_longest_queue_has_keys_too() {
        let queue = QueueName::parse("ns", &"q".repeat(128)).unwrap();
        let key = queue.state_key(MessageId::parse(ID).unwrap());
        assert_eq!(KeyName::parse_full(key.as_str()), Ok(key));
        assert_eq!(QueueName::parse("ns", &"q".repeat(129)), Err(NameRefused::Queue));
        assert_eq!(QueueName::parse("ns", "a/b"), Err(NameRefused::Queue));
        assert_eq!(QueueName::parse("ns", ""), Err(NameRefused::Queue));
    }

    #[test]
    fn other_keys_have_no_role() {
        for key in ["q", "q/orders", "q/orders/msg", "q/orders/msg/7", "r/orders/msg/7"] {
            assert_eq!(role(&KeyName::parse("ns", key).unwrap()), None, "{key}");
        }
        let deeper = format!("q/orders/msg/{ID}/x");
        assert_eq!(role(&KeyName::parse("ns", &deeper).unwrap()), None);
    }
}
