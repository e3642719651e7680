//! Runs both agents in one process, with their caches on one GPU. Two processes would take turns on the GPU, and each
//! would measure the other's turns, too.

use transload::transfer::device::DeviceMemory;
use transload::transfer::plan::program::Program;
use transload::transfer::{Agent, LeaseSetId, Path, Plan, PullReport, Request, Role};

use super::broken;
use super::engine::{Engine, Party};
use super::gpu::Gpu;
use super::pair::{authority, issue, not_pulled, request, set, verify};
use super::source::{PATIENCE, ended, lease, ticket};
use crate::commands::shapes::Llama;
use crate::failure::Failure;

/// A source and a destination in this process, with one request.
pub(in crate::commands) struct OneProcess {
    sides: [Engine; 2],
    agents: [Agent; 2],
    seed: u64,
    pulls: u64,
}

impl OneProcess {
    /// Creates both sides with their agents, with the request in the source's blocks.
    pub(in crate::commands) fn start(
        [src, dst]: [Llama; 2],
        tokens: u64,
        seed: u64,
        gpu: &Gpu,
    ) -> Result<Self, Failure> {
        let side = |shape: Llama, party| Engine::new(shape.deployment()?, tokens, seed, party, Some(gpu));
        let src = side(src, Party::Source)?;
        let dst = side(dst, Party::Destination)?;
        src.fill(|_| {}).map_err(broken)?;
        dst.clear(|_| {}).map_err(broken)?;
        let authority = authority()?;
        let agents = [
            src.agent(issue(&authority, "source", [Role::Serve])?)?,
            dst.agent(issue(&authority, "destination", [Role::Pull])?)?,
        ];
        Ok(Self { sides: [src, dst], agents, seed, pulls: 0 })
    }

    /// Returns the copies of a pull: the program of each route, and the memory of its rank on each side.
    pub(in crate::commands) fn routes(&self) -> Result<Vec<(Program, [DeviceMemory; 2])>, Failure> {
        let [src, dst] = &self.sides;
        let request = Request::tokens(src.contents.tokens);
        let plan = Plan::compile(&src.deployment, &dst.deployment, &request).map_err(broken)?;
        let bound = plan.bind(&src.tables, &dst.tables).map_err(broken)?;
        let memory = |side: &Engine, rank| side.on_gpu(rank).ok_or_else(|| broken("not on a GPU"));
        let routes = bound.routes.iter().map(|route| {
            let memories = [memory(src, route.src_rank)?, memory(dst, route.dst_rank)?];
            Ok((route.program(), memories))
        });
        routes.collect()
    }

    /// Leases the request and pulls it over this path only.
    pub(in crate::commands) async fn pull(&mut self, path: Path) -> Result<PullReport, Failure> {
        self.pulls += 1;
        let set = LeaseSetId(set(self.seed, self.pulls));
        let ([src, dst], [from, to]) = (&self.sides, &self.agents);
        let leases = lease(from, src, set).await?;
        let request = request(dst, ticket(from, src, set)?, path)?;
        let report = to.pull(request).await.map_err(not_pulled)?;
        ended(leases).await?;
        Ok(report)
    }

    /// Checks every byte of the destination, and shuts both agents down.
    pub(in crate::commands) async fn finish(self) -> Result<(), Failure> {
        verify(&self.sides[1], self.seed, "", |_| {})?;
        for agent in self.agents {
            agent.shutdown(PATIENCE).await;
        }
        Ok(())
    }
}
