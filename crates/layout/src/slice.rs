//! Slicing one rank's cache for another: what both of them hold.

use smallvec::SmallVec;

use crate::deployment::{Deployment, Rank};
use crate::partition::PartitionError;
use crate::spec::Spec;
use crate::view::{Axis, ComponentView};

/// Which end of a transfer a rank is on. Where several source ranks hold the same unit, only one of
/// them serves a destination rank, so the ends are not alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The bytes are read from this rank.
    Source,
    /// The bytes are written to this rank.
    Destination,
}

/// A rank of tensor parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TpRank {
    /// How many ranks there are.
    pub tp: u32,
    /// Which one it is.
    pub rank: u32,
}

/// The parts of *my* views that travel between me and another rank, in an order that both derive
/// alike: by component as the spec lists them, units ascending.
///
/// `my_views` are the views of one spec on my rank, and `other_spec` is the same spec on the other
/// side. Views keep their semantic shape `[L, B, S, H, C]`; only `H` gets narrower. Layers are not
/// looked at: pipeline stages are the plan's business. Ranks that share nothing, or whose units
/// another replica serves, give an empty list.
///
/// # Errors
/// When the units of a component do not go into one of the TP sizes.
pub fn slice_for_tp_transfer(
    my_views: &[ComponentView],
    role: Role,
    me: TpRank,
    other_spec: &Spec,
    other: TpRank,
) -> Result<SmallVec<[ComponentView; 4]>, PartitionError> {
    let geometry = other_spec.geometry();
    let mut slices = SmallVec::new();
    for mine in my_views {
        let Some(component) = geometry.components.get(mine.component) else {
            continue;
        };
        let (me, other) = ((me.tp, me.rank), (other.tp, other.rank));
        let units = match role {
            Role::Source => component.partition.served(me, other)?,
            Role::Destination => component.partition.served(other, me)?,
        };
        if !units.is_empty() {
            slices.push(narrow_units(mine, units));
        }
    }
    Ok(slices)
}

/// The part of a view with these units of the whole model, all of which it has.
pub fn narrow_units(mine: &ComponentView, units: std::ops::Range<u64>) -> ComponentView {
    let local = units.start - mine.units.start..units.end - mine.units.start;
    ComponentView {
        view: mine.view.narrow(Axis::Unit, local),
        units,
        ..mine.clone()
    }
}

/// Meta views of everything a rank caches, group by group: shapes and strides without memory.
///
/// # Panics
/// If the deployment has no such rank.
pub fn make_meta_kv_cache(deployment: &Deployment, rank: Rank) -> Vec<Vec<ComponentView>> {
    let (tp_rank, stage) = deployment.split_rank(rank);
    let groups = deployment.groups().iter();
    groups
        .map(|group| group.views(tp_rank, stage).collect())
        .collect()
}
