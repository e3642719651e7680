use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::case::{Arena, case, noise, streamed};
use super::{oracle, program, sum};
use crate::copy::{Crc32c, Kernel, MemoryStream, StreamError, settle};
use crate::{Access, Memory};
use transload_plan::program::{ALLOCATION_BITS, StreamProgram};

/// Generates the lengths of pieces into which a stream is cut, repeatedly.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![0..100usize, 1..2000usize, Just(1372), Just(6400), Just(65536)], 1..6)
        .prop_filter("must get on", |cuts| cuts.iter().sum::<usize>() > 200)
}

/// Returns the stream with each kernel, storing around the caches and through them.
fn every_way(stream: &MemoryStream) -> impl Iterator<Item = MemoryStream> {
    Kernel::available().iter().flat_map(|kernel| {
        [0, u64::MAX].map(|around_from| {
            let mut stream = stream.clone().with_kernel(*kernel);
            stream.tuning.around_from = around_from;
            stream
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 100 }))]

    #[test]
    fn every_kernel_gathers_the_stream(case in case(), cuts in cuts(), skew in 0..64usize) {
        let arena = Arena::new(&case.src, skew, noise(5));
        let inside = arena.inside();
        let bytes = oracle::bytes(&case.program).into_iter();
        let expected: Vec<u8> = bytes.map(|(src, _)| oracle::at(&inside, src)).collect();
        let stream = MemoryStream::new(streamed(&case.program), arena.memory()).unwrap();
        prop_assert_eq!(stream.bytes(), expected.len() as u64);
        let expected_sum = sum(&expected);
        for stream in every_way(&stream) {
            let mut plain = stream.cursor(0).unwrap();
            let mut summing = stream.cursor(0).unwrap();
            let mut sum = Crc32c::new();
            let mut cuts = cuts.iter().cycle();
            while plain.remaining() > 0 {
                let start = plain.position() as usize;
                let end = (start + cuts.next().unwrap()).min(expected.len());
                // The margins at both ends must not change.
                let mut out = vec![0xee; end - start + 128];
                plain.gather(&mut out[64..64 + end - start], None).unwrap();
                prop_assert!(out[64..64 + end - start] == expected[start..end]);
                prop_assert!(out[..64] == [0xee; 64] && out[64 + end - start..] == [0xee; 64]);
                let mut out = vec![0; end - start];
                summing.gather(&mut out, Some(&mut sum)).unwrap();
                prop_assert!(out == expected[start..end]);
            }
            prop_assert_eq!(sum, expected_sum);
        }
    }

    #[test]
    fn every_kernel_scatters_the_stream(case in case(), cuts in cuts(), skew in 0..64usize) {
        let addresses = oracle::bytes(&case.program);
        let bytes: Vec<u8> = (0..addresses.len()).map(noise(6)).collect();
        let expected_sum = sum(&bytes);
        let arena = Arena::new(&case.src, skew, noise(7));
        let before = arena.inside();
        let mut after = before.clone();
        for ((src, _), byte) in addresses.iter().zip(&bytes) {
            *oracle::at_mut(&mut after, *src) = *byte;
        }
        let expected = arena.with_inside(&after);
        let memory = arena.memory();
        let stream = MemoryStream::new(streamed(&case.program), memory.clone()).unwrap();
        for stream in every_way(&stream) {
            for (number, bytes) in before.iter().enumerate() {
                memory.write((number as u64) << ALLOCATION_BITS, bytes).unwrap();
            }
            let mut cursor = stream.cursor(0).unwrap();
            let mut sum = Crc32c::new();
            let mut cuts = cuts.iter().cycle();
            while cursor.remaining() > 0 {
                let start = cursor.position() as usize;
                let end = (start + cuts.next().unwrap()).min(bytes.len());
                cursor.scatter(&bytes[start..end], Some(&mut sum)).unwrap();
                prop_assert_eq!(cursor.position(), end as u64);
            }
            prop_assert!(arena.all() == expected, "{stream:?}");
            settle();
            prop_assert_eq!(sum, expected_sum);
        }
    }

    #[test]
    fn a_cursor_may_start_anywhere(case in case(), at in vec(any::<prop::sample::Index>(), 4)) {
        let arena = Arena::new(&case.src, 0, noise(8));
        let inside = arena.inside();
        let bytes = oracle::bytes(&case.program).into_iter();
        let expected: Vec<u8> = bytes.map(|(src, _)| oracle::at(&inside, src)).collect();
        let stream = MemoryStream::new(streamed(&case.program), arena.memory()).unwrap();
        prop_assert_eq!(stream.cursor(stream.bytes()).unwrap().remaining(), 0);
        for at in at {
            let at = at.index(expected.len());
            let len = (expected.len() - at).min(3000);
            let mut out = vec![0; len];
            let mut cursor = stream.cursor(at as u64).unwrap();
            cursor.gather(&mut out, None).unwrap();
            prop_assert!(out == expected[at..at + len]);
            let before = cursor.position();
            let beyond = cursor.gather(&mut vec![0; cursor.remaining() as usize + 1], None);
            let past_end = matches!(beyond, Err(StreamError::PastEnd { .. }));
            prop_assert!(past_end && cursor.position() == before);
        }
    }
}

fn apart() -> StreamProgram {
    StreamProgram::new(program(&[(2, 200, 100)], 100, &[(0, 0)])).unwrap()
}

#[test]
fn what_is_beyond_the_end_is_refused() {
    let stream = MemoryStream::new(apart(), Memory::allocate(&[300]).unwrap()).unwrap();
    let past_end = StreamError::PastEnd { offset: 150, len: 51, bytes: 200 };
    let mut cursor = stream.cursor(150).unwrap();
    assert_eq!(cursor.scatter(&[0; 51], None), Err(past_end));
    assert_eq!(past_end.to_string(), "51 bytes at offset 150 of a stream of 200 bytes");
    assert!(stream.cursor(201).is_err());
    assert_eq!(cursor.position(), 150);
}

#[test]
fn memory_for_reading_is_not_written() {
    let arena = Arena::new(&[300], 0, noise(11));
    let (start, len) = arena.memory().allocation(0).unwrap();
    let (parts, keeper) = ([(start.as_ptr(), len)], Arc::new(arena.memory()));
    // SAFETY: the keeper keeps the arena's memory, and no slice of it exists.
    let memory = unsafe { Memory::from_raw_parts(&parts, Access::Read, Some(keeper)) };
    let stream = MemoryStream::new(apart(), memory.unwrap()).unwrap();
    let before = arena.all();
    let mut cursor = stream.cursor(0).unwrap();
    assert_eq!(cursor.scatter(&[0; 10], None), Err(StreamError::ReadOnly));
    assert_eq!(cursor.gather(&mut [0; 10], None), Ok(()));
    assert!(arena.all() == before);
}

#[test]
fn sums_add_up() {
    let bytes: Vec<u8> = (0..100_000).map(noise(12)).collect();
    for cut in [0, 1, 63, 5000, 99_999, 100_000] {
        let mut sum = Crc32c::of(&bytes[..cut]);
        sum.append(&Crc32c::of(&bytes[cut..]));
        assert_eq!(sum, super::sum(&bytes));
    }
    assert_eq!(Crc32c::new(), Crc32c::of(b""));
}
