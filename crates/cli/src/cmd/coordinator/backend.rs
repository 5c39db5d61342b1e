//! Where the cluster is kept: a Redis, a lockd server, or one in this very process.

use anyhow::Context as _;
use lockd_cli::{bundle, folder};
use lockd_client::Client;
use lockd_coordinator::Backend;
use lockd_elect::redis::{Address, RedisSettings};
use lockd_server::Server;
use lockd_server::config::{self, Layers};

use super::super::daemon::Ended;
use super::settings::{Keeper, Settled};

/// The backend, and the server that runs for it.
pub(super) async fn open(settled: &Settled) -> Result<(Backend, Option<Server>), Ended> {
    match settled.keeper {
        Keeper::Redis => Ok((redis(settled).map_err(Ended::wrong)?, None)),
        Keeper::Lockd => {
            let (client, server) = match &settled.server {
                Some(url) => (client(url, settled).map_err(Ended::wrong)?, None),
                None => {
                    let (url, server) = embedded(settled).await.map_err(Ended::failed)?;
                    (Client::connect(&url).map_err(Ended::failed)?, Some(server))
                }
            };
            let backend = Backend::lockd(&client, &settled.coordinator).map_err(Ended::wrong)?;
            Ok((backend, server))
        }
    }
}

fn redis(settled: &Settled) -> anyhow::Result<Backend> {
    let mut address = Address::parse(&settled.redis)?;
    if address.password.is_none() {
        address.password.clone_from(&settled.redis_password);
    }
    let mut redis = RedisSettings::new(address);
    // A leader must be able to ask more than once before its time is over.
    redis.timeout = redis.timeout.min(settled.coordinator.leader_ttl / 6);
    if let Some(path) = &settled.redis_ca {
        let read = std::fs::read(path);
        let pem = read.with_context(|| format!("cannot read {}", path.display()))?;
        redis.tls.authorities = Some(pem);
    }
    Ok(Backend::redis_with(redis, &settled.coordinator)?)
}

fn client(url: &str, settled: &Settled) -> anyhow::Result<Client> {
    let mut builder = Client::builder().endpoint(url);
    let is_tls = url.split_once("://").is_some_and(|(scheme, _)| scheme == "https");
    if is_tls || settled.server_bundle.is_some() {
        let found = bundle::of_daemon(settled.server_bundle.as_deref(), "--server-bundle");
        let (_, bundle) = found.map_err(|problem| anyhow::anyhow!("{problem}"))?;
        builder = builder.bundle(bundle);
    }
    Ok(builder.build()?)
}

/// A server for this process alone, behind a socket in its own folder.
async fn embedded(settled: &Settled) -> anyhow::Result<(String, Server)> {
    let folder = match &settled.store {
        Some(folder) => folder.clone(),
        None => {
            let found = folder::config_dir().map_err(|problem| anyhow::anyhow!("{problem}"))?;
            found.join("coordinator")
        }
    };
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    let socket = folder.join("lockd.sock");
    let flags = vec![
        ("store".into(), format!("disk://{}", folder.join("store").display())),
        ("listen".into(), format!("unix://{}", socket.display())),
        ("disable-mtls".into(), "true".into()),
    ];
    let layers = Layers { flags, ..Layers::default() };
    let loaded = config::load(&layers, &Vec::<(String, String)>::new())?;
    let server = Server::new(loaded.settings).await.map_err(|error| {
        anyhow::anyhow!(
            "{error}. Join the coordinator that keeps the cluster there with --server unix://{}, or \
             name another folder with --store",
            socket.display()
        )
    })?;
    let bound = server.start().await?;
    let url = bound.first().context("no address")?.to_string();
    tracing::info!("the cluster is kept in this process: {url}");
    Ok((url, server))
}
