//! Pulls with a codec: values are close to what was leased, and the codec is used only if both sides want it.

use transload_tests::pair::{Pair, fill};
use transload_transfer::plan::codec::Codec;
use transload_transfer::{AgentOptions, Direction, JobError, LeaseSetId, Memory, Path, PathSet, TransferError};

/// Returns agents whose source can send in these codecs.
fn pair(codecs: &[Codec]) -> Pair {
    let mut source = AgentOptions::default();
    source.wire.codecs = codecs.to_vec();
    let pair = Pair::with_each_options([source, AgentOptions::default()]);
    pair.src.memories.iter().for_each(fill_mildly);
    pair
}

/// Fills a memory with numbers from 0.0115 to 0.1855 in bf16.
fn fill_mildly(memory: &Memory) {
    let bytes = (0..memory.bytes()).map(|at| 0x3c + (at.wrapping_mul(0x9e37_79b9) >> 16) as u8 % 3);
    let bytes: Vec<u8> = bytes.collect();
    memory.write(0, &bytes).unwrap();
}

/// Returns the largest difference of two values of bf16, and whether there is any.
fn difference(found: &[Vec<u8>], expected: &[Vec<u8>]) -> (f32, bool) {
    let values = |memories: &[Vec<u8>]| -> Vec<f32> {
        let pairs = memories.iter().flat_map(|memory| memory.chunks_exact(2));
        let bits = pairs.map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
        bits.map(f32::from_bits).collect()
    };
    let pairs = values(found).into_iter().zip(values(expected));
    let apart = pairs.filter(|(a, b)| a.to_bits() != b.to_bits());
    let differences: Vec<f32> = apart.map(|(a, b)| (a - b).abs()).collect();
    let most = differences.iter().copied().fold(0.0, f32::max);
    (most, !differences.is_empty())
}

#[tokio::test]
async fn a_pull_comes_in_the_codec_that_it_asks_for() {
    let pair = pair(&[Codec::Q8, Codec::Q4]);
    let expected = pair.expected();
    // Half a step of the range of 0.174, and what is rounded.
    for (number, codec, bound) in [(1, Codec::Q8, 0.001), (2, Codec::Q4, 0.0075), (3, Codec::Exact, 0.0)] {
        for by_layer in [false, true] {
            for (seed, memory) in (1..).zip(&pair.dst.memories) {
                fill(memory, seed);
            }
            let set = LeaseSetId([number + 10 * u8::from(by_layer); 16]);
            let leases = pair.leases(&pair.src, set, false).await;
            let mut request = pair.request(pair.ticket(&pair.src, set, Direction::Pull), &pair.dst);
            (request.request.codec, request.request.by_layer) = (codec, by_layer);
            let report = pair.dst.agent.pull(request).await.unwrap();
            assert_eq!(report.bytes, 100 * 4 * 4 * 64);
            let quic = report.routes.iter().all(|route| route.path == Path::QUIC);
            assert_eq!(quic, codec != Codec::Exact, "{report:?}");
            let (most, any) = difference(&pair.found(), &expected);
            assert!(most <= bound && any == (bound > 0.0), "{codec}: {most}");
            drop(leases);
        }
    }
}

#[tokio::test]
async fn a_codec_is_refused_where_it_cannot_be() {
    let pair = pair(&[Codec::Q4]);
    let before = pair.found();
    let (set, opened) = (LeaseSetId([1; 16]), LeaseSetId([2; 16]));
    let leases = pair.leases(&pair.src, set, false).await;
    let refused = async |codec, paths, pushed: bool| {
        let mut request = pair.request(pair.ticket(&pair.src, set, Direction::Pull), &pair.dst);
        (request.request.codec, request.paths, request.keep_leases) = (codec, paths, true);
        if pushed {
            request.into = Some(pair.ticket(&pair.dst, opened, Direction::Push));
        }
        let error = pair.dst.agent.pull(request).await.unwrap_err();
        assert_eq!(error.kind(), "request");
        let TransferError::Job(error @ JobError::Codec { .. }) = error else {
            panic!("{error}");
        };
        error.to_string()
    };
    let owner = pair.src.agent.id();
    assert_eq!(
        refused(Codec::Q8, PathSet::ANY, false).await,
        format!("it cannot come as q8: agent {owner} does not send so: it must have it among its codecs")
    );
    assert_eq!(
        refused(Codec::Q4, PathSet::LOCAL, false).await,
        format!("it cannot come as q4: codecs go over quic, and not {}", PathSet::LOCAL)
    );
    assert_eq!(
        refused(Codec::Q4, PathSet::ANY, true).await,
        "it cannot come as q4: only what is pulled can, and is not pushed"
    );
    let opened = pair.leases(&pair.dst, opened, false).await;
    assert_eq!(pair.found(), before);
    drop((leases, opened));
}
