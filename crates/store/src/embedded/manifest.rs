//! The manifest: a small file beside the log that says what the store must hold. It names the
//! store, every log segment that may hold frames, and how far tree and log were durable when it
//! was written. A segment is named before its first frame is acknowledged and until its frames
//! are in the tree, so a named segment that is missing was lost. It is written when the log goes
//! on in another segment, after a checkpoint and at an orderly stop, never with a commit.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::dir::{Layout, MANIFEST_FILE};
use super::disk::{Disk, write_atomically};
use super::frame::Seal;
use super::head::Position;
use super::log::{file_name, parse_name};
use super::options::OpenError;

const FIRST_LINE: &str = "lockd manifest 1";
const END: &str = "end ";
/// Where it is written before it gets its name.
const DRAFT_FILE: &str = "MANIFEST.tmp";

/// Tells the files of one store from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoreId(pub(super) u128);

impl StoreId {
    pub(super) fn random() -> Self {
        Self(rand::random())
    }
}

/// A segment that may hold frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) seal: Seal,
    /// The size of its file, which never changes.
    pub(super) bytes: u64,
    /// Where its frames begin.
    pub(super) start: u64,
    /// The number of its first frame, once that is known.
    pub(super) first: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) store: StoreId,
    /// The tree reaches this position, or a later one.
    pub(super) tree: Position,
    /// All frames with lower numbers are durable.
    pub(super) synced: u64,
    pub(super) segments: Vec<Named>,
    /// Files of the tree. It may have merged them into others since.
    pub(super) tables: Vec<TableMark>,
}

/// What tells a file of the tree from one of the same number in another tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableMark {
    pub(super) id: u64,
    /// The checksum of the file, by the list of files that the tree keeps.
    pub(super) checksum: u128,
    /// When it was made, by the file itself.
    pub(super) made: u128,
}

impl Manifest {
    /// That of a store in which nothing is yet.
    pub(super) fn empty() -> Self {
        let tree = Position { next_frame: 1, revision: 0 };
        Self { store: StoreId::random(), tree, synced: 1, segments: Vec::new(), tables: Vec::new() }
    }

    /// Reads the manifest of a store that must have one.
    pub(super) fn load(disk: &dyn Disk, layout: &Layout) -> Result<Self, OpenError> {
        let path = layout.manifest();
        let bytes = disk.read(&path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                layout.damaged("the file MANIFEST is missing")
            } else {
                layout.io(format!("{}: {error}", path.display()))
            }
        })?;
        let text = std::str::from_utf8(&bytes).ok();
        text.and_then(Self::parse)
            .ok_or_else(|| layout.damaged("the file MANIFEST is not what was written"))
    }

    /// Whether the tree may give a number of a file that is named here to another file.
    pub(super) fn is_behind(&self, tables: &[TableMark]) -> bool {
        let highest = tables.iter().map(|table| table.id).max();
        self.tables.iter().any(|known| Some(known.id) > highest)
    }

    /// An error if the tree does not reach what it did when this manifest was written.
    pub(super) fn judge_tree(&self, tree: Position, tables: &[TableMark]) -> Result<(), String> {
        for table in tables {
            if self.tables.iter().any(|known| known.id == table.id && known != table) {
                return Err(format!("tree: file {} is that of another store", table.id));
            }
        }
        if tree.next_frame >= self.tree.next_frame && tree.revision >= self.tree.revision {
            return Ok(());
        }
        Err(format!(
            "tree: it ends before frame {} and after revision {}, but reached frame {} and \
             revision {}",
            tree.next_frame, tree.revision, self.tree.next_frame, self.tree.revision
        ))
    }

    /// Puts this manifest in place of the last one. After an error either may be in place.
    pub(super) fn write(&self, disk: &dyn Disk, root: &Path) -> io::Result<()> {
        let draft = root.join(DRAFT_FILE);
        disk.write_new(&draft, self.text().as_bytes())?;
        disk.rename(&draft, &root.join(MANIFEST_FILE))?;
        disk.sync_dir(root)
    }

    /// As `write`, for a store that no engine has open.
    pub(super) fn write_at_rest(&self, layout: &Layout) -> io::Result<()> {
        write_atomically(&layout.manifest(), self.text().as_bytes())
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{FIRST_LINE}\nstore {:032x}\ntree {} {}\nsynced {}\n",
            self.store.0, self.tree.next_frame, self.tree.revision, self.synced
        );
        for TableMark { id, checksum, made } in &self.tables {
            writeln!(text, "table {id} {checksum:032x} {made}").ok();
        }
        for Named { seal, bytes, start, first } in &self.segments {
            let first = first.map_or_else(|| "-".to_owned(), |first| first.to_string());
            // Writing to a string does not fail.
            writeln!(text, "segment {} {bytes} {start} {first}", file_name(*seal)).ok();
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        writeln!(text, "{END}{checksum:08x}").ok();
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let (body, checksum) = text.strip_suffix('\n')?.rsplit_once(END)?;
        if u32::from_str_radix(checksum, 16).ok()? != crc32c::crc32c(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let store = u128::from_str_radix(lines.next()?.strip_prefix("store ")?, 16).ok()?;
        let (next_frame, revision) = lines.next()?.strip_prefix("tree ")?.split_once(' ')?;
        let tree =
            Position { next_frame: next_frame.parse().ok()?, revision: revision.parse().ok()? };
        let synced = lines.next()?.strip_prefix("synced ")?.parse().ok()?;
        let (tables, segments): (Vec<_>, Vec<_>) =
            lines.partition(|line| line.starts_with("table "));
        let tables = tables.into_iter().map(parse_table).collect::<Option<_>>()?;
        let segments = segments.into_iter().map(parse_segment).collect::<Option<_>>()?;
        Some(Self { store: StoreId(store), tree, synced, segments, tables })
    }
}

fn parse_table(line: &str) -> Option<TableMark> {
    let mut fields = line.strip_prefix("table ")?.split(' ');
    let id = fields.next()?.parse().ok()?;
    let checksum = u128::from_str_radix(fields.next()?, 16).ok()?;
    let made = fields.next()?.parse().ok()?;
    fields.next().is_none().then_some(TableMark { id, checksum, made })
}

fn parse_segment(line: &str) -> Option<Named> {
    let mut fields = line.strip_prefix("segment ")?.split(' ');
    let seal = parse_name(fields.next()?)?;
    let bytes = fields.next()?.parse().ok()?;
    let start = fields.next()?.parse().ok()?;
    let first = match fields.next()? {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    fields.next().is_none().then_some(Named { seal, bytes, start, first })
}

#[cfg(test)]
mod tests {
    use super::{Manifest, Named, Position, Seal, TableMark};

    #[test]
    fn a_manifest_is_read_back_as_it_was_written_or_not_at_all() {
        let seal = Seal { segment: 7, salt: 0xfedc_ba98_7654_3210 };
        let named = |first| Named { seal, bytes: 16 << 20, start: 64, first };
        let tree = Position { next_frame: 12, revision: 99 };
        let segments = vec![named(Some(3)), named(None)];
        let tables = vec![TableMark { id: 3, checksum: 1 << 100, made: 77 }];
        let manifest = Manifest { tree, synced: 15, segments, tables, ..Manifest::empty() };
        let text = manifest.text();
        assert_eq!(Manifest::parse(&text), Some(manifest), "{text}");
        for cut in 0..text.len() {
            assert_eq!(Manifest::parse(&text[..cut]), None, "cut to {cut}");
            let mut flipped = text.clone().into_bytes();
            flipped[cut] ^= 1;
            let flipped = String::from_utf8(flipped).unwrap();
            assert_eq!(Manifest::parse(&flipped), None, "flipped at {cut}");
        }
    }
}
