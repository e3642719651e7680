//! Requests from one engine to another.

use std::time::Duration;

use transload_plan::content::ContentDigest;
use transload_plan::ids::{Direction, Rank};

use super::state::Request;
use super::world::{World, cluster, set_id, ticket_key};
use crate::PathSet;
use crate::ticket::{Claims, RankAddress, Ticket};

impl World {
    pub(super) fn add_request(&mut self, key: u64, push: bool, owner: usize, holder: usize) -> usize {
        let (start, tokens) = (self.rng.below(3), self.rng.within(1, 6));
        let direction = if push { Direction::Push } else { Direction::Pull };
        let first = if push { start } else { 0 };
        let ticket = self.mint(owner, key, direction, (first, start + tokens));
        let short = self.mishap(0.25);
        let ms = Duration::from_millis;
        let paths = match self.rng.below(4) {
            0 => PathSet::QUIC,
            _ => PathSet::ANY,
        };
        let request = Request {
            direction,
            owner,
            holder,
            key,
            tokens: (start, tokens),
            content: ContentDigest([key as u8; 32]),
            ticket,
            by_layer: self.rng.chance(0.5),
            prefilled: self.rng.chance(0.5),
            paths,
            invites: !push && (start + tokens).is_multiple_of(3),
            ttl: if short { ms(self.rng.within(50, 1500)) } else { ms(6000) },
            hard_bound: if short { ms(self.rng.within(100, 2500)) } else { ms(12_000) },
            sources: Vec::new(),
        };
        self.requests.push(request);
        self.requests.len() - 1
    }

    /// Returns the ticket for the write leases of a holder that has the owner push.
    pub(super) fn ticket_into(&self, holder: usize, request: usize) -> Option<Ticket> {
        let r = &self.requests[request];
        let (start, tokens) = r.tokens;
        // The set is unique to this holder.
        let key = r.key + 1000 * (1 + holder as u64);
        let range = (start, start + tokens);
        r.invites.then(|| self.mint(holder, key, Direction::Push, range))
    }

    fn mint(&self, owner: usize, key: u64, direction: Direction, range: (u64, u64)) -> Ticket {
        let deployment = &self.deployments[owner];
        let ranks = (0..deployment.shape.ranks).map(|rank| {
            let node = deployment.nodes.iter();
            let mut node = node.filter(|n| self.nodes[**n].ranks.contains(&Rank(rank)));
            let agent = self.nodes[*node.next().expect("each rank has a node")].agent.clone();
            RankAddress { host: agent.to_string(), agent, port: 7600 }
        });
        let claims = Claims {
            cluster: cluster(),
            set: set_id(key),
            direction,
            owner: deployment.shape.digest(),
            incarnation: deployment.incarnation,
            start: range.0,
            valid_tokens: range.1,
            ranks: ranks.collect(),
            time_left: Duration::from_secs(5),
            audience: None,
        };
        Ticket::mint(&ticket_key(), &claims).expect("good claims")
    }
}
