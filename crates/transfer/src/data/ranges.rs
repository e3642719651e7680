//! A set of byte offsets, as ranges.

use std::ops::Range;

/// Offsets, stored as sorted ranges that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ranges: Vec<Range<u64>>,
}

impl Ranges {
    /// Adds offsets, some of which may be in the set already.
    pub(crate) fn insert(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|known| known.end < range.start);
        let behind = self.ranges.partition_point(|known| known.start <= range.end);
        let known = &self.ranges[first..behind];
        if let (Some(lowest), Some(highest)) = (known.first(), known.last()) {
            range = range.start.min(lowest.start)..range.end.max(highest.end);
        }
        self.ranges.splice(first..behind, [range]);
    }

    /// Returns whether all of these offsets are in the set.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        let next = self.ranges.partition_point(|known| known.end < range.end);
        let known = self.ranges.get(next);
        range.is_empty() || known.is_some_and(|known| known.start <= range.start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_set(inserted in prop::collection::vec((0_u64..60, 0_u64..20), 0..12)) {
            let mut ranges = Ranges::default();
            let mut set = [false; 80];
            for (start, len) in inserted {
                ranges.insert(start..start + len);
                set[start as usize..(start + len) as usize].fill(true);
                prop_assert!(ranges.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
            for start in 0..80 {
                for end in start..80 {
                    let all = set[start..end].iter().all(|there| *there);
                    prop_assert_eq!(ranges.covers(&(start as u64..end as u64)), all);
                }
            }
        }
    }
}
