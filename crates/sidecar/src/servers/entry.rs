//! A server in the table.

use std::time::Instant;

use super::health::Health;
use crate::Role;
use crate::observe::{ServerState, ServerStatus};
use crate::target::ServerUrl;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) url: ServerUrl,
    /// The server's number, in order of arrival.
    pub(super) number: u64,
    /// The origins that name the server, indexed by [`Origin`](super::Origin).
    pub(super) named: [bool; 2],
    /// A request has named the server.
    pub(super) by_request: bool,
    pub(super) in_flight: u64,
    pub(super) tokens: u64,
    pub(super) requests: u64,
    pub(super) failures: u64,
    pub(super) health: Health,
    pub(super) used: Option<Instant>,
}

impl Entry {
    pub(super) fn is_named(&self) -> bool {
        self.named.contains(&true)
    }

    pub(super) fn is_over(&self) -> bool {
        !self.is_named() && !self.by_request && self.in_flight == 0
    }

    pub(super) fn take(&mut self, tokens: u64, now: Instant) {
        self.health.asked(now);
        self.in_flight += 1;
        self.tokens = self.tokens.saturating_add(tokens);
        self.requests += 1;
        self.used = Some(now);
    }

    pub(super) fn status(&self, role: Role) -> ServerStatus {
        let state = if !self.is_named() && !self.by_request {
            ServerState::Draining
        } else if self.health.is_down() {
            ServerState::Down
        } else if self.health.is_open() {
            ServerState::Open
        } else {
            ServerState::Up
        };
        ServerStatus {
            url: self.url.clone(),
            role,
            state,
            in_flight: self.in_flight,
            requests: self.requests,
            failures: self.failures,
            misfits: Vec::new(),
        }
    }
}
