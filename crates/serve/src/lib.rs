//! A port that is served over HTTP, with or without TLS: connections with bounds, a stop that lets
//! requests end, and who may come in. What is answered is the caller's, but for what every program
//! measures about itself.

mod port;
mod process;
mod secret;
#[expect(dead_code, reason = "the accept loop that follows uses it")]
mod slots;

pub use port::{Bound, Certified, Door, ServeError, Serving, connections_max};
pub use process::{Certificate, process_text};
pub use secret::{Secret, SecretError, bearer};
