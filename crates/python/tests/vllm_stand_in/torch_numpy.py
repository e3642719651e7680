"""Stands for `torch`: as much of it as the connector asks of a tensor, over numpy arrays.

With `STAND_IN_TORCH` in the environment the connector has the torch that is installed, and is given tensors and streams of that,
behind which are the same bytes.
"""

import os
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace

import numpy

from .gpu import Device


torch = None
"""The one that is installed, if it is wanted."""
if os.environ.get("STAND_IN_TORCH"):
    import torch


@dataclass(frozen=True)
class dtype:
    name: str
    itemsize: int

    def __str__(self):
        return f"torch.{self.name}"


float32, float16, bfloat16 = dtype("float32", 4), dtype("float16", 2), dtype("bfloat16", 2)
float8_e4m3fn, float8_e5m2 = dtype("float8_e4m3fn", 1), dtype("float8_e5m2", 1)
uint8, int8, float64 = dtype("uint8", 1), dtype("int8", 1), dtype("float64", 8)
if torch:
    float32, float16, bfloat16, float64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
    float8_e4m3fn, float8_e5m2, uint8, int8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8

distributed = SimpleNamespace(all_gather_object=lambda found, own, group: group.gather(found, own))

UNSIGNED = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}
"""Elements are compared bit by bit, so numbers of the same size will do for all of them."""


cuda = SimpleNamespace(stream=None, current_stream=lambda device: cuda.stream)
"""`stream` is the one that the thread that calls the connector is on."""


def set_stream(stream):
    """What this thread submits from now on goes there."""
    cuda.stream = stream
    if torch:
        torch.cuda.set_stream(stream.torch)


class Storage:
    """The bytes behind tensors; as in torch, every question makes another object of it."""

    def __init__(self, array):
        self.array = array
        self.device = Device("cpu")

    def data_ptr(self):
        return self.array.ctypes.data

    def nbytes(self):
        return self.array.nbytes

    def whole(self):
        """Its bytes as the torch that is installed has them: an engine's own, and not somebody's that could be resized."""
        whole = torch.from_numpy(self.array)
        whole.untyped_storage()._transload_held = self
        return whole


class StorageOnGpu(Storage):
    """Bytes in the memory of a GPU. What is to be written there is computed in `array`."""

    def __init__(self, array, stream):
        super().__init__(array)
        self.device, self._stream, self._address = stream.device, stream, stream.allocate(array.nbytes)

    def data_ptr(self):
        return self._address

    def whole(self):
        return self._stream.memory[self._address]

    def write(self, where, content):
        """Submits a write of those bytes of `content` at whose indexes `where` is true."""
        self._stream.write(self._address, where, content)

    def read(self):
        """Submits a read of all."""
        return self._stream.read(self._address, self.nbytes())


def submit(storages, work):
    """Submits a write of all bytes that `work` computes in the arrays of these storages."""
    computed = []
    # What comes to the same whatever was there before is what has been computed.
    for before in 0, 0xFF:
        for storage in storages:
            storage.array[:] = before
        work()
        computed.append([storage.array.copy() for storage in storages])
    for storage, after_zeros, after_ones in zip(storages, *computed):
        storage.write(after_zeros == after_ones, after_zeros)


class Tensor:
    """A view of a storage, with strides that count elements."""

    def __init__(self, storage, dtype, shape, strides, offset=0):
        """`strides` and `offset` are in bytes here."""
        self._storage, self._offset, self._strides = storage, offset, strides
        self.dtype, self.shape, self.device = dtype, tuple(shape), storage.device

    def set_(self, storage, offset, shape):
        assert self.dtype.itemsize == 1
        return Tensor(storage, self.dtype, shape, (1,), offset)

    def __getitem__(self, index):
        if isinstance(index, slice):
            chosen = range(self.shape[0])[index]
            assert chosen.step == 1
            offset = self._offset + chosen.start * self._strides[0]
            return Tensor(self._storage, self.dtype, (len(chosen), *self.shape[1:]), self._strides, offset)
        offset = self._offset + index * self._strides[0]
        return Tensor(self._storage, self.dtype, self.shape[1:], self._strides[1:], offset)

    def zero_(self):
        if self.device.type == "cpu":
            self.numpy()[...] = 0
        else:
            submit([self._storage], lambda: self.numpy().fill(0))

    def as_strided(self, shape, strides):
        return Tensor(self._storage, self.dtype, shape, tuple(stride * self.dtype.itemsize for stride in strides), self._offset)

    def untyped_storage(self):
        return copy(self._storage)

    def data_ptr(self):
        return self._storage.data_ptr() + self._offset

    def element_size(self):
        return self.dtype.itemsize

    def numel(self):
        return int(numpy.prod(self.shape))

    def stride(self, axis=None):
        strides = tuple(stride // self.dtype.itemsize for stride in self._strides)
        return strides if axis is None else strides[axis]

    def is_contiguous(self):
        dense = self.dtype.itemsize
        for extent, stride in reversed(list(zip(self.shape, self._strides))):
            if extent > 1 and stride != dense:
                return False
            dense *= extent
        return True

    def cpu(self):
        return self

    def contiguous(self):
        assert self.is_contiguous()
        return self

    def view(self, dtype):
        assert dtype.itemsize == 1
        size = self.dtype.itemsize
        return Tensor(self._storage, dtype, (*self.shape[:-1], self.shape[-1] * size), (*self._strides[:-1], 1))

    def numpy(self):
        kind = UNSIGNED[self.dtype.itemsize]
        return numpy.ndarray(self.shape, kind, self._storage.array, self._offset, self._strides)


def registered(tensor):
    """What the connector is given for a tensor."""
    if not torch:
        return tensor
    whole = tensor._storage.whole()
    empty = torch.empty(0, dtype=tensor.dtype, device=whole.device)
    return empty.set_(whole.untyped_storage(), tensor._offset // tensor.element_size(), tensor.shape, tensor.stride())


def from_numpy(array, dtype):
    return Tensor(Storage(array.view(numpy.uint8).reshape(-1)), dtype, array.shape, array.strides)


def empty(count, dtype, device):
    return Tensor(Storage(numpy.zeros(count, numpy.uint8)), dtype, (count,), (dtype.itemsize,))
