//! Looks at a store that nobody has open: reads every frame of the log, every record of the tree
//! and every blob, verifies what can be verified, and lists what is wrong. It repairs nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use super::blob::{Blobs, Kind};
use super::dir::{FORMAT_WITHOUT_MANIFEST, Layout};
use super::disk::RealDisk;
use super::head::{Entry, Position, Table};
use super::manifest::{Manifest, StoreId};
use super::options::{CACHE_BYTES, OpenError};
use super::recover::recover;
use super::tree::{Tree, Walk};
use crate::port::{Name, StoreError};

/// More problems than this are counted but not listed.
const PROBLEMS_MAX: usize = 1000;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The record, the blob or the part of the store.
    pub what: String,
    pub detail: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub records: u64,
    pub record_bytes: u64,
    /// Frames in the log that are not in the tree yet.
    pub log_frames: u64,
    pub blobs: u64,
    pub blob_bytes: u64,
    /// Blobs that were being written when the store stopped; the server collects them.
    pub unfinished_blobs: u64,
    pub problems: Vec<Problem>,
    /// Problems beyond those listed.
    pub more_problems: u64,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, what: impl Into<String>, detail: impl Into<String>) {
        if self.problems.len() < PROBLEMS_MAX {
            let (what, detail) = (what.into(), detail.into());
            self.problems.push(Problem { what, detail });
        } else {
            self.more_problems += 1;
        }
    }
}

/// What the caller makes of each record: an error is a problem of that record.
type Verify<'a> = dyn FnMut(&str, &[u8]) -> Result<(), String> + 'a;

/// Checks the store in `path`, which must not be open.
pub fn check(path: &Path, verify: &mut Verify<'_>) -> Result<Report, OpenError> {
    let layout = Layout { root: path.to_owned() };
    let lock = layout.claim_existing()?;
    let mut report = Report::default();
    let manifest = match layout.format()? {
        FORMAT_WITHOUT_MANIFEST => Ok(None),
        _ => Manifest::load(&RealDisk, &layout).map(Some),
    };
    let store = manifest.as_ref().ok().and_then(Option::as_ref).map(|manifest| manifest.store);
    let opened = Tree::open(&layout.tree(), CACHE_BYTES, store.unwrap_or(StoreId(0)));
    let tree = match opened {
        Ok((tree, position)) => {
            if let Ok(Some(manifest)) = &manifest
                && let Err(what) = manifest.judge_tree(position, &tree.tables())
            {
                report.problem("tree", what);
            }
            Some((Arc::new(tree), position))
        }
        Err(error) => {
            report.problem("tree", error.to_string());
            None
        }
    };
    // Without the tree it is unknown where the log goes on: it is read from wherever it begins.
    let start = tree.as_ref().map_or(Position { next_frame: 1, revision: 0 }, |tree| tree.1);
    // Without the manifest it is unknown which segments belong to it.
    let head = match manifest {
        Ok(manifest) => log(&layout, start, manifest.as_ref(), &mut report),
        Err(error) => {
            report.problem("manifest", damage(error));
            Table::default()
        }
    };
    records(tree.map(|(tree, _)| tree), &head, verify, &mut report);
    blobs(&layout, store, &mut report);
    drop(lock);
    Ok(report)
}

fn log(
    layout: &Layout,
    start: Position,
    manifest: Option<&Manifest>,
    report: &mut Report,
) -> Table {
    match recover(&RealDisk, layout, start, manifest) {
        Ok(recovered) => {
            report.log_frames = recovered.frames;
            recovered.head
        }
        Err(error) => {
            report.problem("log", damage(error));
            Table::default()
        }
    }
}

/// What is wrong, without what to do about it: that is what this report is for.
fn damage(error: OpenError) -> String {
    if let OpenError::Damaged { detail, .. } = error { detail } else { error.to_string() }
}

fn records(tree: Option<Arc<Tree>>, head: &Table, verify: &mut Verify<'_>, report: &mut Report) {
    let mut newer: BTreeMap<&Name, &Entry> = head.iter().collect();
    let mut look = |name: &str, bytes: &[u8], report: &mut Report| {
        report.records += 1;
        report.record_bytes += bytes.len() as u64;
        if let Err(reason) = verify(name, bytes) {
            report.problem(format!("record {name:?}"), reason);
        }
    };
    if let Some(tree) = tree {
        let walked = tree.snapshot().walk(Bound::Unbounded, |name, stored| {
            match newer.remove(&Name::from(name)) {
                Some(entry) => {
                    if let Some(bytes) = &entry.bytes {
                        look(name, bytes, report);
                    }
                }
                None => look(name, &stored.bytes, report),
            }
            Walk::On
        });
        if let Err(error) = walked {
            let reached = report.records;
            report.problem("tree", format!("after {reached} records: {error}"));
        }
    }
    for (name, entry) in newer {
        if let Some(bytes) = &entry.bytes {
            look(name, bytes, report);
        }
    }
}

fn blobs(layout: &Layout, store: Option<StoreId>, report: &mut Report) {
    let blobs = Blobs::new(layout.blobs());
    if let Some(store) = store {
        blobs.belong_to(store);
    }
    let kinds = [Kind::Finished, Kind::Unfinished];
    let walked = blobs.walk(None, &kinds, &mut |name, kind| {
        if kind == Kind::Unfinished {
            report.unfinished_blobs += 1;
            return true;
        }
        report.blobs += 1;
        match read_through(&blobs, &name) {
            Ok(bytes) => report.blob_bytes += bytes,
            Err(error) => report.problem(format!("blob {name:?}"), error.to_string()),
        }
        true
    });
    if let Err(error) = walked {
        report.problem("blobs", error.to_string());
    }
}

fn read_through(blobs: &Blobs, name: &str) -> Result<u64, StoreError> {
    let mut file = blobs.open(name, Kind::Finished)?;
    while file.next_frame()?.is_some() {}
    Ok(file.bytes())
}
