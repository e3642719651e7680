//! Pairs of layouts between which all chunks have the same length.

use crate::commands::shapes::{CANONICAL_DECODE, CANONICAL_PREFILL, CANONICAL_TOKENS, Llama};

/// A pair of layouts between which all chunks have the same length, for the tokens of the canonical case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) src: Llama,
    pub(super) dst: Llama,
}

/// The canonical case: all 80 layers of the model, 671 MB, in pools that are a quarter larger than needed.
pub(super) const CANONICAL: Case = Case {
    name: "canonical case",
    src: Llama { num_blocks: 160, ..CANONICAL_PREFILL },
    dst: Llama { num_blocks: 40, ..CANONICAL_DECODE },
};

/// The layers of the smaller cases: 168 MB on each side, which with the copies exceeds most caches.
const LAYERS: u32 = 20;

/// Cases with chunks of three lengths, each with TP 4 -> 8. A state of one head has 512 bytes.
pub(super) const SIZES: [Case; 3] = [
    Case {
        name: "512 B chunks",
        src: Llama { layers: LAYERS, ..CANONICAL.src },
        dst: Llama { layers: LAYERS, ..CANONICAL.dst },
    },
    by_head("8 KiB chunks", 16, 160),
    by_head("1 MiB chunks", 2048, 2),
];

/// Creates a case in which both sides store a block's states of one head together, so that each is one chunk.
const fn by_head(name: &'static str, block_size: u32, num_blocks: u32) -> Case {
    let src = Llama { layers: LAYERS, block_size, num_blocks, order: "HND", ..CANONICAL_PREFILL };
    Case { name, src, dst: Llama { tp: 8, ..src } }
}

impl Case {
    /// Returns the request's bytes on all ranks together: keys and values of 128 elements of 2 bytes.
    pub(super) fn bytes(&self) -> u64 {
        CANONICAL_TOKENS * u64::from(self.src.layers * self.src.heads) * 512
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::plan::Sides;

    #[test]
    fn chunks_are_as_long_as_said() {
        let chunks = [512, 8 << 10, 1 << 20, 512];
        for (case, chunk) in SIZES.into_iter().chain([CANONICAL]).zip(chunks) {
            let sides = Sides::of([case.src, case.dst]).expect("deployments");
            let bound = sides.bind().expect("bound");
            let lengths: Vec<u64> = bound.histogram().into_keys().collect();
            assert_eq!(lengths, [chunk], "{}", case.name);
        }
    }
}
