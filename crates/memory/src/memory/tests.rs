use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use smallvec::smallvec;

use super::*;
use crate::Side;
use crate::copy::tests::program;
use transload_plan::program::{Nest, Placed, Program};

const FAR: u64 = 1 << ALLOCATION_BITS;

#[test]
fn allocations_are_zeroed_and_aligned() {
    let memory = Memory::allocate(&[1, 0, 5000, 3 << 20]).unwrap();
    assert_eq!((memory.allocations(), memory.bytes()), (4, 5001 + (3 << 20)));
    let starts: Vec<_> = (0..4).map(|i| memory.allocation(i).unwrap().0).collect();
    assert!(starts[0].addr().get().is_multiple_of(4096));
    assert!(starts[2].addr().get().is_multiple_of(4096));
    assert!(starts[3].addr().get().is_multiple_of(2 << 20));
    let mut bytes = vec![1; 5000];
    memory.read(2 * FAR, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!(memory.allocation(4), None);
}

#[test]
fn absurd_sizes_are_errors() {
    let too_long = MemoryError::TooLong { allocation: 1, len: usize::MAX };
    assert_eq!(Memory::allocate(&[1, usize::MAX]).unwrap_err(), too_long);
    let many = vec![0; MAX_ALLOCATIONS + 1];
    let too_many = MemoryError::TooMany { count: many.len() };
    assert_eq!(Memory::allocate(&many).unwrap_err(), too_many);
    let parts = [(std::ptr::null_mut(), 0), (std::ptr::null_mut(), 1)];
    // SAFETY: the first is empty, and the second is refused.
    let null = unsafe { Memory::from_raw_parts(&parts, Access::Read, None) }.unwrap_err();
    assert_eq!(null, MemoryError::Null { allocation: 1, len: 1 });
    let parts = [(std::ptr::without_provenance_mut(usize::MAX - 1), 3)];
    // SAFETY: refused.
    let wraps = unsafe { Memory::from_raw_parts(&parts, Access::Read, None) }.unwrap_err();
    assert_eq!(wraps, MemoryError::TooLong { allocation: 0, len: 3 });
}

#[test]
fn reads_and_writes_stay_in_bounds() {
    let memory = Memory::allocate(&[10, 20]).unwrap();
    memory.write(FAR | 15, b"hello").unwrap();
    let mut word = [0; 5];
    memory.read(FAR | 15, &mut word).unwrap();
    assert_eq!(&word, b"hello");
    memory.write(10, b"").unwrap();
    let beyond = AccessError::OutOfBounds { allocation: 1, offset: 16, len: 5, available: 20 };
    assert_eq!(memory.write(FAR | 16, b"hello"), Err(beyond));
    assert_eq!(beyond.to_string(), "5 bytes at offset 16 of allocation 1, which has 20 bytes");
    assert!(memory.read(11, &mut []).is_err());
    assert!(memory.read(2 * FAR, &mut []).is_err());
    assert!(memory.read(u64::MAX, &mut word).is_err());
}

#[test]
fn the_keeper_outlives_every_user() {
    struct Owner(Box<[u8]>, Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut owner = Owner(vec![7; 64].into(), dropped.clone());
    let parts = [(owner.0.as_mut_ptr(), 64)];
    // SAFETY: the owner becomes the keeper, and is not accessed again.
    let memory = unsafe { Memory::from_raw_parts(&parts, Access::Read, Some(Arc::new(owner))) };
    let memory = memory.unwrap();
    assert_eq!(memory.write(0, b"no"), Err(AccessError::ReadOnly));
    let user = memory.clone();
    drop(memory);
    let mut bytes = [0; 4];
    user.read(60, &mut bytes).unwrap();
    assert_eq!((bytes, dropped.load(Ordering::Relaxed)), ([7; 4], 0));
    assert!(user.read(61, &mut bytes).is_err());
    drop(user);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn overlaps_are_seen() {
    let memory = Memory::allocate(&[4096, 4096]).unwrap();
    let part = |number: usize, from: usize, len: usize| {
        let start = memory.allocation(number).unwrap().0.as_ptr().wrapping_add(from);
        let keeper: Arc<dyn Any + Send + Sync> = Arc::new(memory.clone());
        // SAFETY: a part of memory that the keeper keeps, and that has no references.
        unsafe { Memory::from_raw_parts(&[(start, len)], Access::ReadWrite, Some(keeper)) }.unwrap()
    };
    assert!(memory.overlaps(&memory));
    assert!(memory.overlaps(&part(1, 100, 1)));
    assert!(part(0, 0, 101).overlaps(&part(0, 100, 1)));
    assert!(!part(0, 0, 100).overlaps(&part(0, 100, 1)));
    assert!(!part(0, 0, 100).overlaps(&part(1, 0, 100)));
    assert!(!part(0, 0, 0).overlaps(&memory));
    assert!(!memory.overlaps(&Memory::allocate(&[4096]).unwrap()));
}

/// Makes one nest whose source is at `src`, from the loops' (stride, count).
fn one(loops: &[(u64, u64)], run: u64, src: u64) -> Program {
    let loops: Vec<_> = loops.iter().map(|&(stride, count)| (count, stride, 0)).collect();
    program(&loops, run, &[(src, 0)])
}

#[test]
fn a_check_says_what_is_wrong_and_where() {
    let memory = Memory::allocate(&[100, 50]).unwrap();
    let check = |loops: &[(u64, u64)], run, src| memory.check(&one(loops, run, src), Side::Source);

    // The second layer's allocation is too short for bytes that fit into the first one's.
    assert_eq!(
        check(&[(FAR, 2), (30, 2)], 21, 0).unwrap_err(),
        CheckError::OutOfBounds {
            side: Side::Source,
            place: 0,
            nest: 0,
            allocation: 1,
            start: 0,
            end: 51,
            available: 50,
        }
    );
    assert_eq!(check(&[(FAR, 2), (30, 2)], 20, 0), Ok(()));
    // The offset may differ from layer to layer.
    assert_eq!(check(&[(FAR - 50, 2)], 50, 50), Ok(()));
    assert!(check(&[(FAR - 49, 2)], 50, 50).is_err());

    let error = check(&[(FAR, 3)], 10, 0).unwrap_err();
    assert!(matches!(error, CheckError::NoAllocation { allocation: 2, allocations: 2, .. }));
    assert_eq!(error.to_string(), "the source of place 0 (nest 0) is in allocation 2, but there are only 2");
    let empty = Err(CheckError::Empty { nest: 0 });
    assert_eq!(check(&[], 0, 0), empty);
    assert_eq!(check(&[(0, 0)], 1, 0), empty);
    let overflow = Err(CheckError::Overflow { nest: 0 });
    assert_eq!(check(&[(0, 1 << 40), (0, 1 << 40)], 1, 0), overflow);
    let mut lost = one(&[], 1, 0);
    lost.placed[0].nest = 7;
    let (place, nest, nests) = (0, 7, 1);
    let no_nest = Err(CheckError::NoNest { place, nest, nests });
    assert_eq!(memory.check(&lost, Side::Source), no_nest);
}

#[test]
fn what_may_only_be_read_is_no_destination() {
    let memory = Memory::allocate(&[100]).unwrap();
    let (start, len) = memory.allocation(0).unwrap();
    let (parts, keeper) = ([(start.as_ptr(), len)], Arc::new(memory));
    // SAFETY: the keeper keeps the bytes, and there are no references.
    let memory = unsafe { Memory::from_raw_parts(&parts, Access::Read, Some(keeper)) };
    let memory = memory.unwrap();
    let program = one(&[], 10, 0);
    assert_eq!(memory.check(&program, Side::Source), Ok(()));
    assert_eq!(memory.check(&program, Side::Destination), Err(CheckError::ReadOnly));
}

fn holds(lens: &[usize], program: &Program) -> bool {
    program.placed.iter().all(|placed| {
        let nest = &program.nests[placed.nest as usize];
        let mut chunks = vec![placed.src];
        for l in &nest.loops {
            chunks = chunks.iter().flat_map(|at| (0..l.count).map(move |step| at + step * l.src)).collect();
        }
        chunks.iter().all(|chunk| {
            (*chunk..chunk + nest.run).all(|byte| {
                let (allocation, offset) = split_address(byte);
                lens.get(allocation).is_some_and(|len| offset < *len as u64)
            })
        })
    })
}

fn near_or_far() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..60u64,
        2 => Just(FAR),
        1 => (0..60u64).prop_map(|off| FAR + off),
        1 => (0..60u64).prop_map(|off| FAR - off),
    ]
}

proptest! {
    #[test]
    fn a_check_is_neither_too_strict_nor_too_lax(
        lens in vec(prop_oneof![Just(100), 0..150usize], 0..5),
        loops in vec((1..5u64, near_or_far()), 0..4),
        run in 1..40u64,
        places in vec((0..3u64, 0..60u64), 0..3),
    ) {
        let loops: Vec<_> = loops.into_iter().map(|(count, src)| (count, src, 0)).collect();
        let places = places.into_iter().map(|(allocation, offset)| (allocation * FAR + offset, 0));
        let program = program(&loops, run, &places.collect::<Vec<_>>());
        let memory = Memory::allocate(&lens).unwrap();
        prop_assert_eq!(memory.check(&program, Side::Source).is_ok(), holds(&lens, &program));
    }

    #[test]
    fn a_check_of_nonsense_ends_and_does_not_panic(
        loops in vec(any::<(u64, u64)>(), 0..70),
        run: u64,
        places in vec(any::<(u32, u64)>(), 0..3),
    ) {
        let loops: Vec<_> = loops.into_iter().map(|(count, src)| (count, src, src)).collect();
        let mut program = program(&loops, run, &[]);
        program.nests.push(Nest { loops: smallvec![], run: 1 });
        let placed = places.into_iter();
        program.placed.extend(placed.map(|(nest, src)| Placed { nest: nest % 3, src, dst: src }));
        let memory = Memory::allocate(&[100, 100, 50]).unwrap();
        let _ = memory.check(&program, Side::Source);
        let _ = memory.check(&program, Side::Destination);
    }
}
