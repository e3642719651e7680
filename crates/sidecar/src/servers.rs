//! The servers known: their states, what is in flight at each, and which one is chosen.

#![allow(missing_docs)]

use std::sync::Arc;
use std::time::Instant;

use crate::Role;
use crate::observe::FailureKind;
use crate::settings::Policy;
use crate::target::ServerUrl;

pub struct Servers;
pub struct Wanted<'a> {
    pub tokens: u64,
    pub prefix: Option<u64>,
    pub avoid: &'a [ServerUrl],
}
pub struct Claim(ServerUrl);
impl Claim {
    pub fn url(&self) -> &ServerUrl {
        &self.0
    }
    pub fn succeeded(&self, _: Instant) {}
    pub fn failed(&self, _: FailureKind, _: Instant) {}
}
pub mod prefix {
    pub fn tokens(t: &[u8]) -> u64 {
        t.len() as u64 / 4
    }
    pub fn key(_: &[u8]) -> u64 {
        0
    }
}
impl Servers {
    pub fn any(&self, _: Role) -> bool {
        false
    }
    pub fn snapshot(&self) -> Vec<crate::observe::ServerStatus> {
        Vec::new()
    }

    pub fn claim(self: &Arc<Self>, _: Role, url: &ServerUrl, _: u64, _: Instant) -> Claim {
        Claim(url.clone())
    }
    pub fn choose(
        self: &Arc<Self>,
        _: Role,
        _: &Wanted<'_>,
        _: Policy,
        _: Instant,
    ) -> Option<Claim> {
        None
    }
}
