//! A rank's memory as cells: the smallest runs of bytes that have one meaning, in physical order.

use transload::layout::{Axis, ComponentView, Deployment, Group, Rank};

/// What bytes mean in the model, whatever the side and the rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Meaning {
    /// Global id.
    pub(super) layer: u32,
    /// Counted from the start of the sequence; 0 for recurrent state.
    pub(super) state: u64,
    /// Index of spec and component.
    pub(super) part: (usize, usize),
    /// Head (group, channel) of the whole model.
    pub(super) unit: u64,
    /// Position along the content axes that do not lie inside of the cell.
    pub(super) content: Vec<u64>,
}

/// A run of bytes with one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) block: u32,
    pub(super) is: Meaning,
}

/// How fine cells are in one component: the same on both sides, so that they can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grain {
    /// Bytes of a cell.
    pub(super) bytes: u64,
    /// Content axes that step from cell to cell, with their extents.
    pub(super) axes: Vec<(Axis, u64)>,
}

impl Grain {
    /// The longest cells of a component that are contiguous in all its views, one for each side.
    pub(super) fn of(views: &[&ComponentView]) -> Self {
        let mut inside: Vec<Axis> = Vec::new();
        let mut bytes = 1;
        let dims = views
            .first()
            .map(|view| &view.view.dims[..])
            .unwrap_or_default();
        let content = |axis: Axis| matches!(axis, Axis::Content(_) | Axis::Byte);
        while let Some(next) = dims.iter().find(|dim| {
            content(dim.axis)
                && !inside.contains(&dim.axis)
                && (dim.extent == 1
                    || views
                        .iter()
                        .all(|view| view.view.dim(dim.axis).stride == bytes))
        }) {
            inside.push(next.axis);
            bytes *= next.extent;
        }
        let axes = dims
            .iter()
            .filter(|dim| content(dim.axis) && !inside.contains(&dim.axis));
        Self {
            bytes,
            axes: axes.map(|dim| (dim.axis, dim.extent)).collect(),
        }
    }
}

/// Which blocks hold the tokens of a request: entry of the block table, and block.
pub(super) type Blocks = Vec<(u64, u32)>;

/// One side of a picture: a group of a deployment, and the blocks that count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) group: &'a Group,
    pub(super) blocks: &'a [(u64, u32)],
}

impl<'a> Memory<'a> {
    pub(super) fn views(&self, rank: Rank) -> Vec<ComponentView> {
        let (tp, stage) = self.deployment.split_rank(rank);
        self.group.views(tp, stage).collect()
    }

    /// How many cells a rank has, which may be more than anybody could list.
    pub(super) fn count(&self, rank: Rank, grains: &[Grain]) -> u128 {
        let views = self.views(rank);
        let cells = views.iter().zip(grains).map(|(view, grain)| {
            let [layers, _, states, units, _] = view.view.shape();
            let content = grain.axes.iter().map(|(_, extent)| u128::from(*extent));
            let blocks = self.blocks.len() as u128;
            [layers, states, units]
                .map(u128::from)
                .into_iter()
                .product::<u128>()
                * blocks
                * content.product::<u128>()
        });
        cells.sum()
    }

    /// A rank's cells in the order of their addresses.
    pub(super) fn cells(&self, rank: Rank, grains: &[Grain]) -> Vec<Cell> {
        let (_, stage) = self.deployment.split_rank(rank);
        let layers = &self.group.layers().ids()[self.group.stage_slots(stage)];
        let mut cells = Vec::new();
        for (view, grain) in self.views(rank).iter().zip(grains) {
            let dim = |axis| view.view.dim(axis);
            let states = dim(Axis::State);
            for (slot, layer) in (0u64..).zip(layers) {
                for (entry, block) in self.blocks {
                    let base = view.view.offset
                        + slot * dim(Axis::Layer).stride
                        + u64::from(*block) * dim(Axis::Block).stride;
                    for state in 0..states.extent {
                        for unit in 0..dim(Axis::Unit).extent {
                            let base = base + state * states.stride + unit * dim(Axis::Unit).stride;
                            each_position(&grain.axes, |content| {
                                let steps = grain.axes.iter().zip(content);
                                let inside: u64 =
                                    steps.map(|((axis, _), at)| at * dim(*axis).stride).sum();
                                cells.push(Cell {
                                    address: base + inside,
                                    bytes: grain.bytes,
                                    block: *block,
                                    is: Meaning {
                                        layer: *layer,
                                        state: entry * states.extent + state,
                                        part: (view.spec, view.component),
                                        unit: view.units.start + unit,
                                        content: content.into(),
                                    },
                                });
                            });
                        }
                    }
                }
            }
        }
        cells.sort_by_key(|cell| cell.address);
        cells
    }
}

/// Calls `each` with every position along some axes, the last of them fastest.
fn each_position(axes: &[(Axis, u64)], mut each: impl FnMut(&[u64])) {
    let mut at = vec![0; axes.len()];
    if axes.iter().any(|(_, extent)| *extent == 0) {
        return;
    }
    loop {
        each(&at);
        let mut moved = false;
        for (position, (_, extent)) in at.iter_mut().zip(axes).rev() {
            *position += 1;
            if *position < *extent {
                moved = true;
                break;
            }
            *position = 0;
        }
        if !moved {
            return;
        }
    }
}

/// The grains of a group's components for both sides.
pub(super) fn grains(src: &Memory<'_>, dst: &Memory<'_>) -> Vec<Grain> {
    let (a, b) = (src.views(Rank(0)), dst.views(Rank(0)));
    a.iter().zip(&b).map(|(a, b)| Grain::of(&[a, b])).collect()
}
