//! The part of a plan that all routes of a group share: its components, and which of their states travel.

use std::ops::Range;

use transload_layout::{Deployment, Group, Partition, Share, Side, Spec};

use crate::bridge::pair_groups;
use crate::codec::Rows;
use crate::deal::Deal;
use crate::error::{MAX_TOKENS, PlanError};
use crate::ranks::{Ranks, hull, overlap};
use crate::request::Request;
use crate::sides::Sides;
use crate::tokens::StateRange;

/// The TP sizes and ranks without context parallelism, and the index of each rank among those that share the tokens of
/// its side.
type PlainRanks = (Sides<(u32, u32)>, Sides<u64>);

#[derive(Clone, Debug)]
pub(crate) struct GroupPlan {
    pub(crate) name: String,
    /// The group's index in each side's own document.
    pub(crate) index: Sides<usize>,
    pub(crate) num_blocks: Sides<u32>,
    /// How each side deals tokens out, with the first rank of each.
    pub(crate) deal: Sides<Deal>,
    /// Which ranks have tokens in common, see [`Sides<Deal>::meetings`].
    meetings: Vec<Option<Share>>,
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
            let range = StateRange::of(spec, request, pair);
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
                    readers: (u64::from(dst.tp() / other.dcp()) / component.partition.units().max(1)).max(1),
                    range,
                });
            }
        }
        let deal = pair.map(|group| Deal { ranks: group.dcp().into(), rank: 0, stripe: group.interleave() });
        groups.push(GroupPlan {
            name: group.name().to_owned(),
            index: Sides { src, dst }.map(|side| side.group(group.name()).map_or(0, |(index, _)| index)),
            num_blocks: pair.map(Group::num_blocks),
            deal,
            meetings: deal.meetings(),
            components,
            ranges,
        });
    }
    Ok(groups)
}

impl GroupPlan {
    pub(crate) fn entries(&self, side: Side) -> Range<u64> {
        let ranges = self.ranges.iter();
        let touched = ranges.map(|range| range.entries(side));
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
        let moving = components.filter(|component| !self.ranges[component.range].is_empty());
        moving.map(|component| component.partition)
    }

    /// Converts two TP ranks into ranks of sides that deal no tokens out. Units and replicas are divided between those.
    /// Returns `None` if the two have no token in common.
    ///
    /// The ranks with the same part of the tokens are a TP group of their own: every `dcp`th rank. A source rank serves all
    /// destination groups with which it has tokens in common, so they count as one group.
    pub(crate) fn plain(&self, tp: Sides<u32>, ranks: Sides<u32>) -> Option<PlainRanks> {
        let dcp = self.deal.map(|deal| deal.ranks as u32);
        let own = Sides::of(|side| ranks[side] % dcp[side]);
        let Share { index, of } = self.meetings[(own.src * dcp.dst + own.dst) as usize]?;
        let Sides { src, dst } = Sides::of(|side| (tp[side] / dcp[side], ranks[side] / dcp[side]));
        Some((Sides { src, dst: (dst.0 * of, dst.1 * of + index) }, own.map(u64::from)))
    }

    /// Returns the source's TP ranks that may send units to a TP rank of the destination, as ranges with the step from one
    /// rank to the next.
    pub(crate) fn senders(
        &self,
        partition: Partition,
        tp: Sides<u32>,
        dst: u32,
    ) -> impl Iterator<Item = (Range<u32>, u32)> {
        let dcp = self.deal.src.ranks as u32;
        (0..dcp).filter_map(move |src| {
            let (plain, _) = self.plain(tp, Sides { src, dst })?;
            // The check of the deployments has ensured that both TP sizes fit the units.
            let senders = partition.senders(plain.src.0, plain.dst).ok()?;
            Some((senders.start * dcp + src..(senders.end - 1) * dcp + src + 1, dcp))
        })
    }
}
