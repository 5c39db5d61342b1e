//! How queues stand, for the metrics: those that may be named each for itself, at most
//! [`NAMED_QUEUES_MAX`] of them, and the sum of all others.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lockd_core::queue::QueueName;
use lockd_core::time::{Now, Span};

use crate::app::queue::board::{Boards, Counts};
use crate::config::{NAMED_QUEUES_MAX, NamedQueues};

/// Stands for the queues that are not named. No namespace, so it cannot be mistaken for a queue.
const OTHER: &str = "queue=\"other\"";

/// How one queue stands, or several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    ready: usize,
    delayed: usize,
    in_flight: usize,
    dead: usize,
    oldest: Span,
}

impl Level {
    fn new(counts: Counts, oldest: Span) -> Self {
        let Counts { ready, delayed, in_flight, dead, .. } = counts;
        Self { ready, delayed, in_flight, dead, oldest }
    }

    fn plus(self, more: Self) -> Self {
        Self {
            ready: self.ready + more.ready,
            delayed: self.delayed + more.delayed,
            in_flight: self.in_flight + more.in_flight,
            dead: self.dead + more.dead,
            oldest: self.oldest.max(more.oldest),
        }
    }
}

/// How all queues in memory stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueLevels {
    /// By full name.
    named: BTreeMap<String, (QueueName, Level)>,
    other: Level,
}

impl QueueLevels {
    /// One step for each queue, however many messages it has.
    pub(crate) fn of(boards: &Boards, may: &NamedQueues, now: Now) -> Self {
        let mut levels = Self::default();
        for board in boards.loaded() {
            let level = Level::new(board.counts(now), board.oldest_ready(now));
            let named = match may {
                NamedQueues::None => false,
                NamedQueues::All => true,
                NamedQueues::These(names) => names.contains(&board.name),
            };
            levels.add(&board.name, level, named);
        }
        levels
    }

    fn add(&mut self, queue: &QueueName, level: Level, named: bool) {
        if !named {
            self.other = self.other.plus(level);
            return;
        }
        self.named.insert(queue.as_str().to_owned(), (queue.clone(), level));
        if self.named.len() > NAMED_QUEUES_MAX
            && let Some((_, (_, level))) = self.named.pop_last()
        {
            self.other = self.other.plus(level);
        }
    }

    /// As a part of a page of `OpenMetrics` text.
    pub(super) fn text(&self) -> String {
        let mut all: Vec<(String, Level)> = Vec::with_capacity(self.named.len() + 1);
        all.extend(self.named.values().map(|(queue, level)| (labels(queue), *level)));
        all.push((OTHER.to_owned(), self.other));
        let mut text = String::new();
        text.push_str("# HELP lockd_queue_messages Messages in queues, by state.\n");
        text.push_str("# TYPE lockd_queue_messages gauge\n");
        for (labels, level) in &all {
            for (state, count) in [
                ("ready", level.ready),
                ("delayed", level.delayed),
                ("in_flight", level.in_flight),
                ("dead", level.dead),
            ] {
                let sample = format!("lockd_queue_messages{{{labels},state=\"{state}\"}} {count}");
                push_line(&mut text, &sample);
            }
        }
        let name = "lockd_queue_oldest_ready_seconds";
        push_line(
            &mut text,
            &format!("# HELP {name} How long the first message could have been taken."),
        );
        push_line(&mut text, &format!("# TYPE {name} gauge"));
        for (labels, level) in &all {
            let seconds = level.oldest.0 as f64 / 1_000.0;
            push_line(&mut text, &format!("{name}{{{labels}}} {seconds}"));
        }
        text
    }
}

fn push_line(text: &mut String, line: &str) {
    let written = writeln!(text, "{line}");
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
}

fn labels(queue: &QueueName) -> String {
    format!("namespace={},queue={}", quoted(queue.namespace()), quoted(queue.queue()))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(ready: usize) -> Level {
        Level { ready, oldest: Span(ready as u64 * 1_000), ..Level::default() }
    }

    #[test]
    fn what_may_not_be_named_is_summed_up() {
        let mut levels = QueueLevels::default();
        let queue = |name: &str| QueueName::parse("tenant", name).unwrap();
        levels.add(&queue("mail"), level(2), true);
        levels.add(&queue("secret"), level(3), false);
        levels.add(&queue("secret2"), level(4), false);
        let text = levels.text();
        let mail = r#"lockd_queue_messages{namespace="tenant",queue="mail",state="ready"} 2"#;
        assert!(text.contains(mail), "{text}");
        assert!(text.contains(r#"lockd_queue_messages{queue="other",state="ready"} 7"#), "{text}");
        assert!(text.contains(r#"lockd_queue_oldest_ready_seconds{queue="other"} 4"#), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn the_number_of_names_has_a_bound() {
        let mut levels = QueueLevels::default();
        for number in 0..NAMED_QUEUES_MAX + 50 {
            let queue = QueueName::parse("n", &format!("queue-{number:04}")).unwrap();
            levels.add(&queue, level(1), true);
        }
        assert_eq!((levels.named.len(), levels.other.ready), (NAMED_QUEUES_MAX, 50));
        assert!(levels.text().contains("queue-0099") && !levels.text().contains("queue-0100"));
    }
}
