//! Transfers between random layouts, on every path: every byte arrives in its place, and no other byte is touched.

use std::sync::{Mutex, OnceLock, PoisonError};

use proptest::prelude::*;
use tokio::runtime::Runtime;
use transload_layout::Side;
use transload_tests::cases::{Case, Reach, cases};
use transload_tests::compiled::{Streamed, compile, tables};
use transload_transfer::internal::data::{Outgoing, RouteBytes};
use transload_transfer::internal::ring::{RingIn, RingOut};
use transload_transfer::internal::slots::RingShape;
use transload_transfer::plan::Route;
use transload_transfer::{DataOptions, Memory, Plan, QuicOptions, Tables};

use crate::support::{
    CANARY, Chance, PATIENCE, Pair, allocate, bytes_of, content, copy_slowly, fill, paint, ring, runtime,
};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_byte_lands_in_its_place(
        case in cases(Reach::Settled),
        path in prop::sample::select(&[Path::Lanes, Path::Ring]),
        by_layer: bool,
        seed in 1_u64..,
    ) {
        static PATHS: OnceLock<Mutex<Paths>> = OnceLock::new();
        let paths = PATHS.get_or_init(|| Mutex::new(Paths::open()));
        let paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.runtime.block_on(paths.check(&case, path, by_layer, seed));
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Path {
    Lanes,
    Ring,
}

/// One path of each kind, shared by all cases.
struct Paths {
    pair: Pair,
    ring: RingOut,
    _ring: RingIn,
    runtime: Runtime,
}

impl Paths {
    fn open() -> Self {
        let runtime = runtime();
        let (pair, ring, _ring) = runtime.block_on(async {
            // Buffers and slots that are never as long as what is moved.
            let mut data = DataOptions::default();
            (data.buffers, data.buffer_bytes) = (2, 509);
            let pair = Pair::connect(2, QuicOptions::default(), &data).await;
            let (producer, consumer) = ring(RingShape::new(2, 4096).unwrap()).await;
            let receiving = RingIn::serve(&pair.receiver, consumer, pair.sender()).unwrap();
            (pair, RingOut::new(producer, PATIENCE).unwrap(), receiving)
        });
        Self { pair, ring, _ring, runtime }
    }

    async fn check(&self, case: &Case, path: Path, by_layer: bool, seed: u64) {
        let plan = compile(&case.from, &case.to, &case.request, Streamed::exact(by_layer)).unwrap();
        let (src_tables, dst_tables) = tables(&plan, &case.request);
        let bound = plan.bind(&src_tables, &dst_tables).unwrap();
        for route in plan.routes() {
            let groups: Vec<_> = plan.group_names().collect();
            let memories = |document, rank: u64| -> Vec<Memory> {
                groups.iter().map(|group| allocate(document, rank, group)).collect()
            };
            let src = memories(&case.from, route.src_rank.0.into());
            let dst = memories(&case.to, route.dst_rank.0.into());
            src.iter().for_each(|memory| fill(memory, content));
            dst.iter().for_each(|memory| paint(memory, CANARY));

            let moved = Moved { plan: &plan, route, tables: (&src_tables, &dst_tables), memories: (&src, &dst) };
            self.carry(&moved, path, seed).await;

            for (group, dst) in dst.iter().enumerate() {
                let mut expected: Vec<_> =
                    (0..dst.allocations()).map(|number| vec![CANARY; dst.allocation(number).unwrap().1]).collect();
                let here = bound.routes.iter().filter(|bound| {
                    (bound.src_rank, bound.dst_rank, bound.group) == (route.src_rank, route.dst_rank, group)
                });
                here.for_each(|b| copy_slowly(&b.program(), &bytes_of(&src[group]), &mut expected));
                assert!(bytes_of(dst) == expected, "{path:?}, group {group}: {case:?}");
            }
        }
    }

    async fn carry(&self, moved: &Moved<'_>, path: Path, seed: u64) {
        let (from, to) = (moved.bytes(Side::Source), moved.bytes(Side::Destination));
        let mut transfer = match path {
            Path::Ring => {
                let transfer = self.pair.desk.expect(from, to, 1);
                self.ring.carry(&transfer.out);
                transfer
            }
            _ => self.pair.begin(from, to),
        };
        open_bit_by_bit(&transfer.out, &mut Chance(seed)).await;
        transfer.done().await;
        assert_eq!(transfer.out.read(), transfer.out.route().bytes());
        self.pair.desk.forget(transfer.id);
    }
}

struct Moved<'a> {
    plan: &'a Plan,
    route: &'a Route,
    tables: (&'a Tables, &'a Tables),
    memories: (&'a [Memory], &'a [Memory]),
}

impl Moved<'_> {
    fn bytes(&self, side: Side) -> RouteBytes {
        let (tables, memories) = match side {
            Side::Source => (self.tables.0, self.memories.0),
            Side::Destination => (self.tables.1, self.memories.1),
        };
        let stream = self.plan.bind_stream(self.route, side, tables).unwrap();
        RouteBytes::new(stream, |group| memories.get(group).map(Into::into)).unwrap()
    }
}

/// Opens a transfer's bytes in ranges, in any order.
async fn open_bit_by_bit(out: &Outgoing, chance: &mut Chance) {
    let total = out.route().bytes();
    let mut cuts: Vec<u64> = (0..chance.below(6)).map(|_| chance.below(total + 1)).collect();
    cuts.extend([0, total]);
    cuts.sort_unstable();
    let mut ranges: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
    while !ranges.is_empty() {
        let next = chance.below(ranges.len() as u64) as usize;
        out.open(ranges.swap_remove(next));
        tokio::task::yield_now().await;
    }
}
