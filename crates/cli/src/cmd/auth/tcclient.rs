//! `auth new tcclient`: the bundle with which transaction coordinators call servers.

use clap::Args;
use jiff::Timestamp;
use lockd_pki::ClientRequest;
use lockd_pki::bootstrap::TC_FILE;
use lockd_pki::issue::TC_NAME;

use super::signer::SignerArgs;
use super::{Output, Validity, client};
use crate::exit::Done;

/// Make the bundle of a transaction coordinator's client, which may use all namespaces
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TcclientArgs {
    #[command(flatten)]
    output: Output,
    /// Name of the client; it is its identity
    #[arg(long, value_name = "NAME", default_value = TC_NAME)]
    cn: String,
    #[command(flatten)]
    validity: Validity,
    #[command(flatten)]
    signer: SignerArgs,
}

const EXAMPLES: &str = "\
Examples:
  lockd auth new tcclient
  lockd auth new tcclient --server-in server.pem --out tc-client.pem --cn tc-west";

pub(super) fn run(args: &TcclientArgs, now: Timestamp) -> Done {
    let path = args.output.path(TC_FILE)?;
    args.output.replaced(&path, "TC client")?;
    let mut request = ClientRequest::tc(&args.cn);
    request.days = args.validity.or(request.days);
    client::issue(&path, &request, &args.signer, (&args.output, now))
}
