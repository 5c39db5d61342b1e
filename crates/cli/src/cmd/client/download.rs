//! Bytes of any length from the server, to standard output or to a file.

use std::io::Write as _;
use std::path::Path;

use bytes::Bytes;
use lockd_client::{Error, ReadKind};

use crate::exit::{Done, Problem};
use crate::folder;
use crate::ui::{self, Progress};

/// The next piece of a download; nothing at its end.
type Piece = Result<Option<Bytes>, Error<ReadKind>>;

/// Writes what `next` gives; `-` is standard output.
pub(super) async fn write(
    output: &str,
    length: Option<u64>,
    next: impl AsyncFnMut() -> Piece,
) -> Done {
    match output {
        "-" => to_stdout(length, next).await,
        path => to_file(Path::new(path), length, next).await,
    }
}

async fn to_stdout(length: Option<u64>, mut next: impl AsyncFnMut() -> Piece) -> Done {
    let progress = Progress::beside_output(length);
    while let Some(piece) = next().await? {
        ui::bytes(&piece)?;
        progress.add(piece.len());
    }
    progress.clear();
    Ok(())
}

/// Writes next to the file and puts it in place when it is complete.
async fn to_file(path: &Path, length: Option<u64>, mut next: impl AsyncFnMut() -> Piece) -> Done {
    let cannot = |error: &dyn std::fmt::Display| {
        Problem::failed(format!("cannot write {}: {error}", path.display()))
    };
    let progress = Progress::new(length);
    let mut file =
        tempfile::NamedTempFile::new_in(folder::of(path)).map_err(|error| cannot(&error))?;
    while let Some(piece) = next().await? {
        file.write_all(&piece).map_err(|error| cannot(&error))?;
        progress.add(piece.len());
    }
    progress.clear();
    file.flush().map_err(|error| cannot(&error))?;
    file.persist(path).map_err(|error| cannot(&error.error))?;
    Ok(())
}
