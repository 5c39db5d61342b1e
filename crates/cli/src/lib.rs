//! What the programs `lockd` and `lockc` share: the client commands, bundles, and how things are
//! said. The server is not in here: the commands that need it are modules of the program `lockd`,
//! so that `lockc` cannot link it. Both sets of commands live in `cmd/`, one per file.

pub mod cmd {
    //! The commands that need no server in this process.

    pub mod auth;
    pub mod client;
    pub mod cluster;
    pub mod completions;
    pub mod explain;
    pub mod ha;
    pub mod lockc;
    pub mod man;
    pub mod txn;

    mod look;
}

pub mod bundle;
pub mod exit;
pub mod folder;
pub mod log;
pub mod ports;
pub mod ui;
pub mod usage;

mod ask;
mod context;
