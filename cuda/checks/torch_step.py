"""Steps as an engine has them where it decodes, by torch, beside pieces that take the bus both ways as transfers' do."""

from . import needs
from .driver import Driver, rate
from .kernel import Traffic
from .speed import SMALL

# How long a step is to take, and how long the GPU is held before each, so that all of it is submitted by then.
STEP_MS, HELD_US = 5.0, 5000
# What a piece has.
MULTIPROCESSORS = 4
# The bus is full if pieces reach so much of what the driver's own do.
FULL = 0.8


def step(tell, small):
    """Measures a CUDA graph of matmuls and copies, with a small copy over the bus before it and one after it, alone and while the
    bus is taken."""
    torch = needs.torch()
    tell("torch", torch.__version__)
    width, steps = (256, 10) if small else (8192, 400)
    driver, stream = Driver.of_first_gpu(), torch.cuda.Stream()
    weights = torch.randn(width, width, device="cuda", dtype=torch.bfloat16)
    given, gives = (torch.randn(64, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    copied = torch.empty(width, width, device="cuda", dtype=torch.bfloat16)
    asked, answer = (torch.zeros(SMALL, dtype=torch.uint8).pin_memory() for _ in range(2))
    asked_there, answer_there = (torch.zeros(SMALL, dtype=torch.uint8, device="cuda") for _ in range(2))

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
            asked_there.copy_(asked, non_blocking=True)
            graph.replay()
            answer.copy_(answer_there, non_blocking=True)
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
    traffic = [Traffic(driver, MULTIPROCESSORS, way) for way in ("out", "back")]
    for way in traffic:
        way.start()
    beside = measure("beside pieces both ways")
    taken = round(sum(way.end() for way in traffic), 2)
    ceiling = both_ways(driver, (16 if small else 256) << 20)
    tell("one copy each way, together, GB/s", ceiling)
    tell("those pieces, both ways together, GB/s", taken)
    share = taken / ceiling
    tell("those pieces / one copy each way", round(share, 3), at_least=FULL)
    # Beside a bus that was not full it proves nothing.
    aim = {"at_most": 1.1} if share >= FULL else {}
    tell("p99 beside pieces / alone", round(beside / alone, 3), **aim)


def both_ways(driver, size):
    """Gives the GB/s of the driver's own copies of contiguous bytes, both ways at once."""
    here, there, out, back = driver.allocate(size), driver.allocate(size), driver.pinned(size), driver.pinned(size)
    first, second = driver.stream(), driver.stream()

    def both():
        driver.to_host(out, here, size, first)
        driver.to_device(there, back, size, second)
        driver.wait(second)

    return rate(driver, first, 2 * size, both)
