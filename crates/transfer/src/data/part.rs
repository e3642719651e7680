//! Cutting a route's bytes into the streams that carry them.

use std::ops::Range;

/// The bytes of a route that one stream carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The stream's number in its transfer.
    pub(crate) stream: u32,
    /// Offsets in the route.
    pub(crate) range: Range<u64>,
}

impl Part {
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Shorter parts are not worth a stream of their own.
const LEAST: u64 = 1 << 20;

/// Longer parts would make other transfers wait too long for a ring.
const MOST: u64 = 64 << 20;

/// How many parts each of several lanes gets: enough that a lane that falls behind leaves the last
/// ones to the others.
const PER_LANE: u64 = 4;

/// Cuts within a stretch lie at multiples of this, so that they seldom cut a chunk.
const ALIGN: u64 = 64 << 10;

/// Half of what [`transload_wire`] lets a transfer have, once for cuts that have to be and once for those
/// that are nice to have.
const MANY: u64 = 1024;

/// Cuts the bytes of a route: at `ends`, each the end of a stretch that may be ready before the
/// next, and where a stretch is long: where `cut` puts a cut that is wanted at a position, there or later.
///
/// Whatever the route, there are at most 2,048 parts.
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
        // Layer by layer: parts leave when they are ready as a whole, so short ones leave early.
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
