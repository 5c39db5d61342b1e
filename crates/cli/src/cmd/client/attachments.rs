//! `attachments`: bytes of any kind beside the state of a key.

use std::path::Path;

use clap::{Args, Subcommand};
use lockd_client::Attachments;
use lockd_wire::attachment::{AttachReply, AttachmentInfo, DetachAllReply, DetachReply};

use super::Session;
use super::document::Type;
use super::download;
use super::update::source;
use crate::context::LeaseFlags;
use crate::exit::{Done, Problem};
use crate::ui::{self, Format};

/// List, read, add and delete the attachments of a key
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AttachmentsArgs {
    #[command(subcommand)]
    command: AttachmentsCommand,
}

#[derive(Debug, Subcommand)]
enum AttachmentsCommand {
    /// List the attachments of a key
    List(ListArgs),
    /// Read an attachment, to a file or to standard output
    Get(GetArgs),
    /// Attach a file, or standard input
    ///
    /// It is staged: others see it when the lease is released.
    Put(PutArgs),
    /// Delete an attachment
    ///
    /// It is staged: others see it when the lease is released.
    Delete(DeleteArgs),
    /// Delete all attachments of a key
    ///
    /// It is staged: others see it when the lease is released.
    DeleteAll(WhichKey),
}

/// Whose attachments.
#[derive(Debug, Args)]
struct WhichKey {
    /// The key [env: LOCKD_CLIENT_KEY]
    #[arg(value_name = "KEY", conflicts_with = "key", value_parser = crate::context::name)]
    argument: Option<String>,
    #[command(flatten)]
    lease: LeaseFlags,
    /// How to print the outcome
    #[arg(long = "format", value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    which: WhichKey,
    /// What is committed, even under a lease
    #[arg(long)]
    public: bool,
}

#[derive(Debug, Args)]
struct GetArgs {
    #[command(flatten)]
    which: WhichKey,
    /// What it is called
    #[arg(long, value_name = "NAME", value_parser = crate::context::name)]
    name: String,
    /// Where to write it; - is standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: String,
    /// What is committed, even under a lease
    #[arg(long)]
    public: bool,
}

#[derive(Debug, Args)]
struct PutArgs {
    #[command(flatten)]
    which: WhichKey,
    /// What to attach; - is standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    file: String,
    /// What to call it; without it, the name of the file
    #[arg(long, value_name = "NAME", value_parser = crate::context::name)]
    name: Option<String>,
    /// What kind of bytes they are
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Leave one of the same name alone
    #[arg(long)]
    prevent_overwrite: bool,
    /// Refuse more bytes than these
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<u64>,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    #[command(flatten)]
    which: WhichKey,
    /// What it is called
    #[arg(long, value_name = "NAME", value_parser = crate::context::name)]
    name: String,
}

const EXAMPLES: &str = "\
Examples:
  lockd client attachments put reports/7 --file summary.pdf --content-type application/pdf
  lockd client attachments list reports/7
  lockd client attachments get reports/7 --name summary.pdf -o summary.pdf
  lockd client attachments delete reports/7 --name summary.pdf";

pub(super) async fn run(session: &Session, args: AttachmentsArgs) -> Done {
    match args.command {
        AttachmentsCommand::List(args) => list(session, args).await,
        AttachmentsCommand::Get(args) => get(session, args).await,
        AttachmentsCommand::Put(args) => put(session, args).await,
        AttachmentsCommand::Delete(args) => {
            let format = args.which.format;
            let deleted = held(session, args.which)?.delete(&args.name).await?;
            ui::print(format, &DetachReply { deleted, version: 0 }, || {
                if deleted { "deleted" } else { "nothing to delete" }.to_owned()
            })
        }
        AttachmentsCommand::DeleteAll(which) => {
            let format = which.format;
            let deleted = held(session, which)?.delete_all().await?;
            let shown = DetachAllReply { deleted, version: 0 };
            ui::print(format, &shown, || format!("deleted {deleted}"))
        }
    }
}

/// The attachments of a key that the caller holds.
fn held(session: &Session, which: WhichKey) -> Done<Attachments> {
    let environment = &session.environment;
    let key = environment.need_key(which.lease.key.clone().or(which.argument))?;
    let context = environment.need_lease(&key, session.namespace(), &which.lease)?;
    Ok(session.client.raw(context).attachments())
}

async fn list(session: &Session, args: ListArgs) -> Done {
    let environment = &session.environment;
    let which = args.which;
    let key = environment.need_key(which.lease.key.clone().or(which.argument))?;
    let context = environment.lease(&key, session.namespace(), &which.lease)?;
    let all = match context.filter(|_| !args.public) {
        Some(context) => session.client.raw(context).attachments().list().await?,
        None => session.client.attachments(key).list().await?,
    };
    if which.format == Format::Text && ui::is_read_by_a_person() {
        return ui::data(&ui::table(Some(&HEADINGS[..]), all.iter().map(row).collect()));
    }
    for attachment in all {
        ui::print_one(which.format, &attachment, || row(&attachment).join("\t"))?;
    }
    Ok(())
}

const HEADINGS: [&str; 4] = ["NAME", "BYTES", "TYPE", "SHA-256"];

fn row(attachment: &AttachmentInfo) -> Vec<String> {
    vec![
        attachment.name.clone(),
        attachment.size.to_string(),
        attachment.content_type.clone(),
        attachment.plaintext_sha256.clone(),
    ]
}

async fn get(session: &Session, args: GetArgs) -> Done {
    let environment = &session.environment;
    let which = args.which;
    let key = environment.need_key(which.lease.key.clone().or(which.argument))?;
    let context = environment.lease(&key, session.namespace(), &which.lease)?;
    let found = match context.filter(|_| !args.public) {
        Some(context) => session.client.raw(context).attachments().get(&args.name).await?,
        None => session.client.attachments(key.as_str()).get(&args.name).await?,
    };
    let Some(mut stream) = found else {
        return Err(Problem::failed(format!("{key} has no attachment {:?}", args.name))
            .hint("see what it has: attachments list"));
    };
    download::write(&args.output, stream.length(), async || stream.chunk().await).await
}

async fn put(session: &Session, args: PutArgs) -> Done {
    let name = match (args.name, args.file.as_str()) {
        (Some(name), _) => name,
        (None, "-") => {
            return Err(Problem::usage("standard input has no name: say what to call it, --name"));
        }
        (None, path) => {
            let name = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
            name.ok_or_else(|| Problem::usage(format!("{path} names no file")))?
        }
    };
    let format = args.which.format;
    let mut put = held(session, args.which)?.put(name, source(&args.file, Type::Raw)?);
    if let Some(content_type) = args.content_type {
        put = put.content_type(content_type);
    }
    if args.prevent_overwrite {
        put = put.keep_existing();
    }
    if let Some(bytes) = args.max_bytes {
        put = put.max_bytes(bytes);
    }
    let attached = put.await?;
    let shown =
        AttachReply { attachment: attached.info, noop: attached.kept, version: attached.version };
    ui::print(format, &shown, || {
        let info = &shown.attachment;
        let what = if shown.noop { "kept" } else { "attached" };
        format!("{what} {} bytes={} sha256={}", info.name, info.size, info.plaintext_sha256)
    })
}
