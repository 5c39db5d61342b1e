//! lockd's server as a library: settings in, a running server out. Each request passes three
//! floors: `http` translates, `app` arranges, the core decides; `commit` is the hinge between the
//! decisions and the store.
//!
//! ```no_run
//! # async fn example() -> Result<(), lockd_server::StartError> {
//! use lockd_server::{Server, Settings};
//!
//! let server = Server::new(Settings::embedded_defaults()).await?;
//! let bound = server.start().await?;
//! println!("listening on {}", bound[0]);
//! server.shutdown(std::time::Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```

mod app;
mod background;
pub mod clock;
mod commit;
pub mod config;
mod http;
mod identity;
pub mod ids;
pub mod maintain;
mod memory;
pub mod metrics;
mod port;
mod run;
mod tasks;

pub use config::Settings;
pub use http::body::{Body, BodyError};
pub use http::router::{Handler, rights};
pub use identity::IdentityError;
pub use run::{Bound, Parts, Server, Shutdown, StartError};
