//! Block tables: which physical block holds which tokens.

use std::ops::Range;

use thiserror::Error;
use transload_layout::{Deployment, Side};

use crate::group::GroupPlan;
use crate::plan::Plan;
use crate::tokens::Place;

/// The most places in which the nests of a bound plan may start, before neighbours are joined. A place takes
/// 24 bytes, and the segment that it comes from 56. A million tokens in blocks of one token have 2 million for
/// each group of keys and values.
pub const MAX_PLACES: u64 = 1 << 25;

/// The physical blocks of a sequence in one group: entry i holds tokens `[i*block_size,
/// (i+1)*block_size)`, counted from position 0 whatever the request's start is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum BlockTable {
    /// Block i is entry i.
    #[default]
    Identity,
    /// As listed; [`BlockTable::NONE`] for an entry that is never touched.
    List(Vec<u32>),
}

impl BlockTable {
    /// An entry that has no block (before a sliding window, say).
    pub const NONE: u32 = u32::MAX;

    /// The block of an entry, if it has one.
    pub(crate) fn get(&self, entry: u64) -> Option<u32> {
        match self {
            BlockTable::Identity => u32::try_from(entry).ok(),
            BlockTable::List(blocks) => {
                let block = blocks.get(usize::try_from(entry).ok()?).copied();
                block.filter(|block| *block != Self::NONE)
            }
        }
    }
}

impl From<Vec<u32>> for BlockTable {
    fn from(blocks: Vec<u32>) -> Self {
        BlockTable::List(blocks)
    }
}

/// One side's block tables, one for each group in the order of [`Plan::group_names`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tables(pub Vec<BlockTable>);

impl Tables {
    /// Tables in which block i is entry i, in every group of a plan.
    pub fn identity(plan: &Plan) -> Self {
        Self(vec![BlockTable::Identity; plan.group_names().len()])
    }

    fn check_count(&self, side: Side, groups: usize) -> Result<(), BindError> {
        match self.0.len() {
            given if given == groups => Ok(()),
            given => Err(BindError::TableCount { side, given, groups }),
        }
    }

    /// Whether these can be tables of a deployment, listed as its document lists the groups, for a sequence of
    /// `tokens` tokens: what can be known before there is a plan.
    ///
    /// # Errors
    /// When there is not one for each group, one of a group that is not recurrent ends before the sequence does, or
    /// one lists a block that does not exist.
    pub fn check(&self, deployment: &Deployment, side: Side, tokens: u64) -> Result<(), BindError> {
        let groups = deployment.groups();
        self.check_count(side, groups.len())?;
        for (group, table) in groups.iter().zip(&self.0) {
            let BlockTable::List(blocks) = table else {
                continue;
            };
            let needed = match group.is_recurrent() {
                true => 0,
                false => tokens.div_ceil(group.block_size()),
            };
            let table = GroupTable { side, group: group.name(), num_blocks: group.num_blocks(), table };
            table.check(0..needed.max(blocks.len() as u64), true)?;
        }
        Ok(())
    }
}

impl Plan {
    /// Tables listed as a side's own document lists its groups, in the order of the plan.
    ///
    /// # Errors
    /// When there is not one table for each group.
    pub fn arrange(&self, side: Side, own: &Tables) -> Result<Tables, BindError> {
        own.check_count(side, self.groups.len())?;
        let groups = 0..self.groups.len();
        let arranged = groups.map(|group| own.0[self.group_of(side, group)].clone());
        Ok(Tables(arranged.collect()))
    }
}

/// Block tables that do not suit a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum BindError {
    /// Not one table for each group.
    #[error("{side} gives {given} block tables for {groups} groups")]
    TableCount { side: Side, given: usize, groups: usize },
    /// A table that ends before the request does.
    #[error("group \"{group}\": the table of {side} has {given} blocks, {needed} are needed")]
    TooShort { side: Side, group: String, given: u64, needed: u64 },
    /// An entry without a block that the request touches.
    #[error("group \"{group}\": entry {entry} of the table of {side} has no block")]
    NoBlock { side: Side, group: String, entry: u64 },
    /// A block that the side does not have.
    #[error(
        "group \"{group}\": entry {entry} of the table of {side} is block {block}, but there are \
         {num_blocks} blocks"
    )]
    NoSuchBlock { side: Side, group: String, entry: u64, block: u64, num_blocks: u32 },
    /// More places than a bound plan may have.
    #[error("the tokens fall into too many pieces: a plan bound to block tables has {MAX_PLACES} at most")]
    TooManyPlaces,
    /// A destination block that would be written twice.
    #[error("group \"{group}\": block {block} stands twice in the table of the destination")]
    Repeated { group: String, block: u32 },
}

/// The table of one group, and what it is checked against.
struct GroupTable<'a> {
    side: Side,
    group: &'a str,
    num_blocks: u32,
    table: &'a BlockTable,
}

impl GroupTable<'_> {
    /// Checks that it has these entries, and the side the blocks in them; with `gaps`, some may have no block.
    fn check(&self, mut entries: Range<u64>, gaps: bool) -> Result<(), BindError> {
        let (side, group) = (self.side, || self.group.to_owned());
        match self.table {
            BlockTable::List(blocks) if (blocks.len() as u64) < entries.end => {
                return Err(BindError::TooShort {
                    side,
                    group: group(),
                    given: blocks.len() as u64,
                    needed: entries.end,
                });
            }
            BlockTable::List(_) => {}
            // The last block is the highest.
            BlockTable::Identity => entries.start = entries.start.max(entries.end.saturating_sub(1)),
        }
        for entry in entries {
            match self.table.get(entry) {
                Some(block) if block < self.num_blocks => {}
                Some(block) => {
                    return Err(BindError::NoSuchBlock {
                        side,
                        group: group(),
                        entry,
                        block: block.into(),
                        num_blocks: self.num_blocks,
                    });
                }
                None if gaps => {}
                None => {
                    return Err(BindError::NoBlock { side, group: group(), entry });
                }
            }
        }
        Ok(())
    }
}

/// Looks the entries of one side's table up, with every check made once and beforehand.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    table: &'a BlockTable,
}

impl<'a> Lookup<'a> {
    /// Checks every entry that a request touches, in the tables of all groups.
    pub(crate) fn of_plan(plan: &Plan, side: Side, tables: &'a Tables) -> Result<Vec<Self>, BindError> {
        tables.check_count(side, plan.groups.len())?;
        let groups = plan.groups.iter().zip(&tables.0);
        groups.map(|(group, table)| Self::new(group, side, table)).collect()
    }

    fn new(group: &GroupPlan, side: Side, table: &'a BlockTable) -> Result<Self, BindError> {
        let num_blocks = group.num_blocks[side];
        let touched = group.entries(side);
        let checked = GroupTable { side, group: &group.name, num_blocks, table };
        checked.check(touched.clone(), false)?;
        if let (Side::Destination, BlockTable::List(blocks)) = (side, table)
            && let written = &blocks[touched.start as usize..touched.end as usize]
            && let Some(block) = repeated(written, num_blocks)
        {
            let group = group.name.clone();
            return Err(BindError::Repeated { group, block });
        }
        Ok(Self { table })
    }

    /// A place in the block of an entry that was checked.
    pub(crate) fn place(&self, in_entry: Place) -> Place {
        let block = self.table.get(in_entry.block);
        debug_assert!(block.is_some());
        Place { block: block.map_or(0, u64::from), ..in_entry }
    }
}

/// A block that is listed twice, of blocks below `num_blocks`.
fn repeated(blocks: &[u32], num_blocks: u32) -> Option<u32> {
    // A bit for each block there is, or a sorted copy of the list: whichever is smaller.
    if blocks.len() < num_blocks as usize / 32 {
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        let pair = sorted.windows(2).find(|pair| pair[0] == pair[1]);
        return pair.map(|pair| pair[0]);
    }
    let mut seen = vec![0u64; (num_blocks as usize).div_ceil(64)];
    let mut blocks = blocks.iter().copied();
    blocks.find(|block| {
        let word = &mut seen[*block as usize / 64];
        let bit = 1 << (block % 64);
        let before = *word;
        *word |= bit;
        before & bit != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_blocks_are_found_in_short_and_long_lists() {
        for num_blocks in [8, 1 << 20, u32::MAX] {
            let last = num_blocks - 1;
            assert_eq!(repeated(&[3, last, 0, 5], num_blocks), None);
            assert_eq!(repeated(&[3, last, 0, last], num_blocks), Some(last));
            assert_eq!(repeated(&[], num_blocks), None);
        }
    }
}
