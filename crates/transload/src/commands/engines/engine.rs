//! One engine: a deployment, the memory of its ranks, and their contents.

use thiserror::Error;
use transload::archive::Cache;
use transload::layout::{Deployment, Rank};
#[cfg(feature = "cuda")]
use transload::transfer::device::DeviceMemory;
use transload::transfer::memory::MemoryError;
use transload::transfer::{Agent, BindAgentError, RegisterError};
use transload::transfer::{BlockTable, Identity, Memory, Tables};

use super::contents::{Checked, Contents, ContentsError};
use super::gpu::{Gpu, GpuError, OnGpu};
use crate::commands::random::{Random, mix};
use crate::failure::Failure;

/// An engine without its agent. All its ranks are in one process.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) deployment: Deployment,
    /// The cache of each rank, or the host's copy of one that is on a GPU.
    pub(super) memories: Vec<Memory>,
    on_gpu: Option<OnGpu>,
    /// The request's blocks, scattered over the pool.
    pub(super) tables: Tables,
    pub(super) contents: Contents,
    blocks: Vec<u32>,
}

#[derive(Debug, Error)]
pub(super) enum EngineError {
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] MemoryError),
    #[error("cannot allocate GPU memory: {0}")]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Bind(#[from] BindAgentError),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::no(
            crate::failure::chain(&error),
            match error {
                EngineError::Gpu(_) => {
                    "check whether other processes use the GPU; `transload demo --host` does not \
                                        need it"
                }
                _ => "the command needs memory for the request on both sides, and a loopback interface",
            },
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    Source,
    Destination,
    /// The engine that restores what the destination saved.
    Third,
}

impl Party {
    /// Returns the seed of what is specific to an engine: its canaries and its block table.
    pub(super) fn salt(self, seed: u64) -> u64 {
        mix(seed ^ (self as u64 + 1))
    }
}

impl Engine {
    /// Creates an engine for a request of `tokens` tokens, on a GPU if one is given. Contents and block tables are
    /// derived from `seed`.
    pub(super) fn new(
        deployment: Deployment,
        tokens: u64,
        seed: u64,
        party: Party,
        gpu: Option<&Gpu>,
    ) -> Result<Self, Failure> {
        let salt = party.salt(seed);
        let bytes = deployment.ranks().map(|rank| {
            let (_, stage) = deployment.split_rank(rank);
            deployment.groups()[0].placement(stage).allocation_bytes
        });
        let memories = bytes.map(|bytes| Memory::allocate(&[bytes as usize]));
        let memories = memories.collect::<Result<Vec<_>, _>>().map_err(EngineError::from)?;
        let on_gpu = gpu.map(|gpu| OnGpu::new(gpu, &memories));
        let blocks = blocks(&deployment, tokens, salt);
        Ok(Self {
            on_gpu: on_gpu.transpose().map_err(EngineError::from)?,
            memories,
            tables: Tables(vec![BlockTable::List(blocks.clone())]),
            contents: Contents { request: mix(seed), canaries: mix(salt), tokens },
            blocks,
            deployment,
        })
    }

    #[cfg(feature = "cuda")]
    pub(super) fn on_gpu(&self, rank: Rank) -> Option<DeviceMemory> {
        let on_gpu = self.on_gpu.as_ref()?;
        Some(on_gpu.memory(rank.0 as usize).clone())
    }

    /// Returns the block ids of the request, in token order.
    pub(super) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memories.iter().map(Memory::bytes).sum()
    }

    /// Writes the request into its blocks, and canaries into all others.
    pub(super) fn fill(&self, progress: impl FnMut(u64)) -> Result<(), ContentsError> {
        self.write(&self.blocks, progress)
    }

    pub(super) fn clear(&self, progress: impl FnMut(u64)) -> Result<(), ContentsError> {
        self.write(&[], progress)
    }

    fn write(&self, blocks: &[u32], mut progress: impl FnMut(u64)) -> Result<(), ContentsError> {
        for (rank, memory) in self.ranks() {
            self.contents.fill(&self.deployment, rank, memory, blocks)?;
            if let Some(on_gpu) = &self.on_gpu {
                on_gpu.upload(rank.0 as usize, memory)?;
            }
            progress(memory.bytes());
        }
        Ok(())
    }

    /// Checks every byte: the request in its blocks, and canaries everywhere else.
    pub(super) fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Checked, ContentsError> {
        let mut all = Checked::default();
        for (rank, memory) in self.ranks() {
            let blocks = self.blocks();
            if let Some(on_gpu) = &self.on_gpu {
                on_gpu.download(rank.0 as usize, memory)?;
            }
            let rank = self.contents.verify(&self.deployment, rank, memory, blocks)?;
            all.request += rank.request;
            all.canaries += rank.canaries;
            progress(memory.bytes());
        }
        Ok(all)
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = (Rank, &Memory)> {
        (0..).map(Rank).zip(&self.memories)
    }

    /// Starts an agent on loopback that holds all ranks.
    pub(super) fn agent(&self, identity: Identity) -> Result<Agent, EngineError> {
        let mut builder = Agent::builder(identity, self.deployment.clone());
        for (rank, memory) in self.ranks() {
            let region = match &self.on_gpu {
                Some(on_gpu) => on_gpu.region(rank.0 as usize),
                None => memory.into(),
            };
            builder = builder.register(rank, vec![region])?;
        }
        Ok(builder.bind(([127, 0, 0, 1], 0).into())?)
    }

    /// Returns the ranks with their caches in the form that an archive takes.
    pub(super) fn caches(&self) -> impl Iterator<Item = (Rank, Cache)> {
        self.ranks().map(|(rank, memory)| match &self.on_gpu {
            Some(on_gpu) => (rank, on_gpu.cache(rank.0 as usize)),
            None => (rank, memory.clone().into()),
        })
    }
}

pub(super) fn tables(deployment: &Deployment, tokens: u64, salt: u64) -> Tables {
    Tables(vec![BlockTable::List(blocks(deployment, tokens, salt))])
}

fn blocks(deployment: &Deployment, tokens: u64, salt: u64) -> Vec<u32> {
    let group = &deployment.groups()[0];
    Random::new(salt).scattered(tokens, group.block_size(), group.num_blocks())
}
