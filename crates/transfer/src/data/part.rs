//! The division of a route's bytes into parts, one for each stream.

use std::ops::Range;

/// The bytes of a route that one stream carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The stream's number in its transfer.
    pub(crate) stream: u32,
    /// The offsets of the part in the route.
    pub(crate) range: Range<u64>,
}

impl Part {
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The least bytes of a part, below which a stream of its own does not pay.
const LEAST: u64 = 1 << 20;

/// The most bytes of a part, above which other transfers would wait too long for a ring.
const MOST: u64 = 64 << 20;

/// The number of parts for each of several lanes: enough that the other lanes can take the last parts of a slow one.
const PER_LANE: u64 = 4;

/// Cuts within a stretch lie at multiples of this, so that they seldom cut a chunk.
const ALIGN: u64 = 64 << 10;

/// Half of the number of streams that [`crate::wire`] allows for a transfer: once for the necessary cuts, and once for
/// the optional ones.
const MANY: u64 = 1024;

/// Divides the bytes of a route. It cuts at `ends`, where stretches end that may become ready one after another, and
/// within long stretches. `cut` moves an optional cut to a valid position, there or later.
///
/// There are never more than 2,048 parts.
pub(crate) fn split(ends: impl IntoIterator<Item = u64>, lanes: usize, cut: impl Fn(u64) -> u64) -> Vec<Part> {
    let mut ends: Vec<u64> = ends.into_iter().collect();
    let Some(&total) = ends.last() else {
        return Vec::new();
    };
    let stretches = ends.len() as u64;
    if stretches > MANY {
        let each = stretches.div_ceil(MANY) as usize;
        ends = ends.chunks(each).filter_map(|few| few.last().copied()).collect();
    }
    let lanes = lanes.max(1) as u64;
    let even = if lanes == 1 { MOST } else { total / (lanes * PER_LANE) };
    let mut most = even.clamp(LEAST, MOST);
    if stretches > 1 {
        // By layer, a part is sent when all of it is ready, so short parts are sent earlier.
        most = LEAST;
    }
    let most = most.max(total.div_ceil(MANY));

    let mut parts = Vec::new();
    let mut start = 0;
    for end in ends {
        let bytes = end - start;
        let count = bytes.div_ceil(most).max(1);
        let step = bytes.div_ceil(count).next_multiple_of(ALIGN);
        while start < end {
            let next = cut(start.saturating_add(step).min(end)).min(end);
            parts.push(Part { stream: parts.len() as u32, range: start..next });
            start = next;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn canonical_cases() {
        let total = 80 << 20;
        assert_eq!(split([total], 1, |at| at).len(), 2);
        assert_eq!(split([total], 2, |at| at).len(), 8);
        let layers = (1..=80).map(|layer| layer << 20);
        assert_eq!(split(layers.clone(), 1, |at| at).len(), 80);
        assert_eq!(split(layers, 8, |at| at).len(), 80);
        assert_eq!(split([100], 4, |at| at), [Part { stream: 0, range: 0..100 }]);
        assert_eq!(split([], 4, |at| at), []);
    }

    proptest! {
        #[test]
        fn parts_divide_the_route(
            stretches in prop::collection::vec(1_u64..1 << 34, 1..3000),
            lanes in 0_usize..20,
            piece in 1_u64..1 << 22,
        ) {
            let ends: Vec<u64> = stretches
                .iter()
                .scan(0, |end, bytes| { *end += bytes; Some(*end) })
                .collect();
            let parts = split(ends.iter().copied(), lanes, |at| at.next_multiple_of(piece));
            prop_assert!(parts.len() <= 2048);
            let mut end = 0;
            for (number, part) in parts.iter().enumerate() {
                prop_assert_eq!(part.stream as usize, number);
                prop_assert_eq!(part.range.start, end);
                prop_assert!(part.bytes() > 0);
                end = part.range.end;
            }
            prop_assert_eq!(Some(&end), ends.last());
        }
    }
}
