//! The senders of a link, and the transfers that wait for them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::data::Outgoing;

/// A carrier of transfers: a lane or a ring.
pub(super) trait Sender {
    /// Carries parts of a transfer until none is left.
    fn carry(&self, outgoing: &Outgoing);

    /// Closes it, for the peer too.
    fn hang_up(&self);
}

/// All senders of a connection. Transfers use all of them, including those still to come.
pub(super) struct Sending<S>(Mutex<State<S>>);

struct State<S> {
    /// The number of senders that will come, once that is known.
    expected: Option<usize>,
    up: Vec<S>,
    waiting: Vec<Outgoing>,
    closed: bool,
}

impl<S: Sender> Sending<S> {
    pub(super) fn new(expected: Option<usize>) -> Self {
        Self(Mutex::new(State { expected, up: Vec::new(), waiting: Vec::new(), closed: false }))
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn expect(&self, number: usize) {
        self.state().expected = Some(number);
    }

    /// Adds a sender: waiting transfers use it. Returns whether it is wanted; otherwise it is closed.
    pub(super) fn add(&self, sender: S) -> bool {
        let mut state = self.state();
        if state.closed {
            sender.hang_up();
            return false;
        }
        for outgoing in &state.waiting {
            sender.carry(outgoing);
        }
        state.up.push(sender);
        if state.is_complete() {
            state.waiting.clear();
        }
        true
    }

    pub(super) fn carry(&self, outgoing: &Outgoing) {
        let mut state = self.state();
        for sender in &state.up {
            sender.carry(outgoing);
        }
        if !state.is_complete() {
            state.waiting.push(outgoing.clone());
        }
    }

    /// Forgets a transfer that may still wait.
    pub(super) fn forget(&self, outgoing: &Outgoing) {
        let waiting = &mut self.state().waiting;
        waiting.retain(|waiting| !waiting.is(outgoing));
    }

    /// Removes senders that `is_useless` accepts, and returns whether there were any.
    pub(super) fn remove(&self, is_useless: impl Fn(&S) -> bool) -> bool {
        let removed = self.state().up.extract_if(.., |sender| is_useless(sender)).count();
        removed > 0
    }

    /// Closes the current senders, and those still to come.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        for sender in state.up.drain(..) {
            sender.hang_up();
        }
    }
}

impl<S> State<S> {
    fn is_complete(&self) -> bool {
        // If none will come, transfers wait until the connection ends.
        self.expected.is_some_and(|expected| expected > 0 && self.up.len() >= expected)
    }
}
