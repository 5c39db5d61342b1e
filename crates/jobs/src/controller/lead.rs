//! Acting on what the controller is told to be: taking office, keeping it, leaving it, standing by.

use std::sync::Arc;
use std::time::Duration;

use lockd_wire::node::{Assignment, Role};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::office::Office;
use super::settings::{Orders, Source};
use super::take::{Taken, take};
use super::{Shared, follow, relay, tick};

/// How long writes that were begun may take to end when the office is left.
const LEAVE: Duration = Duration::from_secs(5);
/// How often an epoch above those of the store is looked for, at most.
const EPOCHS_MAX: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// Until the controller is stopped.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (_kept, orders) = match &shared.settings.source {
        Source::Alone => return alone(&shared).await,
        Source::Told(orders) => (None, orders.clone()),
        Source::Fixed { role, epoch } => {
            let (fixed, orders) = watch::channel(fixed(&shared, *role, *epoch));
            (Some(fixed), orders)
        }
        Source::Follow { endpoint, token } => {
            let (told, orders) = watch::channel(Orders::default());
            let following =
                follow::follow(Arc::clone(&shared), endpoint.clone(), token.clone(), told);
            shared.tasks.spawn(following);
            (None, orders)
        }
    };
    let mut lead = Lead { shared, orders, refused: None, relay: None };
    lead.run().await;
}

fn fixed(shared: &Shared, role: Role, epoch: Option<u64>) -> Orders {
    let leads = epoch.is_some() && role != Role::Standby;
    let assignment = Assignment {
        version: 1,
        node_id: shared.settings.node_id.clone(),
        role: if leads { role } else { Role::Standby },
        leader_epoch: epoch,
        leader_id: leads.then(|| shared.settings.node_id.clone()),
        leader_url: shared.settings.url.clone().filter(|_| leads),
        lease_ms: None,
    };
    Orders { assignment, until: None }
}

struct Lead {
    shared: Arc<Shared>,
    orders: watch::Receiver<Orders>,
    /// The epoch under which this controller may not lead, or not any more.
    refused: Option<u64>,
    relay: Option<Relayed>,
}

struct Relayed {
    url: String,
    _runs: DropGuard,
}

impl Lead {
    async fn run(&mut self) {
        while !self.shared.stop.is_cancelled() {
            let orders = self.orders.borrow_and_update().clone();
            self.act(&orders).await;
            let office = self.shared.post.lock().office.clone();
            let over = async {
                match &office {
                    Some(office) => office.over.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            // Should whoever gives orders be gone, the last one stands as long as it holds.
            let changed = async {
                if self.orders.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = self.shared.stop.cancelled() => {}
                () = over => {}
                () = changed => {}
            }
        }
        leave(&self.shared).await;
    }

    async fn act(&mut self, orders: &Orders) {
        self.shared.post.lock().assignment = orders.assignment.clone();
        let wanted = wanted(orders);
        let office = self.shared.post.lock().office.clone();
        if let Some(office) = office {
            if Some(office.epoch) == wanted && !office.over.is_cancelled() {
                office.hold_until(orders.until);
                office.drain(orders.assignment.role == Role::Draining);
                return self.acted(orders);
            }
            if office.is_fenced() {
                self.refuse(office.epoch, office.store_epoch());
            }
            leave(&self.shared).await;
        }
        match wanted.filter(|epoch| self.refused.is_none_or(|refused| *epoch > refused)) {
            Some(epoch) => {
                self.relay = None;
                self.take_office(epoch).await;
            }
            None => {
                self.stand_by(orders);
                self.acted(orders);
            }
        }
    }

    fn acted(&self, orders: &Orders) {
        self.shared.post.lock().acted = Some(orders.assignment.version);
    }

    fn refuse(&mut self, epoch: u64, store_epoch: u64) {
        tracing::warn!(epoch, store_epoch, "may not lead under this epoch");
        self.refused = Some(self.refused.unwrap_or(0).max(epoch));
        self.shared.post.lock().store_epoch = Some(store_epoch);
    }

    /// As long as it is wanted. What is heard in between and changes nothing does not hold it up.
    async fn take_office(&mut self, epoch: u64) {
        let shared = Arc::clone(&self.shared);
        let taking = take(&shared, epoch);
        tokio::pin!(taking);
        let taken = loop {
            tokio::select! {
                () = shared.stop.cancelled() => return,
                taken = &mut taking => break taken,
                Ok(()) = self.orders.changed() => {
                    let orders = self.orders.borrow_and_update().clone();
                    self.shared.post.lock().assignment = orders.assignment.clone();
                    if wanted(&orders) != Some(epoch) {
                        self.orders.mark_changed();
                        return;
                    }
                }
            }
        };
        match taken {
            Taken::Behind(seen) => self.refuse(epoch, seen),
            Taken::Office(office) => {
                let orders = self.orders.borrow().clone();
                office.hold_until(orders.until);
                office.drain(orders.assignment.role == Role::Draining);
                open(&shared, &office);
            }
        }
        let orders = self.orders.borrow().clone();
        if wanted(&orders) == Some(epoch) {
            self.acted(&orders);
        } else {
            self.orders.mark_changed();
        }
    }

    /// Reads go on; the events of the leader are passed on.
    fn stand_by(&mut self, orders: &Orders) {
        let url = orders.assignment.leader_url.clone().filter(|url| {
            orders.assignment.role == Role::Standby
                && Some(url) != self.shared.settings.url.as_ref()
        });
        if url.as_ref() == self.relay.as_ref().map(|relay| &relay.url) {
            return;
        }
        self.relay = url.map(|url| {
            let stop = CancellationToken::new();
            let relaying = relay::relay(Arc::clone(&self.shared), url.clone(), stop.clone());
            self.shared.tasks.spawn(relaying);
            Relayed { url, _runs: stop.drop_guard() }
        });
    }
}

/// The epoch under which it is to lead.
fn wanted(orders: &Orders) -> Option<u64> {
    match orders.assignment.role {
        Role::Leader | Role::Draining => orders.assignment.leader_epoch,
        Role::Standby => None,
    }
}

fn open(shared: &Shared, office: &Arc<Office>) {
    office.tasks.spawn(tick::tick(Arc::clone(office)));
    let mut post = shared.post.lock();
    post.store_epoch = None;
    post.office = Some(Arc::clone(office));
}

/// Changes nothing any more, and lets what was begun end.
async fn leave(shared: &Shared) {
    let Some(office) = shared.post.lock().office.clone() else { return };
    office.end();
    office.tasks.close();
    if tokio::time::timeout(LEAVE, office.tasks.wait()).await.is_err() {
        tracing::warn!(epoch = office.epoch, "a write did not end with the office");
    }
    shared.post.lock().office = None;
    tracing::info!(epoch = office.epoch, fenced = office.is_fenced(), "left office");
}

/// Leads under an epoch above all that the store knows, until somebody else does.
async fn alone(shared: &Arc<Shared>) {
    let leading = async {
        let office = loop {
            match first_office(shared).await {
                Some(office) => break office,
                None => tokio::time::sleep(PAUSE).await,
            }
        };
        open(shared, &office);
        office.over.cancelled().await;
    };
    tokio::select! {
        () = shared.stop.cancelled() => {}
        () = leading => {
            let epoch = shared.post.lock().office.as_ref().map(|office| office.store_epoch());
            tracing::error!(
                store_epoch = epoch,
                "another controller leads on this store: this one only reads, until it is restarted"
            );
            shared.post.lock().store_epoch = epoch;
            leave(shared).await;
            shared.stop.cancelled().await;
        }
    }
    leave(shared).await;
}

async fn first_office(shared: &Shared) -> Option<Arc<Office>> {
    let mut epoch = match shared.ledger.terms().await {
        Ok(terms) => terms.iter().map(|term| term.epoch).max().unwrap_or(0).saturating_add(1),
        Err(fault) => {
            tracing::warn!(%fault, "the store cannot be asked");
            return None;
        }
    };
    for _ in 0..EPOCHS_MAX {
        match take(shared, epoch).await {
            Taken::Office(office) => return Some(office),
            Taken::Behind(seen) => epoch = seen.saturating_add(1),
        }
    }
    None
}
