//! The part of a plan that all routes of a group share: its components, and which of their states travel.

use std::ops::Range;

use transload_layout::{Deployment, Group, Partition, Side, Spec};

use crate::bridge::pair_groups;
use crate::codec::Rows;
use crate::error::{MAX_TOKENS, PlanError};
use crate::ranks::{Ranks, hull, overlap};
use crate::request::Request;
use crate::sides::Sides;
use crate::tokens::StateRange;

#[derive(Clone, Debug)]
pub(crate) struct GroupPlan {
    pub(crate) name: String,
    /// The group's index in each side's own document.
    pub(crate) index: Sides<usize>,
    pub(crate) num_blocks: Sides<u32>,
    pub(crate) components: Vec<ComponentPlan>,
    pub(crate) ranges: Vec<StateRange>,
}

#[derive(Clone, Debug)]
pub(crate) struct ComponentPlan {
    pub(crate) name: &'static str,
    /// The index of its spec, if that is attention. Its keys and values together are named kv.
    pub(crate) attention: Option<usize>,
    /// The rows in which codecs encode it, if they do.
    pub(crate) rows: Option<Rows>,
    pub(crate) partition: Partition,
    pub(crate) readers: u64,
    pub(crate) range: usize,
}

/// Pairs the groups, and determines which states of each travel.
pub(crate) fn groups(src: &Deployment, dst: &Deployment, request: &Request) -> Result<Vec<GroupPlan>, PlanError> {
    let end = request.start.checked_add(request.tokens);
    if end.is_none_or(|end| end > MAX_TOKENS) {
        return Err(PlanError::TooManyTokens { start: request.start, tokens: request.tokens });
    }
    let mut groups = Vec::new();
    for (group, other) in pair_groups(src, dst)? {
        let pair = Sides { src: group, dst: other };
        let mut ranges = Vec::new();
        let mut components = Vec::new();
        for (index, spec) in group.specs().iter().enumerate() {
            let attention = matches!(spec, Spec::Attention(_)).then_some(index);
            let range = StateRange::of(spec, request, pair.map(Group::block_size));
            let known = ranges.iter().position(|known| *known == range);
            let range = known.unwrap_or_else(|| {
                ranges.push(range);
                ranges.len() - 1
            });
            for (number, component) in (0..).zip(spec.geometry().components) {
                components.push(ComponentPlan {
                    name: component.name,
                    attention,
                    rows: Rows::of(spec, number..=number),
                    partition: component.partition,
                    readers: (u64::from(dst.tp()) / component.partition.units().max(1)).max(1),
                    range,
                });
            }
        }
        groups.push(GroupPlan {
            name: group.name().to_owned(),
            index: Sides { src, dst }.map(|side| side.group(group.name()).map_or(0, |(index, _)| index)),
            num_blocks: pair.map(Group::num_blocks),
            components,
            ranges,
        });
    }
    Ok(groups)
}

impl GroupPlan {
    pub(crate) fn entries(&self, side: Side) -> Range<u64> {
        let ranges = self.ranges.iter();
        let touched = ranges.map(|range| range.entries(range.block[side]));
        hull(touched.filter(|entries| !entries.is_empty()))
    }

    /// Returns the layer slots that two stages share, as indices into the whole group, and each side's first slot.
    pub(crate) fn slots_in_common(
        &self,
        ranks: &Sides<Ranks<'_>>,
        stages: &Sides<u32>,
    ) -> (Sides<usize>, Range<usize>) {
        let slots = Sides::of(|side| {
            let group = &ranks[side].deployment.groups()[self.index[side]];
            group.stage_slots(stages[side])
        });
        let both = overlap(&slots.src, &slots.dst);
        (slots.map(|slots| slots.start), both)
    }

    pub(crate) fn partitions(&self) -> impl Iterator<Item = Partition> {
        let components = self.components.iter();
        let moving = components.filter(|component| self.ranges[component.range].count() > 0);
        moving.map(|component| component.partition)
    }
}
