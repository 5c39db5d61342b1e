//! `ls`: keys, or namespaces, one a line. Pages are fetched as they are needed.

use clap::Args;
use lockd_wire::admin::KeyView;
use serde_json::json;

use super::Session;
use super::describe::time;
use crate::exit::Done;
use crate::ui::{self, Format};

/// List the keys of a namespace, or the namespaces
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LsArgs {
    /// Only keys that begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// List namespaces instead
    #[arg(long, conflicts_with_all = ["prefix", "long"])]
    namespaces: bool,
    /// Show version, token, size, holder and time of the last change
    #[arg(long, short)]
    long: bool,
    /// How to print them; JSON and YAML have one document for each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  lockd client ls
  lockd client ls jobs/ --long
  lockd client ls --namespaces
  lockd client ls --output json | jq -r 'select(.held) | .key'";

pub(super) async fn run(session: &Session, args: LsArgs) -> Done {
    if args.namespaces {
        let mut pages = session.client.namespaces();
        while let Some(namespaces) = pages.next_page().await? {
            for namespace in namespaces {
                let value = json!({ "namespace": namespace });
                ui::print_one(args.output, &value, || namespace)?;
            }
        }
        return Ok(());
    }
    let mut pages = session.client.keys(args.prefix);
    while let Some(keys) = pages.next_page().await? {
        for key in keys {
            ui::print_one(
                args.output,
                &key,
                || if args.long { long(&key) } else { key.key.clone() },
            )?;
        }
    }
    Ok(())
}

fn long(key: &KeyView) -> String {
    let held = if key.held { "held" } else { "free" };
    let bytes = key.bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    format!(
        "{held}\tversion={}\ttoken={}\tbytes={bytes}\t{}\t{}",
        key.version,
        key.fencing_token,
        time(key.updated_at_unix_ms),
        key.key
    )
}
