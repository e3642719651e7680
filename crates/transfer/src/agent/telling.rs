//! How peers are told of the source's block tables: one piece at a time, each when the one before it
//! leaves. However long the tables are, two pieces at most are in the outbox; whatever else there is to
//! say overtakes the rest.

use std::collections::VecDeque;
use std::ops::Range;

use super::Blocks;
use crate::ids::TransferId;
use crate::plan::{BlockTable, Plan, Side};
use crate::wire::message::LaneMessage;

/// Most table entries in one message: 5 bytes each at most, so that a frame of 64 KiB holds them.
const ENTRIES: usize = 8192;

/// The tables that the peer of one connection has still to be told of.
#[derive(Debug, Default)]
pub(super) struct Telling {
    /// First come, first told: who has all of its table can copy while others wait.
    left: VecDeque<Pieces>,
    /// Whether a piece waits for its turn to leave.
    busy: bool,
    /// How many pieces have left.
    told: u64,
}

impl Telling {
    pub(super) fn add(&mut self, pieces: Pieces) {
        self.left.push_back(pieces);
    }

    /// The next piece, unless the one before still waits.
    pub(super) fn next(&mut self) -> Option<LaneMessage> {
        if self.busy {
            return None;
        }
        while let Some(pieces) = self.left.front_mut() {
            if let Some(piece) = pieces.next() {
                self.busy = true;
                return Some(piece);
            }
            self.left.pop_front();
        }
        None
    }

    /// The last piece leaves.
    pub(super) fn leaves(&mut self) {
        if std::mem::take(&mut self.busy) {
            self.told += 1;
        }
    }

    /// The transfers whose tables the peer does not know whole, each with how many pieces it was told so
    /// far, of whichever table: whoever waits for its turn does not stand still while these go on.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (TransferId, u64)> {
        self.left.iter().map(|pieces| (pieces.transfer, self.told))
    }

    /// A transfer is over, and nobody wants the rest of its tables.
    pub(super) fn forget(&mut self, transfer: TransferId) {
        self.left.retain(|pieces| pieces.transfer != transfer);
    }
}

/// The blocks that a plan touches on the source's side, piece by piece, as the destination is told of them.
///
/// Memory: 24 bytes for each group; the tables are those of the lease.
#[derive(Debug)]
pub(super) struct Pieces {
    transfer: TransferId,
    blocks: Blocks,
    /// For each group of the plan, its index in our document and which entries are left. The tables
    /// have them all.
    left: Vec<(usize, Range<usize>)>,
}

impl Pieces {
    pub(super) fn new(transfer: TransferId, plan: &Plan, blocks: Blocks) -> Result<Self, String> {
        let groups = 0..plan.group_names().len();
        let left = groups.map(|group| {
            let short = || format!("the table of group {group} is too short");
            let own = plan.group_of(Side::Source, group);
            let touched = plan.table_entries(group, Side::Source);
            let end = usize::try_from(touched.end).map_err(|_| short())?;
            // Not beyond the end: the range is empty where nothing of the group moves.
            let start = usize::try_from(touched.start).map_or(end, |start| start.min(end));
            let has_all = match blocks.0.get(own).ok_or_else(short)? {
                BlockTable::Identity => u32::try_from(end).is_ok(),
                BlockTable::List(list) => end <= list.len(),
            };
            has_all.then_some((own, start..end)).ok_or_else(short)
        });
        Ok(Self {
            transfer,
            left: left.collect::<Result<_, String>>()?,
            blocks,
        })
    }
}

impl Iterator for Pieces {
    type Item = LaneMessage;

    fn next(&mut self) -> Option<LaneMessage> {
        let mut groups = self.left.iter_mut().enumerate();
        let (group, (own, left)) = groups.find(|(_, (_, left))| !left.is_empty())?;
        let piece = left.start..left.end.min(left.start + ENTRIES);
        left.start = piece.end;
        Some(LaneMessage::Blocks {
            transfer: self.transfer,
            // A deployment has 64 groups at most.
            group: group as u32,
            first: piece.start as u64,
            blocks: match &self.blocks.0[*own] {
                BlockTable::Identity => (piece.start as u32..piece.end as u32).collect(),
                BlockTable::List(list) => list[piece].to_vec(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use transload_layout::Deployment;

    use super::*;
    use crate::plan::{Request, Tables};

    const LONG: TransferId = TransferId([1; 16]);
    const SHORT: TransferId = TransferId([2; 16]);

    /// The pieces of a table in which block `i` is entry `i`.
    fn pieces(transfer: TransferId, tokens: u32, table: BlockTable) -> Result<Pieces, String> {
        let text = format!(
            r#"{{"schema": "transload.deployment/1", "tp": 1, "block_size": 1, "num_blocks": {tokens},
                "group": [{{"name": "attn", "layers": "0", "spec": [{{"kind": "attention",
                "heads": 1, "head_dim": 8, "dtype": "bf16"}}]}}]}}"#
        );
        let value = serde_json::from_str(&text).unwrap();
        let deployment = Deployment::from_value(&value).unwrap();
        let request = Request::tokens(tokens.into());
        let plan = Plan::compile(&deployment, &deployment, &request).unwrap();
        Pieces::new(transfer, &plan, Arc::new(Tables(vec![table])))
    }

    fn listed(transfer: TransferId, tokens: u32) -> Pieces {
        pieces(transfer, tokens, BlockTable::List((0..tokens).collect())).unwrap()
    }

    /// The message that tells of these entries.
    fn entries(transfer: TransferId, blocks: Range<u32>) -> Option<LaneMessage> {
        Some(LaneMessage::Blocks {
            transfer,
            group: 0,
            first: blocks.start.into(),
            blocks: blocks.collect(),
        })
    }

    #[test]
    fn a_piece_waits_until_the_one_before_leaves() {
        let mut telling = Telling::default();
        telling.add(listed(LONG, 20_000));
        telling.add(listed(SHORT, 7));
        for piece in [
            entries(LONG, 0..8192),
            entries(LONG, 8192..16_384),
            entries(LONG, 16_384..20_000),
            entries(SHORT, 0..7),
        ] {
            assert_eq!(telling.next(), piece);
            assert_eq!(telling.next(), None);
            telling.leaves();
        }
        assert_eq!(telling.next(), None);
        // Whoever comes later is told at once.
        telling.add(listed(SHORT, 7));
        assert_eq!(telling.next(), entries(SHORT, 0..7));
    }

    #[test]
    fn who_waits_sees_the_pieces_of_others_leave() {
        let mut telling = Telling::default();
        telling.add(listed(LONG, 20_000));
        telling.add(listed(SHORT, 7));
        for told in 0..4 {
            telling.next().unwrap();
            let waiting: Vec<_> = telling.waiting().collect();
            match told {
                // Until the last of them leaves.
                0..3 => assert_eq!(waiting, [(LONG, told), (SHORT, told)]),
                _ => assert_eq!(waiting, [(SHORT, told)]),
            }
            // One that nobody waits for counts for nothing.
            telling.leaves();
            telling.leaves();
        }
        assert_eq!(telling.next(), None);
        assert_eq!(telling.waiting().next(), None);
    }

    #[test]
    fn the_rest_of_a_forgotten_table_is_not_told() {
        let mut telling = Telling::default();
        telling.add(listed(LONG, 20_000));
        telling.add(listed(SHORT, 7));
        assert_eq!(telling.next(), entries(LONG, 0..8192));
        telling.forget(LONG);
        // Its last piece may wait still.
        assert_eq!(telling.next(), None);
        telling.leaves();
        assert_eq!(telling.next(), entries(SHORT, 0..7));
    }

    #[test]
    fn what_is_told_does_not_depend_on_how_a_table_is_given() {
        let of_table = |table| pieces(LONG, 9000, table).unwrap().collect::<Vec<_>>();
        let list = BlockTable::List((0..9000).collect());
        assert_eq!(of_table(BlockTable::Identity), of_table(list));
        let short = BlockTable::List((0..8999).collect());
        pieces(LONG, 9000, short).unwrap_err();
    }
}
