//! The builder of an agent.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;
use transload_layout::Deployment;

use super::client;
use super::deployments::{Deployments, canonical};
use super::driver::{Memories, Setup};
use super::handle::{Agent, AgentInfo};
use super::options::AgentOptions;
use crate::data::Region;
use crate::identity::{Identity, Renewals, default_instance, new_incarnation};
use crate::path::carrier::Provider;
use crate::path::quic::carrier::Quic;
use crate::path::ring::carrier::Ring;
use crate::quic::{Endpoints, EndpointsError};
use transload_layout::Rank;
use transload_plan::ids::{AgentId, DeploymentDigest, Incarnation, InstanceName};
use transload_wire as wire;
use transload_wire::{DocumentTooLong, Machine, Path, TicketKey};

/// Builds an [`Agent`].
#[derive(Debug)]
pub struct Builder {
    identity: Identity,
    deployment: Arc<Deployment>,
    incarnation: Option<Incarnation>,
    instance: Option<InstanceName>,
    options: AgentOptions,
    memories: Memories,
    providers: Vec<Box<dyn Provider>>,
}

/// The memory does not fit its deployment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum RegisterError {
    #[error("rank {rank} is not of this deployment, which has {ranks}")]
    NoSuchRank { rank: Rank, ranks: u32 },
    #[error("rank {rank} is registered already")]
    Twice { rank: Rank },
    #[error("rank {rank}: {given} memories for {groups} groups")]
    Groups { rank: Rank, given: usize, groups: usize },
    #[error("rank {rank}, group \"{group}\": it is on device {device}, another group of the rank on device {other}")]
    TwoDevices { rank: Rank, group: String, device: u32, other: u32 },
    #[error("rank {rank}, group \"{group}\": {given} allocations, {needed} are needed")]
    Allocations { rank: Rank, group: String, given: usize, needed: u64 },
    #[error(
        "rank {rank}, group \"{group}\": allocation {allocation} has {given} bytes, {needed} are \
         needed"
    )]
    TooShort { rank: Rank, group: String, allocation: usize, given: u64, needed: u64 },
}

/// The reason why an agent could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindAgentError {
    /// A socket could not be bound.
    #[error(transparent)]
    Bind(#[from] EndpointsError),
    /// Two of its paths have the same number.
    #[error("the agent would have {path} twice")]
    PathTwice {
        /// The path.
        path: Path,
    },
    /// A path uses the number that is reserved for the ring in device memory.
    #[error(
        "{} is a path of every agent's that has its memory on a GPU: a further one has a number from 3 to 15",
        Path::DEVICE
    )]
    PathKept,
    /// The deployment document is too long to be sent to peers.
    #[error(transparent)]
    Document(#[from] DocumentTooLong),
    /// The deployment document cannot be encoded.
    #[error("the deployment document cannot be encoded: {0}")]
    Encode(postcard::Error),
    /// The operating system provides no randomness.
    #[error("no randomness: {0}")]
    Random(#[from] std::io::Error),
}

impl Agent {
    /// Begins to build an agent for some ranks of a deployment.
    pub fn builder(identity: Identity, deployment: Deployment) -> Builder {
        Builder {
            identity,
            deployment: Arc::new(deployment),
            incarnation: None,
            instance: None,
            options: AgentOptions::default(),
            memories: Memories::new(),
            providers: vec![Box::new(Quic), Box::new(Ring)],
        }
    }
}

impl Builder {
    /// Sets the incarnation of the deployment, which tells its lives apart. It must be the same for all ranks of an
    /// engine instance, and differ after a restart. By default this agent makes a new one for itself alone.
    #[must_use]
    pub fn incarnation(mut self, incarnation: Incarnation) -> Self {
        self.incarnation = Some(incarnation);
        self
    }

    /// Sets the agent's instance name, which distinguishes it from other agents with the same certificate. It must be
    /// the same after a restart, so that peers know that everything the last life held is free. The default is made of
    /// the host's name and the control port.
    #[must_use]
    pub fn instance(mut self, instance: InstanceName) -> Self {
        self.instance = Some(instance);
        self
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: AgentOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds a path, with a number of its own from 3 to 15. Both sides of a transfer need it.
    ///
    /// Number 0 is QUIC, and 1 the staging ring. Number 2 is the ring in device memory. Agents whose memory is all on
    /// one GPU have it, and it is reserved in all others.
    #[doc(hidden)]
    #[must_use]
    pub fn path(mut self, provider: impl Provider + 'static) -> Self {
        self.providers.push(Box::new(provider));
        self
    }

    /// Registers the memory of a rank: for each group of the deployment, in the document's order, the allocations that
    /// the layout requires.
    ///
    /// Other parts of the process may write to the memory at any time. That is never unsound, because its bytes are
    /// only copied. But transfers are correct only if blocks are not written while they are leased, or while a transfer
    /// into them is in progress. The caller must ensure that.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register<R: Into<Region>>(
        mut self,
        rank: Rank,
        groups: impl IntoIterator<Item = R>,
    ) -> Result<Self, RegisterError> {
        let groups: Arc<[Region]> = groups.into_iter().map(Into::into).collect();
        let ranks = self.deployment.tp() * self.deployment.pp();
        if rank.0 >= ranks {
            return Err(RegisterError::NoSuchRank { rank, ranks });
        }
        if self.memories.contains_key(&rank) {
            return Err(RegisterError::Twice { rank });
        }
        check_groups(&self.deployment, rank, &groups)?;
        self.memories.insert(rank, groups);
        Ok(self)
    }

    /// Binds the sockets and starts the agent. Control connections arrive at `addr`; port 0 selects any free port.
    ///
    /// # Errors
    /// [`BindAgentError`].
    pub fn bind(mut self, addr: SocketAddr) -> Result<Agent, BindAgentError> {
        if self.providers.iter().any(|provider| provider.path() == Path::DEVICE) {
            return Err(BindAgentError::PathKept);
        }
        // The path within one GPU is not for the caller to add: it depends on where the memories are.
        self.providers.extend(path_on_one_gpu(&self.memories));
        let mut paths = BTreeSet::new();
        for path in self.providers.iter().map(|provider| provider.path()) {
            if !paths.insert(path) {
                return Err(BindAgentError::PathTwice { path });
            }
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(std::io::Error::other)?;
        let incarnation = match self.incarnation {
            Some(incarnation) => incarnation,
            None => new_incarnation()?,
        };
        let document = canonical(&self.deployment).map_err(BindAgentError::Encode)?;
        let digest = DeploymentDigest::of(&document);
        let ticket_key = TicketKey::new(self.identity.ticket_secret().as_bytes());
        let peer = self.identity.peer().clone();
        let renewals = Renewals::of(&self.identity);
        let endpoints = Endpoints::bind(self.identity, self.options.quic.clone(), addr)?;
        let instance = self.instance;
        let instance = instance.unwrap_or_else(|| default_instance(endpoints.control_addr().port()));
        let id = AgentId::of(&peer.service, &instance);
        let me = wire::Identity {
            agent: id.clone(),
            cluster: peer.cluster,
            incarnation,
            document,
            ranks: self.memories.keys().copied().collect(),
            ticket_key,
            secret: wire::Secret::new(secret),
        };
        let deployments = Deployments::new(self.deployment.clone());
        let machine = Machine::new(me, self.options.wire.clone(), deployments)?;
        let (client, dropped) = client::start(Setup {
            machine,
            endpoints: endpoints.clone(),
            memories: self.memories,
            providers: self.providers,
            options: self.options,
            renewals,
        });
        Ok(Agent {
            client,
            info: Arc::new(AgentInfo { dropped, id, endpoints, deployment: self.deployment, digest, incarnation }),
        })
    }
}

/// Returns the path through device memory, if all memories are on one GPU.
#[cfg(feature = "cuda")]
fn path_on_one_gpu(memories: &Memories) -> Option<Box<dyn Provider>> {
    let mut regions = memories.values().flat_map(|groups| groups.iter());
    let gpu = regions.next()?.async_memory::<transload_cuda::DeviceMemory>()?.gpu();
    let all = regions.all(|region| region.device() == Some(gpu.ordinal()));
    all.then(|| Box::new(crate::path::device_ring::carrier::DeviceRing::new(gpu)) as Box<dyn Provider>)
}

#[cfg(not(feature = "cuda"))]
fn path_on_one_gpu(_: &Memories) -> Option<Box<dyn Provider>> {
    None
}

/// Checks the memories of a rank's groups: one for each group, with as many allocations as the layout has, each long
/// enough, and those on GPUs all on the same one. The rank must exist.
fn check_groups(deployment: &Deployment, rank: Rank, regions: &[Region]) -> Result<(), RegisterError> {
    let groups = deployment.groups();
    if regions.len() != groups.len() {
        return Err(RegisterError::Groups { rank, given: regions.len(), groups: groups.len() });
    }
    let (_, stage) = deployment.split_rank(rank);
    let other = regions.iter().find_map(Region::device);
    for (group, region) in groups.iter().zip(regions) {
        if let Some((device, other)) = region.device().zip(other)
            && device != other
        {
            return Err(RegisterError::TwoDevices { rank, group: group.name().to_owned(), device, other });
        }
        let placement = group.placement(stage);
        let extents = region.extents();
        if extents.len() as u64 != placement.allocations {
            return Err(RegisterError::Allocations {
                rank,
                group: group.name().to_owned(),
                given: extents.len(),
                needed: placement.allocations,
            });
        }
        for (allocation, given) in extents.into_iter().enumerate() {
            if given < placement.allocation_bytes {
                return Err(RegisterError::TooShort {
                    rank,
                    group: group.name().to_owned(),
                    allocation,
                    given,
                    needed: placement.allocation_bytes,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::deployments::deployment;
    use super::*;
    use crate::identity::Authority;
    use crate::path::carrier::{Carrier, Host};
    use transload_wire::Roles;

    #[test]
    fn refuses_two_paths_of_a_number() {
        let authority = Authority::new("test".parse().unwrap()).unwrap();
        let identity = authority.issue(&"a".parse().unwrap(), Roles::all());
        let builder = Agent::builder(identity.unwrap(), deployment(1)).path(Ring);
        let refused = builder.bind(([127, 0, 0, 1], 0).into()).unwrap_err();
        assert!(matches!(refused, BindAgentError::PathTwice { path } if path == Path::RING));
    }

    #[test]
    fn refuses_a_path_of_the_number_that_is_kept() {
        #[derive(Debug)]
        struct Further;

        impl Provider for Further {
            fn path(&self) -> Path {
                Path::DEVICE
            }

            fn open(&self, _: Host) -> std::io::Result<Box<dyn Carrier>> {
                Err(std::io::ErrorKind::Unsupported.into())
            }
        }

        let authority = Authority::new("test".parse().unwrap()).unwrap();
        let identity = authority.issue(&"a".parse().unwrap(), Roles::all());
        let builder = Agent::builder(identity.unwrap(), deployment(1)).path(Further);
        let refused = builder.bind(([127, 0, 0, 1], 0).into()).unwrap_err();
        assert!(matches!(refused, BindAgentError::PathKept), "{refused}");
    }
}
