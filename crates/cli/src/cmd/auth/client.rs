//! `auth new client`: a client's bundle, and the namespaces it may use.

use std::path::Path;

use clap::Args;
use jiff::Timestamp;
use lockd_pki::bootstrap::CLIENT_FILE;
use lockd_pki::issue::CLIENT_NAME;
use lockd_pki::{Bundle, Claim, ClientBundle, ClientRequest, inspect};

use super::signer::SignerArgs;
use super::{Issued, Output, Validity, write};
use crate::exit::Done;

/// Make a client's bundle
///
/// Without a namespace it may read and write the namespace `default`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ClientArgs {
    #[command(flatten)]
    output: Output,
    /// Name of the client; it is its identity
    #[arg(long, value_name = "NAME", default_value = CLIENT_NAME)]
    cn: String,
    /// A namespace it may use, and how: NAME=r, NAME=w or NAME=rw; may be repeated
    #[arg(long = "namespace", short = 'n', value_name = "NAME=PERM", value_delimiter = ',',
          value_parser = Claim::parse)]
    namespaces: Vec<Claim>,
    #[command(flatten)]
    everywhere: Everywhere,
    #[command(flatten)]
    validity: Validity,
    #[command(flatten)]
    signer: SignerArgs,
}

/// What the client may do in all namespaces that are not named.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = false)]
struct Everywhere {
    /// It may read in all namespaces
    #[arg(long)]
    read_all: bool,
    /// It may write in all namespaces
    #[arg(long)]
    write_all: bool,
    /// It may read and write in all namespaces
    #[arg(long)]
    rw_all: bool,
}

impl Everywhere {
    fn claim(self) -> Option<&'static str> {
        match (self.read_all, self.write_all, self.rw_all) {
            (true, _, _) => Some("ALL=r"),
            (_, true, _) => Some("ALL=w"),
            (_, _, true) => Some("ALL=rw"),
            (false, false, false) => None,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  lockd auth new client --cn worker-1 --out worker-1.pem
  lockd auth new client --server-in server.pem --out client1.pem --cn worker-1
  lockd auth new client --cn reader -n orders=r -n scratch=rw
  lockd auth new client --cn admin --rw-all --valid-for 30d

A claim on a named namespace beats --read-all, --write-all and --rw-all, even if it is weaker.";

pub(super) fn run(args: &ClientArgs, now: Timestamp) -> Done {
    let path = args.output.path(CLIENT_FILE)?;
    args.output.replaced(&path, "client")?;
    let mut claims = args.namespaces.clone();
    claims.extend(args.everywhere.claim().and_then(|claim| Claim::parse(claim).ok()));
    let mut request = ClientRequest::sdk(&args.cn, claims);
    request.days = args.validity.or(request.days);
    issue(&path, &request, &args.signer, (&args.output, now))
}

/// Issues, writes and shows a client's bundle of either kind.
pub(super) fn issue(
    path: &Path,
    request: &ClientRequest,
    signer: &SignerArgs,
    (output, now): (&Output, Timestamp),
) -> Done {
    let signer = signer.for_client(path)?;
    let leaf = signer.authority.issue_client(request, now)?;
    let bundle = ClientBundle::new(&signer.authority, leaf);
    write(path, &bundle.to_pem(), output.existing())?;
    let summary = inspect(&Bundle::Client(bundle), now);
    Issued { file: path.display().to_string(), ca_file: None, summary }.print(output.output)
}
