//! A small cluster to move requests in: two deployments that differ in everything, the memory of their
//! ranks, contents that follow from the request's number, and canaries wherever no request belongs.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;
use transload_layout::{Deployment, Dtype, Group, Rank, Spec};
use transload_transfer::device::{DeviceMemory, Gpu};
use transload_transfer::memory::copy::{CopyOptions, copy};
use transload_transfer::plan::ids::DeploymentDigest;
use transload_transfer::wire::Gauges;
use transload_transfer::{
    Agent, AgentOptions, BlockTable, Builder, Claims, ClusterName, Content, ContentDigest, Direction, Identity,
    Incarnation, InstanceName, Lease, LeaseEnd, LeaseRequest, LeaseSetId, Memory, PathSet, Plan, PullRequest,
    PushRequest, RankAddress, Request, Tables, Ticket, TicketKey,
};

use crate::pair::copy_all;
use crate::process::mix;

/// The name of the cluster.
pub const CLUSTER: &str = "siege";

/// Tokens of each request.
pub const TOKENS: u64 = 1000;

/// The word that memory holds wherever nothing was placed.
const CANARY: u64 = 0xC0DE_CAFE_0BAD_F00D;

/// One of the two deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// TP 2, blocks of 16, NHD.
    Prefill,
    /// TP 4, blocks of 24, HND.
    Decode,
}

impl Side {
    /// Returns the side's deployment.
    pub fn deployment(self) -> Deployment {
        let (tp, block, order) = match self {
            Side::Prefill => (2, 16, "NHD"),
            Side::Decode => (4, 24, "HND"),
        };
        let blocks = 2 * self.blocks_of_a_request() + 5;
        let spec = Spec::attention(4, 64, Dtype::Bf16);
        Deployment::builder()
            .tp(tp)
            .block_size(block)
            .num_blocks(blocks)
            .order(order)
            .group(Group::builder("attn", "0-3", spec))
            .build()
            .unwrap()
    }

    fn blocks_of_a_request(self) -> u64 {
        TOKENS.div_ceil(match self {
            Side::Prefill => 16,
            Side::Decode => 24,
        })
    }

    /// Returns the blocks of a request: those of neighbouring requests are disjoint, so that what arrives late
    /// for one shows while the next is checked.
    pub fn tables(self, request: u64) -> Tables {
        let count = self.blocks_of_a_request();
        let first = request % 2 * count;
        let blocks = (0..count).rev().map(|block| (first + block) as u32);
        Tables(vec![BlockTable::List(blocks.collect())])
    }
}

/// The memory of all ranks of a side.
#[derive(Clone, Debug)]
pub struct Cache {
    side: Side,
    memories: BTreeMap<Rank, Memory>,
    /// Caches that are on a GPU. They are filled and checked through `memories`.
    on_gpu: BTreeMap<Rank, DeviceMemory>,
}

impl Cache {
    /// Makes memory for all ranks, full of canaries.
    pub fn new(side: Side) -> Self {
        Self::on(side, None)
    }

    /// Like `new`, with the caches on a GPU if one is given.
    pub fn on(side: Side, gpu: Option<&Gpu>) -> Self {
        let on_gpu = bytes_of(side).into_iter().filter_map(|(rank, bytes)| {
            let memory = DeviceMemory::allocate(gpu?, &[bytes as usize]);
            Some((rank, memory.unwrap()))
        });
        let on_gpu = on_gpu.collect();
        let bytes = bytes_of(side).into_iter();
        let memories = bytes.map(|(rank, bytes)| (rank, Memory::allocate(&[bytes as usize])));
        let memories = memories.map(|(rank, memory)| (rank, memory.unwrap()));
        let cache = Self { side, memories: memories.collect(), on_gpu };
        cache.clear();
        cache
    }

    /// Returns the cache's side.
    pub fn side(&self) -> Side {
        self.side
    }

    fn set(&self, word: impl Fn(u64) -> u64) {
        for (rank, memory) in &self.memories {
            let labels = (label(*rank, 0)..).take(memory.bytes() as usize / 8);
            let words: Vec<u64> = labels.map(&word).collect();
            memory.write(0, bytemuck::cast_slice(&words)).unwrap();
            if let Some(device) = self.on_gpu.get(rank) {
                copy_all(memory, device, memory.bytes());
            }
        }
    }

    /// Fills it with canaries.
    pub fn clear(&self) {
        self.set(|_| CANARY);
    }

    /// Fills it with what a request's source holds.
    pub fn fill(&self, request: u64) {
        self.set(|label| content(request, label));
    }

    fn words(&self) -> impl Iterator<Item = Vec<u64>> {
        self.memories.iter().map(|(rank, memory)| {
            if let Some(device) = self.on_gpu.get(rank) {
                copy_all(device, memory, memory.bytes());
            }
            let mut words = vec![0; memory.bytes() as usize / 8];
            let bytes = bytemuck::cast_slice_mut(&mut words);
            memory.read(0, bytes).unwrap();
            words
        })
    }

    /// Returns a checksum of the whole cache.
    pub fn checksum(&self) -> u64 {
        let words = self.words().flatten();
        words.fold(0, |sum: u64, word| mix(sum.rotate_left(1) ^ word))
    }

    /// Returns whether it is as a request's source fills it.
    pub fn holds(&self, request: u64) -> bool {
        self.memories.keys().zip(self.words()).all(|(rank, words)| {
            let mut labels = (0..).map(|index| label(*rank, index));
            words.iter().all(|word| labels.next().map(|at| content(request, at)) == Some(*word))
        })
    }

    /// Makes an agent of this memory, for some of the ranks. Its name is the same in each life, even if the port changes.
    pub fn agent(
        &self,
        identity: Identity,
        ranks: impl IntoIterator<Item = Rank>,
        incarnation: Incarnation,
        options: AgentOptions,
    ) -> Agent {
        let name = InstanceName::new("0").unwrap();
        let builder = self.builder(identity, ranks, incarnation, options);
        let any = "127.0.0.1:0".parse().unwrap();
        builder.instance(name).bind(any).unwrap()
    }

    /// Like `agent`, but returns the builder, which the caller binds.
    pub fn builder(
        &self,
        identity: Identity,
        ranks: impl IntoIterator<Item = Rank>,
        incarnation: Incarnation,
        options: AgentOptions,
    ) -> Builder {
        let mut builder = Agent::builder(identity, self.side.deployment()).incarnation(incarnation).options(options);
        for rank in ranks {
            let registered = match self.on_gpu.get(&rank) {
                Some(memory) => builder.register(rank, vec![memory.clone()]),
                None => builder.register(rank, vec![self.memories[&rank].clone()]),
            };
            builder = registered.unwrap();
        }
        builder
    }
}

/// Returns how many bytes each rank of a side has.
fn bytes_of(side: Side) -> BTreeMap<Rank, u64> {
    let deployment = side.deployment();
    let ranks = deployment.ranks().map(|rank| {
        let (_, stage) = deployment.split_rank(rank);
        (rank, deployment.groups()[0].placement(stage).allocation_bytes)
    });
    ranks.collect()
}

/// Returns the place of a word in the memory of a side, in one number that is not 0.
fn label(rank: Rank, index: u64) -> u64 {
    (u64::from(rank.0) + 1) << 40 | index
}

fn content(request: u64, label: u64) -> u64 {
    mix(request.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ label)
}

/// The source of each word of the decode side, for even and for odd requests.
#[derive(Debug)]
pub struct Origins([Vec<Vec<u64>>; 2]);

impl Origins {
    /// Moves labels instead of contents, within this process.
    pub fn new() -> Self {
        Self([0, 1].map(|request| {
            let (src, dst) = (Cache::new(Side::Prefill), Cache::new(Side::Decode));
            src.set(|label| label);
            dst.set(|_| 0);
            let of = Request::tokens(TOKENS);
            let plan = Plan::compile(&src.side.deployment(), &dst.side.deployment(), &of).unwrap();
            let tables = [Side::Prefill, Side::Decode].map(|side| side.tables(request));
            for route in plan.bind(&tables[0], &tables[1]).unwrap().routes {
                let (from, to) = (&src.memories[&route.src_rank], &dst.memories[&route.dst_rank]);
                copy(&route.program(), from, to, &CopyOptions::default()).unwrap();
            }
            dst.words().collect()
        }))
    }

    /// Checks every byte of some ranks of the decode side after a request has landed in them: contents
    /// where they belong, canaries everywhere else.
    pub fn check(&self, cache: &Cache, request: u64, ranks: &[Rank]) -> Result<(), String> {
        let origins = self.0[request as usize % 2].iter().zip(cache.words());
        for (rank, (origins, found)) in (0..).map(Rank).zip(origins) {
            if !ranks.contains(&rank) {
                continue;
            }
            for (at, (&origin, &found)) in origins.iter().zip(&found).enumerate() {
                let expected = match origin {
                    0 => CANARY,
                    label => content(request, label),
                };
                if found != expected {
                    return Err(format!(
                        "request {request}, rank {rank}, word {at}: {found:016x} where \
                         {expected:016x} belongs"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Origins {
    /// Checks that nothing was written outside a request's blocks.
    pub fn check_canaries(&self, cache: &Cache, request: u64) -> Result<(), String> {
        let origins = self.0[request as usize % 2].iter().zip(cache.words());
        for (rank, (origins, found)) in origins.enumerate() {
            let lost = |(origin, found): (&u64, &u64)| *origin == 0 && *found != CANARY;
            if let Some(at) = origins.iter().zip(&found).position(lost) {
                return Err(format!("rank {rank}, word {at}: {:016x}", found[at]));
            }
        }
        Ok(())
    }
}

impl Default for Origins {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the content of a request's blocks, as leases and pulls state it.
pub fn content_of(request: u64) -> ContentDigest {
    let tokens: Vec<u32> = (0..TOKENS).map(|token| mix(request ^ token << 32) as u32).collect();
    Content::first(TOKENS, &tokens).unwrap().digest()
}

/// Returns the lease set of a request.
pub fn set_of(request: u64) -> LeaseSetId {
    LeaseSetId((u128::from(mix(request)) << 64 | u128::from(request)).to_le_bytes())
}

/// Returns a lease of one rank's blocks of a request, which ends by itself after a second and a half.
pub fn lease_of(side: Side, rank: Rank, request: u64) -> LeaseRequest {
    let tables = side.tables(request);
    let mut lease = LeaseRequest::new(set_of(request), rank, tables, content_of(request), TOKENS);
    lease.ttl = Duration::from_millis(1500);
    lease.hard_bound = Duration::from_secs(8);
    lease
}

/// Leases blocks, or opens them for a push.
pub async fn open(owner: &Agent, direction: Direction, request: LeaseRequest) -> Lease {
    let opened = match direction {
        Direction::Pull => owner.lease(request).await,
        Direction::Push => owner.open(request).await,
    };
    opened.unwrap()
}

/// Checks that all leases end in this way.
pub async fn all_end(leases: impl IntoIterator<Item = Lease>, end: LeaseEnd) {
    for lease in leases {
        assert_eq!(lease.ended().await.unwrap().end, end);
    }
}

/// Returns a transfer of a request into or out of the blocks of `side`. Two requests out of four use only the network.
pub fn transfer_of(side: Side, ranks: &[Rank], ticket: Ticket, request: u64) -> PullRequest {
    let tables = side.tables(request);
    let ranks = ranks.iter().copied();
    let mut pull = PullRequest::new(ticket, ranks, tables, content_of(request), TOKENS);
    pull.timeout = Duration::from_secs(8);
    if request % 4 < 2 {
        pull.paths = PathSet::QUIC;
    }
    pull
}

/// Returns the push of what such a pull would move, of blocks that are prefilled.
pub fn pushed(pull: PullRequest) -> PushRequest {
    let PullRequest { ticket, ranks, tables, request, content, paths, timeout, keep_leases, after, keeper, .. } = pull;
    let prefilled = true;
    PushRequest { ticket, ranks, tables, request, content, paths, timeout, keep_leases, prefilled, after, keeper }
}

/// Returns the claims of a ticket for a request.
pub fn claims_of(
    request: u64,
    direction: Direction,
    owner: DeploymentDigest,
    incarnation: Incarnation,
    ranks: Vec<RankAddress>,
) -> Claims {
    Claims {
        cluster: ClusterName::new(CLUSTER).unwrap(),
        set: set_of(request),
        direction,
        owner,
        incarnation,
        start: 0,
        valid_tokens: TOKENS,
        ranks,
        time_left: Duration::from_secs(1),
        audience: None,
    }
}

/// Returns a ticket for what one agent holds of a request.
pub fn ticket_of(owner: &Agent, request: u64, direction: Direction) -> Ticket {
    let ranks = owner.deployment().ranks();
    let claims = claims_of(
        request,
        direction,
        owner.deployment_digest(),
        owner.incarnation(),
        ranks.map(|_| owner.address("127.0.0.1")).collect(),
    );
    mint(&owner.ticket_key(), &claims)
}

/// Seals a ticket.
pub fn mint(key: &TicketKey, claims: &Claims) -> Ticket {
    Ticket::mint(key, claims).unwrap()
}

/// Returns settings with short time limits, a fraction of a second instead of seconds.
pub fn impatient() -> AgentOptions {
    let ms = Duration::from_millis;
    let mut options = AgentOptions::default();
    options.quic.lanes = 2;
    options.quic.handshake_timeout = ms(500);
    options.quic.frame_timeout = ms(1000);
    options.quic.stall_timeout = ms(1000);
    options.quic.idle_timeout = ms(500);
    options.quic.keep_alive = ms(100);
    options.wire.leases.peer_grace = ms(300);
    options.wire.early_wait = ms(1000);
    options.wire.hello_wait = ms(1000);
    options.wire.stall = ms(1500);
    options.wire.heartbeat = ms(300);
    options.wire.landing_wait = ms(1000);
    options.wire.attempts = 2;
    options.wire.backoff = ms(20);
    options.wire.backoff_most = ms(100);
    options.wire.notice_wait = ms(500);
    options
}

/// Waits until an agent has nothing under way. Peers may be connected.
pub async fn unused(agent: &Agent) {
    wait_for(agent, |gauges| {
        gauges.sessions = 0;
        gauges.agents = 0;
    })
    .await;
}

/// Waits until nothing at all is left of what an agent had under way, connections included.
pub async fn idle(agent: &Agent) {
    let mut connections = 0;
    for _ in 0..1000 {
        wait_for(agent, |_| ()).await;
        connections = agent.endpoints().open_connections();
        if connections == 0 {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{connections} connections are left");
}

async fn wait_for(agent: &Agent, forgive: impl Fn(&mut Gauges)) {
    let mut gauges = Gauges::default();
    for _ in 0..1000 {
        gauges = agent.gauges().await.unwrap();
        forgive(&mut gauges);
        if gauges == Gauges::default() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{gauges:?} are left");
}
