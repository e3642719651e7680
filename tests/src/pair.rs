//! Makes two agents in one process whose deployments differ, with random contents. The same copy is made directly, to
//! tell what the destination must contain in the end.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::memory_path::InMemory;

use smallvec::smallvec;
use transload_layout::{Deployment, Dtype, Group, Rank, Spec};
use transload_transfer::device::{self, DeviceMemory, Gpu, Place};
use transload_transfer::memory::Access;
use transload_transfer::memory::copy::{CopyOptions, copy};
use transload_transfer::plan::program::{Nest, Placed, Program};
use transload_transfer::{
    Agent, AgentOptions, Authority, BlockTable, Claims, ClusterName, Content, ContentDigest, Direction, Identity,
    Lease, LeaseRequest, LeaseSetId, Memory, Plan, PullRequest, PushRequest, Request, Roles, ServiceName, Tables,
    Ticket,
};

/// Returns a deployment of one group with 4 heads: its TP size, block size and order.
pub fn deployment(tp: u32, block: u32, order: &str) -> Deployment {
    of_layers(4, 16, (tp, block, order))
}

/// Returns a deployment with this number of layers and of elements in a head.
fn of_layers(layers: u32, head_dim: u32, (tp, block, order): (u32, u32, &str)) -> Deployment {
    let last = layers - 1;
    let spec = Spec::attention(4, head_dim.into(), Dtype::Bf16);
    Deployment::builder()
        .tp(tp.into())
        .block_size(block.into())
        .num_blocks(64)
        .order(order)
        .group(Group::builder("attn", &format!("0-{last}"), spec))
        .build()
        .unwrap()
}

/// Returns memory for each rank of a deployment.
pub fn memories(deployment: &Deployment) -> Vec<Memory> {
    let ranks = deployment.ranks().map(|rank| {
        let (_, stage) = deployment.split_rank(rank);
        let placement = deployment.groups()[0].placement(stage);
        Memory::allocate(&[placement.allocation_bytes as usize]).unwrap()
    });
    ranks.collect()
}

/// Fills a memory with what follows from a seed.
pub fn fill(memory: &Memory, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes: Vec<u8> = (0..memory.bytes())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    memory.write(0, &bytes).unwrap();
}

/// Returns the contents of a memory.
pub fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// An additional path, the GPUs that have the caches, by rank, and the access of transfers to these.
type Extras<'a> = (Option<InMemory>, (&'a [&'a Gpu], Access));

/// The caches are in memory of the host.
const ON_HOST: (&[&Gpu], Access) = (&[], Access::ReadWrite);

/// One agent of the pair, and its memory.
pub struct Side {
    /// The agent.
    pub agent: Agent,
    /// The memory of each rank. If the caches are on a GPU, it has their initial contents.
    pub memories: Vec<Memory>,
    /// The caches of the ranks, where they are on a GPU.
    pub on_gpu: Vec<DeviceMemory>,
    /// The blocks of the request.
    pub tables: Tables,
}

impl Side {
    /// Makes an agent with memory for all ranks, filled by seeds from 1 on. `step` scatters its blocks.
    pub fn new(identity: Identity, deployment: Deployment, step: u32, options: AgentOptions) -> Self {
        let further = further_path();
        Self::with(identity, deployment, step, options, (further, ON_HOST))
    }

    fn with(
        identity: Identity,
        deployment: Deployment,
        step: u32,
        options: AgentOptions,
        (further, (gpus, access)): Extras<'_>,
    ) -> Self {
        let memories = memories(&deployment);
        for (seed, memory) in (1..).zip(&memories) {
            fill(memory, seed);
        }
        let mut builder = Agent::builder(identity, deployment).options(options);
        if let Some(room) = further {
            builder = builder.path(room);
        }
        let on_gpu = memories.iter().zip(gpus.iter().cycle());
        let on_gpu: Vec<_> = on_gpu.map(|(memory, gpu)| upload(gpu, memory, access)).collect();
        for (rank, memory) in (0..).map(Rank).zip(&memories) {
            builder = match on_gpu.get(rank.0 as usize) {
                Some(memory) => builder.register(rank, vec![memory.clone()]),
                None => builder.register(rank, vec![memory.clone()]),
            }
            .unwrap();
        }
        let agent = builder.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let blocks = (0..64).map(|i| i * step % 61).take(60).collect();
        Self { agent, memories, on_gpu, tables: Tables(vec![BlockTable::List(blocks)]) }
    }
}

/// Returns the path in memory, if all agents of the tests are to have it: `TRANSLOAD_TEST_PATH=memory`. Where transfers may take any
/// path, they take that.
fn further_path() -> Option<InMemory> {
    static SHARED: OnceLock<InMemory> = OnceLock::new();
    let wanted = std::env::var("TRANSLOAD_TEST_PATH").is_ok_and(|path| path == "memory");
    wanted.then(|| SHARED.get_or_init(InMemory::default).clone())
}

/// Layers of deployments whose routes are long.
pub const DEEP: u32 = 103;

/// A source (TP 2, blocks of 4, NHD) and a destination (TP 4, blocks of 6, HND).
pub struct Pair {
    /// The source.
    pub src: Side,
    /// The destination.
    pub dst: Side,
    /// Tokens of the request.
    pub tokens: u64,
    /// The content of the blocks.
    pub content: ContentDigest,
    /// The authority that certifies both agents, and more agents of their cluster.
    pub authority: Authority,
}

impl Default for Pair {
    fn default() -> Self {
        Self::with_roles([Roles::all(); 2])
    }
}

impl Pair {
    /// Makes a pair whose source and destination have these roles.
    pub fn with_roles(roles: [Roles; 2]) -> Self {
        Self::make(roles, Default::default())
    }

    /// Makes a pair of agents with these settings.
    pub fn with_options(options: AgentOptions) -> Self {
        Self::with_each_options([options.clone(), options])
    }

    /// Makes a pair whose source and destination have these settings.
    pub fn with_each_options(options: [AgentOptions; 2]) -> Self {
        Self::make([Roles::all(); 2], options)
    }

    /// Makes a pair of other deployments.
    pub fn of(deployments: [Deployment; 2]) -> Self {
        Self::between(deployments, [Roles::all(); 2], Default::default())
    }

    fn make(roles: [Roles; 2], options: [AgentOptions; 2]) -> Self {
        let deployments = [deployment(2, 4, "NHD"), deployment(4, 6, "HND")];
        Self::between(deployments, roles, options)
    }

    /// Makes a pair with an additional path.
    pub fn with_room(room: InMemory) -> Self {
        let deployments = [deployment(2, 4, "NHD"), deployment(4, 6, "HND")];
        let roles = [Roles::all(); 2];
        let extras = [(Some(room.clone()), ON_HOST), (Some(room), ON_HOST)];
        Self::all(deployments, roles, Default::default(), extras)
    }

    /// Makes a pair whose source and destination have their caches on a GPU, or not.
    pub fn on_gpus(gpus: [Option<&Gpu>; 2]) -> Self {
        Self::on_gpus_with(gpus, Access::ReadWrite)
    }

    /// Makes a pair with caches on these GPUs, for which transfers have this access.
    pub fn on_gpus_with(gpus: [Option<&Gpu>; 2], access: Access) -> Self {
        Self::on_gpus_of(gpus, access, Default::default())
    }

    /// Like `on_gpus_with`, with these settings.
    pub fn on_gpus_with_options(gpus: [Option<&Gpu>; 2], options: AgentOptions) -> Self {
        Self::on_gpus_of(gpus, Access::ReadWrite, [options.clone(), options])
    }

    fn on_gpus_of(gpus: [Option<&Gpu>; 2], access: Access, options: [AgentOptions; 2]) -> Self {
        let [src, dst] = &gpus;
        let [src, dst] = [src, dst].map(|gpu| (further_path(), (gpu.as_slice(), access)));
        let deployments = [deployment(2, 4, "NHD"), deployment(4, 6, "HND")];
        Self::all(deployments, [Roles::all(); 2], options, [src, dst])
    }

    /// Makes a pair of [`DEEP`] layers on GPUs. Each route has 6.1 slots of a ring, in runs of 156 bytes.
    pub fn deep_on_gpus(gpus: [Option<&Gpu>; 2]) -> Self {
        let [src, dst] = &gpus;
        Self::deep_on_several([src.as_slice(), dst.as_slice()], Default::default())
    }

    /// Like `deep_on_gpus`, with these settings. The ranks of a side take turns on its GPUs.
    pub fn deep_on_several(gpus: [&[&Gpu]; 2], options: AgentOptions) -> Self {
        Self::deep_of_heads(39, gpus, options)
    }

    /// Makes a pair of [`DEEP`] layers whose heads have this many elements of 2 bytes.
    pub fn deep_of_heads(head_dim: u32, [src, dst]: [&[&Gpu]; 2], options: AgentOptions) -> Self {
        let deep = |shape| of_layers(DEEP, head_dim, shape);
        let deployments = [deep((2, 4, "NHD")), deep((4, 6, "HND"))];
        let extras = [src, dst].map(|gpus| (further_path(), (gpus, Access::ReadWrite)));
        let options = [options.clone(), options];
        Self::all(deployments, [Roles::all(); 2], options, extras)
    }

    fn between(deployments: [Deployment; 2], roles: [Roles; 2], options: [AgentOptions; 2]) -> Self {
        let extras = [(further_path(), ON_HOST), (further_path(), ON_HOST)];
        Self::all(deployments, roles, options, extras)
    }

    fn all(
        [src, dst]: [Deployment; 2],
        roles: [Roles; 2],
        [src_options, dst_options]: [AgentOptions; 2],
        [src_extras, dst_extras]: [Extras<'_>; 2],
    ) -> Self {
        let authority = Authority::new(ClusterName::new("test").unwrap()).unwrap();
        let issue = |name, roles| {
            let service = ServiceName::new(name).unwrap();
            authority.issue(&service, roles).unwrap()
        };
        let (prefill, decode) = (issue("prefill", roles[0]), issue("decode", roles[1]));
        let tokens = 100;
        let ids: Vec<u32> = (0..tokens as u32).collect();
        Self {
            src: Side::with(prefill, src, 7, src_options, src_extras),
            dst: Side::with(decode, dst, 11, dst_options, dst_extras),
            tokens,
            content: Content::first(tokens, &ids).unwrap().digest(),
            authority,
        }
    }

    /// Returns a ticket for all ranks of one side.
    pub fn ticket(&self, owner: &Side, set: LeaseSetId, direction: Direction) -> Ticket {
        let agent = &owner.agent;
        let claims = Claims {
            cluster: ClusterName::new("test").unwrap(),
            set,
            direction,
            owner: agent.deployment_digest(),
            incarnation: agent.incarnation(),
            start: 0,
            valid_tokens: self.tokens,
            ranks: owner.memories.iter().map(|_| agent.address("127.0.0.1")).collect(),
            time_left: Duration::from_secs(60),
            audience: None,
        };
        Ticket::mint(&agent.ticket_key(), &claims).unwrap()
    }

    /// Leases on all ranks of one side, or openings.
    pub async fn leases(&self, owner: &Side, set: LeaseSetId, push: bool) -> Vec<Lease> {
        let mut leases = Vec::new();
        for rank in (0..owner.memories.len() as u32).map(Rank) {
            let tables = owner.tables.clone();
            let request = LeaseRequest::new(set, rank, tables, self.content, self.tokens);
            let opened = match push {
                false => owner.agent.lease(request).await,
                true => owner.agent.open(request).await,
            };
            leases.push(opened.unwrap());
        }
        leases
    }

    /// Returns the push of all ranks of the source.
    pub fn push_request(&self, ticket: Ticket) -> PushRequest {
        let ranks = (0..self.src.memories.len() as u32).map(Rank);
        PushRequest::new(ticket, ranks, self.src.tables.clone(), self.content, self.tokens)
    }

    /// Returns the pull of all ranks of one side.
    pub fn request(&self, ticket: Ticket, mine: &Side) -> PullRequest {
        let ranks = (0..mine.memories.len() as u32).map(Rank);
        PullRequest::new(ticket, ranks, mine.tables.clone(), self.content, self.tokens)
    }

    /// Returns the contents that the destination must have, from the same copy within one process.
    pub fn expected(&self) -> Vec<Vec<u8>> {
        self.expected_from(self.src.agent.deployment(), &self.src.memories)
    }

    /// Like `expected`, for source blocks in these memories.
    pub fn expected_from(&self, from: &Deployment, memory_of: &[Memory]) -> Vec<Vec<u8>> {
        let (src, dst) = (&self.src, &self.dst);
        let twins = memories(dst.agent.deployment());
        for (seed, memory) in (1..).zip(&twins) {
            fill(memory, seed);
        }
        let request = Request::tokens(self.tokens);
        let plan = Plan::compile(from, dst.agent.deployment(), &request).unwrap();
        for route in plan.bind(&src.tables, &dst.tables).unwrap().routes {
            let (from, to) = (&memory_of[route.src_rank.0 as usize], &twins[route.dst_rank.0 as usize]);
            copy(&route.program(), from, to, &CopyOptions::default()).unwrap();
        }
        twins.iter().map(contents).collect()
    }

    /// Returns the contents of the destination.
    pub fn found(&self) -> Vec<Vec<u8>> {
        match &self.dst.on_gpu[..] {
            [] => self.dst.memories.iter().map(contents).collect(),
            on_gpu => on_gpu.iter().map(|memory| contents(&download(memory))).collect(),
        }
    }
}

/// Returns a program for all bytes of one allocation.
fn whole(len: u64) -> Program {
    Program { nests: vec![Nest { loops: smallvec![], run: len }], placed: vec![Placed { nest: 0, src: 0, dst: 0 }] }
}

/// Copies all of a memory of one allocation into another one.
pub fn copy_all<'a>(from: impl Into<Place<'a>>, to: impl Into<Place<'a>>, len: u64) {
    device::copy(&whole(len), from, to, &CopyOptions::default()).unwrap();
}

/// Copies a memory of the host to one of a GPU.
pub fn upload(gpu: &Gpu, memory: &Memory, access: Access) -> DeviceMemory {
    let len = memory.bytes();
    let device = DeviceMemory::allocate(gpu, &[len as usize]).unwrap();
    copy_all(memory, &device, len);
    let parts = device.allocation(0).map(|(start, len)| (start, len as usize));
    // SAFETY: the memory is kept.
    unsafe {
        let keeper = Some(Arc::new(device) as _);
        DeviceMemory::from_raw_parts(gpu, &[parts.unwrap()], access, keeper).unwrap()
    }
}

/// Copies a memory of a GPU to one of the host.
pub fn download(device: &DeviceMemory) -> Memory {
    let (_, len) = device.allocation(0).unwrap();
    let memory = Memory::allocate(&[len as usize]).unwrap();
    copy_all(device, &memory, len);
    memory
}
