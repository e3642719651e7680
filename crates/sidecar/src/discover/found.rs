//! The servers that a source of discovery has found.

use std::sync::Arc;

use crate::Role;
use crate::servers::{Origin, Servers};
use crate::target::ServerUrl;

/// The most servers of a role from one source. Further ones are left out, which is logged.
pub(super) const MOST_SERVERS: usize = 1024;

/// The servers that a source has found, as last set in the table.
#[derive(Debug)]
pub(super) struct Found {
    servers: Arc<Servers>,
    current: [Vec<ServerUrl>; 2],
}

impl Found {
    pub(super) fn new(servers: Arc<Servers>) -> Self {
        Self { servers, current: [Vec::new(), Vec::new()] }
    }

    pub(super) fn update(&mut self, prefill: Vec<ServerUrl>, decode: Vec<ServerUrl>) {
        let now = [(Role::Prefill, prefill), (Role::Decode, decode)];
        for ((role, mut urls), current) in now.into_iter().zip(&mut self.current) {
            if urls.len() > MOST_SERVERS {
                let (role, left_out) = (role.name(), urls.len() - MOST_SERVERS);
                tracing::warn!(role, left_out, "more servers are found than are used");
                urls.truncate(MOST_SERVERS);
            }
            if urls != *current {
                let (role_name, servers) = (role.name(), urls.len());
                tracing::info!(role = role_name, servers, "other servers are found");
                self.servers.set(Origin::Discovery, role, &urls);
                *current = urls;
            }
        }
    }
}
