"""Steps as an engine has them where it decodes, by torch, beside copies of Transload that take the bus both ways."""

import os
import threading
import time

from . import needs
from .driver import Driver, rate

# How long a step is to take, and how long the GPU is held before each, so that all of it is submitted by then.
STEP_MS, HELD_US = 5.0, 5000
# The bus is full if copies reach so much of what the driver's own do.
FULL = 0.8


def step(tell, small):
    """Measures a CUDA graph of matmuls and copies alone and while the bus is taken."""
    torch = needs.torch()
    needs.package()
    import transload

    tell("torch", torch.__version__)
    width, steps = (256, 10) if small else (8192, 400)
    driver, stream = Driver.of_first_gpu(), torch.cuda.Stream()
    weights = torch.randn(width, width, device="cuda", dtype=torch.bfloat16)
    given, gives = (torch.randn(64, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    copied = torch.empty(width, width, device="cuda", dtype=torch.bfloat16)

    def work(count):
        for _ in range(count):
            torch.matmul(given, weights, out=gives)
            copied[: width // 4].copy_(weights[: width // 4])

    def graph_of(count):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work(count)
        return graph

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(graph):
        driver.spin(HELD_US, stream.cuda_stream)
        with torch.cuda.stream(stream):
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    with torch.cuda.stream(stream):
        work(1)
    torch.cuda.synchronize()
    probe = graph_of(16)
    few = min(timed(probe) for _ in range(5))
    graph = graph_of(max(1, round(16 * STEP_MS / few)))

    def measure(name):
        taken = sorted(timed(graph) for _ in range(steps))
        p99 = taken[int(0.99 * steps)]
        tell(f"a step {name}: median, ms", round(taken[steps // 2], 3))
        tell(f"a step {name}: p99, ms", round(p99, 3))
        return p99

    timed(graph)
    alone = measure("alone")
    with Traffic(transload, small) as traffic:
        beside = measure("beside copies both ways")
    ceiling = both_ways(driver, (16 if small else 256) << 20)
    tell("one copy each way, together, GB/s", ceiling)
    tell("those copies, both ways together, GB/s", traffic.rate())
    share = traffic.rate() / ceiling
    tell("those copies / one copy each way", round(share, 3), at_least=FULL)
    # Beside a bus that was not full it proves nothing.
    aim = {"at_most": 1.1} if share >= FULL else {}
    tell("p99 beside copies / alone", round(beside / alone, 3), **aim)


def both_ways(driver, size):
    """Gives the GB/s of the driver's own copies of contiguous bytes, both ways at once."""
    here, there, out, back = driver.allocate(size), driver.allocate(size), driver.pinned(size), driver.pinned(size)
    first, second = driver.stream(), driver.stream()

    def both():
        driver.to_host(out, here, size, first)
        driver.to_device(there, back, size, second)
        driver.wait(second)

    return rate(driver, first, 2 * size, both)


class Traffic:
    """Copies of Transload between the GPU and the host, both ways, in runs of 512 B, for as long as a `with` of it lasts."""

    def __init__(self, transload, small, threads=None):
        self.enough, self.done, self.failed = threading.Event(), [], []
        self.threads = []
        for number in range(threads or max(2, min(16, len(os.sched_getaffinity(0)) - 4))):
            places = ["cuda:0", "cpu"] if number % 2 == 0 else ["cpu", "cuda:0"]
            route, memories = self.route(transload, places, 64 if small else 512)
            self.threads.append(threading.Thread(target=self.copy, args=(route, *memories), daemon=True))

    @staticmethod
    def route(transload, places, tokens):
        """Gives a route between two layouts in which tokens and heads change places, and a memory for each."""
        spec = {"kind": "attention", "heads": 8, "head_dim": 256, "dtype": "bf16"}
        sides = [
            transload.Deployment({
                "schema": "transload.deployment/1", "tp": 1, "block_size": 16, "num_blocks": tokens // 16, "order": order,
                "group": [{"name": "attn", "layers": "0-19", "spec": [spec]}],
            })
            for order in ("NHD", "HND")
        ]  # fmt: skip
        [route] = transload.Plan(*sides, tokens).bind([None], [None]).routes
        memories = [transload.Memory.allocate(side.groups[0].allocations(), at) for side, at in zip(sides, places)]
        return route, memories

    def copy(self, route, src, dst):
        try:
            while not self.enough.is_set():
                route.copy(src, dst)
                self.done.append(route.bytes)
        except Exception as why:
            self.failed.append(why)

    def __enter__(self):
        self.began = time.perf_counter()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.enough.set()
        for thread in self.threads:
            thread.join()
        self.took = time.perf_counter() - self.began
        if self.failed:
            raise self.failed[0]

    def rate(self):
        return round(sum(self.done) / self.took / 1e9, 2)
