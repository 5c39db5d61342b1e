//! The tree against a map: what checkpoints put into it is what comes out, whatever is merged,
//! deleted and opened again in between.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::scratch;
use crate::embedded::head::{Entry, Position, Table};
use crate::embedded::manifest::StoreId;
use crate::embedded::tree::{Tree, Walk};

const CACHE_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    /// Values by key; `None` deletes.
    Checkpoint(BTreeMap<u8, Option<u16>>),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0..12_u8, proptest::option::of(0..1000_u16));
    prop_oneof![
        6 => proptest::collection::btree_map(0..12_u8, proptest::option::of(0..1000_u16), 0..8)
            .prop_map(Step::Checkpoint),
        3 => write.prop_map(|(key, value)| Step::Checkpoint(BTreeMap::from([(key, value)]))),
        1 => Just(Step::Reopen),
    ]
}

fn contents(tree: &Arc<Tree>) -> BTreeMap<String, Bytes> {
    let mut found = BTreeMap::new();
    tree.snapshot()
        .walk(Bound::Unbounded, |name, stored| {
            found.insert(name.to_owned(), stored.bytes);
            Walk::On
        })
        .unwrap();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_is_the_sum_of_its_checkpoints(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let folder = scratch();
        let (tree, _) = Tree::open(folder.path(), CACHE_BYTES, StoreId(1)).unwrap();
        let mut tree = Arc::new(tree);
        let mut model: BTreeMap<String, Bytes> = BTreeMap::new();
        let mut position = Position { next_frame: 1, revision: 0 };
        for step in steps {
            match step {
                Step::Checkpoint(writes) => {
                    let mut table = Table::default();
                    for (key, value) in writes {
                        let name = format!("k{key:02}");
                        position.revision += 1;
                        let bytes = value.map(|value| Bytes::from(value.to_string()));
                        match &bytes {
                            Some(bytes) => model.insert(name.clone(), bytes.clone()),
                            None => model.remove(&name),
                        };
                        let entry = Entry { revision: position.revision, bytes, in_tree: true };
                        table.put(Arc::from(name), entry);
                    }
                    position.next_frame += 1;
                    tree.ingest(&table, position).unwrap();
                }
                Step::Reopen => {
                    drop(tree);
                    let (opened, reached) = Tree::open(folder.path(), CACHE_BYTES, StoreId(1)).unwrap();
                    prop_assert_eq!(reached, position);
                    tree = Arc::new(opened);
                }
            }
            prop_assert_eq!(contents(&tree), model.clone());
            for key in 0..12 {
                let name = format!("k{key:02}");
                let stored = tree.get(&name).unwrap().map(|stored| stored.bytes);
                prop_assert_eq!(stored.as_ref(), model.get(&name));
            }
        }
    }
}
