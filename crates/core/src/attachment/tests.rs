//! Attachments from upload to the end of their key's lease.

use super::*;
use crate::fence::FenceFacts;
use crate::ids::{LeaseId, TxnId};
use crate::lease::{Acquire, Release};
use crate::record::{Change, Content, Etag, State};
use crate::state::{Guard, Stage, Then};
use crate::time::{Span, Tick, UnixMillis};

fn at(ms: u64) -> Now {
    Now { tick: Tick(ms), wall: UnixMillis(1_000_000 + ms) }
}

fn proof() -> Proof {
    Proof { lease: LeaseId::new("l"), fence: None, txn: None }
}

fn granted(record: &KeyRecord) -> KeyRecord {
    let ask = Acquire {
        new_id: LeaseId::new("l"),
        owner: "o".into(),
        txn: TxnId::parse("00000000000000000000").unwrap(),
        recorded: false,
        ttl: Span(1_000),
        if_not_exists: false,
        stamp: None,
    };
    lease::acquire(record, &ask, at(0)).unwrap().record.unwrap()
}

fn ask(name: &str, blob: &str, now: Now) -> Attach {
    let body = State { etag: Etag([1; 32]), bytes: 5, content: Content::Blob(blob.into()) };
    let attachment = Attachment {
        id: format!("id of {blob}").into(),
        name: name.into(),
        content_type: "text/plain".into(),
        created_at: now.wall,
        updated_at: now.wall,
        body,
    };
    Attach { proof: proof(), attachment, keep_existing: false }
}

fn attached(record: &KeyRecord, name: &str, blob: &str) -> (KeyRecord, Vec<Effect>) {
    let decided = attach(record, &ask(name, blob, at(1)), at(1)).unwrap();
    (decided.record.unwrap(), decided.effects)
}

fn dropped(effects: &[Effect]) -> Vec<&str> {
    let blobs = effects.iter().filter_map(|effect| match effect {
        Effect::DropBlob(name) => Some(&**name),
        Effect::Granted | Effect::Ended { .. } | Effect::Committed | Effect::Removed => None,
    });
    blobs.collect()
}

fn let_go(record: &KeyRecord, rollback: bool) -> (KeyRecord, Vec<Effect>) {
    let ask = Release { proof: proof(), rollback, fences: Vec::new(), stamp: None };
    let decided = lease::release(record, &ask, &FenceFacts::default(), at(5)).unwrap();
    (decided.record.unwrap(), decided.effects)
}

fn names(attachments: &[Attachment]) -> Vec<&str> {
    attachments.iter().map(|attachment| &*attachment.name).collect()
}

#[test]
fn what_is_attached_is_the_holders_until_it_is_committed() {
    let (record, _) = attached(&granted(&KeyRecord::default()), "b", "1");
    let (record, _) = attached(&record, "a", "2");
    assert_eq!(names(record.holder_attachments()), ["a", "b"]);
    assert!(record.attachments.is_empty());
    assert_eq!(record.blobs().count(), 2, "nobody collects them meanwhile");
    let (kept, effects) = let_go(&record, false);
    assert_eq!((names(&kept.attachments), kept.version), (vec!["a", "b"], Version(1)));
    assert!(dropped(&effects).is_empty());
    let (gone, effects) = let_go(&record, true);
    assert_eq!((gone.attachments.len(), gone.version), (0, Version(0)));
    assert_eq!(dropped(&effects), ["2", "1"]);
}

#[test]
fn another_of_the_same_name_keeps_id_and_birth() {
    let (record, _) = attached(&granted(&KeyRecord::default()), "a", "1");
    let later = attach(&record, &ask("a", "2", at(7)), at(7)).unwrap();
    assert_eq!(&*later.answer.attachment.id, "id of 1");
    assert_eq!(later.answer.attachment.created_at, at(1).wall);
    assert_eq!(later.answer.attachment.updated_at, at(7).wall);
    assert_eq!(dropped(&later.effects), ["1"], "nothing names the first any more");
    let kept = Attach { keep_existing: true, ..ask("a", "3", at(8)) };
    let kept = attach(&later.record.unwrap(), &kept, at(8)).unwrap();
    assert!(kept.answer.kept && kept.record.is_none());
    assert_eq!(kept.answer.attachment.body.blob().unwrap().as_ref(), "2");
}

#[test]
fn what_is_replaced_goes_when_that_is_committed_and_not_before() {
    let (record, _) = attached(&granted(&KeyRecord::default()), "a", "1");
    let (record, _) = let_go(&record, false);
    let (record, effects) = attached(&granted(&record), "a", "2");
    assert!(dropped(&effects).is_empty(), "readers still see the first");
    let (kept, effects) = let_go(&record, false);
    assert_eq!(dropped(&effects), ["1"]);
    assert_eq!(kept.attachments[0].body.blob().unwrap().as_ref(), "2");
    let (back, effects) = let_go(&record, true);
    assert_eq!(dropped(&effects), ["2"]);
    assert_eq!(back.attachments[0].body.blob().unwrap().as_ref(), "1");
}

#[test]
fn detaching_is_staged_too() {
    let (record, _) = attached(&granted(&KeyRecord::default()), "a", "1");
    let (record, _) = attached(&record, "b", "2");
    let (record, _) = let_go(&record, false);
    let record = granted(&record);
    let none = detach(&record, &proof(), &Which::Name("z".into()), at(1)).unwrap();
    assert_eq!((none.answer.count, none.record), (0, None));
    let one = detach(&record, &proof(), &Which::Id("id of 1".into()), at(1)).unwrap();
    assert_eq!(one.answer, Detached { count: 1, version: Version(2) });
    let (kept, effects) = let_go(&one.record.unwrap(), false);
    assert_eq!((names(&kept.attachments), dropped(&effects)), (vec!["b"], vec!["1"]));
    let all = detach(&record, &proof(), &Which::All, at(1)).unwrap();
    assert_eq!(all.answer.count, 2);
}

#[test]
fn removing_the_document_takes_the_attachments_with_it() {
    let (record, _) = attached(&granted(&KeyRecord::default()), "a", "1");
    let (record, _) = let_go(&record, false);
    let (record, _) = attached(&granted(&record), "b", "2");
    let remove = Stage {
        proof: proof(),
        guard: Guard::default(),
        change: Change::Remove,
        hidden: None,
        fences: Vec::new(),
        then: Then::Release,
        alone: false,
        stamp: None,
    };
    let gone = state::stage(&record, &remove, &FenceFacts::default(), at(2)).unwrap();
    assert!(gone.answer.removed);
    let mut blobs = dropped(&gone.effects);
    blobs.sort_unstable();
    assert_eq!(blobs, ["1", "2"]);
    assert!(gone.record.unwrap().attachments.is_empty());
}

#[test]
fn there_is_a_bound_and_only_the_holder_attaches() {
    let mut record = granted(&KeyRecord::default());
    for number in 0..ATTACHMENTS_MAX {
        record = attached(&record, &format!("{number}"), &format!("{number}")).0;
    }
    let full = attach(&record, &ask("one more", "x", at(1)), at(1)).unwrap_err();
    assert_eq!(full, AttachRefused::Full);
    attach(&record, &ask("7", "x", at(1)), at(1)).unwrap();
    let late = attach(&record, &ask("7", "x", at(1)), at(2_000)).unwrap_err();
    assert_eq!(late, ProofRefused::Expired.into());
}
