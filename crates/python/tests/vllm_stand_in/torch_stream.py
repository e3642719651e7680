"""Streams and memory of the torch that is installed, on a GPU."""

import fake_cuda
import torch

from .gpu import Stream


class TorchStream(Stream):
    """A stream that torch has made, with memory that torch has allocated: `memory`, by address."""

    def __init__(self, driver, ordinal=0):
        self.memory = {}
        super().__init__(driver, ordinal)

    def _made(self, driver, ordinal):
        # Torch first: it has the context of the GPU as its own.
        self.torch = torch.cuda.Stream(ordinal)
        driver.enter(ordinal)
        return fake_cuda.Stream(driver, self.torch.cuda_stream, ordinal)

    def allocate(self, length):
        whole = torch.empty(length, dtype=torch.uint8, device=self.torch.device)
        # Whoever had that memory before is done with it.
        torch.cuda.synchronize(self.torch.device)
        self.memory[whole.data_ptr()] = whole
        return whole.data_ptr()
