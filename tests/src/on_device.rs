//! Runs plans on a GPU, and checks the bytes of the destination.

use std::cell::Cell;

use serde_json::Value;
use smallvec::smallvec;
use transload_transfer::Memory;
use transload_transfer::device::{self, DeviceError, DeviceMemory, Gpu, Place};
use transload_transfer::memory::MemoryError;
use transload_transfer::memory::copy::CopyOptions;
use transload_transfer::plan::program::{ALLOCATION_BITS, Loop, Nest, Placed, Program};

use crate::chunks::Chunk;
use crate::compiled::each_bound;
use crate::oracle::{self, Address, Request};
use crate::planner::{Planner, RouteChunks};

/// Selects the sides whose caches are in the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// The source, to the host.
    Source,
    /// The destination, from the host.
    Destination,
    /// Both sides.
    Both,
}

/// A planner that copies, and finds out the source of each byte from the destination's contents.
#[derive(Debug)]
pub struct OnDevice<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// The sides on the GPU.
    pub sides: Sides,
    /// The number of programs that it has run.
    pub programs: &'a Cell<u64>,
}

/// Memory of the host or of a GPU.
enum Side {
    Host(Memory),
    Device(DeviceMemory),
}

impl Side {
    fn new(gpu: Option<&Gpu>, lens: &[usize]) -> Result<Self, DeviceError> {
        Ok(match gpu {
            Some(gpu) => Self::Device(DeviceMemory::allocate(gpu, lens)?),
            None => Self::Host(Memory::allocate(lens)?),
        })
    }

    fn place(&self) -> Place<'_> {
        match self {
            Self::Host(memory) => memory.into(),
            Self::Device(memory) => memory.into(),
        }
    }
}

/// A set of allocations of equal length.
#[derive(Clone, Copy)]
struct Shape {
    count: u64,
    len: u64,
}

impl Shape {
    fn lens(self) -> Vec<usize> {
        vec![self.len as usize; self.count as usize]
    }

    fn whole(self) -> Program {
        let step = 1 << ALLOCATION_BITS;
        let layers = Loop { count: self.count, src: step, dst: step };
        Program {
            nests: vec![Nest { loops: smallvec![layers], run: self.len }],
            placed: vec![Placed { nest: 0, src: 0, dst: 0 }],
        }
    }

    /// Returns the address of each byte. Their numbers begin with 1.
    fn addresses(self) -> impl Iterator<Item = Address> {
        (0..self.count).flat_map(move |allocation| (0..self.len).map(move |offset| Address { allocation, offset }))
    }

    fn write(self, memory: &Memory, byte: impl Fn(u64) -> u8) -> Result<(), String> {
        for allocation in 0..self.count {
            let first = 1 + allocation * self.len;
            let bytes: Vec<u8> = (first..first + self.len).map(&byte).collect();
            memory.write(allocation << ALLOCATION_BITS, &bytes).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn read(self, memory: &Memory) -> Result<Vec<u8>, String> {
        let mut all = vec![0; (self.count * self.len) as usize];
        for (allocation, bytes) in (0..).zip(all.chunks_mut(self.len as usize)) {
            memory.read(allocation << ALLOCATION_BITS, bytes).map_err(|e| e.to_string())?;
        }
        Ok(all)
    }
}

impl OnDevice<'_> {
    /// Runs a program once for each byte of the numbers of the source's bytes, and puts together which of them came to where.
    fn carry(&self, program: &Program, from: Shape, to: Shape) -> Result<Vec<Chunk>, String> {
        let text = |error: DeviceError| error.to_string();
        let memory = |shape: Shape| Memory::allocate(&shape.lens()).map_err(|error: MemoryError| error.to_string());
        let on = |side| (self.sides != side).then_some(self.gpu);
        let (before, after) = (memory(from)?, memory(to)?);
        let source = Side::new(on(Sides::Destination), &from.lens()).map_err(text)?;
        let destination = Side::new(on(Sides::Source), &to.lens()).map_err(text)?;
        let mut seen = vec![0; (to.count * to.len) as usize];
        for shift in [0, 8, 16, 24] {
            let options = CopyOptions::default();
            let copy = |program: &Program, from: Place<'_>, to: Place<'_>| {
                device::copy(program, from, to, &options).map_err(text)
            };
            from.write(&before, |number| (number >> shift) as u8)?;
            to.write(&after, |_| 0)?;
            copy(&from.whole(), (&before).into(), source.place())?;
            copy(&to.whole(), (&after).into(), destination.place())?;
            copy(program, source.place(), destination.place())?;
            copy(&to.whole(), destination.place(), (&after).into())?;
            for (byte, seen) in to.read(&after)?.into_iter().zip(&mut seen) {
                *seen |= u64::from(byte) << shift;
            }
        }
        let from: Vec<Address> = from.addresses().collect();
        let moved = to.addresses().zip(seen).filter(|(_, seen)| *seen > 0);
        let chunks = moved.map(|(dst, seen)| {
            let src = *from.get(seen as usize - 1).ok_or(format!("no byte has number {seen}"))?;
            Ok(Chunk { src, dst, len: 1 })
        });
        chunks.collect()
    }
}

impl Planner for OnDevice<'_> {
    fn chunks(&self, from: &Value, to: &Value, request: &Request) -> Result<Vec<RouteChunks>, String> {
        each_bound(from, to, request, |program, between| {
            let shape = |document, rank| {
                let (count, len) = oracle::allocations(document, rank, between.group)?;
                Ok::<_, String>(Shape { count, len })
            };
            self.programs.set(self.programs.get() + 1);
            let (src, dst) = (shape(from, between.src_rank)?, shape(to, between.dst_rank)?);
            self.carry(program, src, dst)
        })
    }
}
