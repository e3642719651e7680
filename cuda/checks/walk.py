"""Launches of `walk.cu`, the kernel of Transload: chunks at a distance into a dense buffer, as a gather is."""

import ctypes

u32, u64 = ctypes.c_uint32, ctypes.c_uint64
THREADS, BLOCKS_PER_MULTIPROCESSOR = 256, 4
LOOPS = 8


class Division(ctypes.Structure):
    """`struct division`: a number below 2^31 is divided by a multiplication and a shift."""

    _fields_ = [("divisor", u32), ("multiplier", u32), ("shift", u32)]

    @classmethod
    def by(cls, divisor):
        shift = (divisor - 1).bit_length()
        return cls(divisor, -(-(1 << (31 + shift)) // divisor), shift)


class Loop(ctypes.Structure):
    _fields_ = [("src", u64), ("dst", u64), ("inner", Division), ("unused", u32)]


class Launch(ctypes.Structure):
    """`struct launch`."""

    _fields_ = [
        ("places", u64),
        ("src_bases", u64),
        ("dst_bases", u64),
        ("dst_buffer", u64),
        ("edges", u64 * 2),
        ("first", u32),
        ("count", u32),
        ("place", Division),
        ("reverse", u32),
        ("loops", u32),
        ("run", u32),
        ("skip", u32),
        ("stop", u32),
        ("loop", Loop * LOOPS),
    ]


class Gather:
    """Copies every other chunk of `run` bytes, a multiple of 16, to a buffer: `size` bytes in one launch. Long runs are multiples of 2 KiB."""

    def __init__(self, driver, size, run):
        self.driver, self.size, self.run = driver, size, run
        # What a thread, or a warp, takes at a time.
        self.step = 2048 if run >= 2048 else 16
        self.kernel = driver.kernel("walk.ptx", "runs_16" if run >= 2048 else "stream_16")
        # The table of places, of which there is one, at the start of both sides; and behind it that of the source's base.
        self.tables, self.source = driver.allocate(24), None

    def submit(self, multiprocessors, source, to, stream, reverse=False):
        """Has so many multiprocessors work at it. In reverse it scatters."""
        if source != self.source:
            self.driver("cuMemcpyHtoD_v2", self.tables, (u64 * 3)(0, 0, source), 24)
            # A short copy may return before it is done.
            self.driver("cuCtxSynchronize")
            self.source = source
        launch = Launch(
            places=self.tables,
            src_bases=self.tables + 16,
            dst_buffer=to,
            count=self.size // self.step,
            place=Division.by(self.size // self.step),
            reverse=reverse,
            loops=1,
            run=self.run // 16,
            stop=128,
        )
        # From one chunk to the next there is as much again in the source.
        launch.loop[0] = Loop(self.run, 0, Division.by(self.run // self.step), 0)
        self.driver.launch(self.kernel, multiprocessors * BLOCKS_PER_MULTIPROCESSOR, THREADS, stream, launch)
