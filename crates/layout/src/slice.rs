//! Slicing one rank's cache for another: what both of them hold.

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

/// One of the two ends of a transfer.
///
/// They are not alike: where several source ranks hold the same unit, it is the destination ranks that are
/// dealt among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where the bytes come from.
    Source,
    /// Where they go.
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

/// A rank of tensor parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TpRank {
    /// How many ranks there are.
    pub tp: u32,
    /// Which one it is.
    pub rank: u32,
}

/// Why views cannot be sliced for another rank.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SliceError {
    /// The units of a component do not go into one of the TP sizes, or one of the ranks is not there.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A view of a spec that the other side's group does not have.
    #[error("view {view} is of spec {spec}, but the other side's group has {specs}")]
    NoSuchSpec {
        /// Which view.
        view: usize,
        /// Its spec.
        spec: usize,
        /// How many the other side has.
        specs: usize,
    },
    /// A view of a component that the other side's spec does not have.
    #[error("view {view} is of component {component}, but a spec of kind {kind} has {components}")]
    NoSuchComponent {
        /// Which view.
        view: usize,
        /// Its component.
        component: usize,
        /// Kind of the other side's spec.
        kind: &'static str,
        /// How many components that has.
        components: usize,
    },
    /// A view whose units are not those that the rank holds: it is another rank's.
    #[error(
        "view {view} ({component}) has units {given:?} of the model on {positions} positions, but the \
         rank holds units {held:?}"
    )]
    NotMine {
        /// Which view.
        view: usize,
        /// The component's name.
        component: &'static str,
        /// The units that it says it has.
        given: Range<u64>,
        /// How many positions its axis of units has.
        positions: u64,
        /// The units that a rank like mine holds.
        held: Range<u64>,
    },
}

/// The parts of *my* views that travel between me and another rank, in an order that both derive
/// alike: as my views are listed, by spec and by component, units ascending.
///
/// `my_views` are views of one group on my rank, as [`make_meta_kv_cache`] lists them, and `other_specs`
/// are the [specs](crate::Group::specs) of the same group on the other side. Views keep their semantic
/// shape `[L, B, S, H, C]`; only `H` gets narrower. Ranks that share nothing, or whose units another
/// replica serves, give an empty list.
///
/// Layers and blocks are not looked at: they are the plan's business. So where several replicas
/// [share the work](Served) for one destination rank, each of them has these views, and the plan says which
/// layers or tokens of them each one sends.
///
/// # Errors
/// When the views are not those of rank `me`, the other side's group is another one, there is no such
/// rank, or units do not go into one of the TP sizes.
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

/// The part of a view with these units of the whole model, all of which it has.
fn narrow_units(mine: &ComponentView, units: Range<u64>) -> ComponentView {
    let local = units.start - mine.units.start..units.end - mine.units.start;
    ComponentView { view: mine.view.narrow(Axis::Unit, local), units, ..mine.clone() }
}

/// Meta views of everything a rank caches, group by group: shapes and strides without memory.
///
/// # Panics
/// If the deployment has no such rank.
pub fn make_meta_kv_cache(deployment: &Deployment, rank: Rank) -> Vec<Vec<ComponentView>> {
    let (tp_rank, stage) = deployment.split_rank(rank);
    let groups = deployment.groups().iter();
    groups.map(|group| group.views(tp_rank, stage).collect()).collect()
}
