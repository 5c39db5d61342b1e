//! Random work on the store and on a map beside it, with checkpoints and restarts in between:
//! every answer, every load and every page must agree.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::{open, scratch, small};
use crate::conformance::{delete, name, put};
use crate::embedded::EmbeddedStore;
use crate::embedded::frame::{Seal, each_write, frame_at, later_frame};
use crate::port::{Expect, Op, Revision, Store, StoreError};

#[derive(Clone, Copy, Debug)]
enum Wish {
    Absent,
    Current,
    Stale,
    Any,
}

#[derive(Clone, Debug)]
enum Step {
    /// Keys, what is expected of each, and whether it is deleted.
    Commit(Vec<(usize, Wish, bool)>),
    Scan {
        prefix: &'static str,
        after: Option<usize>,
        limit: usize,
    },
    Checkpoint,
    Restart,
}

/// Names that are prefixes of each other, so that pages begin and end in odd places.
const NAMES: [&str; 10] = ["", "a", "a/", "a/b", "a/b/c", "a/c", "ab", "b", "b/a", "z"];

fn step() -> impl Strategy<Value = Step> {
    let wish = prop_oneof![
        2 => Just(Wish::Absent),
        6 => Just(Wish::Current),
        1 => Just(Wish::Stale),
        3 => Just(Wish::Any),
    ];
    let op = (0..NAMES.len(), wish, proptest::bool::weighted(0.3));
    let prefix = proptest::sample::select(vec!["", "a", "a/", "a/b", "b", "zz"]);
    prop_oneof![
        12 => proptest::collection::vec(op, 1..4).prop_map(Step::Commit),
        6 => (prefix, proptest::option::of(0..NAMES.len()), 0..6_usize)
            .prop_map(|(prefix, after, limit)| Step::Scan { prefix, after, limit }),
        3 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
    ]
}

type Model = BTreeMap<&'static str, (Revision, Bytes)>;

fn ops(model: &Model, wishes: &[(usize, Wish, bool)], round: usize) -> Vec<Op> {
    let op = |(key, wish, gone): &(usize, Wish, bool)| {
        let at = NAMES[*key];
        let current = model.get(at).map(|(revision, _)| *revision);
        let expect = match wish {
            Wish::Absent => Expect::Absent,
            Wish::Current => current.map_or(Expect::Absent, Expect::Revision),
            Wish::Stale => Expect::Revision(Revision(current.map_or(1, |at| at.0.max(2) - 1))),
            Wish::Any => Expect::Any,
        };
        if *gone { delete(at, expect) } else { put(at, expect, format!("{at} in {round}")) }
    };
    wishes.iter().map(op).collect()
}

/// What the commit must do to the map; `None`: it must be refused.
fn apply(model: &Model, ops: &[Op], revisions: &[Revision]) -> Option<Model> {
    let mut next = model.clone();
    for (op, revision) in ops.iter().zip(revisions) {
        let current = model.get(&*op.name).map(|(revision, _)| *revision);
        if !op.expect.is_met_by(current) {
            return None;
        }
        let at = NAMES.into_iter().find(|name| **name == *op.name).unwrap();
        match &op.write {
            crate::port::Write::Put(bytes) => next.insert(at, (*revision, bytes.clone())),
            crate::port::Write::Delete => next.remove(at),
            crate::port::Write::Check => None,
        };
    }
    Some(next)
}

async fn take(store: &mut Arc<EmbeddedStore>, model: &mut Model, step: Step, round: usize) {
    match step {
        Step::Commit(wishes) => {
            let ops = ops(model, &wishes, round);
            match store.commit(ops.clone()).await {
                Ok(revisions) => {
                    *model = apply(model, &ops, &revisions).expect("a wrong commit was taken");
                }
                Err(StoreError::Conflict) => {
                    let any = vec![Revision(u64::MAX); ops.len()];
                    assert!(apply(model, &ops, &any).is_none(), "a right commit was refused");
                }
                Err(other) => panic!("{other}"),
            }
        }
        Step::Scan { prefix, after, limit } => {
            let after = after.map(|at| NAMES[at]);
            let page = store.scan(prefix, after, limit).await.unwrap();
            let expected: Vec<_> = model
                .iter()
                .filter(|(name, _)| name.starts_with(prefix))
                .filter(|(name, _)| after.is_none_or(|after| **name > after))
                .take(limit)
                .map(|(at, (revision, bytes))| (name(at), *revision, bytes.clone()))
                .collect();
            let page: Vec<_> =
                page.into_iter().map(|(at, it)| (at, it.revision, it.bytes)).collect();
            assert_eq!(page, expected, "{prefix:?} after {after:?}, {limit} at most");
        }
        Step::Checkpoint => store.checkpoint_now(),
        Step::Restart => {
            store.close().await;
            let path = store.path().to_owned();
            *store = open(small(&path));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_store_is_a_map(steps in proptest::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = scratch();
            let mut store = open(small(folder.path()));
            let mut model = Model::new();
            for (round, step) in steps.into_iter().enumerate() {
                take(&mut store, &mut model, step, round).await;
                let names: Vec<_> = NAMES.iter().map(name).collect();
                let loaded = store.load_many(&names).await.unwrap();
                for (at, stored) in NAMES.iter().zip(loaded) {
                    let found = stored.map(|stored| (stored.revision, stored.bytes));
                    assert_eq!(found.as_ref(), model.get(at), "{at:?}");
                }
            }
        });
    }

    #[test]
    fn random_bytes_are_no_log(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0..500_usize) {
        let seal = Seal { segment: 1, salt: 2 };
        prop_assert!(frame_at(&bytes, at, seal).is_none());
        prop_assert!(later_frame(&bytes, at, 0, seal).is_none());
        // Whatever it is taken for, it is read without a panic.
        each_write(&bytes, |_| {});
    }
}
