//! Compiling a plan, and what it says.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use transload_layout::{Deployment, Rank, Side};

use super::error::{MAX_BYTES, PlanError};
use super::group::{self, GroupPlan};
use super::nest::ComponentSet;
use super::ranks::{self, Ranks};
use super::request::Request;
use super::route::{Route, RouteGroup};
use super::size;
use super::stages::Stages;

/// Routes between all ranks of two deployments, or between some of them.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) request: Request,
    pub(super) groups: Arc<[GroupPlan]>,
    pub(super) routes: Vec<Route>,
}

impl Plan {
    /// Plans every route between two deployments.
    ///
    /// # Errors
    /// When the two do not hold the same cache, or the range of tokens, or what moves, is absurd.
    pub fn compile(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
    ) -> Result<Self, PlanError> {
        Self::compile_some(src, dst, request, None, None)
    }

    /// Plans the routes of some ranks of one side: what an agent needs that holds their memory.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); and when the side has no such rank.
    pub fn compile_for(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        side: Side,
        ranks: &[Rank],
    ) -> Result<Self, PlanError> {
        match side {
            Side::Source => Self::compile_some(src, dst, request, Some(ranks), None),
            Side::Destination => Self::compile_some(src, dst, request, None, Some(ranks)),
        }
    }

    /// Plans the one route between two ranks. A plan without routes says that they share nothing.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); and when a side has no such rank.
    pub fn compile_route(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        src_rank: Rank,
        dst_rank: Rank,
    ) -> Result<Self, PlanError> {
        Self::compile_some(src, dst, request, Some(&[src_rank]), Some(&[dst_rank]))
    }

    fn compile_some(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        only_src: Option<&[Rank]>,
        only_dst: Option<&[Rank]>,
    ) -> Result<Self, PlanError> {
        let src_ranks = Ranks::of(src, Side::Source, only_src)?;
        let dst_ranks = Ranks::of(dst, Side::Destination, only_dst)?;
        let groups = group::groups(src, dst, request)?;
        let stages = ranks::stages((src, &src_ranks), (dst, &dst_ranks));
        size::check((src, &src_ranks), (dst, &dst_ranks), &stages, &groups)?;
        let mut routes = Vec::new();
        for (src_stage, dst_stage) in stages {
            let stages = Stages::new(src, src_stage, dst, dst_stage, &groups);
            for dst_rank in dst_ranks.tp.clone() {
                let senders = stages.senders(dst_rank);
                let tp = &src_ranks.tp;
                for src_rank in senders.start.max(tp.start)..senders.end.min(tp.end) {
                    routes.extend(stages.route(src_rank, dst_rank));
                }
            }
        }
        let moved = routes.iter().flat_map(|route| &route.groups);
        let moved = moved.map(|group| u128::from(group.bytes()));
        let bytes: u128 = moved.sum();
        if bytes > MAX_BYTES.into() {
            return Err(PlanError::TooManyBytes { bytes });
        }
        let wanted = |only: Option<&[Rank]>, rank| only.is_none_or(|only| only.contains(&rank));
        routes.retain(|route| wanted(only_src, route.src_rank) && wanted(only_dst, route.dst_rank));
        routes.sort_by_key(|route| (route.dst_rank, route.src_rank));
        Ok(Self {
            request: *request,
            groups: groups.into(),
            routes,
        })
    }

    /// What the plan moves.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The routes, by destination rank, then source rank. Pairs of ranks that share nothing have none.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The route between two ranks.
    pub fn route(&self, src_rank: Rank, dst_rank: Rank) -> Option<&Route> {
        let mut routes = self.routes.iter();
        routes.find(|route| route.src_rank == src_rank && route.dst_rank == dst_rank)
    }

    /// How many slices it has: what its size goes by, half a KiB or so for each.
    pub fn slices(&self) -> u64 {
        let groups = self.routes.iter().flat_map(|route| &route.groups);
        groups.map(|group| group.slices.len() as u64).sum()
    }

    /// How many bytes a route moves.
    pub fn route_bytes(&self, route: &Route) -> u64 {
        route.groups.iter().map(RouteGroup::bytes).sum()
    }

    /// How many bytes move, those that several destination ranks need counted once. Of a plan of
    /// [all routes](Self::compile).
    pub fn distinct_bytes(&self) -> u64 {
        let mut moved: HashMap<(usize, usize), u64> = HashMap::new();
        for group in self.routes.iter().flat_map(|route| &route.groups) {
            for slice in &group.slices {
                let component = moved.entry((group.group, slice.component));
                *component.or_default() += group.slice_bytes(slice);
            }
        }
        let distinct = moved
            .into_iter()
            .map(|((group, component), bytes)| bytes / self.groups[group].readers(component));
        distinct.sum()
    }

    /// The most places that binding a route to a stream takes: 24 bytes and some nanoseconds each. Costs O(slices).
    pub fn most_places(&self, route: &Route) -> u64 {
        let of_group = |group: &RouteGroup| {
            let layers = match self.request.by_layer {
                true => group.layers().len() as u64,
                false => 1,
            };
            let cuts = group
                .slices
                .iter()
                .map(|slice| slice.class.range.segments());
            layers.saturating_mul(cuts.fold(0, u64::saturating_add))
        };
        let of_groups = route.groups.iter().map(of_group);
        of_groups.fold(0, u64::saturating_add)
    }

    /// Names of the groups, in the order in which tables list them (that of the source's document).
    pub fn group_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.groups.iter().map(|group| group.name.as_str())
    }

    /// Names of the components of a set, those that travel together joined: `kv`, `x+B+C+ssm`.
    pub fn component_names(&self, group: usize, components: ComponentSet) -> String {
        self.groups[group].component_names(components)
    }

    /// Which group of a side's own document a group of the plan is.
    pub fn group_of(&self, side: Side, group: usize) -> usize {
        match side {
            Side::Source => self.groups[group].src_group,
            Side::Destination => self.groups[group].dst_group,
        }
    }

    /// Which entries of a side's block table a request touches in a group.
    pub fn table_entries(&self, group: usize, side: Side) -> Range<u64> {
        self.groups[group].entries(side)
    }

    /// Segments: stretches of tokens inside one block of each side, over all groups.
    pub fn segments(&self) -> u64 {
        self.groups.iter().map(GroupPlan::segments).sum()
    }
}
