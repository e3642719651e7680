"""What others do: torch's `copy_` of strided tensors, beside the kernel with as many multiprocessors as there are."""

import time

from . import needs
from .driver import Bad, Driver
from .kernel import MULTIPROCESSOR_COUNT
from .walk import Gather

RUNS = [64, 512, 8 << 10, 1 << 20]


def strided_copy(tell, small):
    """Measures the same relayout within the GPU by both, in turns, and compares their bytes."""
    torch = needs.torch()
    tell("torch", torch.__version__)
    size = (4 if small else 512) << 20
    source = torch.randint(0, 256, (2 * size,), dtype=torch.uint8, device="cuda")
    theirs, ours = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    # The context that torch uses, too.
    driver = Driver.of_first_gpu()
    every, stream = driver.attribute(MULTIPROCESSOR_COUNT), driver.stream()

    def timed(submit):
        torch.cuda.synchronize()
        began = time.perf_counter()
        submit()
        torch.cuda.synchronize()
        return size / (time.perf_counter() - began) / 1e9

    for run in RUNS:
        chunks = source.view(-1, 2, run)[:, 0]
        gather = Gather(driver, size, run)
        rates = []
        for _ in range(7):
            copied = timed(lambda: theirs.view(-1, run).copy_(chunks))
            walked = timed(lambda: gather.submit(every, source.data_ptr(), ours.data_ptr(), stream))
            rates.append((walked / copied, walked, copied))
        if not torch.equal(theirs, ours):
            raise Bad(f"torch and the kernel differ at runs of {run} B")
        ratio, walked, copied = sorted(rates)[len(rates) // 2]
        tell(f"runs of {run} B: the kernel, GB/s", round(walked, 1))
        tell(f"runs of {run} B: copy_, GB/s", round(copied, 1))
        tell(f"runs of {run} B: the kernel / copy_", round(ratio, 3))
