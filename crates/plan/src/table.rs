//! Block tables, which map tokens to physical blocks.

use std::ops::Range;

use thiserror::Error;
use transload_layout::{Deployment, Side};

use crate::group::GroupPlan;
use crate::plan::Plan;
use crate::tokens::Place;

/// The maximum number of places in a bound plan, before neighbours are joined. A place takes 24 bytes, and its segment
/// 56. A million tokens in blocks of one token have 2 million places for each group of keys and values.
pub const MAX_PLACES: u64 = 1 << 25;

/// The physical blocks of a sequence in one group. Entry i holds tokens `[i*t, (i+1)*t)` for
/// [`t` tokens](transload_layout::Group::entry_tokens), counted from position 0 even if the request starts later.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum BlockTable {
    /// Entry i is block i.
    #[default]
    Identity,
    /// The blocks in order, with [`BlockTable::NONE`] for entries that are not used.
    List(Vec<u32>),
}

impl BlockTable {
    /// An entry without a block (for example, before a sliding window).
    pub const NONE: u32 = u32::MAX;

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
    /// Returns tables in which entry i is block i, for every group of a plan.
    pub fn identity(plan: &Plan) -> Self {
        Self(vec![BlockTable::Identity; plan.group_names().len()])
    }

    fn check_count(&self, side: Side, groups: usize) -> Result<(), BindError> {
        match self.0.len() {
            given if given == groups => Ok(()),
            given => Err(BindError::TableCount { side, given, groups }),
        }
    }

    /// Checks these tables against a deployment and a sequence of `tokens` tokens, as far as possible without a plan.
    /// They are in the order of the deployment's groups.
    ///
    /// # Errors
    /// Returns an error if there is not one table for each group, if a table of a non-recurrent group ends before the
    /// sequence does, or if a table lists a missing block.
    pub fn check(&self, deployment: &Deployment, side: Side, tokens: u64) -> Result<(), BindError> {
        let groups = deployment.groups();
        self.check_count(side, groups.len())?;
        for (group, table) in groups.iter().zip(&self.0) {
            let BlockTable::List(blocks) = table else {
                continue;
            };
            let needed = match group.is_recurrent() {
                true => 0,
                false => tokens.div_ceil(group.entry_tokens()),
            };
            let table = GroupTable { side, group: group.name(), num_blocks: group.num_blocks(), table };
            table.check(0..needed.max(blocks.len() as u64), true)?;
        }
        Ok(())
    }
}

impl Plan {
    /// Reorders tables from the order of a side's own document to that of the plan, without those of groups that the
    /// other side does not have.
    ///
    /// # Errors
    /// Returns an error if there is not one table for each group.
    pub fn arrange(&self, side: Side, own: &Tables) -> Result<Tables, BindError> {
        own.check_count(side, self.own_groups[side])?;
        let groups = 0..self.groups.len();
        let arranged = groups.map(|group| own.0[self.group_of(side, group)].clone());
        Ok(Tables(arranged.collect()))
    }
}

/// Describes why block tables do not fit a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum BindError {
    /// There is not one table for each group.
    #[error("{side} gives {given} block tables for {groups} groups")]
    TableCount { side: Side, given: usize, groups: usize },
    /// A table ends before the request does.
    #[error("group \"{group}\": the table of {side} has {given} blocks, {needed} are needed")]
    TooShort { side: Side, group: String, given: u64, needed: u64 },
    /// The request uses an entry without a block.
    #[error("group \"{group}\": entry {entry} of the table of {side} has no block")]
    NoBlock { side: Side, group: String, entry: u64 },
    /// The side has no such block.
    #[error(
        "group \"{group}\": entry {entry} of the table of {side} is block {block}, but there are \
         {num_blocks} blocks"
    )]
    NoSuchBlock { side: Side, group: String, entry: u64, block: u64, num_blocks: u32 },
    /// The bound plan would have too many places.
    #[error("the tokens fall into too many pieces: a plan bound to block tables has {MAX_PLACES} at most")]
    TooManyPlaces,
    /// A destination block would be written twice.
    #[error("group \"{group}\": block {block} stands twice in the table of the destination")]
    Repeated { group: String, block: u32 },
}

struct GroupTable<'a> {
    side: Side,
    group: &'a str,
    num_blocks: u32,
    table: &'a BlockTable,
}

impl GroupTable<'_> {
    /// Checks that the table has these entries, and the side their blocks. With `gaps`, entries may have no block.
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
            // Entry i is block i, so checking the last one suffices.
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

/// Looks up entries of one side's table, which has been checked once before.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    table: &'a BlockTable,
}

impl<'a> Lookup<'a> {
    /// Checks every entry that a request uses, in the tables of all groups.
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

    /// Returns the place in the block of an entry, which must be checked.
    pub(crate) fn place(&self, in_entry: Place) -> Place {
        let block = self.table.get(in_entry.block);
        debug_assert!(block.is_some());
        Place { block: block.map_or(0, u64::from), ..in_entry }
    }
}

/// Returns a block that is listed twice. All blocks are below `num_blocks`.
fn repeated(blocks: &[u32], num_blocks: u32) -> Option<u32> {
    // Use a bit for each existing block, or a sorted copy of the list, whichever is smaller.
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
