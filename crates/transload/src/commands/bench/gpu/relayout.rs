//! Copies within the GPU: by the length of their runs, and the canonical case.

use std::time::Duration;

use transload::transfer::Memory;
use transload::transfer::device::internal::measure::{ChunkList, Meter};
use transload::transfer::device::{DeviceMemory, Gpu, copy};
use transload::transfer::memory::copy::{CopyOptions, copy as on_the_host};
use transload::transfer::plan::program::Program;

use super::Bench;
use super::buffers::{Buffers, Method, fill, same, whole};
use crate::commands::bench::case::{CANONICAL, Case};
use crate::commands::bench::copy::{bind, bytes_of_ranks};
use crate::commands::engines::broken;
use crate::commands::shapes::Llama;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

pub(super) const CASES: usize = RUNS.len() + 2;

const RUNS: [(u64, &str); 4] = [(64, "64 B"), (512, "512 B"), (8 << 10, "8 KiB"), (1 << 20, "1 MiB")];

/// The most descriptors passed to the driver at once; it takes about half a microsecond for each.
const DESCRIPTORS: usize = 1 << 18;

const ONE: &str = "one device copy";

pub(super) fn by_run(bench: &mut Bench, buffers: &mut Buffers) {
    for (run, called) in RUNS {
        let name = format!("relayout, runs of {called}");
        bench.case(&name, |bench| of_runs(bench, buffers, &name, run));
    }
}

fn of_runs(bench: &mut Bench, buffers: &mut Buffers, name: &str, run: u64) -> Result<(), Failure> {
    let program = bench.verified(buffers, run, &[Method::Within])?;
    let Buffers { meter, source, destination, .. } = &*buffers;
    let relayout = meter.prepare(&program, source, destination)?;
    let mut chunks = ChunkList::new(&program, source, destination, DESCRIPTORS)?;
    let (bytes, listed) = (program.bytes(), chunks.bytes());
    let rate = |bytes, took: Duration| gigabytes_per_second(bytes, took);
    let rounds = bench.in_turns(
        name,
        [
            &mut || Ok(rate(bytes, meter.relayout(&relayout)?.doing)),
            &mut || Ok(rate(bytes, meter.one_copy(source, destination, bytes)?.doing)),
            &mut || {
                let took = meter.chunk_copies(&mut chunks)?;
                // A user waits for the slower of submission and execution.
                Ok(rate(listed, took.doing.max(took.submitting)))
            },
        ],
    );
    bench.add(rounds.figure(name, "GB/s", ONE, [0, 1]));
    let others = format!("a descriptor a chunk ({})", chunks.copied_by());
    bench.add(rounds.figure(name, "GB/s", others, [0, 2]));
    Ok(())
}

/// Measures one route of the canonical case, alternating between several pairs of memories so that no cache helps.
pub(super) fn canonical(bench: &mut Bench, gpu: &Gpu, mib: u64) {
    let layers = (u64::from(CANONICAL.src.layers) * mib / super::FULL).clamp(1, 80) as u32;
    let name = match layers {
        80 => "canonical case, one route".to_owned(),
        layers => format!("canonical case, one route of {layers} layers"),
    };
    bench.case(&name, |bench| one_route(bench, gpu, &name, layers));
}

fn one_route(bench: &mut Bench, gpu: &Gpu, name: &str, layers: u32) -> Result<(), Failure> {
    let of = |side: Llama| Llama { layers, ..side };
    let case = Case { name: CANONICAL.name, src: of(CANONICAL.src), dst: of(CANONICAL.dst) };
    let bound = bind(case)?;
    let Some(route) = bound.routes.first() else {
        return Err(broken("the canonical case has no route"));
    };
    let program = route.program();
    let bytes =
        |side: Llama| -> Result<u64, Failure> { Ok(bytes_of_ranks(&side.deployment()?).max().unwrap_or_default()) };
    let lens = [bytes(case.src)?, bytes(case.dst)?];
    let places = check_places(gpu, &program, lens)?;
    let meter = Meter::new(gpu)?;
    let ready = places.iter().map(|[from, to]| meter.prepare(&program, from, to));
    let ready = ready.collect::<Result<Vec<_>, _>>()?;
    let us = |took: Duration| took.as_secs_f64() * 1e6;
    let (mut turn, mut other) = (0, 0);
    let next = |turn: &mut usize| {
        *turn = (*turn + 1) % places.len();
        *turn
    };
    let rounds = bench.in_turns(
        name,
        [&mut || Ok(us(meter.relayout(&ready[next(&mut turn)])?.doing)), &mut || {
            let [from, to] = &places[next(&mut other)];
            let bytes = program.bytes().min(lens[0]).min(lens[1]);
            Ok(us(meter.one_copy(from, to, bytes)?.doing))
        }],
    );
    bench.add(rounds.figure(name, "us", ONE, [0, 1]));
    Ok(())
}

/// Returns pairs of memories that exceed 1 GiB together in the full case. The program was checked in the last pair.
fn check_places(gpu: &Gpu, program: &Program, [from, to]: [u64; 2]) -> Result<Vec<[DeviceMemory; 2]>, Failure> {
    const PLACES: usize = 4;
    let device = |bytes: u64| DeviceMemory::allocate(gpu, &[bytes as usize]);
    let host = |bytes: u64| Memory::allocate(&[bytes as usize]).map_err(broken);
    let (random, expected, found) = (host(from)?, host(to)?, host(to)?);
    fill(&random, from, 3)?;
    for memory in [&expected, &found] {
        fill(memory, to, 4)?;
    }
    let options = CopyOptions::default();
    on_the_host(program, &random, &expected, &options).map_err(broken)?;
    let mut places = Vec::new();
    for _ in 0..PLACES {
        let pair = [device(from)?, device(to)?];
        copy(&whole(from), &random, &pair[0], &options)?;
        copy(&whole(to), &found, &pair[1], &options)?;
        places.push(pair);
    }
    if let Some([source, destination]) = places.last() {
        copy(program, source, destination, &options)?;
        copy(&whole(to), destination, &found, &options)?;
    }
    same(&expected, &found, to, "copied within the GPU")?;
    Ok(places)
}
