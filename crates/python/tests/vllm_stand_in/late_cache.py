"""The cache of a rank whose steps are submitted to a GPU, which does them later."""

import random
from functools import partial

import numpy

from . import torch_numpy as torch
from .cache import Cache


class LateCache(Cache):
    """One in the memory of a GPU. What a step reads is looked at when the GPU has come there: see `wrong`."""

    # As the model runner of vLLM 0.33 does (vllm/v1/worker/gpu/model_runner.py).
    moves_states = True

    def __init__(self, groups, *, stream, **shape):
        self.stream = stream
        self.lateness = range(20_000)
        """Microseconds that a step waits before it computes, one of these."""
        self.wrong, self._looks, self._random = [], [], random.Random(shape["rank"])
        super().__init__(groups, storage=partial(torch.StorageOnGpu, stream=stream), **shape)
        self._size = sum(storage.nbytes() for storage in self.storages)
        self.restore([storage.array for storage in self.storages])

    def begin_step(self):
        torch.set_stream(self.stream)

    def be_busy(self, work):
        if work:
            self.stream.spin(self._random.choice(self.lateness))

    def write(self, group, table, tokens, start, end):
        self._submit(partial(super().write, group, table, tokens.copy(), start, end))

    def clear(self, group, table, start, end):
        self._submit(partial(super().clear, group, table, start, end))

    def _submit(self, work):
        self._make_room()
        torch.submit(self.storages, work)

    def assert_seen(self, group, table, tokens, start):
        if start:
            self._make_room()
            read = [storage.read() for storage in self.storages]
            self._looks.append((read, partial(super().assert_seen, group, table, tokens.copy(), start)))

    def _make_room(self):
        if self.stream.room < 2 * self._size:
            self.finish()

    def finish(self):
        """Waits for all that was submitted, and looks at what was read."""
        self.stream.finish()
        looks, self._looks = self._looks, []
        for read, look in looks:
            for storage, found in zip(self.storages, read):
                storage.array[:] = found
            try:
                look()
            except AssertionError as error:
                self.wrong.append(str(error))
        self.stream.reuse()

    def bytes(self):
        self.finish()
        read = [storage.read() for storage in self.storages]
        self.stream.finish()
        return [found.copy() for found in read]

    def restore(self, bytes):
        self.finish()
        for storage, old in zip(self.storages, bytes):
            storage.write(numpy.ones(len(old), bool), old)
        self.finish()
