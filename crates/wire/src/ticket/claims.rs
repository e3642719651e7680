//! The claims in a ticket.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use transload_plan::Request;
use transload_plan::codec::Codec;
use transload_plan::ids::{AgentId, ClusterName, DeploymentDigest, Direction, Incarnation, LeaseSetId, Rank};

pub(crate) const MAX_RANKS: usize = 1024;

/// The longest host in a rank's address, in bytes: that of a DNS name.
pub(crate) const MAX_HOST: usize = 255;

/// The claims of a ticket about its lease set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The cluster that it is valid in.
    pub cluster: ClusterName,
    /// The lease set.
    pub set: LeaseSetId,
    /// Whether its holder reads the owner's blocks or writes into them.
    pub direction: Direction,
    /// The owner's deployment.
    pub owner: DeploymentDigest,
    /// The life of the owner's deployment that the lease set belongs to.
    pub incarnation: Incarnation,
    /// The first token that may move. It is 0 for a pull, whose holder chooses.
    pub start: u64,
    /// The number of valid tokens, counted from position 0.
    pub valid_tokens: u64,
    /// The addresses of the owner's ranks; entry r is rank r.
    pub ranks: Vec<RankAddress>,
    /// A hint: the remaining life of the leases when the ticket was made. Only the owner's clock ends a lease. Encoded
    /// in whole milliseconds.
    pub time_left: Duration,
    /// The only agents that may use the ticket, if they are known already.
    pub audience: Option<Audience>,
}

/// The address of the control endpoint of a rank, and the agent that answers there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankAddress {
    /// The agent that holds the rank's memory. Its certificate must be of its service.
    pub agent: AgentId,
    /// The host name or address: 1 to 255 printable ASCII characters.
    pub host: String,
    /// UDP port.
    pub port: u16,
}

/// The agents that may use a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Audience {
    /// One agent, or all agents of a service if only the service is named.
    Agent(AgentId),
    /// The agents of one deployment.
    Deployment(DeploymentDigest),
}

/// A contradiction in claims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ClaimsError {
    /// There is no rank, or more than 1024.
    #[error("a ticket names 1 to {MAX_RANKS} ranks, not {found}")]
    Ranks { found: usize },
    /// The range of tokens ends before it begins.
    #[error("tokens from {start} on cannot move where {valid_tokens} are valid")]
    Tokens { start: u64, valid_tokens: u64 },
    /// A host is empty, too long, or not printable ASCII.
    #[error("the host of rank {rank} must be 1 to {MAX_HOST} printable ASCII characters")]
    Host { rank: Rank },
    /// A port is 0.
    #[error("the port of rank {rank} must not be 0")]
    Port { rank: Rank },
}

impl Claims {
    /// Returns the request of a push, which moves all tokens of the ticket.
    pub fn request(&self, by_layer: bool) -> Request {
        Request {
            start: self.start,
            tokens: self.valid_tokens.saturating_sub(self.start),
            by_layer,
            codec: Codec::Exact,
        }
    }

    fn check(&self) -> Result<(), ClaimsError> {
        if !(1..=MAX_RANKS).contains(&self.ranks.len()) {
            return Err(ClaimsError::Ranks { found: self.ranks.len() });
        }
        if self.start > self.valid_tokens {
            return Err(ClaimsError::Tokens { start: self.start, valid_tokens: self.valid_tokens });
        }
        for (rank, address) in (0..).map(Rank).zip(&self.ranks) {
            let length = (1..=MAX_HOST).contains(&address.host.len());
            if !length || !address.host.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(ClaimsError::Host { rank });
            }
            if address.port == 0 {
                return Err(ClaimsError::Port { rank });
            }
        }
        Ok(())
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, ClaimsError> {
        self.check()?;
        let (mut names, mut agents) = (Vec::new(), Vec::new());
        let mut ranks = Vec::with_capacity(self.ranks.len());
        for RankAddress { agent, host, port } in &self.ranks {
            let service = index(&mut names, agent.service());
            let instance = agent.instance();
            let instance = instance.map(|instance| index(&mut names, instance));
            let host = index(&mut names, host.as_str());
            ranks.push((index(&mut agents, (service, instance, host)), *port));
        }
        let body = Body {
            cluster: self.cluster.clone(),
            set: self.set,
            direction: self.direction,
            owner: self.owner,
            incarnation: self.incarnation,
            start: self.start,
            valid_tokens: self.valid_tokens,
            time_left_ms: u64::try_from(self.time_left.as_millis()).unwrap_or(u64::MAX),
            audience: self.audience.clone(),
            names: names.into_iter().map(str::to_owned).collect(),
            agents,
            ranks,
        };
        // Encoding plain data into a growing buffer cannot fail.
        Ok(postcard::to_allocvec(&body).unwrap_or_default())
    }

    /// Decodes claims whose MAC has been checked. Decoding is strict nonetheless, so that a leaked key is not enough to
    /// crash agents. Returns `None` for bytes that are not claims of this version.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, ClaimsError> {
        let Ok((body, [])) = postcard::take_from_bytes::<Body>(bytes) else {
            return Ok(None);
        };
        let name = |index: u16| body.names.get(usize::from(index));
        let rank = |&(agent, port): &(u16, u16)| {
            let &(service, instance, host) = body.agents.get(usize::from(agent))?;
            let service = name(service)?.parse().ok()?;
            let agent = match instance {
                Some(instance) => AgentId::of(&service, &name(instance)?.parse().ok()?),
                None => AgentId::from(&service),
            };
            let host = name(host)?.clone();
            Some(RankAddress { agent, host, port })
        };
        if body.ranks.len() > MAX_RANKS {
            let found = body.ranks.len();
            return Err(ClaimsError::Ranks { found });
        }
        let Some(ranks) = body.ranks.iter().map(rank).collect() else {
            return Ok(None);
        };
        let claims = Self {
            ranks,
            cluster: body.cluster,
            set: body.set,
            direction: body.direction,
            owner: body.owner,
            incarnation: body.incarnation,
            start: body.start,
            valid_tokens: body.valid_tokens,
            time_left: Duration::from_millis(body.time_left_ms),
            audience: body.audience,
        };
        claims.check()?;
        Ok(Some(claims))
    }

    /// Returns whether `agent` of `deployment` may use the ticket.
    pub fn is_for(&self, agent: &AgentId, deployment: &DeploymentDigest) -> bool {
        match &self.audience {
            None => true,
            Some(Audience::Agent(only)) => only.includes(agent),
            Some(Audience::Deployment(only)) => only == deployment,
        }
    }
}

/// The encoding of claims. Names and agents are stored once, so that 64 ranks with names of usual length fit.
#[derive(Serialize, Deserialize)]
struct Body {
    cluster: ClusterName,
    set: LeaseSetId,
    direction: Direction,
    owner: DeploymentDigest,
    incarnation: Incarnation,
    start: u64,
    valid_tokens: u64,
    time_left_ms: u64,
    audience: Option<Audience>,
    names: Vec<String>,
    /// The indices of the service, the instance and the host of each agent.
    agents: Vec<(u16, Option<u16>, u16)>,
    /// The index of the agent and the port of each rank.
    ranks: Vec<(u16, u16)>,
}

/// Returns the index of a row among distinct rows, after adding it if it is new.
fn index<T: PartialEq>(rows: &mut Vec<T>, row: T) -> u16 {
    let known = rows.iter().position(|other| *other == row);
    let at = known.unwrap_or_else(|| {
        rows.push(row);
        rows.len() - 1
    });
    // At most three names for each of MAX_RANKS ranks, so it always fits.
    at as u16
}
