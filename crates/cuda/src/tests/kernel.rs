use std::ops::Range;

use proptest::prelude::*;
use smallvec::{SmallVec, smallvec};

use super::case::{Case, case, noise, streamed};
use super::on_cpu::{Bytes, Done, run};
use super::oracle;
use crate::launch::{ENTRIES, End, Ends, LONGEST_UNIT, Launch, LaunchError, Launches, MAX_LOOPS};
use transload_memory::Side;
use transload_plan::program::{ALLOCATION_BITS, Loop, Nest, Placed, Program, split_address};

/// Addresses of a test's memories for the kernel: far apart, each a multiple of 4 KiB.
const SOURCE: u64 = 0x1000_0000_0000;
const DESTINATION: u64 = 0x2000_0000_0000;
const APART: u64 = 0x0001_0000_0000;
const PLACES: u64 = 0x3000_0000_0000;
const SOURCE_TABLE: u64 = 0x3100_0000_0000;
const DESTINATION_TABLE: u64 = 0x3200_0000_0000;
const BUFFER: u64 = 0x4000_0000_0000;

struct Allocations {
    memories: Vec<Bytes>,
    table: Bytes,
}

impl Allocations {
    fn new(lens: &[usize], (first, skew): (u64, u64), table: u64, seed: u64) -> Self {
        let mut fill = noise(seed);
        let memories: Vec<_> = (0..)
            .zip(lens)
            .map(|(number, len)| Bytes {
                address: first + number * APART + skew,
                bytes: (0..*len).map(&mut fill).collect(),
            })
            .collect();
        let bases: Vec<u64> = memories.iter().map(|memory| memory.address).collect();
        let table = Bytes { address: table, bytes: bytemuck::cast_slice(&bases).to_vec() };
        Self { memories, table }
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.memories.iter().map(|memory| memory.bytes.clone()).collect()
    }

    fn bases(&self) -> u64 {
        self.memories.iter().fold(0, |or, memory| or | memory.address)
    }
}

struct Trial {
    source: Allocations,
    destination: Allocations,
    places: Bytes,
}

impl Trial {
    fn new(case: &Case, launches: &Launches, skews: (u64, u64)) -> Self {
        Self {
            source: Allocations::new(&case.src, (SOURCE, skews.0), SOURCE_TABLE, 1),
            destination: Allocations::new(&case.dst, (DESTINATION, skews.1), DESTINATION_TABLE, 2),
            places: Bytes { address: PLACES, bytes: bytemuck::cast_slice(launches.places()).to_vec() },
        }
    }

    fn memories(&self) -> Vec<Bytes> {
        let tables = [&self.places, &self.source.table, &self.destination.table];
        let all = tables.into_iter().chain(&self.source.memories).chain(&self.destination.memories);
        all.cloned().collect()
    }
}

/// Generates numbers of warps: few, so that each has several rounds, or more than there are units.
fn warps() -> impl Strategy<Value = u64> {
    prop_oneof![1..4u64, Just(40)]
}

fn skew() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 1 => 0..16u64, 1 => prop::sample::select(vec![2, 4, 8])]
}

fn part(bytes: u64, ends: (f64, f64)) -> Range<u64> {
    let at = |end: f64| (end * (bytes + 1) as f64) as u64;
    let (a, b) = (at(ends.0).min(bytes), at(ends.1).min(bytes));
    a.min(b)..a.max(b)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_program_between_two_memories_moves_what_it_says(
        case in case(), skews in (skew(), skew()), warps in warps(), seed in any::<u64>(),
    ) {
        let launches = Launches::new(&case.program).unwrap();
        let trial = Trial::new(&case, &launches, skews);
        let ends = Ends {
            places: PLACES,
            src_bases: SOURCE_TABLE,
            dst: End::memory(DESTINATION_TABLE),
            bases: trial.source.bases() | trial.destination.bases(),
            reverse: false,
        };
        let memories = trial.memories();
        let Some(done) = run(&memories, &launches.all(&ends).unwrap(), warps, seed) else {
            return Ok(());
        };

        let (from, mut to) = (trial.source.bytes(), trial.destination.bytes());
        let mut writes: Vec<_> = case.dst.iter().map(|len| vec![0; *len]).collect();
        for (src, dst) in oracle::bytes(&case.program) {
            *oracle::at_mut(&mut to, dst) = oracle::at(&from, src);
            *oracle::at_mut(&mut writes, dst) += 1;
        }
        let (others, destination) = done.split_at(done.len() - case.dst.len());
        for ((done, bytes), writes) in destination.iter().zip(to).zip(writes) {
            prop_assert!(done.bytes == bytes, "bytes differ");
            prop_assert!(done.writes == writes, "not each byte was written once");
        }
        untouched(others, &memories)?;
    }

    #[test]
    fn any_part_of_a_stream_is_gathered_and_scattered(
        case in case(), skews in (skew(), skew()), cut in (0.0..1.0, 0.0..1.0), warps in warps(),
        seed in any::<u64>(),
    ) {
        for way in [Side::Source, Side::Destination] {
            let stream = case.program.stream(way);
            let range = part(stream.bytes(), cut);
            let launches = Launches::new(stream.program()).unwrap();
            let trial = Trial::new(&case, &launches, skews);
            let (memory, table) = match way {
                Side::Source => (&trial.source, SOURCE_TABLE),
                Side::Destination => (&trial.destination, DESTINATION_TABLE),
            };
            let address = BUFFER + skews.1;
            let ends = Ends {
                places: PLACES,
                src_bases: table,
                dst: End::buffer(address, range.start),
                bases: memory.bases(),
                reverse: way == Side::Destination,
            };
            let len = (range.end - range.start) as usize;
            let buffer = Bytes { address, bytes: (0..len).map(noise(3)).collect() };
            let mut memories = trial.memories();
            memories.push(buffer.clone());
            let launches = launches.range(&ends, range.clone()).unwrap();
            let Some(mut done) = run(&memories, &launches, warps, seed) else {
                return Ok(());
            };

            // The stream's bytes, and where each lies in the memory.
            let places = oracle::bytes(stream.program());
            let places = &places[range.start as usize..range.end as usize];
            let ours = memories.iter().position(|m| m.address == memory.memories[0].address).unwrap();
            if way == Side::Source {
                let bytes = memory.bytes();
                let expected: Vec<u8> = places.iter().map(|place| oracle::at(&bytes, place.0)).collect();
                let gathered = done.pop().unwrap();
                prop_assert!(gathered.bytes == expected, "gathered bytes differ");
                prop_assert!(gathered.writes.iter().all(|writes| *writes == 1));
                untouched(&done, &memories)?;
            } else {
                let mut expected = memory.bytes();
                for (place, byte) in places.iter().zip(&buffer.bytes) {
                    *oracle::at_mut(&mut expected, place.0) = *byte;
                    let (allocation, offset) = split_address(place.0);
                    let writes = &mut done[ours + allocation].writes[offset as usize];
                    prop_assert_eq!(*writes, 1);
                    *writes = 0;
                }
                for (done, expected) in done[ours..].iter_mut().zip(expected) {
                    prop_assert!(done.bytes == expected, "scattered bytes differ");
                    prop_assert!(done.writes.iter().all(|writes| *writes == 0));
                }
            }
        }
    }
}

fn untouched(done: &[Done], before: &[Bytes]) -> Result<(), TestCaseError> {
    for (done, before) in done.iter().zip(before) {
        prop_assert!(done.bytes == before.bytes && done.writes.iter().all(|writes| *writes == 0));
    }
    Ok(())
}

fn one(loops: SmallVec<[Loop; 4]>, run: u64) -> Program {
    Program { nests: vec![Nest { loops, run }], placed: vec![Placed { nest: 0, src: 0, dst: 0 }] }
}

fn aligned() -> Ends {
    Ends { places: PLACES, src_bases: SOURCE_TABLE, dst: End::memory(DESTINATION_TABLE), bases: 0, reverse: false }
}

#[test]
fn the_unit_is_the_longest_that_everything_is_a_multiple_of() {
    let unit = |program: &Program, bases| {
        let ends = Ends { bases, ..aligned() };
        1 << Launches::new(program).unwrap().all(&ends).unwrap()[0].entry
    };
    let strided = |run, stride| one(smallvec![Loop { count: 3, src: stride, dst: run }], run);
    assert_eq!(unit(&strided(512, 1024), 0), 16);
    assert_eq!(unit(&strided(512, 1024), 4), 4);
    assert_eq!(unit(&strided(512, 520), 0), 8);
    assert_eq!(unit(&strided(66, 1024), 0), 2);
    assert_eq!(unit(&strided(7, 1024), 0), 1);
}

/// Returns a nest of this many loops that runs at two places. Its source and destination offsets are equal. With `far`,
/// the outermost loop leads from one allocation to the next.
fn deep(depth: usize, run: u64, far: bool) -> Case {
    let (mut loops, mut reach) = (SmallVec::new(), run);
    for (inside, count) in [3, 1, 2, 2, 1, 2, 1, 2].into_iter().enumerate().take(depth) {
        let is_far = far && inside + 1 == depth;
        let stride = if is_far { 1 << ALLOCATION_BITS } else { reach + 32 };
        let (src, dst) = (stride, stride);
        loops.insert(0, Loop { count, src, dst });
        reach += if is_far { 0 } else { stride * (count - 1) };
    }
    let place = |at| Placed { nest: 0, src: at, dst: at };
    let lens = vec![2 * reach as usize + 64; 3];
    Case {
        program: Program { nests: vec![Nest { loops, run }], placed: vec![place(reach + 64), place(16)] },
        src: lens.clone(),
        dst: lens,
    }
}

/// The kernel's entries by index, each with runs that it is for, and each depth.
fn deep_cases() -> impl Iterator<Item = (usize, Case, String)> {
    let runs = [(0, 48), (1, 48), (2, 48), (3, 48), (5, 48), (6, 2048), (6, 2208)];
    let depths = (0..=MAX_LOOPS).flat_map(|depth| [(depth, false), (depth, true)]);
    depths.flat_map(move |(depth, far)| {
        runs.map(|(entry, run)| {
            let what = format!("{:?}, {depth} loops of {run} B, far: {far}", ENTRIES[entry]);
            (entry, deep(depth, run, far), what)
        })
    })
}

/// Returns addresses that are multiples of an entry's unit and of nothing larger.
fn skews(entry: usize) -> (u64, u64) {
    let skew = (1 << entry.min(4)) % LONGEST_UNIT;
    (skew, skew)
}

/// Checks that the bytes of the program, and no others, are at the same addresses on the other side, each written once.
fn is_copied(trial: &Trial, program: &Program, done: &[Done]) -> bool {
    let (from, mut to) = (trial.source.bytes(), trial.destination.bytes());
    let mut writes: Vec<_> = to.iter().map(|bytes| vec![0; bytes.len()]).collect();
    for (at, _) in oracle::bytes(program) {
        *oracle::at_mut(&mut to, at) = oracle::at(&from, at);
        *oracle::at_mut(&mut writes, at) += 1;
    }
    let found = done.iter().map(|done| (&done.bytes, &done.writes));
    found.eq(to.iter().zip(&writes))
}

#[test]
fn nests_of_every_depth_move_between_memories() {
    for (entry, case, what) in deep_cases() {
        let launches = Launches::new(&case.program).unwrap();
        let trial = Trial::new(&case, &launches, skews(entry));
        let bases = trial.source.bases() | trial.destination.bases();
        let all = launches.all(&Ends { bases, ..aligned() }).unwrap();
        // The last two are for buffers.
        assert!(all.iter().all(|launch| launch.entry == entry.min(4)), "{what}");
        let Some(done) = run(&trial.memories(), &all, 1, 1) else {
            return;
        };
        let to = &done[done.len() - case.dst.len()..];
        assert!(is_copied(&trial, &case.program, to), "{what}");
    }
}

/// Copies out of a memory into pieces, and from there into another memory.
#[test]
fn nests_of_every_depth_move_in_pieces_that_are_cut_anywhere() {
    for (entry, case, what) in deep_cases() {
        let stream = streamed(&case.program);
        let launches = Launches::new(stream.program()).unwrap();
        let trial = Trial::new(&case, &launches, skews(entry));
        let (mut gathers, mut scatters, mut memories) = (vec![], vec![], trial.memories());
        // The steps come to each place in a unit; those that are longer than what is moved at once are for long runs.
        let steps = [17, 1, 7, 70, 2065, 335];
        let mut steps = steps[..if entry < 6 { 4 } else { 6 }].iter().cycle();
        let mut begin = 0;
        while begin < stream.bytes() {
            let end = stream.bytes().min(begin + steps.next().unwrap());
            let address = BUFFER + memories.len() as u64 * APART + begin % LONGEST_UNIT;
            let launch = |launched: &mut Vec<_>, memory: &Allocations, reverse| {
                let ends = Ends {
                    places: PLACES,
                    src_bases: memory.table.address,
                    dst: End::buffer(address, begin),
                    bases: memory.bases(),
                    reverse,
                };
                launched.extend(launches.range(&ends, begin..end).unwrap());
            };
            launch(&mut gathers, &trial.source, false);
            launch(&mut scatters, &trial.destination, true);
            let bytes = vec![0; (end - begin) as usize];
            memories.push(Bytes { address, bytes });
            begin = end;
        }
        gathers.extend(scatters);
        assert!(gathers.iter().all(|launch| launch.entry == entry), "{what}");
        let Some(done) = run(&memories, &gathers, 1, 1) else {
            return;
        };
        let (done, pieces) = done.split_at(trial.memories().len());
        let source = trial.source.bytes();
        let expected = oracle::bytes(stream.program());
        let expected = expected.iter().map(|(at, _)| (oracle::at(&source, *at), 1));
        let gathered = pieces.iter().flat_map(|piece| piece.bytes.iter().zip(&piece.writes));
        assert!(gathered.map(|(byte, writes)| (*byte, *writes)).eq(expected), "{what}");
        let to = &done[done.len() - case.dst.len()..];
        assert!(is_copied(&trial, &case.program, to), "{what}");
    }
}

#[test]
fn what_the_kernel_cannot_count_is_refused() {
    let deep = one((0..=MAX_LOOPS as u64).map(|i| Loop { count: 2, src: 64 << i, dst: 64 << i }).collect(), 32);
    let error = Launches::new(&deep).unwrap_err();
    assert_eq!(error, LaunchError::TooDeep { nest: 0, loops: MAX_LOOPS + 1 });
    assert_eq!(error.to_string(), "nest 0 has 9 loops, and a GPU runs 8 at most");

    // 32 GiB in units of 16 B are one unit too many, less is not.
    let bytes = 1 << 35;
    let error = Launches::new(&one(smallvec![], bytes)).unwrap().all(&aligned()).unwrap_err();
    assert_eq!(error, LaunchError::TooLong { nest: 0, bytes, unit: 16 });
    assert!(Launches::new(&one(smallvec![], bytes - 16)).unwrap().all(&aligned()).is_ok());
}

#[test]
fn many_places_take_several_launches() {
    const BYTES: u64 = 3 << 33;
    let (count, src, dst) = (BYTES / 1024, 2048, 1024);
    let mut program = one(smallvec![Loop { count, src, dst }], 1024);
    let first = program.placed[0];
    program.placed = (0..5).map(|at| Placed { dst: at * BYTES, ..first }).collect();
    let launches = Launches::new(&program).unwrap();
    let threads = |launches: Vec<Launch>| launches.iter().map(Launch::threads).collect::<Vec<_>>();
    let place = (BYTES / LONGEST_UNIT / 2) as u32;
    assert_eq!(threads(launches.all(&aligned()).unwrap()), [place; 5]);
    // The first has nothing but a unit that is cut, and the last one whole unit beside another.
    let dst = End::buffer(BUFFER, 0);
    let cut = launches.range(&Ends { dst, ..aligned() }, BYTES - 8..2 * BYTES + 24);
    assert_eq!(threads(cut.unwrap()), [1, place, 1]);
}
