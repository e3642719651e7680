use std::ops::Range;

use proptest::prelude::*;
use smallvec::{SmallVec, smallvec};

use super::on_cpu::{Bytes, Done, run};
use crate::copy::tests::case::{Case, case, noise};
use crate::copy::tests::oracle;
use crate::device::launch::{End, Ends, LONGEST_UNIT, LaunchError, Launches, MAX_LOOPS};
use crate::memory::Side;
use crate::plan::program::{Loop, Nest, Placed, Program, split_address};

/// Where memories of a test lie for the kernel: far apart, and from a multiple of 4 KiB on.
const SOURCE: u64 = 0x1000_0000_0000;
const DESTINATION: u64 = 0x2000_0000_0000;
const APART: u64 = 0x0001_0000_0000;
const PLACES: u64 = 0x3000_0000_0000;
const SOURCE_TABLE: u64 = 0x3100_0000_0000;
const DESTINATION_TABLE: u64 = 0x3200_0000_0000;
const BUFFER: u64 = 0x4000_0000_0000;

/// Allocations of one side, and the table of their bases.
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
        let table = Bytes {
            address: table,
            bytes: bytemuck::cast_slice(&bases).to_vec(),
        };
        Self { memories, table }
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.memories
            .iter()
            .map(|memory| memory.bytes.clone())
            .collect()
    }

    fn bases(&self) -> u64 {
        self.memories
            .iter()
            .fold(0, |or, memory| or | memory.address)
    }
}

/// Runs what launches say, and gives what became of the destination and of the source.
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
            places: Bytes {
                address: PLACES,
                bytes: bytemuck::cast_slice(launches.places()).to_vec(),
            },
        }
    }

    fn memories(&self) -> Vec<Bytes> {
        let tables = [&self.places, &self.source.table, &self.destination.table];
        let all = tables
            .into_iter()
            .chain(&self.source.memories)
            .chain(&self.destination.memories);
        all.cloned().collect()
    }
}

/// Few threads, so that each has several rounds; and more than there are units.
fn threads() -> impl Strategy<Value = u64> {
    prop_oneof![1..40u64, Just(1024)]
}

fn skew() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 1 => 0..16u64, 1 => prop::sample::select(vec![2, 4, 8])]
}

/// A range of a stream of so many bytes, cut anywhere.
fn part(bytes: u64, ends: (f64, f64)) -> Range<u64> {
    let at = |end: f64| (end * (bytes + 1) as f64) as u64;
    let (a, b) = (at(ends.0).min(bytes), at(ends.1).min(bytes));
    a.min(b)..a.max(b)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_program_between_two_memories_moves_what_it_says(
        case in case(), skews in (skew(), skew()), threads in threads(), seed in any::<u64>(),
    ) {
        let launches = Launches::new(&case.program).unwrap();
        let trial = Trial::new(&case, &launches, skews);
        let ends = Ends {
            places: PLACES,
            src: End::memory(SOURCE_TABLE),
            dst: End::memory(DESTINATION_TABLE),
            bases: trial.source.bases() | trial.destination.bases(),
            reverse: false,
        };
        let memories = trial.memories();
        let Some(done) = run(&memories, &launches.all(&ends).unwrap(), threads, seed) else {
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
        case in case(), skews in (skew(), skew()), cut in (0.0..1.0, 0.0..1.0), threads in threads(),
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
                src: End::memory(table),
                dst: End::buffer(address, range.start),
                bases: memory.bases(),
                reverse: way == Side::Destination,
            };
            let len = (range.end - range.start) as usize;
            let buffer = Bytes { address, bytes: (0..len).map(noise(3)).collect() };
            let mut memories = trial.memories();
            memories.push(buffer.clone());
            let launches = launches.range(&ends, range.clone()).unwrap();
            let Some(mut done) = run(&memories, &launches, threads, seed) else {
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

/// Nothing was written to these.
fn untouched(done: &[Done], before: &[Bytes]) -> Result<(), TestCaseError> {
    for (done, before) in done.iter().zip(before) {
        prop_assert!(done.bytes == before.bytes && done.writes.iter().all(|writes| *writes == 0));
    }
    Ok(())
}

/// One nest at one place.
fn one(loops: SmallVec<[Loop; 4]>, run: u64) -> Program {
    Program {
        nests: vec![Nest { loops, run }],
        placed: vec![Placed {
            nest: 0,
            src: 0,
            dst: 0,
        }],
    }
}

fn aligned() -> Ends {
    let (src, dst) = (End::memory(SOURCE_TABLE), End::memory(DESTINATION_TABLE));
    Ends {
        places: PLACES,
        src,
        dst,
        bases: 0,
        reverse: false,
    }
}

#[test]
fn the_unit_is_the_longest_that_everything_is_a_multiple_of() {
    let unit = |program: &Program, bases| {
        let ends = Ends { bases, ..aligned() };
        Launches::new(program).unwrap().all(&ends).unwrap()[0].unit
    };
    let strided = |run, stride| {
        one(
            smallvec![Loop {
                count: 3,
                src: stride,
                dst: run
            }],
            run,
        )
    };
    assert_eq!(unit(&strided(512, 1024), 0), 16);
    assert_eq!(unit(&strided(512, 1024), 4), 4);
    assert_eq!(unit(&strided(512, 520), 0), 8);
    assert_eq!(unit(&strided(66, 1024), 0), 2);
    assert_eq!(unit(&strided(7, 1024), 0), 1);
}

/// Wherever a stream is cut, all of it moves in the longest units, if its buffer begins where the position says.
#[test]
fn streams_move_in_the_longest_units_from_any_position() {
    let program = one(
        smallvec![Loop {
            count: 3,
            src: 1024,
            dst: 512
        }],
        512,
    );
    let (stream, launches) = (&program, Launches::new(&program).unwrap());
    let case = Case {
        program: stream.clone(),
        src: vec![3 * 1024],
        dst: vec![3 * 512],
    };
    let trial = Trial::new(&case, &launches, (0, 0));
    for (begin, len) in (0..2 * LONGEST_UNIT).flat_map(|begin| [(begin, 1), (begin, 900)]) {
        let (range, address) = (begin..begin + len, BUFFER + begin % LONGEST_UNIT);
        let ends = Ends {
            dst: End::buffer(address, begin),
            ..aligned()
        };
        let cut = launches.range(&ends, range.clone()).unwrap();
        assert!(cut.iter().all(|launch| launch.unit == LONGEST_UNIT));
        let mut memories = trial.memories();
        memories.push(Bytes {
            address,
            bytes: vec![0; len as usize],
        });
        let Some(mut done) = run(&memories, &cut, 8, begin) else {
            return;
        };
        let bytes = trial.source.bytes();
        let places = &oracle::bytes(stream)[begin as usize..(begin + len) as usize];
        let expected = places.iter().map(|place| oracle::at(&bytes, place.0));
        assert!(done.pop().unwrap().bytes == expected.collect::<Vec<_>>());
    }
}

#[test]
fn what_the_kernel_cannot_count_is_refused() {
    let deep = one(
        (0..=MAX_LOOPS as u64)
            .map(|i| Loop {
                count: 2,
                src: 64 << i,
                dst: 64 << i,
            })
            .collect(),
        32,
    );
    let error = Launches::new(&deep).unwrap_err();
    assert_eq!(
        error,
        LaunchError::TooDeep {
            nest: 0,
            loops: MAX_LOOPS + 1
        }
    );
    assert_eq!(
        error.to_string(),
        "nest 0 has 9 loops, and a GPU runs 8 at most"
    );

    // 32 GiB in units of 16 B are one unit too many, less is not.
    let bytes = 1 << 35;
    let error = Launches::new(&one(smallvec![], bytes))
        .unwrap()
        .all(&aligned())
        .unwrap_err();
    assert_eq!(
        error,
        LaunchError::TooLong {
            nest: 0,
            bytes,
            unit: 16
        }
    );
    assert!(
        Launches::new(&one(smallvec![], bytes - 16))
            .unwrap()
            .all(&aligned())
            .is_ok()
    );
}

#[test]
fn many_places_take_several_launches() {
    let mut program = one(smallvec![], 3 << 33);
    program.placed = vec![program.placed[0]; 5];
    let launches = Launches::new(&program).unwrap().all(&aligned()).unwrap();
    let units: Vec<_> = launches
        .iter()
        .map(|launch| u64::from(launch.units()))
        .collect();
    assert_eq!(units, [(3 << 33) / 16; 5]);
}
