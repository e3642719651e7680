"""Hardware queues: whether streams of ours wait behind what an engine has queued on streams of its own."""

import time

from .driver import Driver
from .walk import Gather

# As many streams as an engine may have; a GPU has 8 to 32 queues for them.
STREAMS = 64
OURS = 8
# How long one of them is busy: with short kernels, each of which waits for the one before.
KERNELS, KERNEL_US = 20, 500


def queues(tell, small):
    """Measures gathers on each of our streams, of the normal priority and of the greatest, while one stream of an engine is
    busy, which is another one in each turn."""
    driver, size = Driver.of_first_gpu(), (4 << 10) if small else (1 << 20)
    source, to, gather = driver.allocate(2 * size), driver.allocate(size), Gather(driver, size, 512)
    engine = [driver.stream() for _ in range(STREAMS)]
    # The first gather uploads its table, and waits for all streams.
    gather.submit(4, source, to, engine[0])
    driver.wait(engine[0])
    for name, priority in ("normal", 0), ("greatest", driver.greatest_priority()):
        ours, taken, late = [driver.stream(priority) for _ in range(OURS)], [], 0
        for busy in engine[:: 32 if small else 7]:
            for stream in ours:
                for _ in range(KERNELS):
                    driver.spin(KERNEL_US, busy)
                began = time.perf_counter()
                gather.submit(4, source, to, stream)
                driver.wait(stream)
                taken.append(1e6 * (time.perf_counter() - began))
                late += taken[-1] > KERNELS * KERNEL_US / 2
                driver.wait(busy)
        tell(f"streams of the {name} priority: gathers that waited for the engine's", f"{late} of {len(taken)}")
        tell(f"streams of the {name} priority: a gather of {size >> 10} KiB, median, us", round(sorted(taken)[len(taken) // 2], 1))
