//! The API at a port, open only to those who may ask.

use std::net::SocketAddr;
use std::sync::Arc;

pub use lockd_serve::Door;
use lockd_serve::{Bound, Certificate};

use super::access::{Access, AccessError};
use super::routes::{Api, router};
use crate::coordinator::Coordinator;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Serve(#[from] lockd_serve::ServeError),
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// A server that runs. It ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Serving {
    pub address: SocketAddr,
    serving: lockd_serve::Serving,
}

impl Serving {
    /// Listens and serves in the background.
    ///
    /// # Errors
    /// When it cannot listen there, or everybody could ask.
    pub async fn start(
        listen: &str,
        door: Door,
        access: Access,
        coordinator: Coordinator,
    ) -> Result<Self, ServeError> {
        let bound = Bound::bind(listen).await?;
        access.check(bound.address)?;
        let certificate = Certificate::of(&door);
        let api = Api { coordinator, access: Arc::new(access), certificate };
        let serving = bound.serve(&door, router(api))?;
        Ok(Self { address: serving.address, serving })
    }

    /// Lets requests end, for a while.
    pub async fn stop(&self) {
        self.serving.stop().await;
    }
}
