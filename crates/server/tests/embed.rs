//! The example of a server inside another program really runs.

#[expect(dead_code, reason = "the example's own main is not called here")]
#[path = "../examples/embed.rs"]
mod embed;

#[tokio::test]
async fn the_embedding_example_runs_to_its_end() {
    embed::run().await.unwrap();
}
