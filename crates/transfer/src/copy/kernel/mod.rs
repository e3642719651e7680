//! What moves bytes: kernels over short lists of rows.

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

/// Chunks of one length at even distances, at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The first chunk's first byte.
    pub(crate) src: *const u8,
    pub(crate) dst: *mut u8,
    /// Bytes from one chunk to the next.
    pub(crate) src_stride: usize,
    pub(crate) dst_stride: usize,
    /// Bytes of a chunk.
    pub(crate) run: usize,
    /// How many chunks.
    pub(crate) count: usize,
}

/// Moves the first `count` of `rows`, in any order; the rest say what comes next.
pub(crate) type Move = unsafe fn(rows: &[Row], count: usize);

/// An instruction set that kernels are built for.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kernel {
    /// `memmove`, whatever it is here.
    Portable,
    /// The baseline of x86-64: 16-byte non-temporal stores and software prefetch.
    Sse2,
    /// The same with 32-byte stores.
    Avx2,
    /// The same with stores of whole cache lines.
    Avx512,
}

impl Kernel {
    /// The best one for this machine.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self::Portable)
    }

    /// All that run on this machine, the best one last.
    pub fn available() -> &'static [Self] {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            const ALL: &[Kernel] = &[Kernel::Portable, Kernel::Sse2, Kernel::Avx2, Kernel::Avx512];
            if is_x86_feature_detected!("avx512f") {
                return ALL;
            }
            if is_x86_feature_detected!("avx2") {
                return &ALL[..3];
            }
            &ALL[..2]
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        &[Kernel::Portable]
    }
}

/// Where the bytes come from and what becomes of them: this decides between the caches' ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// From memory to memory, neither used again soon: prefetch, and store around the caches.
    Through,
    /// From memory into a buffer that is used at once: prefetch, and store into the caches.
    Fetch,
    /// From a buffer that was just filled into memory: store around the caches.
    Place,
    /// Little enough to stay in the caches.
    Near,
}

/// A kernel, chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mover {
    pub(crate) function: Move,
    /// Whether it makes use of the rows beyond those that it moves.
    pub(crate) looks_ahead: bool,
}

impl Traffic {
    /// What moves rows of such traffic.
    pub(crate) fn mover(self, kernel: Kernel) -> Mover {
        Mover {
            function: self.function(kernel),
            looks_ahead: kernel != Kernel::Portable && matches!(self, Self::Through | Self::Fetch),
        }
    }

    fn function(self, kernel: Kernel) -> Move {
        #[cfg(target_arch = "x86_64")]
        match (self, kernel) {
            (_, Kernel::Portable) => portable,
            (Self::Through, Kernel::Sse2) => x86::through_sse2,
            (Self::Through, Kernel::Avx2) => x86::through_avx2,
            (Self::Through, Kernel::Avx512) => x86::through_avx512,
            (Self::Fetch, Kernel::Sse2) => x86::fetch_sse2,
            (Self::Fetch, Kernel::Avx2) => x86::fetch_avx2,
            (Self::Fetch, Kernel::Avx512) => x86::fetch_avx512,
            (Self::Place, Kernel::Sse2) => x86::place_sse2,
            (Self::Place, Kernel::Avx2) => x86::place_avx2,
            (Self::Place, Kernel::Avx512) => x86::place_avx512,
            (Self::Near, Kernel::Sse2) => x86::near_sse2,
            (Self::Near, Kernel::Avx2) => x86::near_avx2,
            (Self::Near, Kernel::Avx512) => x86::near_avx512,
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = kernel;
            portable
        }
    }
}

/// Moves chunks one by one, correct too where source and destination overlap.
unsafe fn portable(rows: &[Row], count: usize) {
    for row in &rows[..count] {
        for i in 0..row.count {
            // SAFETY: the caller vouches for both ends of each of the first `count` pieces.
            unsafe {
                std::ptr::copy(
                    row.src.add(i * row.src_stride),
                    row.dst.add(i * row.dst_stride),
                    row.run,
                )
            };
        }
    }
}

/// Waits until the non-temporal stores of this thread are ordered before its later stores.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    x86::fence();
}
