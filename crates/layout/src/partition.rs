//! How whole things (heads, groups, channels) are shared out among the ranks of tensor parallelism.

use std::ops::Range;

use thiserror::Error;

/// `units` whole things over the ranks of one TP group.
///
/// - `units % tp == 0`: rank r owns units `[r*units/tp, (r+1)*units/tp)`.
/// - `tp % units == 0`: each unit is *replicated* on `tp/units` neighbouring ranks, rank r holding unit
///   `r*units/tp` (the grouping that vLLM uses).
/// - anything else is a [`PartitionError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    units: u64,
    replication: Replication,
}

/// When a rank may hold a unit that other ranks hold too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replication {
    /// Whenever there are more ranks than units (attention heads).
    Any,
    /// Only when there is a single unit, which is then whole on every rank (the groups of Mamba2).
    OnlySingle,
}

/// Why nobody can say which units a rank owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Units that do not go into a TP size.
    #[error("{units} cannot be shared out over tp = {tp}: {}", match .replication {
        Replication::Any => "one has to divide the other",
        Replication::OnlySingle => "tp has to divide it, unless it is 1",
    })]
    Indivisible {
        /// How many units there are.
        units: u64,
        /// Over how many ranks they were to be shared out.
        tp: u32,
        /// The rule that forbids it.
        replication: Replication,
    },
    /// A rank beyond the last.
    #[error("there is no TP rank {rank} of {tp}")]
    NoSuchRank {
        /// The rank asked for.
        rank: u32,
        /// How many ranks there are.
        tp: u32,
    },
    /// A unit beyond the last.
    #[error("there is no unit {unit} of {units}")]
    NoSuchUnit {
        /// The unit asked for.
        unit: u64,
        /// How many units there are.
        units: u64,
    },
}

impl Partition {
    /// `units` things (at least 1) under a replication rule.
    pub const fn new(units: u64, replication: Replication) -> Self {
        Self { units, replication }
    }

    /// How many units there are in the whole model.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// How many units each of `tp` ranks owns (the same on all of them).
    ///
    /// # Errors
    /// [`PartitionError::Indivisible`].
    pub fn per_rank(self, tp: u32) -> Result<u64, PartitionError> {
        let wide = u64::from(tp);
        let error = PartitionError::Indivisible {
            units: self.units,
            tp,
            replication: self.replication,
        };
        if self.units == 0 || tp == 0 {
            Err(error)
        } else if self.units.is_multiple_of(wide) {
            Ok(self.units / wide)
        } else if wide.is_multiple_of(self.units)
            && (self.replication == Replication::Any || self.units == 1)
        {
            Ok(1)
        } else {
            Err(error)
        }
    }

    /// The units that `rank` of `tp` holds.
    ///
    /// # Errors
    /// [`PartitionError::Indivisible`], [`PartitionError::NoSuchRank`].
    pub fn owned(self, tp: u32, rank: u32) -> Result<Range<u64>, PartitionError> {
        let count = self.per_rank(tp)?;
        if rank >= tp {
            return Err(PartitionError::NoSuchRank { rank, tp });
        }
        // rank * units / tp is exact when tp divides units, and the shared unit when units divides tp.
        let start = (u128::from(rank) * u128::from(self.units) / u128::from(tp)) as u64;
        Ok(start..start + count)
    }

    /// The ranks of `tp` that hold `unit`, ascending.
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

    /// The units that source rank `src` of `src_tp` sends to destination rank `dst` of `dst_tp`.
    ///
    /// Both hold them, and where several source ranks hold the same unit, exactly one of them serves
    /// each destination rank: the j-th of the m destination ranks that need it reads replica
    /// `floor(j * k / m)` of the k there are (both ascending), so that the load is even.
    ///
    /// # Errors
    /// As [`owned`](Self::owned), for either side.
    pub fn served(
        self,
        (src_tp, src): (u32, u32),
        (dst_tp, dst): (u32, u32),
    ) -> Result<Range<u64>, PartitionError> {
        let mine = self.owned(src_tp, src)?;
        let theirs = self.owned(dst_tp, dst)?;
        let both = mine.start.max(theirs.start)..mine.end.min(theirs.end);
        if both.is_empty() {
            return Ok(0..0);
        }
        let replicas = self.holders(src_tp, both.start)?;
        if replicas.len() > 1 {
            // Replicated on the source: this rank holds one unit only, so `both` is that unit.
            let readers = self.holders(dst_tp, both.start)?;
            let (k, m) = (replicas.len() as u64, readers.len() as u64);
            let reader = u64::from(dst - readers.start);
            if u64::from(src - replicas.start) != reader * k / m {
                return Ok(0..0);
            }
        }
        Ok(both)
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
        assert_eq!(
            Partition::new(1, Replication::OnlySingle).owned(4, 3),
            Ok(0..1)
        );
    }

    #[test]
    fn every_unit_reaches_every_reader_from_exactly_one_replica() {
        for units in 1..=8u64 {
            for src_tp in 1..=16 {
                for dst_tp in 1..=16 {
                    let partition = HEADS(units);
                    if partition.per_rank(src_tp).is_err() || partition.per_rank(dst_tp).is_err() {
                        continue;
                    }
                    for dst in 0..dst_tp {
                        let mut got = Vec::new();
                        for src in 0..src_tp {
                            got.extend(partition.served((src_tp, src), (dst_tp, dst)).unwrap());
                        }
                        let want: Vec<u64> = partition.owned(dst_tp, dst).unwrap().collect();
                        assert_eq!(got, want, "{units} units, {src_tp} -> {dst_tp}, rank {dst}");
                    }
                }
            }
        }
    }
}
