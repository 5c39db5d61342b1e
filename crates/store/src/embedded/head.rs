//! The records that are durable in the log but not yet in the tree. Readers see them under one
//! lock, so that what was published together is seen together.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::tree::Tree;
use crate::port::{Name, Revision, Stored};

/// What one entry costs beside its name and its bytes, about.
const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// The newest version of a record; no bytes: it is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) revision: u64,
    pub(super) bytes: Option<Bytes>,
    /// Whether the tree may hold an older version, which a deletion must then cover.
    pub(super) in_tree: bool,
}

impl Entry {
    pub(super) fn stored(&self) -> Option<Stored> {
        let bytes = self.bytes.clone()?;
        Some(Stored { bytes, revision: Revision(self.revision) })
    }
}

/// Records in name order.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<Name, Entry>,
    bytes: u64,
}

impl Table {
    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory held, about.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &Entry)> {
        self.entries.iter()
    }

    /// Sets a record unless a newer version is there already.
    pub(super) fn put(&mut self, name: Name, entry: Entry) {
        let added = weight(&name, &entry);
        match self.entries.get_mut(&name) {
            Some(there) if there.revision > entry.revision => {}
            Some(there) => {
                self.bytes = self.bytes + added - weight(&name, there).min(self.bytes);
                *there = entry;
            }
            None => {
                self.bytes += added;
                self.entries.insert(name, entry);
            }
        }
    }

    fn range(&self, from: Bound<&str>) -> impl Iterator<Item = (&Name, &Entry)> {
        self.entries.range::<str, _>((from, Bound::Unbounded))
    }
}

fn weight(name: &str, entry: &Entry) -> u64 {
    let bytes = entry.bytes.as_ref().map_or(0, Bytes::len);
    (name.len() + bytes) as u64 + ENTRY_OVERHEAD_BYTES
}

/// How far the log has been taken into the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The first frame that is not in the tree.
    pub(super) next_frame: u64,
    /// The highest revision given so far.
    pub(super) revision: u64,
}

/// A generation that changes no more, and the position it reaches.
#[derive(Clone)]
pub(super) struct Frozen {
    pub(super) table: Arc<Table>,
    pub(super) position: Position,
}

/// Everything a reader needs, of one moment.
pub(super) struct Published {
    pub(super) head: Table,
    /// An older generation, while a checkpoint writes it to the tree.
    pub(super) frozen: Option<Frozen>,
    pub(super) tree: Arc<Tree>,
    pub(super) position: Position,
    /// How many generations were frozen so far.
    pub(super) generation: u64,
}

impl Published {
    /// The entry newer than the tree, if there is one.
    pub(super) fn dirty(&self, name: &str) -> Option<&Entry> {
        self.head.get(name).or_else(|| self.frozen.as_ref()?.table.get(name))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.head.bytes() + self.frozen.as_ref().map_or(0, |frozen| frozen.table.bytes())
    }

    /// Makes durable writes visible, all at once. `judged` is the generation in which the
    /// committer looked at what is there: if another was frozen since, what it saw in the head
    /// is in the tree by now, or soon will be.
    pub(super) fn publish(&mut self, writes: Vec<(Name, Entry)>, judged: u64, position: Position) {
        for (name, mut entry) in writes {
            entry.in_tree |= match self.head.get(&name) {
                Some(there) => there.in_tree,
                None => judged != self.generation,
            };
            self.head.put(name, entry);
        }
        self.position = position;
    }

    /// Moves the head into the frozen generation, to be written to the tree.
    pub(super) fn freeze(&mut self) -> Frozen {
        let (head, position, generation) = (&mut self.head, self.position, &mut self.generation);
        let freeze = || {
            *generation += 1;
            Frozen { table: Arc::new(std::mem::take(head)), position }
        };
        self.frozen.get_or_insert_with(freeze).clone()
    }

    /// Entries from `from` on that start with `prefix`, until `limit` of them are not deletions:
    /// no more can reach a page of that size, whatever the tree holds.
    pub(super) fn dirty_range(
        &self,
        from: Bound<&str>,
        prefix: &str,
        limit: usize,
    ) -> BTreeMap<Name, Entry> {
        let in_prefix = |(name, _): &(&Name, &Entry)| name.starts_with(prefix);
        let mut newer = self.head.range(from).take_while(in_prefix).peekable();
        let older =
            self.frozen.as_ref().map(|frozen| frozen.table.range(from).take_while(in_prefix));
        let mut older = older.into_iter().flatten().peekable();
        let mut found = BTreeMap::new();
        let mut live = 0;
        while live < limit {
            let order = match (newer.peek(), older.peek()) {
                (Some((new, _)), Some((old, _))) => new.cmp(old),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            if order == Ordering::Equal {
                older.next();
            }
            let next = if order == Ordering::Greater { older.next() } else { newer.next() };
            let Some((name, entry)) = next else { break };
            live += usize::from(entry.bytes.is_some());
            found.insert(Arc::clone(name), entry.clone());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, Bytes, Entry, Position, Published, Table, Tree};
    use crate::embedded::manifest::StoreId;

    fn published(folder: &std::path::Path) -> Published {
        let (tree, position) = Tree::open(folder, 1 << 20, StoreId(1)).unwrap();
        let (head, tree) = (Table::default(), Arc::new(tree));
        Published { head, frozen: None, tree, position, generation: 0 }
    }

    /// The committer saw a record that the tree does not hold, and a checkpoint took it there
    /// before its deletion was published: the deletion must reach the tree too.
    #[test]
    fn a_deletion_overtaken_by_a_checkpoint_is_not_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut published = published(folder.path());
        let at = |next_frame| Position { next_frame, revision: next_frame };
        let bytes = Some(Bytes::from_static(b"x"));
        let put = Entry { revision: 1, bytes, in_tree: false };
        published.publish(vec![("k".into(), put)], published.generation, at(2));
        let judged = published.generation;
        let seen = published.head.get("k").unwrap().in_tree;
        let frozen = published.freeze();
        published.tree.ingest(&frozen.table, frozen.position).unwrap();
        published.frozen = None;
        let delete = Entry { revision: 2, bytes: None, in_tree: seen };
        published.publish(vec![("k".into(), delete)], judged, at(3));
        let frozen = published.freeze();
        published.tree.ingest(&frozen.table, frozen.position).unwrap();
        assert_eq!(published.tree.get("k").unwrap(), None, "it came back from the dead");
    }

    /// A record made and deleted between two checkpoints costs the tree nothing.
    #[test]
    fn what_never_reached_the_tree_is_not_deleted_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut published = published(folder.path());
        let put = Entry { revision: 1, bytes: Some(Bytes::new()), in_tree: false };
        let delete = Entry { revision: 2, bytes: None, in_tree: false };
        let position = Position { next_frame: 2, revision: 2 };
        published.publish(vec![("k".into(), put), ("k".into(), delete)], 0, position);
        assert!(!published.head.get("k").unwrap().in_tree);
    }
}
