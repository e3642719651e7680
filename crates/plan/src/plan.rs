//! Plans, and the information that they contain.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use transload_layout::{Rank, Side};

use crate::group::GroupPlan;
use crate::nest::ComponentSet;
use crate::request::Request;
use crate::route::{Route, RouteGroup};
use crate::sides::Sides;

/// Routes between all ranks of two deployments, or between some of them.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) request: Request,
    pub(crate) groups: Arc<[GroupPlan]>,
    /// The number of groups in each side's own document.
    pub(crate) own_groups: Sides<usize>,
    pub(crate) routes: Vec<Route>,
}

impl Plan {
    /// Returns the request that the plan moves.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the routes, ordered by destination rank and then source rank. Pairs of ranks that share nothing have no
    /// route.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Returns the route between two ranks.
    pub fn route(&self, src_rank: Rank, dst_rank: Rank) -> Option<&Route> {
        let mut routes = self.routes.iter();
        routes.find(|route| route.src_rank == src_rank && route.dst_rank == dst_rank)
    }

    /// Returns the number of slices. It determines the plan's size, about half a KiB for each.
    pub fn slices(&self) -> u64 {
        let groups = self.routes.iter().flat_map(|route| &route.groups);
        groups.map(|group| group.slices.len() as u64).sum()
    }

    /// Returns the number of bytes that a route moves.
    pub fn route_bytes(&self, route: &Route) -> u64 {
        route.groups.iter().map(RouteGroup::bytes).sum()
    }

    /// Returns the number of bytes that move, where bytes that several destination ranks need count once. The plan must
    /// be one of [all routes](Self::compile).
    pub fn distinct_bytes(&self) -> u64 {
        let mut moved: HashMap<(usize, usize), u64> = HashMap::new();
        for group in self.routes.iter().flat_map(|route| &route.groups) {
            for slice in &group.slices {
                let component = moved.entry((group.group, slice.component));
                *component.or_default() += group.slice_bytes(slice);
            }
        }
        let readers = |group: usize, component: usize| self.groups[group].components[component].readers;
        let distinct = moved.into_iter().map(|((group, component), bytes)| bytes / readers(group, component));
        distinct.sum()
    }

    /// Returns the names of the groups that both sides have, in the order of block tables, which is that of the source's
    /// document.
    pub fn group_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.groups.iter().map(|group| group.name.as_str())
    }

    /// Returns the index of a group of the plan in a side's own document.
    pub fn group_of(&self, side: Side, group: usize) -> usize {
        self.groups[group].index[side]
    }

    /// Returns the entries of a side's block table that a request uses in a group.
    pub fn table_entries(&self, group: usize, side: Side) -> Range<u64> {
        self.groups[group].entries(side)
    }

    /// Returns the number of segments (ranges of tokens inside one block of each side) over all groups.
    pub fn segments(&self) -> u64 {
        let ranges = self.groups.iter().flat_map(|group| &group.ranges);
        ranges.map(|range| range.segments()).sum()
    }

    /// Returns the names of a set's components. Keys and values together are one name: `kv`, `x+B+C+ssm`.
    pub fn component_names(&self, group: usize, set: ComponentSet) -> String {
        let components = self.groups[group].components.iter().enumerate();
        let mut names: Vec<&str> = Vec::new();
        let mut before = None;
        for (_, component) in components.filter(|(index, _)| set.contains(*index)) {
            let own = component.attention.map(|spec| (spec, component.name));
            match (before, own) {
                (Some((of_k, "k")), Some((of_v, "v"))) if of_k == of_v => {
                    names.pop();
                    names.push("kv");
                }
                _ => names.push(component.name),
            }
            before = own;
        }
        names.join("+")
    }
}
