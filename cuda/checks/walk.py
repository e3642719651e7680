"""Launches of `walk.cu`, the kernel of Transload: chunks at a distance into a dense buffer, as a gather is."""

import ctypes

u32, u64 = ctypes.c_uint32, ctypes.c_uint64
LOOPS = 8


class Division(ctypes.Structure):
    """`struct division`: a number below 2^31 is divided by a multiplication and a shift."""

    _fields_ = [("divisor", u32), ("multiplier", u32), ("shift", u32)]

    @classmethod
    def by(cls, divisor):
        bits = (divisor - 1).bit_length()
        multiplier = -(-(1 << (31 + bits)) // divisor)
        return cls(divisor, 0 if divisor == 1 else multiplier, max(bits - 1, 0))


class Loop(ctypes.Structure):
    _fields_ = [("src", u64), ("dst", u64), ("count", Division), ("unused", u32)]


class Side(ctypes.Structure):
    _fields_ = [("bases", u64), ("buffer", u64)]


class Launch(ctypes.Structure):
    """`struct launch`."""

    _fields_ = [
        ("places", u64),
        ("src", Side),
        ("dst", Side),
        ("begin", u64),
        ("end", u64),
        ("first", u32),
        ("units", u32),
        ("place_units", Division),
        ("run_units", Division),
        ("reverse", u32),
        ("loops", u32),
        ("loop", Loop * LOOPS),
    ]


class Gather:
    """Copies every other chunk of `run` bytes, a multiple of 16, to a buffer: `size` bytes in one launch."""

    def __init__(self, driver, size, run):
        self.driver, self.size, self.run = driver, size, run
        self.kernel = driver.kernel("walk.ptx", "walk_16")
        # The table of places: one, at the start of both sides.
        self.places = driver.allocate(16)
        zeros = ctypes.create_string_buffer(16)
        driver("cuMemcpyHtoD_v2", self.places, zeros, 16)

    def submit(self, blocks, source, to, stream, reverse=False, threads=1024):
        """Has so many blocks of so many threads work at it. In reverse it scatters."""
        launch = Launch(
            places=self.places,
            src=Side(0, source),
            dst=Side(0, to),
            end=self.size,
            units=self.size // 16,
            place_units=Division.by(self.size // 16),
            run_units=Division.by(self.run // 16),
            reverse=reverse,
            loops=1,
        )
        launch.loop[0] = Loop(2 * self.run, self.run, Division.by(self.size // self.run), 0)
        self.driver.launch(self.kernel, blocks, threads, stream, launch)
