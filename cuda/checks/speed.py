"""How fast the machine is by itself: copies of the driver, and the driver's compilation of our kernels."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

from .driver import PACK, Bad, Driver, rate

PIECES = [1 << 20, 16 << 20]
# What an engine carries to the GPU before a step, as ids of tokens, and back after it.
SMALL = 4 << 10
# The entries of each text that an agent loads.
KERNELS = {"walk.ptx": [*(f"walk_{unit}" for unit in (1, 2, 4, 8, 16)), "stream_16", "runs_16"], "crc32c.ptx": ["fold"]}


def pieces(copy, to, source, total, piece, stream):
    """Gives what submits a copy of `total` bytes in pieces."""

    def submit():
        for at in range(0, total, piece):
            copy(to + at, source + at, piece, stream)

    return submit


def ceilings(tell, small):
    """Measures the driver's own copies: within the GPU, to the host, from it, and both ways at once."""
    driver = Driver.of_first_gpu()
    bus, within = ((32 << 20, 32 << 20) if small else (256 << 20, 1 << 30))
    here, there = driver.allocate(within), driver.allocate(within)
    out, back = driver.pinned(bus), driver.pinned(bus)
    first, second = driver.stream(), driver.stream()
    for piece in PIECES:
        name = f"{piece >> 20} MiB, GB/s"
        to_host = pieces(driver.to_host, out, here, bus, piece, first)
        to_device = pieces(driver.to_device, there, back, bus, piece, second)

        def both():
            to_host()
            to_device()
            driver.wait(second)

        tell(f"device to host, {name}", rate(driver, first, bus, to_host))
        tell(f"host to device, {name}", rate(driver, second, bus, to_device))
        tell(f"both ways, {name}", rate(driver, first, 2 * bus, both))
    behind(driver, tell, there, back, [first, second])
    # Counted once: each byte is read and written.
    for piece in [*PIECES, within]:
        inside = pieces(driver.within, there, here, within, piece, first)
        tell(f"within the GPU, {piece >> 20} MiB, GB/s", rate(driver, first, within, inside))


def behind(driver, tell, device, pinned, streams):
    """Measures how long an engine's small copy to the GPU waits for pieces that were submitted before it."""
    engine, other = streams
    small_device, small_pinned = driver.allocate(SMALL), driver.pinned(SMALL)
    for mib in 0, 4, 16, 32:
        ahead, taken = pieces(driver.to_device, device, pinned, mib << 20, 1 << 20, other), []
        for _ in range(21):
            # The first pieces would have gone by the time at which the last ones are submitted.
            with driver.held(other):
                ahead()
            began = time.perf_counter()
            driver.to_device(small_device, small_pinned, SMALL, engine)
            driver.wait(engine)
            taken.append(1e6 * (time.perf_counter() - began))
            driver.wait(other)
        tell(f"a copy of 4 KiB behind {mib} MiB in pieces, us", round(sorted(taken)[10], 1))


def compilation(tell, small):
    """Measures how long it takes until the kernels can be launched, with an empty cache of the driver and with one that has it."""
    with tempfile.TemporaryDirectory() as cache:
        for state, aim in ("cold", 1.0), ("cached", 0.05):
            command = [sys.executable, sys.argv[0], "--load-kernels"]
            environment = {**os.environ, "CUDA_CACHE_PATH": cache, "CUDA_CACHE_DISABLE": "0"}
            loaded = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
            if loaded.returncode:
                raise Bad(f"the kernels cannot be loaded: {loaded.stderr.strip()[-500:]}")
            times = json.loads(loaded.stdout)
            tell(f"the context, {state}, s", times["context"])
            tell(f"the kernels, {state}, s", times["kernels"], at_most=aim)


def load_kernels():
    """Loads every entry as an agent does, and prints how long that took in s."""
    began = time.perf_counter()
    driver = Driver.of_first_gpu()
    context = time.perf_counter()
    for text, entries in KERNELS.items():
        module = driver.handle("cuModuleLoadData", (PACK / text).read_bytes() + b"\0")
        for entry in entries:
            kernel = driver.handle("cuModuleGetFunction", module, entry.encode())
            # Zeros say that there is nothing to do; a driver may load an entry only when it is launched.
            driver.launch(kernel, 1, 1, 0, (ctypes.c_uint8 * 512)())
    driver("cuCtxSynchronize")
    loaded = time.perf_counter()
    print(json.dumps({"context": round(context - began, 4), "kernels": round(loaded - context, 4)}))
