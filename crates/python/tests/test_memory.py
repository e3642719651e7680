"""Registering memory of others, and reaching into it."""

import gc
import weakref

import numpy
import pytest

import transload


def test_an_array_is_registered_in_place():
    array = numpy.arange(64, dtype=numpy.uint8)
    memory = transload.Memory([array])
    assert memory.allocations == [(array.ctypes.data, 64)]
    assert memory.read(10, 3) == bytes([10, 11, 12])
    memory.write(62, b"ab")
    assert array[62:].tobytes() == b"ab"


def test_what_is_registered_is_kept_alive():
    class Owner(numpy.ndarray):
        pass

    array = numpy.zeros(64, dtype=numpy.uint8).view(Owner)
    alive = weakref.ref(array)
    memory = transload.Memory([array])
    del array
    gc.collect()
    assert alive() is not None
    del memory
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("view", [lambda array: array, lambda array: array[16:], lambda array: array[1:][1:]])
def test_what_is_registered_is_not_resized(view):
    array = numpy.zeros(64, dtype=numpy.uint8)
    memory = transload.Memory([view(array)])
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(1 << 24, refcheck=False)
    assert memory.read(0, 48) == bytes(48)
    del memory
    array.resize(1 << 24, refcheck=False)


def test_a_buffer_that_is_registered_is_not_resized():
    buffer = bytearray(64)
    memory = transload.Memory([numpy.frombuffer(buffer, dtype=numpy.uint8)])
    with pytest.raises(BufferError):
        buffer.extend(bytes(1 << 24))
    memory.write(0, b"a")
    assert buffer[0] == ord("a")


class Tensor:
    """What this package asks of a torch tensor."""

    def __init__(self, array, device="cpu", contiguous=True):
        self.array, self.contiguous = array, contiguous
        self.device = type("device", (), {"type": device})()

    def data_ptr(self):
        return self.array.ctypes.data

    def is_contiguous(self):
        return self.contiguous

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize


class Storage:
    """And of its storage."""

    def __init__(self, array):
        self.array = array
        self.device = type("device", (), {"type": "cpu"})()

    def data_ptr(self):
        return self.array.ctypes.data

    def nbytes(self):
        return self.array.nbytes


def test_tensors_and_storages_are_registered():
    array = numpy.arange(16, dtype=numpy.float32)
    for given in (Tensor(array), Storage(array), (array.ctypes.data, array.nbytes)):
        memory = transload.Memory([given])
        assert memory.allocations == [(array.ctypes.data, 64)]


def test_what_cannot_be_registered_is_refused():
    array = numpy.zeros((8, 8), dtype=numpy.uint8)
    for given, message in [
        (array[:, 1], "not contiguous"),
        (Tensor(array, contiguous=False), "untyped_storage"),
        (Tensor(array, device="meta"), "it is on meta"),
        ((0, 8), "null pointer"),
        (numpy.array([object()]), "Python objects"),
    ]:
        with pytest.raises(transload.CacheMemoryError, match=message):
            transload.Memory([given])
    array.flags.writeable = False
    with pytest.raises(transload.CacheMemoryError, match="read-only"):
        transload.Memory([array])
    with pytest.raises(TypeError, match="is a str"):
        transload.Memory(["tensor"])
    # What they would be the memory of goes at once.
    with pytest.raises(TypeError, match="is a float32"):
        transload.Memory([numpy.float32(1)])
    for alone in (array, Tensor(array)):
        with pytest.raises(TypeError, match="give a list"):
            transload.Memory(alone)
    with pytest.raises(TypeError):
        transload.Memory([(-1, 8)])
    memory = transload.Memory([array], writable=False)
    with pytest.raises(transload.CacheMemoryError, match="may only be read"):
        memory.write(0, b"a")


@pytest.mark.parametrize(("offset", "length"), [(64, 1), (0, 65), (2**63, 1), (0, 2**62)])
def test_bytes_outside_are_not_reached(offset, length):
    memory = transload.Memory.allocate([64])
    with pytest.raises(transload.CacheMemoryError, match="which has 64 bytes"):
        memory.read(offset, length)
    with pytest.raises(transload.CacheMemoryError, match="which has 0 bytes"):
        memory.read(0, 1, allocation=1)
