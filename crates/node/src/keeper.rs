//! Programs that are kept: started, looked after, started again with growing pauses, and ended with
//! everything they have started.

pub(crate) mod agent;
pub(crate) mod controller;
pub(crate) mod probe;
mod signal;

use std::sync::Arc;
use std::time::Duration;

use lockd_child::{Child, Program, Stream};
use lockd_wire::node::environment;

pub(crate) use signal::let_through;

use crate::order::Order;
use crate::settings::NodeSettings;

/// Pauses before a program is started again: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A program that was well for this long is not known to die.
const WELL_AFTER: Duration = Duration::from_secs(30);

/// How programs are started here.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) settings: Arc<NodeSettings>,
    /// The local endpoint, and what to show there.
    pub(crate) endpoint: String,
    pub(crate) token: String,
}

impl Programs {
    /// Starts one with the variables that tell it where it runs. Its lines go to the log.
    fn start(
        &self,
        name: &'static str,
        command: &[String],
        order: &Order,
    ) -> std::io::Result<Child> {
        let mut variables = vec![
            (environment::ROLE, order.role.as_str().to_owned()),
            (environment::NODE_ID, self.settings.node_id.clone()),
            (environment::URL, self.settings.url.clone()),
            (environment::ENDPOINT, self.endpoint.clone()),
            (environment::TOKEN, self.token.clone()),
        ];
        let known = order.leader.as_ref().and_then(|leader| leader.epoch);
        let mut hidden = self.settings.hidden.clone();
        match order.epoch().or(known) {
            Some(epoch) => variables.push((environment::EPOCH, epoch.to_string())),
            // Not even one that this process was given itself.
            None => hidden.push(environment::EPOCH.into()),
        }
        let mut environment = self.settings.environment.clone();
        environment.extend(variables.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let program = Program {
            command: command.to_vec(),
            environment,
            hidden,
            guard: self.settings.guard.clone(),
        };
        let on_line = move |stream: Stream, line: &str| match stream {
            Stream::Output => tracing::info!("{name}: {line}"),
            Stream::Error => tracing::info!("{name}! {line}"),
        };
        Child::start(&program, on_line)
    }
}

/// How long to wait before the next start.
#[derive(Debug, Default)]
struct Pauses(u32);

impl Pauses {
    /// It ended, after it was well for so long.
    fn ended(&mut self, well_for: Duration) -> Duration {
        if well_for >= WELL_AFTER {
            self.0 = 0;
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.0.min(16)).min(PAUSE_MAX);
        self.0 = self.0.saturating_add(1);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew_after_a_good_time() {
        let mut pauses = Pauses::default();
        let spans: Vec<Duration> = (0..9).map(|_| pauses.ended(Duration::ZERO)).collect();
        assert_eq!(spans[..3], [100, 200, 400].map(Duration::from_millis));
        assert_eq!(spans[8], PAUSE_MAX);
        assert_eq!(pauses.ended(WELL_AFTER), PAUSE_MIN);
    }
}
