"""Two processes on one GPU: how long the work of one waits while the other computes."""

import subprocess
import sys
import time

from .driver import Bad, Driver
from .walk import Gather

SPIN_US = 5_000


def slices(tell, small):
    """Measures a gather of 1 MiB from submission to its end: alone, and while another process keeps the GPU busy."""
    driver = Driver.of_first_gpu()
    stream, size = driver.stream(), 1 << 20
    source, to, gather = driver.allocate(2 * size), driver.allocate(size), Gather(driver, size, 512)

    def measure(name):
        taken = []
        for _ in range(20 if small else 400):
            began = time.perf_counter()
            gather.submit(16, source, to, stream)
            driver.wait(stream)
            taken.append(1e6 * (time.perf_counter() - began))
        taken.sort()
        for what, share in ("median", 0.5), ("p99", 0.99):
            tell(f"1 MiB, {name}: {what}, us", round(taken[int(share * len(taken))], 1))

    measure("alone")
    other = subprocess.Popen([sys.executable, sys.argv[0], "--spin"], stdout=subprocess.PIPE)
    try:
        if not other.stdout.readline():
            raise Bad("the other process does not start")
        measure(f"beside a process whose kernels take {SPIN_US} us")
    finally:
        other.kill()
        other.wait()


def spin():
    """Is the other process: keeps the GPU busy until it is killed."""
    driver = Driver.of_first_gpu()
    stream = driver.stream()
    print("spinning", flush=True)
    while True:
        for _ in range(4):
            driver.spin(SPIN_US, stream)
        driver.wait(stream)
