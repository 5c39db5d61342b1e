//! What every leader lock must keep, over a real Redis, lockd, PostgreSQL and etcd, and what each of
//! them must bear from its server.

#[path = "elect/relay.rs"]
mod relay;

#[path = "elect/etcd.rs"]
mod etcd;
#[path = "elect/lockd.rs"]
mod lockd;
#[path = "elect/postgres.rs"]
mod postgres;
#[path = "elect/redis.rs"]
mod redis;
#[path = "elect/secure.rs"]
mod secure;
#[path = "elect/sessions.rs"]
mod sessions;

use std::time::Duration;

use lockd_elect::{Attempt, Campaign, Grant, LeaderLock, LockError, Office};

/// A connection that broke is made anew for the second attempt.
async fn granted(lock: &dyn LeaderLock) -> Grant {
    let mut answer = lock.try_acquire().await;
    if matches!(answer, Err(LockError::Unavailable(_))) {
        answer = lock.try_acquire().await;
    }
    match answer {
        Ok(Attempt::Granted(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

/// Tries as a campaign would, until then.
async fn granted_within(lock: &dyn LeaderLock, longest: Duration) -> Grant {
    let trying = async {
        loop {
            match lock.try_acquire().await {
                Ok(Attempt::Granted(grant)) => return grant,
                Ok(Attempt::Held(_)) | Err(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    };
    let got = tokio::time::timeout(longest, trying).await;
    got.unwrap_or_else(|_| panic!("{lock:?} is not granted within {longest:?}"))
}

async fn leads(campaign: &Campaign) -> Office {
    let mut leadership = campaign.leadership();
    let now = leadership.wait_for(|now| now.office().is_some()).await.expect("a campaign");
    now.office().cloned().expect("an office")
}
