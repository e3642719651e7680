//! Partitions of units (heads, groups, channels) over tensor-parallel ranks.

use std::ops::Range;

use thiserror::Error;

/// A partition of `units` indivisible units over the ranks of one TP group.
///
/// - `units % tp == 0`: rank r owns units `[r*units/tp, (r+1)*units/tp)`.
/// - `tp % units == 0`: each unit is *replicated* on `tp/units` neighbouring ranks, rank r holding unit
///   `r*units/tp` (the grouping that vLLM uses).
/// - Anything else is a [`PartitionError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    units: u64,
    replication: Replication,
}

/// The condition under which several ranks may hold the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replication {
    /// There are more ranks than units (attention heads).
    Any,
    /// There is a single unit, which is then complete on every rank (the groups of Mamba2).
    OnlySingle,
}

/// Describes why a partition is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The TP size does not divide the units.
    #[error("{units} cannot be shared out over tp = {tp}: {}", match .replication {
        Replication::Any => "one must divide the other",
        Replication::OnlySingle => "tp must divide it, unless it is 1",
    })]
    Indivisible {
        /// The number of units.
        units: u64,
        /// The number of ranks.
        tp: u32,
        /// The rule that forbids it.
        replication: Replication,
    },
    /// The rank does not exist.
    #[error("there is no TP rank {rank} of {tp}")]
    NoSuchRank {
        /// The requested rank.
        rank: u32,
        /// The number of ranks.
        tp: u32,
    },
    /// The unit does not exist.
    #[error("there is no unit {unit} of {units}")]
    NoSuchUnit {
        /// The requested unit.
        unit: u64,
        /// The number of units.
        units: u64,
    },
}

impl Partition {
    /// Returns a partition of `units` units (at least 1) with a replication rule.
    pub const fn new(units: u64, replication: Replication) -> Self {
        Self { units, replication }
    }

    /// Returns the number of units in the whole model.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// Returns the number of units that each of `tp` ranks holds. It is the same for all of them.
    ///
    /// # Errors
    /// [`PartitionError::Indivisible`].
    pub fn per_rank(self, tp: u32) -> Result<u64, PartitionError> {
        let wide = u64::from(tp);
        let error = PartitionError::Indivisible { units: self.units, tp, replication: self.replication };
        if self.units == 0 || tp == 0 {
            Err(error)
        } else if self.units.is_multiple_of(wide) {
            Ok(self.units / wide)
        } else if wide.is_multiple_of(self.units) && (self.replication == Replication::Any || self.units == 1) {
            Ok(1)
        } else {
            Err(error)
        }
    }

    /// Returns the units that `rank` of `tp` holds.
    ///
    /// # Errors
    /// [`PartitionError::Indivisible`], [`PartitionError::NoSuchRank`].
    pub fn owned(self, tp: u32, rank: u32) -> Result<Range<u64>, PartitionError> {
        let count = self.per_rank(tp)?;
        if rank >= tp {
            return Err(PartitionError::NoSuchRank { rank, tp });
        }
        // This is exact if tp divides the units. If the units divide tp, it is the shared unit.
        let start = (u128::from(rank) * u128::from(self.units) / u128::from(tp)) as u64;
        Ok(start..start + count)
    }

    /// Returns the ranks of `tp` that hold `unit`, in ascending order.
    ///
    /// # Errors
    /// [`PartitionError::Indivisible`], [`PartitionError::NoSuchUnit`].
    pub fn holders(self, tp: u32, unit: u64) -> Result<Range<u32>, PartitionError> {
        let count = self.per_rank(tp)?;
        let units = self.units;
        if unit >= units {
            return Err(PartitionError::NoSuchUnit { unit, units });
        }
        if self.units.is_multiple_of(u64::from(tp)) {
            let rank = (unit / count) as u32;
            Ok(rank..rank + 1)
        } else {
            let replicas = u64::from(tp) / self.units;
            let first = (unit * replicas) as u32;
            Ok(first..first + replicas as u32)
        }
    }

    /// Returns the ranks of `src_tp` that send to destination rank `dst` of `dst_tp`, in ascending order.
    ///
    /// If k source ranks hold a unit and m destination ranks need it, the j-th destination (both ascending) reads
    /// replicas `floor(j * k / m)` to `floor((j + 1) * k / m) - 1`, or the first of these if the range is empty. So for
    /// m >= k it reads from one replica, and for m < k from several, which keeps all replicas busy.
    ///
    /// # Errors
    /// [`PartitionError::Indivisible`], [`PartitionError::NoSuchRank`].
    pub fn senders(self, src_tp: u32, (dst_tp, dst): (u32, u32)) -> Result<Range<u32>, PartitionError> {
        let wanted = self.owned(dst_tp, dst)?;
        let first = self.holders(src_tp, wanted.start)?;
        let readers = self.holders(dst_tp, wanted.start)?;
        if readers.len() == 1 {
            // No other rank needs these units, so every rank that holds one of them sends.
            return Ok(first.start..self.holders(src_tp, wanted.end - 1)?.end);
        }
        let (k, m) = (first.len() as u64, readers.len() as u64);
        let j = u64::from(dst - readers.start);
        let replicas = j * k / m..((j + 1) * k / m).max(j * k / m + 1);
        Ok(first.start + replicas.start as u32..first.start + replicas.end as u32)
    }

    /// Returns what source rank `src` of `src_tp` sends to destination rank `dst` of `dst_tp`. `None` if they have no
    /// unit in common, or if other [`senders`](Self::senders) serve the destination.
    ///
    /// # Errors
    /// The errors of [`owned`](Self::owned), for either side.
    pub fn served(
        self,
        (src_tp, src): (u32, u32),
        (dst_tp, dst): (u32, u32),
    ) -> Result<Option<Served>, PartitionError> {
        let mine = self.owned(src_tp, src)?;
        let theirs = self.owned(dst_tp, dst)?;
        let senders = self.senders(src_tp, (dst_tp, dst))?;
        if !senders.contains(&src) {
            return Ok(None);
        }
        let units = mine.start.max(theirs.start)..mine.end.min(theirs.end);
        // Ranks that hold one of these units hold all of them.
        let replicas = self.holders(src_tp, units.start)?;
        let first = replicas.start.max(senders.start);
        let share = Share { index: src - first, of: replicas.end.min(senders.end) - first };
        Ok(Some(Served { units, share }))
    }
}

/// The data that one source rank sends to one destination rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// The units, numbered in the whole model.
    pub units: Range<u64>,
    /// The part of their bytes that this source rank sends.
    pub share: Share,
}

/// One of several replicas that divide the same work among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// The index of the replica, from 0.
    pub index: u32,
    /// The number of replicas, at least 1.
    pub of: u32,
}

impl Share {
    /// Returns which of `count` consecutive items this replica takes: `ceil(index * count / of)` to `ceil((index + 1) *
    /// count / of) - 1`.
    ///
    /// The replicas' ranges are consecutive, and their lengths differ by one at most. A single item goes to the first
    /// replica.
    pub fn stretch(self, count: u64) -> Range<u64> {
        let cut = |index: u32| {
            let things = u128::from(index) * u128::from(count);
            things.div_ceil(u128::from(self.of.max(1))) as u64
        };
        cut(self.index)..cut(self.index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: fn(u64) -> Partition = |units| Partition::new(units, Replication::Any);

    #[test]
    fn more_units_than_ranks_are_split_in_order() {
        assert_eq!(HEADS(8).owned(4, 1), Ok(2..4));
        assert_eq!(HEADS(8).owned(8, 7), Ok(7..8));
    }

    #[test]
    fn fewer_units_than_ranks_are_replicated_on_neighbours() {
        assert_eq!(HEADS(2).owned(8, 3), Ok(0..1));
        assert_eq!(HEADS(2).owned(8, 4), Ok(1..2));
        assert_eq!(HEADS(2).holders(8, 1), Ok(4..8));
    }

    #[test]
    fn sizes_that_do_not_divide_are_refused() {
        assert!(HEADS(6).owned(4, 0).is_err());
        let groups = Partition::new(2, Replication::OnlySingle);
        assert!(groups.owned(4, 0).is_err());
        assert_eq!(Partition::new(1, Replication::OnlySingle).owned(4, 3), Ok(0..1));
    }

    /// For each destination rank, what it is sent: (source rank, unit, replica, of how many).
    fn sent(partition: Partition, src_tp: u32, dst_tp: u32, dst: u32) -> Vec<(u32, u64, u32, u32)> {
        let mut sent = Vec::new();
        for src in 0..src_tp {
            let served = partition.served((src_tp, src), (dst_tp, dst)).unwrap();
            let senders = partition.senders(src_tp, (dst_tp, dst)).unwrap();
            assert_eq!(served.is_some(), senders.contains(&src));
            if let Some(Served { units, share }) = served {
                sent.extend(units.map(|unit| (src, unit, share.index, share.of)));
            }
        }
        sent
    }

    #[test]
    fn every_unit_reaches_every_reader_once_and_no_replica_is_idle() {
        for units in 1..=8u64 {
            for src_tp in 1..=16 {
                for dst_tp in 1..=16 {
                    let partition = HEADS(units);
                    if partition.per_rank(src_tp).is_err() || partition.per_rank(dst_tp).is_err() {
                        continue;
                    }
                    let about = format!("{units} units, {src_tp} -> {dst_tp}");
                    let mut senders = Vec::new();
                    for dst in 0..dst_tp {
                        let sent = sent(partition, src_tp, dst_tp, dst);
                        for unit in partition.owned(dst_tp, dst).unwrap() {
                            let shares = sent.iter().filter(|(_, of, ..)| *of == unit);
                            let shares: Vec<_> = shares.map(|(_, _, i, of)| (*i, *of)).collect();
                            let all = shares.len() as u32;
                            let whole: Vec<_> = (0..all).map(|index| (index, all)).collect();
                            assert!(all > 0, "{about}, rank {dst} lacks {unit}");
                            assert_eq!(shares, whole, "{about}, rank {dst}");
                        }
                        senders.extend(sent.into_iter().map(|(src, ..)| src));
                    }
                    senders.sort_unstable();
                    senders.dedup();
                    assert_eq!(senders, (0..src_tp).collect::<Vec<_>>(), "{about}");
                }
            }
        }
    }

    #[test]
    fn replicas_are_dealt_to_fewer_readers_in_order() {
        // Three replicas of two readers, by hand.
        let three = HEADS(1);
        assert_eq!(three.senders(3, (2, 0)), Ok(0..1));
        assert_eq!(three.senders(3, (2, 1)), Ok(1..3));
        assert_eq!(three.senders(2, (3, 1)), Ok(0..1));
        // Heads 0 and 1 on ranks 0 to 3 and 4 to 7; one reader needs both.
        assert_eq!(HEADS(2).senders(8, (1, 0)), Ok(0..8));
        let served = HEADS(2).served((8, 6), (1, 0)).unwrap().unwrap();
        assert_eq!((served.units, served.share), (1..2, Share { index: 2, of: 4 }));
    }

    #[test]
    fn stretches_are_even_and_what_cannot_be_divided_is_the_firsts() {
        let stretches = |of, count| -> Vec<_> { (0..of).map(|index| Share { index, of }.stretch(count)).collect() };
        assert_eq!(stretches(3, 8), [0..3, 3..6, 6..8]);
        assert_eq!(stretches(4, 2), [0..1, 1..1, 1..2, 2..2]);
        assert_eq!(stretches(4, 1), [0..1, 1..1, 1..1, 1..1]);
        assert_eq!(stretches(2, u64::MAX)[1].end, u64::MAX);
    }
}
