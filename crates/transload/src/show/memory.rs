//! The meaning of each byte of a rank's memory, for pictures and sketches.

use transload::layout::{Axis, ComponentView, Deployment, Group, Rank};

/// One rank's memory for a group.
#[derive(Debug)]
pub(super) struct Memory<'a> {
    pub(super) group: &'a Group,
    /// The index of this rank among those that share the tokens of a sequence.
    dcp_rank: u64,
    layers: &'a [u32],
    pub(super) parts: Vec<Part>,
}

/// One component of a group, with the names of its axes.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) view: ComponentView,
    pub(super) name: &'static str,
    /// The name of a unit, for example `head`; `None` if the whole model has a single one.
    pub(super) unit: Option<String>,
    /// The content axes and their names, without the bytes of an element.
    pub(super) content: Vec<(Axis, &'static str)>,
}

/// The meaning of one byte of a rank's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) layer: u32,
    pub(super) block: u64,
    /// The state's index within the block.
    pub(super) state: u64,
    pub(super) part: usize,
    /// The unit's index in the whole model.
    pub(super) unit: u64,
    /// The positions along [`Part::content`].
    pub(super) content: Vec<u64>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(deployment: &Deployment, group: &'a Group, rank: Rank) -> Self {
        let (tp, stage) = deployment.split_rank(rank);
        let parts = group.views(tp, stage).map(|view| Part::new(group, view));
        Self {
            group,
            dcp_rank: (tp % group.dcp()).into(),
            layers: &group.layers().ids()[group.stage_slots(stage)],
            parts: parts.collect(),
        }
    }

    /// Returns the position in the sequence of a state of the block at an entry of the block table.
    pub(super) fn in_sequence(&self, entry: u64, state: u64) -> u64 {
        let states = self.parts[0].view.view.shape()[2];
        let stripe = self.group.interleave() * states / self.group.block_size();
        let own = entry * states + state;
        (own / stripe * u64::from(self.group.dcp()) + self.dcp_rank) * stripe + own % stripe
    }

    /// Returns the name of a state: `token` if a state has one token.
    pub(super) fn state(&self) -> &'static str {
        let mut tokens = self.group.specs().iter();
        match tokens.find_map(|spec| spec.tokens_per_state()) {
            Some(1) => "token",
            _ => "state",
        }
    }

    /// Returns the meaning of the byte at an address; `None` for padding and within an element.
    pub(super) fn at(&self, address: u64) -> Option<Position> {
        let mut parts = self.parts.iter().enumerate();
        let (index, part, position) = parts.find_map(|(index, part)| Some((index, part, part.position(address)?)))?;
        let on = |axis| {
            let mut known = position.iter();
            known.find(|(of, _)| *of == axis).map_or(0, |(_, at)| *at)
        };
        Some(Position {
            layer: self.layers[on(Axis::Layer) as usize],
            block: on(Axis::Block),
            state: on(Axis::State),
            part: index,
            unit: part.view.units.start + on(Axis::Unit),
            content: part.content.iter().map(|(axis, _)| on(*axis)).collect(),
        })
    }
}

impl Part {
    fn new(group: &Group, view: ComponentView) -> Self {
        let spec = &group.specs()[view.spec];
        let geometry = spec.geometry();
        let component = &geometry.components[view.component];
        let is_conv = spec.conv_layout().is_some();
        let axes = view.view.dims.iter().map(|dim| dim.axis);
        let content = axes.filter_map(|axis| {
            let name = match axis {
                Axis::Content(0) if is_conv => "channel",
                Axis::Content(_) if is_conv => "tap",
                Axis::Content(0) if component.content.len() > 1 => "row",
                Axis::Content(_) => "element",
                _ => return None,
            };
            Some((axis, name))
        });
        let unit = match component.field {
            "d_inner" => "channel".to_owned(),
            field => field.strip_suffix('s').unwrap_or(field).replace('_', " "),
        };
        Self {
            name: match component.name {
                "k" => "K",
                "v" => "V",
                name => name,
            },
            unit: (component.partition.units() > 1).then_some(unit),
            content: content.collect(),
            view,
        }
    }

    /// Returns the position of the byte at an address along every axis, if the byte belongs to the component.
    fn position(&self, address: u64) -> Option<Vec<(Axis, u64)>> {
        let mut rest = address.checked_sub(self.view.view.offset)?;
        let mut dims = self.view.view.dims.clone();
        dims.retain(|dim| dim.extent > 1);
        dims.sort_by_key(|dim| std::cmp::Reverse(dim.stride));
        let steps = dims.iter().map(|dim| {
            let at = (rest / dim.stride).min(dim.extent - 1);
            rest -= at * dim.stride;
            (dim.axis, at)
        });
        let position = steps.collect();
        (rest == 0).then_some(position)
    }
}
