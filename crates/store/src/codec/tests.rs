//! Records come back as they were stored, and anything else is damage.

use bytes::Bytes;
use lockd_core::answer::{Answer, Remembered, Stamp, Written};
use lockd_core::fence::{Fence, FenceCondition};
use lockd_core::ids::{LeaseId, TxnId};
use lockd_core::key::KeyName;
use lockd_core::message::{Draft, Enqueued, Expiry, Message};
use lockd_core::pin::{Pin, PinId};
use lockd_core::queue::MessageId;
use lockd_core::record::{
    Attachment, Change, Content, End, Ended, Etag, KeyRecord, Lease, Staged, State, Version,
};
use lockd_core::time::{BootId, Deadline, Now, Span, Tick, Timeline, UnixMillis};
use lockd_core::txn::{Outcome, Participant, TxnRecord, TxnState, Why};
use proptest::prelude::{any, prop_assert_eq, proptest};

use super::{CodecError, decode, decode_enqueued, decode_txn, encode, encode_enqueued, encode_txn};

const BOOT: BootId = BootId(42);

fn timeline() -> Timeline {
    Timeline {
        boot: BOOT,
        start: Now { tick: Tick(5), wall: UnixMillis(6) },
        slack: Some(Span::ZERO),
    }
}

fn full() -> KeyRecord {
    let state = |content| State { etag: Etag([7; 32]), bytes: 300, content };
    KeyRecord {
        stored: true,
        fence: Fence(300),
        version: Version(12),
        state: Some(state(Content::Inline(b"{\"a\":1}".as_slice().into()))),
        attachments: Vec::new(),
        hidden: true,
        updated_at: UnixMillis(1_700_000_000_000),
        lease: Some(Lease {
            id: LeaseId::new("l-1"),
            owner: "worker".into(),
            txn: TxnId::parse("0123456789abcdefghij").unwrap(),
            recorded: true,
            ttl: Span(30_000),
            granted_at: UnixMillis(1),
            expires: Deadline { tick: Tick(90), wall: UnixMillis(91) },
        }),
        staged: Some(Staged {
            version: Version(13),
            change: Change::Write(state(Content::Blob("default/k/300-x".into()))),
            attachments: None,
            hidden: Some(false),
            fences: vec![FenceCondition {
                key: KeyName::parse("ns", "leader").unwrap(),
                token: Fence(4),
            }],
        }),
        ended: Some(Ended {
            lease: LeaseId::new("l-0"),
            fence: Fence(299),
            how: End::Revoked { reason: "stuck".into() },
        }),
        answers: vec![
            remembered(1, Answer::Released),
            remembered(2, Answer::Granted(LeaseId::new("l-1"))),
            remembered(
                3,
                Answer::Written(Written {
                    lease: LeaseId::new("l-1"),
                    version: Version(13),
                    etag: Some(Etag([9; 32])),
                    bytes: 5,
                    hidden: false,
                    removed: false,
                    committed: true,
                }),
            ),
        ],
        pins: Vec::new(),
        message: None,
        gone: false,
    }
}

/// A message with everything that one can have.
fn message() -> KeyRecord {
    let key = KeyName::parse("ns", "leader").unwrap();
    let message = Message {
        enqueued_at: UnixMillis(1_700_000_000_000),
        visible: Deadline { tick: Tick(70), wall: UnixMillis(71) },
        hidden_for: Span(1_000),
        attempts: 3,
        failures: 2,
        max_attempts: 200,
        visibility: Span(30_000),
        expires: Some(Expiry {
            at: Deadline { tick: Tick(99_000), wall: UnixMillis(1_800_000_000_000) },
            ttl: Span(60_000),
        }),
        content_type: "text/plain".into(),
        correlation: "c-1".into(),
        attributes: Some("{\"a\":1}".into()),
        last_error: Some("\"no\"".into()),
        changes: 400,
        stateful: true,
        dead: Some(UnixMillis(1_750_000_000_000)),
        draft: Some(Draft {
            txn: TxnId::parse("0123456789abcdefghij").unwrap(),
            fences: vec![FenceCondition { key, token: Fence(4) }],
        }),
    };
    let pin = |id, over| Pin { id: PinId(id), targets: vec!["k/ns/a".into(), "t/b".into()], over };
    let pins = vec![pin(7 << 100, true), pin(8, false)];
    KeyRecord { message: Some(Box::new(message)), pins, ..full() }
}

#[test]
fn the_answer_to_an_enqueue_comes_back_as_it_was() {
    let answer = Enqueued {
        request: 7 << 100,
        id: MessageId(9 << 90),
        visible_at: UnixMillis(1_700_000_000_000),
        visibility: Span(30_000),
        max_attempts: 5,
        bytes: 1 << 40,
    };
    let bytes = encode_enqueued(&answer);
    assert_eq!(decode_enqueued(&bytes), Ok(answer));
    for length in 0..bytes.len() {
        assert!(decode_enqueued(&bytes.slice(..length)).is_err(), "{length} bytes");
    }
}

#[test]
fn a_delay_of_another_boot_is_put_on_the_present_timeline() {
    let record = decode(&encode(&message(), BootId(41)), &timeline()).unwrap();
    assert_eq!(record.message.unwrap().visible.tick, Tick(5 + 65));
}

fn remembered(id: u128, answer: Answer) -> Remembered {
    Remembered { stamp: Stamp { id, request: id << 64 }, at: UnixMillis(8), answer }
}

/// With attachments, committed and staged.
fn fuller() -> KeyRecord {
    let attachment = |name: &str, content| Attachment {
        id: format!("id-{name}").into(),
        name: name.into(),
        content_type: "text/plain".into(),
        created_at: UnixMillis(5),
        updated_at: UnixMillis(6_000_000),
        body: State { etag: Etag([3; 32]), bytes: 9, content },
    };
    let small = attachment("a", Content::Inline(b"hello".as_slice().into()));
    let large = attachment("b", Content::Blob("default/k/300-y".into()));
    let mut record = full();
    record.attachments = vec![small.clone()];
    if let Some(staged) = &mut record.staged {
        staged.attachments = Some(vec![small, large]);
    }
    record
}

#[test]
fn a_record_comes_back_as_it_was() {
    for record in [KeyRecord { stored: true, ..KeyRecord::default() }, full(), fuller(), message()]
    {
        assert_eq!(decode(&encode(&record, BOOT), &timeline()), Ok(record));
    }
}

#[test]
fn a_lease_of_another_boot_is_put_on_the_present_timeline() {
    let record = decode(&encode(&full(), BootId(41)), &timeline()).unwrap();
    assert_eq!(record.lease.unwrap().expires.tick, Tick(5 + 85));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = encode(&message(), BOOT);
    for at in 0..bytes.len() * 8 {
        let mut damaged = bytes.to_vec();
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(decode(&damaged.into(), &timeline()).is_err(), "bit {at}");
    }
}

#[test]
fn every_cut_is_noticed() {
    let bytes = encode(&message(), BOOT);
    for length in 0..bytes.len() {
        assert!(decode(&bytes.slice(..length), &timeline()).is_err(), "{length} bytes");
    }
}

#[test]
fn a_newer_format_is_named() {
    let mut bytes = encode(&full(), BOOT).to_vec();
    bytes[2] = 9;
    assert_eq!(decode(&bytes.into(), &timeline()), Err(CodecError::Version(9)));
}

/// The bytes written by format 1 must be readable for ever.
#[test]
fn the_fixture_of_format_1_is_still_read() {
    let fixture = include_bytes!("../../fixtures/record-1.bin");
    assert_eq!(decode(&Bytes::from_static(fixture), &timeline()), Ok(full()));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![b'L', b'K', 1];
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        if let Ok(record) = decode(&bytes.into(), &timeline()) {
            prop_assert_eq!(decode(&encode(&record, BOOT), &timeline()), Ok(record));
        }
    }
}

fn txns() -> [TxnRecord; 3] {
    let key = |name: &str| KeyName::parse("bank", name).unwrap();
    let pending = TxnRecord {
        state: TxnState::Pending,
        participants: vec![
            Participant { key: key("a"), applied: false },
            Participant { key: key("b/c"), applied: true },
        ],
        term: 300,
        created_at: UnixMillis(1),
        updated_at: UnixMillis(2_000_000),
        expires_at: UnixMillis(3),
    };
    let revoked = Why::Revoked { key: key("a"), reason: "stuck".into() };
    let decided = |outcome| TxnRecord { state: TxnState::Decided(outcome), ..pending.clone() };
    [decided(Outcome::Commit), decided(Outcome::Rollback(revoked)), pending]
}

#[test]
fn a_transaction_comes_back_as_it_was_and_every_flipped_bit_is_noticed() {
    for record in txns() {
        let bytes = encode_txn(&record);
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(decode_txn(&damaged.into()).is_err(), "bit {at}");
        }
        assert!(decode(&bytes, &timeline()).is_err(), "taken for a key");
        assert_eq!(decode_txn(&bytes), Ok(record));
    }
}
