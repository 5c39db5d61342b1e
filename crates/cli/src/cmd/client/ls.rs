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
    let for_a_person = args.long && args.output == Format::Text && ui::is_read_by_a_person();
    let mut headings = Some(&HEADINGS[..]);
    while let Some(keys) = pages.next_page().await? {
        if for_a_person {
            let rows = keys.iter().map(row).collect();
            ui::data(&ui::table(headings.take(), rows))?;
            continue;
        }
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

const HEADINGS: [&str; 6] = ["KEY", "HELD", "VERSION", "TOKEN", "BYTES", "CHANGED"];

fn row(key: &KeyView) -> Vec<String> {
    vec![
        key.key.clone(),
        held(key).to_owned(),
        key.version.to_string(),
        key.fencing_token.to_string(),
        bytes(key),
        changed(key),
    ]
}

/// A key that never had a state has no time of its last change.
fn changed(key: &KeyView) -> String {
    match key.updated_at_unix_ms {
        0 => "-".to_owned(),
        at => time(at),
    }
}

fn held(key: &KeyView) -> &'static str {
    if key.held { "held" } else { "free" }
}

fn bytes(key: &KeyView) -> String {
    key.bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string())
}

fn long(key: &KeyView) -> String {
    let (held, bytes) = (held(key), bytes(key));
    format!(
        "{held}\tversion={}\ttoken={}\tbytes={bytes}\t{}\t{}",
        key.version,
        key.fencing_token,
        changed(key),
        key.key
    )
}
