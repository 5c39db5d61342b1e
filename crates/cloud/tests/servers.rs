//! The real servers start and keep their conditions, alone and behind the proxy.

mod common;

use common::{azure, conditions_hold, create, get, s3};
use http::Method;
use lockd_cloud::{Azurite, Fault, Moto, Proxy};

#[tokio::test]
async fn moto_takes_conditions() {
    let moto = Moto::start().await;
    conditions_hold(&s3(&moto.endpoint())).await;
    let proxy = Proxy::start(&moto.endpoint()).await;
    let client = s3(&proxy.endpoint());
    conditions_hold(&client).await;
    proxy.arm(Fault::DropAnswer, Method::PUT, "lost");
    create(&client, "lost", "x").await.expect_err("no answer");
    assert_eq!(get(&client, "lost").await.unwrap(), "x");
}

#[tokio::test]
async fn azurite_takes_conditions() {
    let azurite = Azurite::start().await;
    let (account, key) = (azurite.account(), azurite.key());
    conditions_hold(&azure(&azurite.endpoint(), account, key)).await;
    let proxy = Proxy::start(&azurite.origin()).await;
    let client = azure(&format!("{}/{account}", proxy.endpoint()), account, key);
    conditions_hold(&client).await;
    proxy.arm(Fault::DropAnswer, Method::PUT, "lost");
    create(&client, "lost", "x").await.expect_err("no answer");
    assert_eq!(get(&client, "lost").await.unwrap(), "x");
}
