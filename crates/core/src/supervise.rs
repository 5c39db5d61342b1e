//! The rules of a node that is one of several, of which one leads: what its controller may do, when
//! its agent works, and what it says it is.
//!
//! A node takes office in this order: the lock, the agent stopped, the controller opened under the
//! lock's epoch, and only then it calls itself leader. It leaves in the reverse order: nothing
//! calls itself leader, the controller closed, the lock released, and only then the agent starts.
//! So its agent never works while its controller may write.

/// What a node says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Standby,
    Leader,
    /// It leads, gives out no new work, and is about to hand over.
    Draining,
}

/// How it is with the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controller {
    /// It answers questions, or does not run.
    #[default]
    Closed,
    /// It was told to write under this epoch, and has not said that it does.
    Opening(u64),
    /// It writes under this epoch.
    Open(u64),
    /// It was told to write no more, and has not said that it does not.
    Closing,
}

/// How it is with the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Agent {
    #[default]
    Off,
    On,
    /// It was told to stop, and has not ended.
    Stopping,
}

/// Something that has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The lock is held under this epoch.
    Granted(u64),
    /// The lock is lost, or may be.
    Lost,
    /// The agent has ended, all of it.
    AgentEnded,
    /// The controller writes under this epoch, and the store refuses lower ones.
    Opened(u64),
    /// The store knows this epoch, which is not lower than the one that was tried: the controller
    /// writes no more, or never did.
    Behind(u64),
    /// The controller writes no more: it said so, or it was killed.
    Closed,
    /// The controller has ended by itself.
    Died,
    /// The office is to be handed over.
    Resign,
    /// All that was to be finished before the hand-over is, or the time for it is over.
    Drained,
    /// Whether the agent may work while another node leads.
    Moonlight(bool),
}

/// Something to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Say from now on that the node is this.
    Publish(Role),
    StopAgent,
    StartAgent,
    /// Have the controller write under this epoch, if the store knows only lower ones.
    Open(u64),
    /// Have the controller write no more, by force if it takes too long.
    Close,
    /// Have the controller give out no new work.
    Drain,
    /// Give the lock back.
    Release,
    /// Hold the lock under an epoch above this one.
    Raise(u64),
}

/// A node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub role: Role,
    /// The epoch under which the lock is held.
    pub lock: Option<u64>,
    pub controller: Controller,
    pub agent: Agent,
    /// Whether the agent may work while another node leads.
    pub moonlight: bool,
    /// Whether the office is to be handed over.
    pub resigns: bool,
}

/// A rule that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the agent works while the controller may write")]
    AgentBesideWriter,
    #[error("the controller is open without the lock")]
    OpenWithoutLock,
    #[error("it calls itself leader without the lock")]
    LeaderWithoutLock,
}

impl Node {
    /// What follows from an event. Events that come too late change nothing.
    #[must_use]
    pub fn after(mut self, event: Event) -> (Self, Vec<Action>) {
        let mut actions = Vec::new();
        match event {
            Event::Granted(epoch) => self.lock = Some(epoch),
            Event::Lost => {
                self.lock = None;
                self.resigns = false;
            }
            Event::AgentEnded => self.agent = Agent::Off,
            Event::Opened(epoch) => {
                if self.controller == Controller::Opening(epoch) {
                    self.controller = Controller::Open(epoch);
                }
            }
            Event::Behind(seen) => {
                let fenced = matches!(self.controller,
                    Controller::Opening(epoch) | Controller::Open(epoch) if epoch <= seen);
                if fenced {
                    self.controller = Controller::Closed;
                }
                // One that is about to hand over does that, now that there is nothing to finish.
                if fenced && !self.resigns {
                    self.lock = None;
                    self.publish(Role::Standby, &mut actions);
                    actions.push(Action::Raise(seen));
                }
            }
            Event::Closed => {
                if self.controller == Controller::Closing {
                    self.controller = Controller::Closed;
                }
            }
            // Whoever starts it again starts it closed.
            Event::Died => self.controller = Controller::Closed,
            Event::Resign => self.resigns = self.lock.is_some(),
            Event::Drained => {
                if self.role == Role::Draining {
                    self.close(&mut actions);
                }
            }
            Event::Moonlight(may) => self.moonlight = may,
        }
        self.go_on(&mut actions);
        (self, actions)
    }

    /// The next steps, as far as they can be taken.
    fn go_on(&mut self, actions: &mut Vec<Action>) {
        match self.lock {
            Some(epoch) if !self.resigns => self.take_office(epoch, actions),
            Some(_) => self.hand_over(actions),
            None => self.leave(actions),
        }
    }

    fn take_office(&mut self, epoch: u64, actions: &mut Vec<Action>) {
        match self.agent {
            Agent::On => {
                self.agent = Agent::Stopping;
                actions.push(Action::StopAgent);
                return;
            }
            Agent::Stopping => return,
            Agent::Off => {}
        }
        match self.controller {
            Controller::Closed => {
                self.controller = Controller::Opening(epoch);
                actions.push(Action::Open(epoch));
            }
            Controller::Open(open) if open == epoch => self.publish(Role::Leader, actions),
            // Under an epoch that is over.
            Controller::Open(_) | Controller::Opening(_) if !self.is_under(epoch) => {
                self.publish(Role::Standby, actions);
                self.close(actions);
            }
            Controller::Open(_) | Controller::Opening(_) | Controller::Closing => {}
        }
    }

    fn is_under(&self, epoch: u64) -> bool {
        matches!(self.controller, Controller::Open(now) | Controller::Opening(now) if now == epoch)
    }

    fn hand_over(&mut self, actions: &mut Vec<Action>) {
        match (self.controller, self.role) {
            (Controller::Open(_), Role::Leader) => {
                self.publish(Role::Draining, actions);
                actions.push(Action::Drain);
            }
            // What was not opened yet has nothing to finish.
            (Controller::Opening(_), _) | (Controller::Open(_), Role::Standby) => {
                self.close(actions);
            }
            (Controller::Open(_), Role::Draining) | (Controller::Closing, _) => {}
            (Controller::Closed, _) => {
                self.publish(Role::Standby, actions);
                self.lock = None;
                self.resigns = false;
                actions.push(Action::Release);
                self.leave(actions);
            }
        }
    }

    fn leave(&mut self, actions: &mut Vec<Action>) {
        self.publish(Role::Standby, actions);
        match (self.controller, self.agent) {
            (Controller::Opening(_) | Controller::Open(_), _) => self.close(actions),
            (Controller::Closed, Agent::Off) if self.moonlight => {
                self.agent = Agent::On;
                actions.push(Action::StartAgent);
            }
            (Controller::Closed, Agent::On) if !self.moonlight => {
                self.agent = Agent::Stopping;
                actions.push(Action::StopAgent);
            }
            (Controller::Closed | Controller::Closing, _) => {}
        }
    }

    fn close(&mut self, actions: &mut Vec<Action>) {
        if matches!(self.controller, Controller::Opening(_) | Controller::Open(_)) {
            self.controller = Controller::Closing;
            actions.push(Action::Close);
        }
    }

    fn publish(&mut self, role: Role, actions: &mut Vec<Action>) {
        if self.role != role {
            self.role = role;
            actions.push(Action::Publish(role));
        }
    }

    /// Whether the rules hold that must hold at any time.
    ///
    /// # Errors
    /// With the one that does not.
    pub fn check(&self) -> Result<(), Broken> {
        if self.agent != Agent::Off && self.controller != Controller::Closed {
            return Err(Broken::AgentBesideWriter);
        }
        if self.agent != Agent::Off && self.role != Role::Standby {
            return Err(Broken::AgentBesideWriter);
        }
        let open = matches!(self.controller, Controller::Opening(_) | Controller::Open(_));
        if open && self.lock.is_none() {
            return Err(Broken::OpenWithoutLock);
        }
        if self.role != Role::Standby && self.lock.is_none() {
            return Err(Broken::LeaderWithoutLock);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
