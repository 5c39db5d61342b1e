//! `get`: the state of a key, as it is or as people like to read it, to a file or standard output.

use std::io::Write as _;
use std::path::Path;

use clap::Args;
use lockd_client::{DocumentStream, GetStream, LeaseContext};

use super::Session;
use super::document::Type;
use crate::context::LeaseFlags;
use crate::exit::{Done, Problem};
use crate::folder;
use crate::ui::{self, Progress};

/// Read the state of a key
///
/// Under a lease this shows what the lease has staged; otherwise, and with --public, what is
/// committed. Prints nothing when there is no state.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    /// The key [env: LOCKD_CLIENT_KEY]
    #[arg(value_name = "KEY", conflicts_with = "key", value_parser = crate::context::name)]
    argument: Option<String>,
    #[command(flatten)]
    lease: LeaseFlags,
    /// Where to write it; - is standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: String,
    /// How to write it; auto goes by the name of the file
    #[arg(long = "type", value_enum, default_value_t = Type::Auto)]
    kind: Type,
    /// Tell version and etag on standard error
    #[arg(long)]
    show_meta: bool,
    /// Read what is committed, even under a lease
    #[arg(long)]
    public: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockd client get orders
  lockd client get orders --type json
  lockd client get orders -o orders.yaml
  lockd client get orders --public --show-meta";

pub(crate) async fn run(session: &Session, args: GetArgs) -> Done {
    let environment = &session.environment;
    let key = environment.need_key(args.lease.key.clone().or(args.argument))?;
    let context = environment.lease(&key, session.namespace(), &args.lease)?;
    let context = context.filter(|_| !args.public);
    let Some(stream) = open(session, &key, context).await? else { return Ok(()) };
    if args.show_meta {
        let etag = stream.etag().unwrap_or("-");
        ui::note(&format!("version={} etag={etag}", stream.version()));
    }
    write(stream, args.kind.resolve(&args.output), &args.output).await
}

/// Asks for the state, under a lease or as everybody sees it. Says so when there is none.
pub(crate) async fn open(
    session: &Session,
    key: &str,
    context: Option<LeaseContext>,
) -> Done<Option<DocumentStream>> {
    let read: GetStream = match context {
        Some(context) => session.client.raw(context).get_stream(),
        None => session.client.get_stream(key),
    };
    let stream = read.await?;
    if stream.is_none() {
        ui::note(&format!("{key} has no state"));
    }
    Ok(stream)
}

/// Writes the state to a file or, for `-`, to standard output.
pub(crate) async fn write(stream: DocumentStream, kind: Type, output: &str) -> Done {
    match output {
        "-" => to_stdout(stream, kind).await,
        path => to_file(stream, kind, Path::new(path)).await,
    }
}

async fn to_stdout(mut stream: DocumentStream, kind: Type) -> Done {
    let progress = Progress::beside_output(stream.length());
    if kind != Type::Raw {
        let text = kind.show(&whole(stream, &progress).await?)?;
        progress.clear();
        return ui::bytes(text.as_bytes());
    }
    while let Some(piece) = stream.chunk().await? {
        ui::bytes(&piece)?;
        progress.add(piece.len());
    }
    progress.clear();
    ui::bytes(b"\n")
}

/// Writes next to the file and puts it in place when it is complete.
async fn to_file(mut stream: DocumentStream, kind: Type, path: &Path) -> Done {
    let cannot = |error: &dyn std::fmt::Display| {
        Problem::failed(format!("cannot write {}: {error}", path.display()))
    };
    let progress = Progress::new(stream.length());
    let mut file =
        tempfile::NamedTempFile::new_in(folder::of(path)).map_err(|error| cannot(&error))?;
    if kind == Type::Raw {
        while let Some(piece) = stream.chunk().await? {
            file.write_all(&piece).map_err(|error| cannot(&error))?;
            progress.add(piece.len());
        }
    } else {
        let text = kind.show(&whole(stream, &progress).await?)?;
        file.write_all(text.as_bytes()).map_err(|error| cannot(&error))?;
    }
    progress.clear();
    file.flush().map_err(|error| cannot(&error))?;
    file.persist(path).map_err(|error| cannot(&error.error))?;
    Ok(())
}

/// For formats that need to see all of it.
async fn whole(mut stream: DocumentStream, progress: &Progress) -> Done<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream.chunk().await? {
        bytes.extend_from_slice(&piece);
        progress.add(piece.len());
    }
    Ok(bytes)
}
