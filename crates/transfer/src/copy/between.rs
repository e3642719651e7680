//! Copies between two memories.

use std::num::NonZeroUsize;
use thiserror::Error;

use super::checksum::Crc32c;
use super::kernel::{self, Kernel, Traffic};
use super::walk::{Dense, Destination, Source, Walk, run};
use crate::memory::{CheckError, Memory, Side};
use crate::plan::program::Program;

/// o
#[derive(Clone, Debug, Default)]
pub struct CopyOptions {
    /// t
    pub threads: Option<NonZeroUsize>,
    /// c
    pub checksum: bool,
    /// k
    #[doc(hidden)]
    pub kernel: Option<Kernel>,
    /// t
    #[doc(hidden)]
    pub near: bool,
    /// t
    #[doc(hidden)]
    pub staging: usize,
}
/// r
#[derive(Clone, Debug)]
pub struct CopyReport {
    /// b
    pub bytes: u64,
    /// c
    pub checksum: Option<Crc32c>,
}
/// e
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyError {
    /// c
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// c
pub fn copy(
    program: &Program,
    src: &Memory,
    dst: &Memory,
    options: &CopyOptions,
) -> Result<CopyReport, CopyError> {
    src.check(program, Side::Source)?;
    dst.check(program, Side::Destination)?;
    let bytes = program.bytes();
    let kernel = options.kernel.unwrap_or_else(Kernel::detect);
    let mut walk = Walk::at_place(program, 0, 0);
    if options.checksum || options.staging > 0 {
        let n = if options.staging == 0 {
            16384
        } else {
            options.staging
        };
        let mut staging = vec![0u8; n + 64];
        let off = staging.as_ptr().align_offset(64);
        let staging = &mut staging[off..off + n];
        let mut sum = Crc32c::new();
        let mut at = 0;
        let mut back = walk.clone();
        let f = Traffic::Fetch.mover(kernel);
        let p = if options.near {
            Traffic::Near
        } else {
            Traffic::Place
        }
        .mover(kernel);
        while at < bytes {
            let len = (bytes - at).min(n as u64);
            let dense = Dense {
                start: staging.as_mut_ptr(),
                position: at,
            };
            unsafe {
                run(
                    program,
                    &mut walk,
                    (&Source(src), &dense),
                    (at + len, bytes),
                    f,
                );
            }
            if options.checksum {
                sum.update(&staging[..len as usize]);
            }
            unsafe {
                run(
                    program,
                    &mut back,
                    (&dense, &Destination(dst)),
                    (at + len, bytes),
                    p,
                );
            }
            at += len;
        }
        kernel::fence();
        return Ok(CopyReport {
            bytes,
            checksum: Some(sum),
        });
    }
    let traffic = if options.near {
        Traffic::Near
    } else {
        Traffic::Through
    };
    unsafe {
        run(
            program,
            &mut walk,
            (&Source(src), &Destination(dst)),
            (bytes, bytes),
            traffic.mover(kernel),
        );
    }
    kernel::fence();
    Ok(CopyReport {
        bytes,
        checksum: None,
    })
}
