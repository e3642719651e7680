"""The kernel at several sizes: how many multiprocessors hide a gather behind the bus, and what decode feels of that."""

import ctypes
import threading
import time

from .driver import Bad, Driver, bytes_at, rate
from .walk import Gather

# CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
MULTIPROCESSOR_COUNT = 16
RUNS = [16, 64, 512, 8 << 10, 1 << 20]
MULTIPROCESSORS = [4, 8, 16, 32]
# Pieces on the way to the bus: as many bytes as transfers have submitted at most, and so few pieces that Python keeps up.
PIECE, AHEAD = 2 << 20, 2


def sweep(tell, small):
    """Measures gathers within the GPU, by multiprocessors and by the length of runs, and looks at every byte of two."""
    driver = Driver.of_first_gpu()
    stream = driver.stream()
    size = (2 if small else 512) << 20
    source, to = driver.allocate(2 * size), driver.allocate(size)
    for run in 512, 8 << 10:
        proves_right(driver, source, to, stream, run)
    every = driver.attribute(MULTIPROCESSOR_COUNT)
    copy = rate(driver, stream, size, lambda: driver.within(to, source, size, stream))
    tell("the driver's copy, GB/s", copy)
    for run in RUNS[1:3] if small else RUNS:
        gather = Gather(driver, size, run)
        for count in sorted({*MULTIPROCESSORS, every}):
            reached = rate(driver, stream, size, lambda: gather.submit(count, source, to, stream), rounds=3)
            tell(f"runs of {run} B, {count} multiprocessors, GB/s", reached)


def proves_right(driver, source, to, stream, run):
    """Gathers what tells its own place, and compares."""
    size = 1 << 20
    pinned = driver.pinned(2 * size)
    cells = bytes_at(pinned, 2 * size).cast("I")
    for index in range(len(cells)):
        cells[index] = index
    expected = b"".join(bytes(cells[at : at + run // 4]) for at in range(0, len(cells), run // 2))
    driver.to_device(source, pinned, 2 * size, stream)
    Gather(driver, size, run).submit(4, source, to, stream)
    driver.to_host(pinned, to, size, stream)
    driver.wait(stream)
    if bytes(bytes_at(pinned, size)) != expected:
        raise Bad(f"the kernel gathers wrong bytes of runs of {run} B")


def decode(tell, small):
    """Measures steps of an engine, which use the whole GPU, alone and beside both ways to take runs of 512 B to the host."""
    driver = Driver.of_first_gpu()
    every = driver.attribute(MULTIPROCESSOR_COUNT)
    size, count, steps = (1 << 20, 3, 5) if small else (128 << 20, 40, 150)
    source, to = driver.allocate(2 * size), driver.allocate(size)
    work, stream = Gather(driver, size, 8 << 10), driver.stream()
    # With times of the GPU's own: Python's would have its other thread in them.
    begin, end = (driver.handle("cuEventCreate", 0) for _ in range(2))

    def step():
        driver("cuEventRecord", begin, stream)
        for _ in range(count):
            work.submit(every, source, to, stream)
        driver("cuEventRecord", end, stream)
        driver.wait(stream)
        return driver.number("cuEventElapsedTime", begin, end, kind=ctypes.c_float)

    def steps_beside(name, background):
        if background:
            background.start()
        taken = sorted(step() for _ in range(steps))
        p99 = taken[int(0.99 * len(taken))]
        for what, value in ("median", taken[len(taken) // 2]), ("p99", p99):
            tell(f"a step {name}: {what}, ms", round(value, 3))
        if background:
            tell(f"the bus {name}, GB/s", background.end())
        return p99

    step()
    alone = steps_beside("alone", None)
    for count in [16] if small else [4, 8, 16, 32]:
        steps_beside(f"beside a kernel that writes pinned memory, {count} multiprocessors", Traffic(driver, count, "written"))
        staged = steps_beside(f"beside a gather and the copy engine, {count} multiprocessors", Traffic(driver, count))
        # As many as transfers have.
        if count == 16:
            tell("p99 beside a gather and the copy engine, 16 multiprocessors / alone", round(staged / alone, 3), at_most=1.1)


class Traffic(threading.Thread):
    """Takes pieces over the bus for as long as it is let, in streams like those of transfers: gathered and then copied `out`,
    copied `back` and then scattered, or `written` to pinned memory by the kernel alone."""

    def __init__(self, driver, multiprocessors, way="out"):
        super().__init__(daemon=True)
        self.driver, self.multiprocessors, self.way = driver, multiprocessors, way
        self.chunks, priority = driver.allocate(2 * PIECE), driver.greatest_priority()
        self.slots = [(driver.stream(priority), driver.allocate(PIECE), driver.pinned(PIECE)) for _ in range(AHEAD)]
        self.gather = Gather(driver, PIECE, 512)
        self.enough, self.failed, self.done = threading.Event(), None, 0

    def submit(self, stream, dense, pinned):
        if self.way == "back":
            self.driver.to_device(dense, pinned, PIECE, stream)
            return self.gather.submit(self.multiprocessors, self.chunks, dense, stream, reverse=True)
        self.gather.submit(self.multiprocessors, self.chunks, pinned if self.way == "written" else dense, stream)
        if self.way == "out":
            self.driver.to_host(pinned, dense, PIECE, stream)

    def run(self):
        try:
            self.driver.use_context()
            self.began = time.perf_counter()
            while not self.enough.is_set():
                for slot in self.slots:
                    self.driver.wait(slot[0])
                    self.submit(*slot)
                    self.done += PIECE
            for stream, _, _ in self.slots:
                self.driver.wait(stream)
            self.took = time.perf_counter() - self.began
        except Bad as why:
            self.failed = why

    def end(self):
        """Lets it end, and gives the GB/s that it had."""
        self.enough.set()
        self.join()
        if self.failed:
            raise self.failed
        return round(self.done / self.took / 1e9, 2)
