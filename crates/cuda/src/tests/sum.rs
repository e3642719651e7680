//! Sums of the kernel against those of the host.

use super::on_cpu::fold;
use crate::sum::{FOLDED, Folding};
use transload_memory::copy::Crc32c;

fn text(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ len as u64;
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 56) as u8
    });
    bytes.take(len).collect()
}

#[test]
fn a_folded_text_has_the_sum_of_the_text() {
    let short = 0..12;
    let others = [1021, 1024, 32768, 32769, 65536, 65540, 131_071, 262_144, 299_999, 1_048_576, 4_194_304];
    let mut threads = std::collections::BTreeSet::new();
    for len in short.chain(others) {
        let (text, folding) = (text(len), Folding::of(len as u32));
        threads.insert(folding.threads);
        let parameter = folding.parameter(0, 0);
        let Some(folded) = fold(folding.threads, parameter, &text) else {
            return;
        };
        assert_eq!(folded.len(), folding.folded());
        assert!(folded.len() <= FOLDED);
        assert_eq!(folding.sum(&folded), Crc32c::of(&text), "{len} bytes");
    }
    assert_eq!(Vec::from_iter(threads), [256, 512, 1024, 2048, 4096]);
}

#[test]
fn a_folded_text_tells_one_bit() {
    let mut text = text(70_001);
    let folding = Folding::of(text.len() as u32);
    let sum = Crc32c::of(&text);
    text[30_000] ^= 0x10;
    let parameter = folding.parameter(0, 0);
    let Some(folded) = fold(folding.threads, parameter, &text) else {
        return;
    };
    assert_ne!(folding.sum(&folded), sum);
}
