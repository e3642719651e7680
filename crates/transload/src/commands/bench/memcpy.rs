//! The baseline of glibc's `memcpy` over as many contiguous bytes.

use memmap2::{Advice, MmapMut};

use super::schedule::timed;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

/// Two buffers whose pages are mapped, with huge pages if available, like the memory of agents.
pub(super) struct Memcpy {
    src: MmapMut,
    dst: MmapMut,
}

impl Memcpy {
    pub(super) const NAME: &'static str = "contiguous memcpy";

    pub(super) fn new(bytes: u64) -> Result<Self, Failure> {
        let buffer = |byte| -> std::io::Result<MmapMut> {
            let mut buffer = MmapMut::map_anon(bytes as usize)?;
            // Without huge pages, small ones are used.
            let _ = buffer.advise(Advice::HugePage);
            buffer.fill(byte);
            Ok(buffer)
        };
        let both = buffer(1).and_then(|src| Ok((src, buffer(2)?)));
        let (src, dst) = both.map_err(|error| {
            Failure::no(
                format!("cannot allocate memory for the baseline: {error}"),
                "the baseline needs as much \
                                                                                      memory as the case itself",
            )
        })?;
        Ok(Self { src, dst })
    }

    /// Copies this many bytes once and returns the rate in GB/s.
    pub(super) fn copy(&mut self, bytes: u64) -> f64 {
        let Self { src, dst } = self;
        let len = src.len().min(bytes as usize);
        let ((), time) = timed(|| dst[..len].copy_from_slice(&src[..len]));
        std::hint::black_box(&dst[0]);
        gigabytes_per_second(len as u64, time)
    }
}
