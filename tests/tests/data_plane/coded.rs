//! Bytes that travel in a codec: every decoded piece arrives in its place, and fewer bytes are sent.

use std::sync::{Mutex, OnceLock, PoisonError};

use proptest::prelude::*;
use tokio::runtime::Runtime;
use transload_layout::Side;
use transload_tests::cases::{Case, Reach, cases};
use transload_tests::compiled::{Streamed, compile, tables};
use transload_tests::sums::crc32c;
use transload_transfer::internal::data::{ReceiveError, RouteBytes};
use transload_transfer::plan::RouteStream;
use transload_transfer::plan::codec::Codec;
use transload_transfer::wire::internal::stream::{StreamHeader, StreamTrailer};
use transload_transfer::{DataOptions, Memory, QuicOptions};

use crate::support::{
    Arrival, CANARY, Chance, Pair, Sample, Transfer, Wire, allocate, bytes_of, content, copy_slowly, fill, paint,
    runtime, soon,
};

/// Returns a byte; several together are numbers of moderate size in f32, f16 and bf16 alike.
fn numbers(number: usize, offset: usize) -> u8 {
    0x3c + content(number, offset) % 3
}

/// Returns the contents of memories that were `CANARY` and then received a route.
fn expected(from: &RouteStream, to: &RouteStream, src: &[Memory], dst: &[Memory]) -> Vec<Vec<Vec<u8>>> {
    let mut expected: Vec<Vec<Vec<u8>>> = dst.iter().map(bytes_of).collect();
    for allocation in expected.iter_mut().flatten() {
        allocation.fill(CANARY);
    }
    for (read, written) in from.sections.iter().zip(&to.sections) {
        let mut stream = vec![vec![0; read.program.bytes() as usize]];
        copy_slowly(read.program.program(), &bytes_of(&src[read.group]), &mut stream);
        let pieces = read.pieces.unwrap();
        if let Some(rows) = pieces.rows {
            for piece in stream[0].chunks_mut(pieces.bytes as usize) {
                let (mut codes, mut exact) = (Vec::new(), Vec::new());
                from.codec.encode(rows, piece, &mut codes, &mut exact);
                let decoded = from.codec.decode(rows, &codes, &mut &exact[..], piece);
                decoded.unwrap();
            }
        }
        written.program.program().for_each_chunk(|at, from, len| {
            let (allocation, at) = ((at >> 44) as usize, (at & ((1 << 44) - 1)) as usize);
            let bytes = &stream[0][from as usize..][..len as usize];
            expected[written.group][allocation][at..at + len as usize].copy_from_slice(bytes);
        });
    }
    expected
}

struct Lanes {
    pair: Pair,
    runtime: Runtime,
}

impl Lanes {
    async fn check(&self, case: &Case, streamed: Streamed, mild: bool) {
        let plan = compile(&case.from, &case.to, &case.request, streamed).unwrap();
        let (src_tables, dst_tables) = tables(&plan, &case.request);
        let groups: Vec<_> = plan.group_names().collect();
        for route in plan.routes() {
            let memories = |document, rank: u64| -> Vec<Memory> {
                let groups = groups.iter();
                groups.map(|group| allocate(document, rank, group)).collect()
            };
            let src = memories(&case.from, route.src_rank.0.into());
            let dst = memories(&case.to, route.dst_rank.0.into());
            let of = if mild { numbers } else { content };
            src.iter().for_each(|memory| fill(memory, of));
            dst.iter().for_each(|memory| paint(memory, CANARY));
            let from = plan.bind_stream(route, Side::Source, &src_tables).unwrap();
            let to = plan.bind_stream(route, Side::Destination, &dst_tables).unwrap();
            let expected = expected(&from, &to, &src, &dst);

            let bytes = |stream, memories: &[Memory]| {
                RouteBytes::new(stream, |group| memories.get(group).map(Into::into)).unwrap()
            };
            let mut transfer = self.pair.begin(bytes(from, &src), bytes(to, &dst));
            transfer.out.open_all();
            transfer.done().await;
            assert_eq!(transfer.out.read(), transfer.out.route().bytes());
            self.pair.desk.forget(transfer.id);
            let found: Vec<_> = dst.iter().map(bytes_of).collect();
            assert!(found == expected, "{streamed:?}: {case:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 192,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_piece_is_what_its_codec_makes_of_it(
        case in cases(Reach::Settled),
        by_layer: bool,
        codec in prop::sample::select(&[Codec::Q8, Codec::Q4]),
        mild: bool,
    ) {
        static LANES: OnceLock<Mutex<Lanes>> = OnceLock::new();
        let lanes = LANES.get_or_init(|| {
            let runtime = runtime();
            let data = DataOptions::default();
            let pair = runtime.block_on(Pair::connect(2, QuicOptions::default(), &data));
            Mutex::new(Lanes { pair, runtime })
        });
        let lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.runtime.block_on(lanes.check(&case, Streamed { by_layer, codec }, mild));
    }
}

#[test]
fn takes_fewer_bytes_on_the_way() {
    runtime().block_on(async {
        for (codec, most) in [(Codec::Exact, 1.06), (Codec::Q8, 0.60), (Codec::Q4, 0.34)] {
            let wire = Wire::default();
            let (quic, data) = (QuicOptions::default(), DataOptions::default());
            let pair = Pair::connect_by(Some(&wire), 1, quic, &data).await;
            let sample = Sample::coded(2000, false, ("LBSHC", "LBHSC"), codec);
            fill(&sample.src.0, numbers);
            let before = wire.carried();
            let mut transfer = pair.begin(sample.src.1.clone(), sample.dst.1.clone());
            transfer.out.open_all();
            transfer.done().await;
            // Packets and acknowledgements included.
            let share = (wire.carried() - before) as f64 / sample.src.1.bytes() as f64;
            println!("{codec}: {share:.4} of the bytes");
            assert!(share < most && share > most * 0.9, "{codec}: {share:.3} of the bytes");
        }
    });
}

/// Starts a stream whose sender can write any bytes.
async fn forged(pair: &Pair, transfer: &mut Transfer, range: (u64, u64), body: &[u8]) -> String {
    let (offset, length) = range;
    let header = StreamHeader { transfer: transfer.id, nonce: pair.desk.nonce(transfer.id), stream: 0, offset, length };
    let crc = crc32c(body);
    let mut stream = pair.lane().open_stream().await.unwrap();
    let send = async {
        stream.send_all(&header.encode()).await?;
        stream.send_all(body).await?;
        stream.send_all(&StreamTrailer { length, crc }.encode()).await?;
        stream.finish()?.await
    };
    // The receiver stops what it has no use for.
    let _ = send.await;
    match soon(transfer.arriving.recv()).await {
        Some(Arrival::Whole(_)) => "whole".to_owned(),
        Some(Arrival::Broken(error)) => match error {
            ReceiveError::Codec(why) => format!("codec: {why}"),
            error => error.to_string(),
        },
        None => panic!("nothing came of it"),
    }
}

#[test]
fn what_no_codec_makes_is_refused() {
    runtime().block_on(async {
        let pair = Pair::connect(1, QuicOptions::default(), &DataOptions::default()).await;
        let sample = Sample::coded(256, false, ("LBSHC", "LBHSC"), Codec::Q8);
        let route = sample.plan.routes().first().unwrap();
        let stream = sample.plan.bind_stream(route, Side::Source, &sample.tables.0);
        let pieces = stream.unwrap().sections[0].pieces.unwrap();
        let (rows, length) = (pieces.rows.unwrap(), pieces.bytes);
        let piece: Vec<u8> = (0..length as usize).map(|at| numbers(0, at)).collect();
        let (mut codes, mut exact) = (Vec::new(), Vec::new());
        Codec::Q8.encode(rows, &piece, &mut codes, &mut exact);
        assert!(exact.is_empty());
        let body = |exact: u32, codes: &[u8]| [&exact.to_le_bytes()[..], codes].concat();
        let good = body(0, &codes);

        let mut transfer = pair.desk.expect(sample.src.1.clone(), sample.dst.1.clone(), 1);
        let mut send = async |range, body: &[u8]| forged(&pair, &mut transfer, range, body).await;
        assert_eq!(send((length, length), &good).await, "whole");
        let outside = |offset: u64, length: u64| {
            let bytes = sample.dst.1.bytes();
            format!("{length} bytes at offset {offset} of a route of {bytes} bytes")
        };
        // Streams begin and end with pieces.
        assert_eq!(send((2, length), &good).await, outside(2, length));
        assert_eq!(send((0, length - 2), &good).await, outside(0, length - 2));
        let many = send((0, length), &body(u32::MAX, &codes)).await;
        let wrong = |given, needed| format!("codec: {given} bytes were given where {needed} belong");
        assert_eq!(many, wrong(u32::MAX, length as u32));
        let more = [&codes[..], &[1, 2]].concat();
        assert_eq!(send((0, length), &body(2, &more)).await, wrong(2, 0));
        let mut marked = codes.clone();
        marked[..2].copy_from_slice(&[0xff, 0xff]);
        assert!(send((0, length), &body(0, &marked)).await.starts_with("codec: a group"));
        marked[..2].copy_from_slice(&[0x00, 0xfc]);
        assert!(send((0, length), &body(0, &marked)).await.starts_with("codec: a group has the scale 0xfc00"));
        let short = send((0, length), &good[..good.len() - 1]).await;
        assert!(short.contains("CRC32C") || short.contains("ended") || short.contains("said"), "{short}");
        let long = send((0, length), &[&good[..], &[0]].concat()).await;
        assert!(long.contains("went on"), "{long}");
        assert_eq!(send((0, length), &good).await, "whole");
    });
}

/// Forged pieces with a valid checksum, cut anywhere, write nothing outside the route and take no more bytes than belong
/// to it.
#[test]
fn bytes_of_a_stranger_break_nothing() {
    let runtime = runtime();
    let data = DataOptions::default();
    let pair = runtime.block_on(Pair::connect(1, QuicOptions::default(), &data));
    let sample = Sample::coded(100, false, ("LBSHC", "LBHSC"), Codec::Q4);
    let route = sample.plan.routes().first().unwrap();
    let stream = sample.plan.bind_stream(route, Side::Source, &sample.tables.0);
    let pieces = stream.unwrap().sections[0].pieces.unwrap();
    let (rows, length) = (pieces.rows.unwrap(), pieces.bytes);
    let codes = Codec::Q4.encoded_bytes(rows, 100).unwrap();
    let mut chance = Chance(7);
    let mut tally = [0; 2];
    for round in 0..400_u64 {
        let mut transfer = pair.desk.expect(sample.src.1.clone(), sample.dst.1.clone(), 1);
        let bytes = match round % 8 {
            7 => codes + 4,
            _ => chance.below(2 * length) as usize,
        };
        let mut body: Vec<u8> = (0..bytes).map(|_| chance.below(256) as u8).collect();
        // Often a length that is near, and scales that are some.
        if let Some(first) = body.first_chunk_mut::<4>()
            && round % 4 > 0
        {
            let exact = if round % 8 == 7 { 0 } else { chance.below(3) as u32 * 64 };
            *first = exact.to_le_bytes();
        }
        if round % 4 > 1 {
            body.iter_mut().skip(4).for_each(|byte| *byte = *byte & 0x3f | 0x10);
        }
        let crc = crc32c(&body);
        body.extend_from_slice(&StreamTrailer { length, crc }.encode());
        let header =
            StreamHeader { transfer: transfer.id, nonce: pair.desk.nonce(transfer.id), stream: 0, offset: 0, length };
        runtime.block_on(async {
            let begun = pair.receiver.begin(&pair.sender(), &header.encode()).await;
            let mut stream = begun;
            let mut rest = &body[..];
            while let Some(taking) = stream.take() {
                if rest.is_empty() {
                    taking.end().await;
                    break;
                }
                let (now, later) = rest.split_at(1 + chance.below(rest.len() as u64) as usize);
                (stream, rest) = (taking.take(now).await, later);
            }
            let arrival = soon(transfer.arriving.recv()).await.unwrap();
            tally[usize::from(matches!(arrival, Arrival::Whole(_)))] += 1;
        });
        assert!(transfer.landing.placed() <= length);
        pair.desk.forget(transfer.id);
    }
    assert!(tally[0] >= 300 && tally[1] >= 50, "{tally:?}");
    let written = bytes_of(&sample.dst.0)[0].iter().filter(|byte| **byte != CANARY).count();
    assert!(written as u64 <= length, "{written}");
}
