//! Ports that are served over HTTP, of the server and of the daemons: connections are accepted, kept
//! within bounds and drained, over TCP, unix sockets and mutual TLS. What is answered is the
//! caller's, but for what every program measures about itself.
//!
//! Each open connection has a slot ([`Slots`]); when all are taken, the most silent connection
//! loses its own. [`accept`] serves a [`HttpPort`] for which an application
//! brings its own services;
//! [`Bound::serve`] serves an axum router.

mod accept;
mod connection;
mod door;
mod linger_close;
mod listener;
mod process;
mod progress;
mod refusal;
mod router;
mod secret;
mod slots;

pub use accept::{HttpPort, accept};
pub use connection::{Caller, ConnectionEvent, ConnectionLimits, Serve, Socket};
pub use door::{AfterChange, Certified, CredentialChanges, Door, MutualTls};
pub use listener::{Conn, Family, Listener, LocalAddress, Transport};
pub use process::{Certificate, process_text};
pub use router::{Bound, ServeError, Serving, connections_max};
pub use secret::{Secret, SecretError, bearer};
pub use slots::{ConnectionStage, PerAddress, Slots};
