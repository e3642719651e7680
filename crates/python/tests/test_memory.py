"""Registering memory of others, and reaching into it."""

import gc
import weakref
from types import SimpleNamespace

import numpy
import pytest
from stand_in import Storage, Tensor

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


def test_tensors_and_storages_are_registered():
    array = numpy.arange(16, dtype=numpy.float32)
    place = array.ctypes.data, array.nbytes
    for given in (Tensor(*place), Storage(*place), place):
        memory = transload.Memory([given])
        assert memory.allocations == [(array.ctypes.data, 64)]


SQUARE = numpy.zeros((8, 8), dtype=numpy.uint8)
PLACE = SQUARE.ctypes.data, SQUARE.nbytes
READ_ONLY = SQUARE.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([SQUARE[:, 1]], transload.CacheMemoryError, "not contiguous"),
        ([Tensor(*PLACE, contiguous=False)], transload.CacheMemoryError, "untyped_storage"),
        ([Tensor(*PLACE, SimpleNamespace(type="meta"))], transload.CacheMemoryError, "it is on meta"),
        ([(0, 8)], transload.CacheMemoryError, "null pointer"),
        ([numpy.array([object()])], transload.CacheMemoryError, "Python objects"),
        ([READ_ONLY], transload.CacheMemoryError, "read-only"),
        (["tensor"], TypeError, "is a str"),
        # What they would be the memory of goes at once.
        ([numpy.float32(1)], TypeError, "is a float32"),
        (SQUARE, TypeError, "give a list"),
        (Tensor(*PLACE), TypeError, "give a list"),
        ([(-1, 8)], TypeError, "."),
    ],
)
def test_what_cannot_be_registered_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        transload.Memory(given)


def test_what_is_registered_to_be_read_is_not_written():
    memory = transload.Memory([READ_ONLY], writable=False)
    with pytest.raises(transload.CacheMemoryError, match="is read-only"):
        memory.write(0, b"a")


@pytest.mark.parametrize(("offset", "length"), [(64, 1), (0, 65), (2**63, 1), (0, 2**62)])
def test_bytes_outside_are_not_reached(offset, length):
    memory = transload.Memory.allocate([64])
    with pytest.raises(transload.CacheMemoryError, match="which has 64 bytes"):
        memory.read(offset, length)
    with pytest.raises(transload.CacheMemoryError, match="which has 0 bytes"):
        memory.read(0, 1, allocation=1)
