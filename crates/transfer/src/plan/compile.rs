//! Compiling a plan, and what it says.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use transload_layout::{Deployment, Rank, Side};

use super::error::{MAX_BYTES, PlanError};
use super::group::{self, GroupPlan};
use super::pieces;
use super::ranks::{self, Ranks, overlap};
use super::request::Request;
use super::route::{Route, RouteGroup, Slice};
use super::sides::Sides;
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
        Self::compile_some(src, dst, request, Sides::default())
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
        let mut only = Sides::default();
        only[side] = Some(ranks);
        Self::compile_some(src, dst, request, only)
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
        let only = Sides {
            src: Some(&[src_rank][..]),
            dst: Some(&[dst_rank][..]),
        };
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
        routes
            .retain(|route| ranks.src.include(route.src_rank) && ranks.dst.include(route.dst_rank));
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
        let readers =
            |group: usize, component: usize| self.groups[group].components[component].readers;
        let distinct = moved
            .into_iter()
            .map(|((group, component), bytes)| bytes / readers(group, component));
        distinct.sum()
    }

    /// The most places that binding a route to a stream takes: 24 bytes and some nanoseconds each. Costs O(slices).
    pub fn most_places(&self, route: &Route) -> u64 {
        let of_group = |group: &RouteGroup| {
            let layers = group.layers().len() as u64;
            let components = &self.groups[group.group].components;
            let of_slice = |slice: &Slice| {
                let coded = !self.request.codec.is_exact();
                match coded && components[slice.component].rows.is_some() {
                    true => pieces::most_places(slice, layers),
                    false if self.request.by_layer => {
                        slice.class.range.segments().saturating_mul(layers)
                    }
                    false => slice.class.range.segments(),
                }
            };
            let places = group.slices.iter().map(of_slice);
            places.fold(0, u64::saturating_add)
        };
        let of_groups = route.groups.iter().map(of_group);
        of_groups.fold(0, u64::saturating_add)
    }

    /// Names of the groups, in the order in which tables list them (that of the source's document).
    pub fn group_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.groups.iter().map(|group| group.name.as_str())
    }

    /// Which group of a side's own document a group of the plan is.
    pub fn group_of(&self, side: Side, group: usize) -> usize {
        self.groups[group].index[side]
    }

    /// Which entries of a side's block table a request touches in a group.
    pub fn table_entries(&self, group: usize, side: Side) -> Range<u64> {
        self.groups[group].entries(side)
    }

    /// Segments: stretches of tokens inside one block of each side, over all groups.
    pub fn segments(&self) -> u64 {
        let ranges = self.groups.iter().flat_map(|group| &group.ranges);
        ranges.map(|range| range.segments()).sum()
    }
}
