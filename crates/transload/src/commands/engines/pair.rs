//! The pair of processes, as seen by the destination.

use tracing::info;
use transload::layout::Deployment;
use transload::transfer::internal::identity::random_cluster_name;
use transload::transfer::{
    Agent, Authority, AuthorityError, Identity, Path, PathSet, PullReport, PullRequest, Role, Roles, ServiceName,
    Tables, Ticket, TransferError,
};

use super::broken;
use super::child::{ChildError, SourceProcess};
use super::contents::{Checked, ContentsError};
use super::credentials::Credentials;
use super::engine::{Engine, Party, tables};
use super::gpu::Gpu;
use super::messages::{Answer, Order};
use super::source::{PATIENCE, content};
use crate::commands::random::mix;
use crate::commands::shapes::Llama;
use crate::failure::{Failure, chain};

/// A source in its own process and a destination in this one, with one request.
pub(in crate::commands) struct Pair {
    source: SourceProcess,
    agent: Agent,
    pub(super) dst: Engine,
    src: Deployment,
    src_tables: Tables,
    pub(super) seed: u64,
    pub(super) gpu: Option<Gpu>,
    pulls: u64,
}

pub(in crate::commands) struct Pulled {
    pub(in crate::commands) report: PullReport,
    /// The ends of the source's leases, one for each of its ranks.
    pub(in crate::commands) leases: Vec<String>,
}

impl Pair {
    /// Starts the source and waits until it has computed its request. If a GPU is given, the caches of both processes
    /// are on it.
    pub(in crate::commands) async fn start(
        shapes: [Llama; 2],
        tokens: u64,
        seed: u64,
        gpu: Option<Gpu>,
    ) -> Result<Self, Failure> {
        let [src, dst] = shapes;
        let (src, dst) = (src.deployment()?, dst.deployment()?);
        let authority = authority()?;
        let mut source = SourceProcess::start()?;
        let credentials = Credentials::of(&issue(&authority, "source", [Role::Serve])?);
        source
            .order(&Order::Prefill {
                credentials: Box::new(credentials),
                document: Box::new(src.document().clone()),
                tokens,
                seed,
                gpu: gpu.as_ref().map(Gpu::ordinal),
            })
            .await?;

        info!("a second process prefills");
        let src_tables = tables(&src, tokens, Party::Source.salt(seed));
        let dst = Engine::new(dst, tokens, seed, Party::Destination, gpu.as_ref())?;
        let agent = dst.agent(issue(&authority, "destination", [Role::Pull])?)?;
        match source.answer().await? {
            Answer::Ready => {}
            other => return Err(unexpected(&other)),
        }
        info!(addr = %agent.control_addr(), "both processes have their agents");
        Ok(Self { source, agent, dst, src, src_tables, seed, gpu, pulls: 0 })
    }

    pub(in crate::commands) fn deployments(&self) -> [&Deployment; 2] {
        [&self.src, &self.dst.deployment]
    }

    pub(in crate::commands) fn tables(&self) -> (Tables, Tables) {
        (self.src_tables.clone(), self.dst.tables.clone())
    }

    pub(in crate::commands) fn bytes(&self) -> u64 {
        self.dst.bytes()
    }

    pub(in crate::commands) fn clear(&self, progress: impl FnMut(u64)) -> Result<(), Failure> {
        self.dst.clear(progress).map_err(broken)
    }

    pub(in crate::commands) fn verify(&self, progress: impl FnMut(u64)) -> Result<Checked, Failure> {
        verify(&self.dst, self.seed, "", progress)
    }

    /// Leases the request, pulls it over this path only, and waits for the end of its leases.
    pub(in crate::commands) async fn pull(&mut self, path: Path) -> Result<Pulled, Failure> {
        self.pulls += 1;
        let set = set(self.seed, self.pulls);
        self.source.order(&Order::Lease { set }).await?;
        let ticket = match self.source.answer().await? {
            Answer::Leased { ticket } => Ticket::from_text(&ticket).map_err(broken)?,
            other => return Err(unexpected(&other)),
        };
        let request = request(&self.dst, ticket, path)?;

        info!(%path, tokens = self.dst.contents.tokens, "pulling");
        let mut pulling = std::pin::pin!(self.agent.pull(request));
        let mut early = None;
        let report = loop {
            tokio::select! {
                report = &mut pulling => break report.map_err(not_pulled)?,
                // The leases end at about the same time as the pull, so this answer may arrive first. If the process is
                // gone, waiting for the pull is useless.
                answer = self.source.answer(), if early.is_none() => early = Some(answer?),
            }
        };
        let ended = match early {
            Some(answer) => answer,
            None => self.source.answer().await?,
        };
        match ended {
            Answer::Ended { ends: leases } => {
                info!(%path, bytes = report.bytes, took = ?report.took, ?leases, "pulled");
                Ok(Pulled { report, leases })
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(in crate::commands) async fn finish(self) -> Result<(), Failure> {
        self.agent.shutdown(PATIENCE).await;
        Ok(self.source.finish().await?)
    }
}

pub(super) fn set(seed: u64, pulls: u64) -> [u8; 16] {
    let set = mix(seed ^ mix(pulls));
    (u128::from(set) << 64 | u128::from(pulls)).to_le_bytes()
}

/// Returns the destination's request: all tokens, over this path only.
pub(super) fn request(dst: &Engine, ticket: Ticket, path: Path) -> Result<PullRequest, Failure> {
    let tokens = dst.contents.tokens;
    let content = content(tokens)?;
    let ranks = dst.ranks().map(|(rank, _)| rank);
    let mut request = PullRequest::new(ticket, ranks, dst.tables.clone(), content, tokens);
    request.paths = PathSet::from_iter([path]);
    Ok(request)
}

/// Checks every byte of an engine that has received a cache. `of` is part of the error message.
pub(super) fn verify(dst: &Engine, seed: u64, of: &str, progress: impl FnMut(u64)) -> Result<Checked, Failure> {
    dst.verify(progress).map_err(|error| match error {
        ContentsError::Wrong(wrong) => Failure::no(
            format!("verification{of} failed: {wrong}"),
            format!("this is a fault of transload: report it, with the seed {seed}"),
        ),
        error => broken(error),
    })
}

/// Creates a certificate authority that is used only by this pair.
pub(super) fn authority() -> Result<Authority, Failure> {
    let cluster = random_cluster_name().map_err(AuthorityError::from);
    cluster.and_then(Authority::new).map_err(unmade)
}

pub(super) fn issue(
    authority: &Authority,
    name: &str,
    roles: impl IntoIterator<Item = Role>,
) -> Result<Identity, Failure> {
    let service = ServiceName::new(name).map_err(broken)?;
    let identity = authority.issue(&service, Roles::from_iter(roles));
    identity.map_err(unmade)
}

fn unmade(error: AuthorityError) -> Failure {
    Failure::no(
        format!("cannot create the certificates: {}", chain(&error)),
        "check the system's clock and its source of randomness",
    )
}

pub(super) fn not_pulled(error: TransferError) -> Failure {
    Failure::no(
        format!("the pull failed: {}", chain(&error)),
        "check whether a firewall blocks the loopback interface; `--verbose` shows more",
    )
}

fn unexpected(answer: &Answer) -> Failure {
    ChildError::Nonsense(format!("{answer:?}")).into()
}
