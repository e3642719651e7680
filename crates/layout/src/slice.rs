//! Slicing: the parts of one rank's cache that another rank holds too.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;
use thiserror::Error;

use crate::deployment::{Deployment, Rank};
use crate::partition::PartitionError;
#[cfg(doc)]
use crate::partition::Served;
use crate::spec::Spec;
use crate::view::{Axis, ComponentView};

/// An end of a transfer.
///
/// The ends differ: if several source ranks hold the same unit, the destination ranks are distributed among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The end that the bytes come from.
    Source,
    /// The end that the bytes go to.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "the source",
            Side::Destination => "the destination",
        })
    }
}

/// A tensor-parallel rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TpRank {
    /// The number of ranks.
    pub tp: u32,
    /// The rank's number.
    pub rank: u32,
}

/// Describes why views cannot be sliced for another rank.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SliceError {
    /// A TP size does not divide the units of a component, or a rank does not exist.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The other side's group does not have the view's spec.
    #[error("view {view} is of spec {spec}, but the other side's group has {specs}")]
    NoSuchSpec {
        /// The index of the view.
        view: usize,
        /// The index of its spec.
        spec: usize,
        /// The number of specs on the other side.
        specs: usize,
    },
    /// The other side's spec does not have the view's component.
    #[error("view {view} is of component {component}, but a spec of kind {kind} has {components}")]
    NoSuchComponent {
        /// The index of the view.
        view: usize,
        /// The index of its component.
        component: usize,
        /// The kind of the other side's spec.
        kind: &'static str,
        /// The number of that spec's components.
        components: usize,
    },
    /// The view's units are not those of the rank, so it belongs to another rank.
    #[error(
        "view {view} ({component}) has units {given:?} of the model on {positions} positions, but the \
         rank holds units {held:?}"
    )]
    NotMine {
        /// The index of the view.
        view: usize,
        /// The component's name.
        component: &'static str,
        /// The units of the view.
        given: Range<u64>,
        /// The number of positions on its axis of units.
        positions: u64,
        /// The units that the rank holds.
        held: Range<u64>,
    },
}

/// Returns the parts of *my* views that travel between me and another rank. Their order is that of my views (by spec
/// and component), with ascending units, so both ranks derive the same list.
///
/// `my_views` are the views of one group on my rank, from [`make_meta_kv_cache`]. `other_specs` are the
/// [specs](crate::Group::specs) of the same group on the other side. Views keep their semantic shape `[L, B, S, H, C]`;
/// only `H` becomes narrower. The list is empty if the ranks share nothing, or if another replica serves their units.
///
/// Layers, blocks and tokens are not considered, since the plan handles them: the views are those of a group whose
/// tokens are not [dealt out](crate::Group::dcp). So if several replicas [share the work](Served) for a destination
/// rank, each has these views, and the plan determines which layers or tokens each one sends.
///
/// # Errors
/// Returns an error if the views are not those of rank `me`, if the other side's group differs, if a rank does not
/// exist, or if a TP size does not divide the units.
///
/// ```
/// use transload_layout::{Deployment, Dtype, Group, Rank, Side, Spec, TpRank};
/// use transload_layout::{make_meta_kv_cache, slice_for_tp_transfer};
///
/// let group = Group::builder("attn", "0-31", Spec::attention(8, 128, Dtype::Bf16));
/// let side = |tp| {
///     Deployment::builder().tp(tp).block_size(16).num_blocks(64).group(group.clone()).build().unwrap()
/// };
/// let (prefill, decode) = (side(2), side(4));
/// let mine = &make_meta_kv_cache(&prefill, Rank(1))[0];
/// let (me, other) = (TpRank { tp: 2, rank: 1 }, TpRank { tp: 4, rank: 2 });
/// let specs = decode.groups()[0].specs();
/// let slices = slice_for_tp_transfer(mine, Side::Source, me, specs, other).unwrap();
/// let units: Vec<_> = slices.iter().map(|slice| slice.units.clone()).collect();
/// assert_eq!(units, [4..6, 4..6], "keys and values of two of my four heads");
///
/// // The views of another rank are refused.
/// let wrong = TpRank { tp: 2, rank: 0 };
/// assert!(slice_for_tp_transfer(mine, Side::Source, wrong, specs, other).is_err());
/// ```
pub fn slice_for_tp_transfer(
    my_views: &[ComponentView],
    side: Side,
    me: TpRank,
    other_specs: &[Spec],
    other: TpRank,
) -> Result<SmallVec<[ComponentView; 4]>, SliceError> {
    let (me, other) = ((me.tp, me.rank), (other.tp, other.rank));
    let mut slices = SmallVec::new();
    for (view, mine) in my_views.iter().enumerate() {
        let spec = other_specs.get(mine.spec).ok_or(SliceError::NoSuchSpec {
            view,
            spec: mine.spec,
            specs: other_specs.len(),
        })?;
        let components = spec.geometry().components;
        let found = components.get(mine.component);
        let component = found.ok_or(SliceError::NoSuchComponent {
            view,
            component: mine.component,
            kind: spec.kind(),
            components: components.len(),
        })?;
        let held = component.partition.owned(me.0, me.1)?;
        let positions = mine.view.dim(Axis::Unit).extent;
        if mine.units != held || positions != held.end - held.start {
            return Err(SliceError::NotMine {
                view,
                component: component.name,
                given: mine.units.clone(),
                positions,
                held,
            });
        }
        let served = match side {
            Side::Source => component.partition.served(me, other)?,
            Side::Destination => component.partition.served(other, me)?,
        };
        slices.extend(served.map(|served| narrow_units(mine, served.units)));
    }
    Ok(slices)
}

/// Narrows a view to these units of the whole model, all of which it must have.
fn narrow_units(mine: &ComponentView, units: Range<u64>) -> ComponentView {
    let local = units.start - mine.units.start..units.end - mine.units.start;
    ComponentView { view: mine.view.narrow(Axis::Unit, local), units, ..mine.clone() }
}

/// Returns meta views of everything that a rank caches, by group: shapes and strides without memory.
///
/// # Panics
/// If the deployment has no such rank.
pub fn make_meta_kv_cache(deployment: &Deployment, rank: Rank) -> Vec<Vec<ComponentView>> {
    let (tp_rank, stage) = deployment.split_rank(rank);
    let groups = deployment.groups().iter();
    groups.map(|group| group.views(tp_rank, stage).collect()).collect()
}
