//! Compiling a plan.

use transload_layout::{Deployment, Rank, Side};

use crate::error::{MAX_BYTES, PlanError};
use crate::group;
use crate::plan::Plan;
use crate::ranks::{self, Ranks, overlap};
use crate::request::Request;
use crate::sides::Sides;
use crate::size;
use crate::stages::Stages;

impl Plan {
    /// Plans every route between two deployments.
    ///
    /// # Errors
    /// Returns an error if the deployments hold different caches, or if the range of tokens or the amount of data is
    /// too large.
    pub fn compile(src: &Deployment, dst: &Deployment, request: &Request) -> Result<Self, PlanError> {
        Self::compile_some(src, dst, request, Sides::default())
    }

    /// Plans the routes of some ranks of one side, as needed by an agent that holds their memory.
    ///
    /// # Errors
    /// The errors of [`compile`](Self::compile), and one if the side has no such rank.
    pub fn compile_for(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        side: Side,
        ranks: &[Rank],
    ) -> Result<Self, PlanError> {
        let mut only = Sides::default();
        only[side] = Some(ranks);
        Self::compile_some(src, dst, request, only)
    }

    /// Plans the route between two ranks. The plan has no routes if they share nothing.
    ///
    /// # Errors
    /// The errors of [`compile`](Self::compile), and one if a side has no such rank.
    pub fn compile_route(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        src_rank: Rank,
        dst_rank: Rank,
    ) -> Result<Self, PlanError> {
        let only = Sides { src: Some(&[src_rank][..]), dst: Some(&[dst_rank][..]) };
        Self::compile_some(src, dst, request, only)
    }

    fn compile_some(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        only: Sides<Option<&[Rank]>>,
    ) -> Result<Self, PlanError> {
        let deployments = Sides { src, dst };
        let ranks = Sides::try_of(|side| Ranks::of(deployments[side], side, only[side]))?;
        let groups = group::groups(src, dst, request)?;
        let stages = ranks::stages(&ranks);
        size::check(&ranks, &stages, &groups)?;
        let mut routes = Vec::new();
        for stages in stages {
            let stages = Stages::new(&ranks, stages, &groups);
            for dst_rank in ranks.dst.tp.clone() {
                for src_rank in overlap(&stages.senders(dst_rank), &ranks.src.tp) {
                    routes.extend(stages.route(src_rank, dst_rank));
                }
            }
        }
        let moved = routes.iter().flat_map(|route| &route.groups);
        let bytes = moved.map(|group| u128::from(group.bytes())).sum();
        if bytes > MAX_BYTES.into() {
            return Err(PlanError::TooManyBytes { bytes });
        }
        routes.retain(|route| ranks.src.include(route.src_rank) && ranks.dst.include(route.dst_rank));
        routes.sort_by_key(|route| (route.dst_rank, route.src_rank));
        let own_groups = deployments.map(|deployment| deployment.groups().len());
        Ok(Self { request: *request, groups: groups.into(), own_groups, routes })
    }
}
