//! The command line as a whole. The server's flags are made from its list of settings, so that
//! flags, environment and file can never drift apart.

use clap::{Arg, ArgAction, ArgMatches, CommandFactory, Parser, Subcommand, parser::ValueSource};
use lockd_cli::cmd::auth::AuthArgs;
use lockd_cli::cmd::client::ClientArgs;
use lockd_cli::cmd::cluster::ClusterArgs;
use lockd_cli::cmd::completions::CompletionsArgs;
use lockd_cli::cmd::explain::ExplainArgs;
use lockd_cli::cmd::ha::HaArgs;
use lockd_cli::cmd::man::ManArgs;
use lockd_cli::cmd::txn::TxnArgs;
use lockd_cli::ui::Format;
use lockd_server::config::{SETTINGS, Setting};

use crate::cmd;

/// Exclusive leases with fencing tokens, and atomic JSON state.
///
/// Without a subcommand, runs the server.
#[derive(Debug, Parser)]
#[command(name = "lockd", version, after_help = AFTER_HELP, subcommand_negates_reqs = true)]
pub(crate) struct Cli {
    /// Settings file (default: ~/.lockd/config.yaml, if it exists).
    #[arg(long, short = 'c', env = "LOCKD_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<std::path::PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Client(Box<ClientArgs>),
    Auth(Box<AuthArgs>),
    Txn(Box<TxnArgs>),
    Coordinator(Box<cmd::coordinator::CoordinatorArgs>),
    Cluster(Box<ClusterArgs>),
    NodeController(Box<cmd::node_controller::NodeControllerArgs>),
    Controller(Box<cmd::controller::ControllerArgs>),
    Agent(Box<cmd::agent::AgentArgs>),
    Ha(Box<HaArgs>),
    /// A command that dies with whoever started it
    #[command(hide = true)]
    Guard(cmd::guard::GuardArgs),
    /// Show in half a minute what lockd does
    Demo,
    /// A worker of the demo
    #[command(hide = true)]
    DemoWorker(cmd::demo::WorkerArgs),
    /// Print an example settings file, or the settings as they are
    #[command(subcommand)]
    Config(cmd::config::ConfigCommand),
    /// Back up, restore, check and look into a store
    #[command(subcommand)]
    Store(cmd::store::StoreCommand),
    /// Try whether an object store can be used
    #[command(subcommand)]
    Verify(cmd::verify::VerifyCommand),
    Explain(ExplainArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Print the version; as JSON or YAML with the commit and how it was built
    Version {
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
}

const AFTER_HELP: &str = "\
Examples:
  lockd --disable-mtls                       serve plain HTTP on 127.0.0.1:9341
  lockd --disable-mtls --store mem://        the same, forgetting everything at the end
  lockd demo                                 watch a hand-over
  lockd auth new client --cn worker-1        a certificate for a client
  lockd config gen > ~/.lockd/config.yaml    a settings file to start from

Every flag NAME is also the variable LOCKD_NAME and the key NAME of the settings file; a flag
beats the variable, which beats the file. Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage.";

/// The command line with the flags of the server.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command().mut_subcommand("verify", |verify| {
        verify.mut_subcommand("store", |store| {
            let of_store = SETTINGS.iter().filter(|setting| is_of_store(setting));
            of_store.fold(store, |store, setting| store.arg(flag(setting)))
        })
    });
    for setting in SETTINGS {
        command = command.arg(flag(setting));
    }
    command
}

fn is_of_store(setting: &Setting) -> bool {
    let beginnings = ["s3-", "azure-", "gcs-"];
    setting.name == "store" || beginnings.iter().any(|start| setting.name.starts_with(start))
}

fn flag(setting: &'static Setting) -> Arg {
    let help = match setting.default {
        "" => setting.help.to_owned(),
        default => format!("{} [default: {default}]", setting.help),
    };
    let arg = Arg::new(setting.name)
        .long(setting.name)
        .help(help)
        .help_heading("Server settings")
        .value_name(if setting.switch { "BOOL" } else { "VALUE" })
        .allow_hyphen_values(true)
        .action(ArgAction::Set);
    if setting.switch {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        arg
    }
}

/// The settings that were given as flags.
pub(crate) fn given_settings(matches: &ArgMatches) -> Vec<(String, String)> {
    let is_given = |setting: &&Setting| {
        let known = matches.ids().any(|id| id.as_str() == setting.name);
        known && matches.value_source(setting.name) == Some(ValueSource::CommandLine)
    };
    let given = SETTINGS.iter().filter(is_given);
    given
        .filter_map(|setting| {
            let value = matches.get_one::<String>(setting.name)?;
            Some((setting.name.to_owned(), value.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{command, given_settings};

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn switches_may_stand_alone_or_carry_a_value() {
        let line = ["lockd", "--disable-mtls", "--mtls=false", "--listen", ":1"];
        let matches = command().get_matches_from(line);
        let given = given_settings(&matches);
        let expected = [("listen", ":1"), ("mtls", "false"), ("disable-mtls", "true")];
        assert_eq!(given, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
