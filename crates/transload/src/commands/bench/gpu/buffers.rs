//! The memory on which all copies are measured, and the expected results.

use std::collections::BTreeMap;

use transload::transfer::Memory;
use transload::transfer::device::internal::measure::Meter;
use transload::transfer::device::{DeviceError, DeviceMemory, Gpu, copy};
use transload::transfer::memory::copy::{CopyOptions, copy as on_the_host};
use transload::transfer::plan::program::{Loop, Nest, Placed, Program};

use crate::commands::engines::broken;
use crate::commands::random::Random;
use crate::failure::Failure;

/// Two memories of the GPU and three of the host, with random contents.
pub(super) struct Buffers {
    pub(super) gpu: Gpu,
    pub(super) meter: Meter,
    pub(super) bytes: u64,
    /// The source, with the same random bytes as `random`.
    pub(super) source: DeviceMemory,
    random: Memory,
    pub(super) destination: DeviceMemory,
    /// The host's result of a program, followed by the result to compare with it.
    expected: Memory,
    found: Memory,
    /// The ways that failed the check and the reasons, by run length; contains each length that was checked.
    wrong: BTreeMap<u64, Vec<(Method, String)>>,
}

impl Buffers {
    pub(super) fn new(gpu: &Gpu, bytes: u64) -> Result<Self, Failure> {
        let host = || Memory::allocate(&[bytes as usize]).map_err(broken);
        let device = || DeviceMemory::allocate(gpu, &[bytes as usize]);
        let buffers = Self {
            meter: Meter::new(gpu)?,
            source: device()?,
            destination: device()?,
            random: host()?,
            expected: host()?,
            found: host()?,
            gpu: gpu.clone(),
            bytes,
            wrong: BTreeMap::new(),
        };
        fill(&buffers.random, bytes, 1)?;
        copy(&whole(bytes), &buffers.random, &buffers.source, &CopyOptions::default())?;
        Ok(buffers)
    }

    /// Returns the [program with this run length](transposing) if these ways have moved every byte of it correctly. All
    /// ways are checked the first time, and `tell` is called for each that failed.
    pub(super) fn verified(
        &mut self,
        run: u64,
        methods: &[Method],
        mut tell: impl FnMut(Method, &str),
    ) -> Result<Program, Failure> {
        let program = transposing(run, self.bytes);
        if !self.wrong.contains_key(&run) {
            let wrong = self.check(&program)?;
            wrong.iter().for_each(|(method, why)| tell(*method, why));
            self.wrong.insert(run, wrong);
        }
        let mut wrong = self.wrong[&run].iter();
        match wrong.find(|(method, _)| methods.contains(method)) {
            Some((_, why)) => Err(broken(why)),
            None => Ok(program),
        }
    }

    /// Runs a program each way. Returns the ways with a wrong result, and the reasons.
    fn check(&self, program: &Program) -> Result<Vec<(Method, String)>, Failure> {
        fill(&self.expected, self.bytes, 2)?;
        on_the_host(program, &self.random, &self.expected, &CopyOptions::default()).map_err(broken)?;
        let methods = [Method::ToHost, Method::Within, Method::Slots, Method::FromHost].into_iter();
        let wrong = methods.filter_map(|method| Some((method, self.check_method(method, program).err()?.wrong())));
        Ok(wrong.collect())
    }

    /// Runs a program over memory with a known background, and compares every byte with the host's result.
    fn check_method(&self, method: Method, program: &Program) -> Result<(), Failure> {
        let Self { source, random, destination, found, .. } = self;
        let (options, all) = (CopyOptions::default(), whole(self.bytes));
        let to_destination = |run: &dyn Fn() -> Result<(), DeviceError>| {
            copy(&all, found, destination, &options)?;
            run()?;
            copy(&all, destination, found, &options).map(drop)
        };
        fill(found, self.bytes, 2)?;
        match method {
            Method::ToHost => copy(program, source, found, &options).map(drop),
            Method::Within => to_destination(&|| copy(program, source, destination, &options).map(drop)),
            Method::Slots => to_destination(&|| {
                let copies = [(program, [source, destination])];
                self.meter.through_slots(&copies).map(drop)
            }),
            Method::FromHost => to_destination(&|| copy(program, random, destination, &options).map(drop)),
        }?;
        same(&self.expected, found, self.bytes, method.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    ToHost,
    Within,
    Slots,
    FromHost,
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ToHost => "gathered and carried to the host",
            Self::Within => "copied within the GPU",
            Self::Slots => "sent through slots of the GPU",
            Self::FromHost => "carried to the GPU and scattered",
        }
    }
}

pub(super) fn same(expected: &Memory, found: &Memory, bytes: u64, what: &str) -> Result<(), Failure> {
    let (mut right, mut read) = (vec![0; STEP], vec![0; STEP]);
    for start in (0..bytes).step_by(STEP) {
        let len = STEP.min((bytes - start) as usize);
        let (right, read) = (&mut right[..len], &mut read[..len]);
        expected.read(start, right).map_err(broken)?;
        found.read(start, read).map_err(broken)?;
        if right != read {
            return Err(broken(format!(
                "the bytes {what} differ from the host's own copy, within the MiB from byte \
                                       {start} on"
            )));
        }
    }
    Ok(())
}

const STEP: usize = 1 << 20;

pub(super) fn fill(memory: &Memory, bytes: u64, seed: u64) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    let mut step = vec![0; STEP];
    for start in (0..bytes).step_by(STEP) {
        let len = STEP.min((bytes - start) as usize);
        for word in step.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        memory.write(start, &step[..len]).map_err(broken)?;
    }
    Ok(())
}

/// Returns the program that copies this many contiguous bytes.
pub(super) fn whole(bytes: u64) -> Program {
    Program {
        nests: vec![Nest { loops: Default::default(), run: bytes }],
        placed: vec![Placed { nest: 0, src: 0, dst: 0 }],
    }
}

/// Returns a program whose runs all have one length and fill both sides: blocks scattered over the pool, in each of
/// which tokens and heads swap places, as from NHD to HND.
pub(super) fn transposing(run: u64, bytes: u64) -> Program {
    let (mut tokens, mut heads) = (16, 8);
    while run * tokens * heads > bytes && tokens > 1 {
        tokens /= 2;
    }
    while run * tokens * heads > bytes && heads > 1 {
        heads /= 2;
    }
    let block = run * tokens * heads;
    let count = (bytes / block) as u32;
    let mut random = Random::new(run);
    let (from, to) = (random.blocks(count, count), random.blocks(count, count));
    let placed = |(from, to): (u32, u32)| Placed { nest: 0, src: u64::from(from) * block, dst: u64::from(to) * block };
    let token = Loop { count: tokens, src: heads * run, dst: run };
    let head = Loop { count: heads, src: run, dst: tokens * run };
    Program {
        nests: vec![Nest { loops: [token, head].into_iter().collect(), run }],
        placed: from.into_iter().zip(to).map(placed).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_runs_have_one_length_and_fill_what_they_can() {
        for (run, bytes) in [(64, 640 << 20), (512, 1 << 20), (1 << 20, 3 << 20), (1 << 20, 640 << 20)] {
            let program = transposing(run, bytes);
            let mut longest = 0;
            program.for_each_chunk(|from, to, len| {
                assert!(from + len <= bytes && to + len <= bytes);
                longest = len.max(longest);
            });
            assert_eq!(longest, run);
            assert!(program.bytes() > bytes / 2 && program.bytes() <= bytes);
        }
    }
}
