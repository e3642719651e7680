//! The state of a world.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, Direction, Incarnation, Rank, TransferId};

use super::event::Time;
use super::memory::{Blocks, LAYERS};
use super::plan::{Shape, SimPlanner};
use crate::lease::{LeaseEnd, LeaseKey};
use crate::moment::Moment;
use crate::stream::StreamHeader;
use crate::ticket::Ticket;
use crate::{Flow, Machine, Path, PathSet};

pub(super) type SimMachine = Machine<SimPlanner<Blocks>>;

pub(super) struct Node {
    pub(super) agent: AgentId,
    pub(super) deployment: usize,
    pub(super) ranks: BTreeSet<Rank>,
    pub(super) host: u64,
    /// The GPU of its host that holds its caches, if one GPU holds them all.
    pub(super) gpu: Option<u8>,
    pub(super) life: u32,
    pub(super) machine: Option<SimMachine>,
    pub(super) offset: u64,
    /// The speed of its clock, in millionths.
    pub(super) rate: u64,
    pub(super) armed: Option<Moment>,
    pub(super) generation: u64,
    pub(super) reading: HashMap<TransferId, Reading>,
    pub(super) receiving: HashMap<TransferId, Flowing>,
}

pub(super) struct Deployment {
    pub(super) shape: Shape,
    pub(super) incarnation: Incarnation,
    pub(super) nodes: Vec<usize>,
}

pub(super) struct Link {
    pub(super) ends: [(usize, u32); 2],
    pub(super) open: [bool; 2],
    pub(super) posted: [u64; 2],
    /// Earliest delivery to each end, so that messages stay in order.
    pub(super) earliest: [Time; 2],
    pub(super) broken: bool,
    pub(super) channels: Channels,
}

pub(super) enum View {
    Lease {
        key: LeaseKey,
        request: usize,
        hard: Moment,
        hard_bound: Duration,
        cancelled: bool,
        ended: Option<LeaseEnd>,
    },
    Job {
        request: usize,
        ranks: BTreeSet<Rank>,
        node: usize,
        started: Moment,
        timeout: Duration,
        /// Whether the job states other content than the lease.
        wrong: bool,
        done: Option<bool>,
    },
}

#[derive(Default)]
pub(super) struct Channels {
    pub(super) lanes: bool,
    /// Offers of rings that can still be taken: the sender, and a number.
    pub(super) offers: HashSet<(usize, u64)>,
    /// Established rings: the sender, and the path.
    pub(super) rings: HashSet<(usize, Path)>,
}

pub(super) struct Request {
    pub(super) direction: Direction,
    pub(super) owner: usize,
    pub(super) holder: usize,
    pub(super) key: u64,
    pub(super) tokens: (u64, u64),
    pub(super) content: ContentDigest,
    pub(super) ticket: Ticket,
    pub(super) by_layer: bool,
    pub(super) prefilled: bool,
    pub(super) paths: PathSet,
    /// Whether the holder has the owner push.
    pub(super) invites: bool,
    pub(super) ttl: Duration,
    pub(super) hard_bound: Duration,
    /// Source ranks, each with the blocks that it should be read from.
    pub(super) sources: Vec<(Rank, u64)>,
}

pub(super) struct Reading {
    pub(super) flow: Flow,
    pub(super) blocks: u64,
    pub(super) pieces: Vec<Piece>,
    pub(super) readable: [bool; LAYERS as usize],
    pub(super) prefilled: bool,
    pub(super) gathered: usize,
    pub(super) fence_at: Option<Time>,
}

impl Reading {
    pub(super) fn is_gathered(&self) -> bool {
        self.prefilled && self.gathered == self.pieces.len()
    }

    pub(super) fn counts(&self) -> (u32, u64) {
        (self.pieces.len() as u32, self.flow.bytes)
    }
}

pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) begun: bool,
    pub(super) values: Vec<u64>,
}

pub(super) struct Flowing {
    pub(super) flow: Flow,
    pub(super) blocks: u64,
    pub(super) fence_at: Option<Time>,
    pub(super) streams: HashMap<u32, Incoming>,
}

pub(super) struct Incoming {
    pub(super) header: StreamHeader,
    pub(super) values: Vec<u64>,
    pub(super) sent_crc: u32,
}
