//! The promises of the port, over this adapter in three sizes.

use futures_util::future::BoxFuture;

use super::scratch;
use crate::conformance::{Fixture, run_all};
use crate::embedded::{EmbeddedOptions, EmbeddedStore};

fn fixture(change: fn(&mut EmbeddedOptions)) -> BoxFuture<'static, Fixture> {
    Box::pin(async move {
        let folder = scratch();
        let mut options = EmbeddedOptions::new(folder.path());
        change(&mut options);
        Fixture::new(EmbeddedStore::open(options).unwrap(), folder)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_keeps_the_promises_of_the_port() {
    run_all(&|| fixture(|_| {})).await;
}

/// Checkpoints all the time: what is read comes from head, frozen generation and tree by turns.
#[tokio::test(flavor = "multi_thread")]
async fn embedded_keeps_them_while_checkpoints_run() {
    let tiny = |options: &mut EmbeddedOptions| {
        options.segment_bytes = 16 << 10;
        options.checkpoint_bytes = 16 << 10;
        options.head_bytes = 400;
    };
    run_all(&|| fixture(tiny)).await;
}
