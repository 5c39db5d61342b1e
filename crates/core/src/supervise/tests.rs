//! The orders of taking and leaving office, and that the rules hold whatever comes.

use proptest::prelude::*;

use super::*;

/// Events one after the other, and all that was to be done for them.
fn through(node: Node, events: &[Event]) -> (Node, Vec<Action>) {
    events.iter().fold((node, Vec::new()), |(node, mut all), event| {
        let (node, actions) = node.after(*event);
        node.check().unwrap();
        all.extend(actions);
        (node, all)
    })
}

fn moonlighting() -> Node {
    through(Node::default(), &[Event::Moonlight(true)]).0
}

fn leading() -> Node {
    let (node, _) =
        through(moonlighting(), &[Event::Granted(7), Event::AgentEnded, Event::Opened(7)]);
    assert_eq!((node.role, node.controller), (Role::Leader, Controller::Open(7)));
    node
}

#[test]
fn office_is_taken_in_order() {
    let (node, actions) =
        through(moonlighting(), &[Event::Granted(7), Event::AgentEnded, Event::Opened(7)]);
    assert_eq!(actions, [Action::StopAgent, Action::Open(7), Action::Publish(Role::Leader)]);
    assert_eq!((node.lock, node.agent), (Some(7), Agent::Off));
}

#[test]
fn a_lost_lock_ends_it_at_once_and_the_agent_waits() {
    let (node, actions) = leading().after(Event::Lost);
    assert_eq!(actions, [Action::Publish(Role::Standby), Action::Close]);
    let (node, actions) = node.after(Event::Closed);
    assert_eq!((actions, node.agent), (vec![Action::StartAgent], Agent::On));
}

#[test]
fn a_hand_over_drains_closes_and_releases() {
    let (node, actions) = through(leading(), &[Event::Resign]);
    assert_eq!(actions, [Action::Publish(Role::Draining), Action::Drain]);
    let (_, actions) = through(node, &[Event::Drained, Event::Closed]);
    assert_eq!(
        actions,
        [Action::Close, Action::Publish(Role::Standby), Action::Release, Action::StartAgent]
    );
}

#[test]
fn a_lock_that_is_lost_while_draining_is_not_released() {
    let (_, actions) = through(leading(), &[Event::Resign, Event::Lost, Event::Closed]);
    assert!(!actions.contains(&Action::Release), "{actions:?}");
    assert!(actions.ends_with(&[Action::Close, Action::StartAgent]), "{actions:?}");
}

#[test]
fn a_store_that_is_ahead_raises_the_lock() {
    let (node, actions) = through(Node::default(), &[Event::Granted(3), Event::Behind(9)]);
    assert_eq!(actions, [Action::Open(3), Action::Raise(9)]);
    let (_, actions) = through(node, &[Event::Granted(10), Event::Opened(10)]);
    assert_eq!(actions, [Action::Open(10), Action::Publish(Role::Leader)]);
}

#[test]
fn a_store_that_refuses_an_open_controller_ends_the_office_and_raises_the_lock() {
    let (node, actions) = leading().after(Event::Behind(9));
    assert_eq!(actions, [Action::Publish(Role::Standby), Action::Raise(9), Action::StartAgent]);
    assert_eq!((node.lock, node.controller), (None, Controller::Closed));
    assert_eq!(leading().after(Event::Behind(6)), (leading(), vec![]), "of an epoch before");
    // What was about to be handed over is.
    let (_, actions) = through(leading(), &[Event::Resign, Event::Behind(9)]);
    let draining = [Action::Publish(Role::Draining), Action::Drain];
    let over = [Action::Publish(Role::Standby), Action::Release, Action::StartAgent];
    assert_eq!(actions, [draining.as_slice(), &over].concat());
}

#[test]
fn what_comes_too_late_changes_nothing() {
    let (node, _) = through(Node::default(), &[Event::Granted(3), Event::Lost, Event::Closed]);
    let (after, actions) = through(node, &[Event::Opened(3), Event::Drained, Event::Behind(3)]);
    assert_eq!((after, actions), (node, vec![]));
    let (node, _) = through(Node::default(), &[Event::Granted(3)]);
    assert_eq!(node.after(Event::Opened(2)).0, node, "of another epoch");
}

#[test]
fn a_new_epoch_opens_anew() {
    let (node, actions) = through(leading(), &[Event::Granted(8)]);
    assert_eq!(actions, [Action::Publish(Role::Standby), Action::Close]);
    let (_, actions) = through(node, &[Event::Closed, Event::Opened(8)]);
    assert_eq!(actions, [Action::Open(8), Action::Publish(Role::Leader)]);
}

#[test]
fn a_controller_that_dies_is_opened_again_under_the_same_epoch() {
    let (node, actions) = leading().after(Event::Died);
    assert_eq!((actions, node.role), (vec![Action::Open(7)], Role::Leader));
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1_u64..5).prop_map(Event::Granted),
        Just(Event::Lost),
        Just(Event::AgentEnded),
        (1_u64..5).prop_map(Event::Opened),
        (1_u64..5).prop_map(Event::Behind),
        Just(Event::Closed),
        Just(Event::Died),
        Just(Event::Resign),
        Just(Event::Drained),
        any::<bool>().prop_map(Event::Moonlight),
    ]
}

/// The world as the actions make it, for rules about what is done and not only about what is known.
#[derive(Default)]
struct World {
    agent_runs: bool,
    may_write: Option<u64>,
    says: Role,
}

impl World {
    fn hear(&mut self, event: Event) {
        match event {
            Event::AgentEnded => self.agent_runs = false,
            Event::Closed | Event::Died => self.may_write = None,
            Event::Behind(seen) => {
                self.may_write.take_if(|epoch| *epoch <= seen);
            }
            Event::Granted(_)
            | Event::Lost
            | Event::Opened(_)
            | Event::Resign
            | Event::Drained
            | Event::Moonlight(_) => {}
        }
    }

    fn act(&mut self, action: Action, lock: Option<u64>) {
        match action {
            Action::StartAgent => {
                assert!(self.may_write.is_none(), "an agent beside a controller that may write");
                self.agent_runs = true;
            }
            Action::Open(epoch) => {
                assert!(!self.agent_runs, "a controller beside an agent");
                assert_eq!(lock, Some(epoch), "only under the lock");
                self.may_write = Some(epoch);
            }
            Action::Publish(role) => {
                assert!(role != Role::Leader || self.may_write == lock);
                self.says = role;
            }
            Action::Release => {
                assert!(self.may_write.is_none(), "released before it is closed");
                assert_eq!(self.says, Role::Standby);
            }
            Action::StopAgent | Action::Close | Action::Drain | Action::Raise(_) => {}
        }
    }
}

/// Only what the world could say comes: an agent that was not stopped does not end as if it was.
fn is_possible(node: &Node, world: &World, event: Event) -> bool {
    match event {
        Event::AgentEnded => node.agent == Agent::Stopping,
        Event::Opened(epoch) => world.may_write == Some(epoch),
        Event::Closed => node.controller == Controller::Closing,
        Event::Behind(seen) => world.may_write.is_some_and(|epoch| epoch <= seen),
        Event::Granted(_)
        | Event::Lost
        | Event::Died
        | Event::Resign
        | Event::Drained
        | Event::Moonlight(_) => true,
    }
}

proptest! {
    #[test]
    fn the_rules_hold_whatever_comes(events in prop::collection::vec(any_event(), 0..60)) {
        let mut node = Node::default();
        for event in events {
            node = node.after(event).0;
            prop_assert_eq!(node.check(), Ok(()), "after {:?}", event);
        }
    }

    #[test]
    fn what_is_done_keeps_writer_and_agent_apart(events in prop::collection::vec(any_event(), 0..80)) {
        let (mut node, mut world) = (Node::default(), World::default());
        for event in events {
            if !is_possible(&node, &world, event) {
                continue;
            }
            world.hear(event);
            let (next, actions) = node.after(event);
            for action in actions {
                world.act(action, next.lock);
            }
            node = next;
        }
    }

    /// From wherever it is, a node that is granted the lock and answered leads.
    #[test]
    fn it_always_gets_on(events in prop::collection::vec(any_event(), 0..40)) {
        let mut node = events.into_iter().fold(Node::default(), |node, event| node.after(event).0);
        node.resigns = false;
        node = node.after(Event::Granted(99)).0;
        for event in [Event::Closed, Event::AgentEnded, Event::Closed, Event::Opened(99)] {
            node = node.after(event).0;
        }
        prop_assert_eq!((node.role, node.lock), (Role::Leader, Some(99)));
    }
}
