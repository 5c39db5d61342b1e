//! Where the cluster is kept: a Redis, a lockd server, or one in this very process.

use anyhow::Context as _;
use lockd_cli::{bundle, folder};
use lockd_client::Client;
use lockd_coordinator::Backend;
use lockd_elect::redis::{Address, RedisSettings};
use lockd_server::config::{self, Layers};
use lockd_server::{Server, StartError};
use lockd_store::OpenError;

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
                    (Client::connect(&url).map_err(Ended::failed)?, server)
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

/// A server in this process, behind a socket in the folder of its store. Where another coordinator of
/// this machine has the store, that one's socket: it may not listen yet, which the backend bears as
/// it bears any server that is away.
async fn embedded(settled: &Settled) -> anyhow::Result<(String, Option<Server>)> {
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
    let server = match Server::new(loaded.settings).await {
        Ok(server) => server,
        Err(StartError::Open(OpenError::InUse { pid, .. })) => {
            let url = format!("unix://{}", socket.display());
            tracing::info!(url, pid, "joining the coordinator that keeps the cluster");
            return Ok((url, None));
        }
        Err(error) => return Err(error.into()),
    };
    let bound = server.start().await?;
    let url = bound.first().context("no address")?.to_string();
    tracing::info!("the cluster is kept in this process: {url}");
    Ok((url, Some(server)))
}
