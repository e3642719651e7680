use proptest::prelude::*;

use super::case::{Arena, Case, case, noise};
use super::{oracle, program, sum};
use crate::copy::between::DEFAULT_THREADS;
use crate::copy::{CopyOptions, Crc32c, Kernel, copy};
use crate::{CheckError, Memory, Side};
use transload_plan::program::Program;

struct Trial<'a> {
    case: &'a Case,
    dst_skew: usize,
    src: Arena,
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
    sum: Crc32c,
}

impl<'a> Trial<'a> {
    fn new(case: &'a Case, src_skew: usize, dst_skew: usize) -> Self {
        let src = Arena::new(&case.src, src_skew, noise(1));
        let dst = Arena::new(&case.dst, dst_skew, noise(2));
        let (src_bytes, mut inside) = (src.inside(), dst.inside());
        let mut moved = Vec::new();
        for (from, to) in oracle::bytes(&case.program) {
            let byte = oracle::at(&src_bytes, from);
            *oracle::at_mut(&mut inside, to) = byte;
            moved.push(byte);
        }
        Self { case, dst_skew, before: src.all(), after: dst.with_inside(&inside), sum: sum(&moved), src }
    }

    fn verify(&self, options: &CopyOptions) -> Result<(), TestCaseError> {
        let dst = Arena::new(&self.case.dst, self.dst_skew, noise(2));
        let program = &self.case.program;
        let report = copy(program, &self.src.memory(), &dst.memory(), options)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(self.src.all() == self.before, "source changed: {report:?}");
        prop_assert!(dst.all() == self.after, "bytes differ: {report:?}");
        prop_assert_eq!(report.bytes, self.sum.bytes());
        prop_assert_eq!(report.checksum.unwrap_or(self.sum), self.sum);
        Ok(())
    }
}

fn every_way() -> impl Iterator<Item = CopyOptions> {
    Kernel::available().iter().flat_map(|kernel| {
        [0, u64::MAX].into_iter().flat_map(move |around_from| {
            let mut plain = CopyOptions { threads: Some(1), ..CopyOptions::default() }.with_kernel(*kernel);
            plain.tuning.around_from = around_from;
            [plain.clone(), CopyOptions { checksum: true, ..plain }]
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 100 }))]

    #[test]
    fn every_kernel_copies_what_the_program_says(
        case in case(),
        skews in (0..64usize, prop_oneof![Just(0), 0..64usize]),
    ) {
        let trial = Trial::new(&case, skews.0, skews.1);
        for options in every_way() {
            trial.verify(&options)?;
        }
    }

    #[test]
    fn threads_share_what_the_program_says(case in case(), threads in 2..5usize) {
        let trial = Trial::new(&case, 0, 0);
        for kernel in Kernel::available() {
            let mut options = CopyOptions { threads: Some(threads), ..CopyOptions::default() }.with_kernel(*kernel);
            options.bytes_per_thread = 1;
            trial.verify(&options)?;
            trial.verify(&CopyOptions { checksum: true, ..options })?;
        }
    }
}

/// Makes a small version of the canonical pair: two heads of 512 B to one, blocks of 16 tokens into blocks of 64.
fn canonical(layers: u64) -> (Program, usize, usize) {
    let (block, big) = (16 * 1024, 64 * 512);
    let loops = [(layers, 4 * block, big), (16, 1024, 512)];
    let placed = [2, 0, 3, 1].into_iter().zip(0..);
    let placed: Vec<_> = placed.map(|(from, to)| (from * block + 512, to * 16 * 512)).collect();
    let (src, dst) = (layers * 4 * block, layers * big);
    (program(&loops, 512, &placed), src as usize, dst as usize)
}

#[test]
fn a_large_copy_takes_several_threads_and_goes_around_the_caches() {
    let (program, src, dst) = canonical(if cfg!(miri) { 1 } else { 640 });
    let source = Memory::allocate(&[src]).unwrap();
    let destination = Memory::allocate(&[dst]).unwrap();
    let mut fill = noise(3);
    let bytes: Vec<u8> = (0..src).map(&mut fill).collect();
    source.write(0, &bytes).unwrap();

    let options = CopyOptions { checksum: true, ..CopyOptions::default() };
    let report = copy(&program, &source, &destination, &options).unwrap();

    let mut got = vec![0; dst];
    destination.read(0, &mut got).unwrap();
    let mut expected = vec![0; dst];
    for placed in &program.placed {
        for layer in 0..program.nests[0].loops[0].count {
            for token in 0..16 {
                let src = (placed.src + layer * 65536 + token * 1024) as usize;
                let dst = (placed.dst + layer * 32768 + token * 512) as usize;
                expected[dst..dst + 512].copy_from_slice(&bytes[src..src + 512]);
            }
        }
    }
    assert!(got == expected);
    assert_eq!(report.chunks, report.bytes / 512);
    if !cfg!(miri) {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        assert_eq!(report.threads, cores.min(2));
    }
    let one = copy(&program, &source, &destination, &CopyOptions { threads: Some(1), ..options }).unwrap();
    assert_eq!((one.threads, one.checksum), (1, report.checksum));
}

#[test]
fn one_memory_may_be_both_source_and_destination() {
    let memory = Memory::allocate(&[4096]).unwrap();
    let bytes: Vec<u8> = (0..1024).map(noise(4)).collect();
    memory.write(0, &bytes).unwrap();
    let program = program(&[], 1024, &[(0, 100)]);
    let options = CopyOptions { checksum: true, ..CopyOptions::default() };
    let report = copy(&program, &memory, &memory.clone(), &options).unwrap();
    let mut moved = vec![0; 1024];
    memory.read(100, &mut moved).unwrap();
    assert_eq!(moved, bytes);
    assert_eq!(report.kernel, "portable");
    assert_eq!(report.checksum, Some(sum(&bytes)));
}

#[test]
fn nothing_is_copied_if_anything_is_out_of_bounds() {
    let source = Memory::allocate(&[128]).unwrap();
    source.write(0, &[1; 128]).unwrap();
    let destination = Memory::allocate(&[128]).unwrap();
    let program = program(&[], 64, &[(0, 0), (64, 65)]);
    let error = copy(&program, &source, &destination, &CopyOptions::default()).unwrap_err();
    assert_eq!(
        error,
        CheckError::OutOfBounds {
            side: Side::Destination,
            place: 1,
            nest: 0,
            allocation: 0,
            start: 65,
            end: 129,
            available: 128,
        }
    );
    assert_eq!(
        error.to_string(),
        "the destination of place 1 (nest 0) needs bytes 65 to 129 of allocation 0, which has 128"
    );
    let mut untouched = [0; 128];
    destination.read(0, &mut untouched).unwrap();
    assert_eq!(untouched, [0; 128]);
}

#[test]
fn an_empty_program_copies_nothing() {
    let memory = Memory::allocate(&[]).unwrap();
    let options = CopyOptions { checksum: true, ..CopyOptions::default() };
    let report = copy(&Program::default(), &memory, &memory, &options).unwrap();
    assert_eq!((report.bytes, report.chunks, report.threads), (0, 0, 1));
    assert_eq!(report.checksum, Some(Crc32c::new()));
}

#[test]
fn a_copy_takes_few_threads_unless_it_is_told_otherwise() {
    let options = CopyOptions::default();
    assert_eq!(options.threads(u64::MAX, || 192), DEFAULT_THREADS);
    assert_eq!(options.threads(u64::MAX, || 2), 2);
    assert_eq!(CopyOptions { threads: Some(16), ..options }.threads(u64::MAX, || 2), 16);
}
