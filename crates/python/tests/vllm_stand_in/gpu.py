"""GPUs, as far as the stand-in knows of them: their memory, and streams on which work is done later than it is submitted.

Only this asks a driver for anything. It is the tests' own, or that of a GPU, for which nothing else has to be changed.
"""

import ctypes
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy

PINNED = 64 << 20
"""Bytes of pinned memory for each stream that is in use."""

_ARENAS = []
"""That of streams that are gone, each with the stream."""

@dataclass(frozen=True)
class Device:
    """As ``torch.device``."""

    type: str
    index: int | None = None

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Stream:
    """A stream of a GPU, which is one rank's; as ``torch.cuda.Stream`` to whoever asks for its handle."""

    def __init__(self, driver, ordinal=0):
        """`driver`: a `fake_cuda.Driver`, of the fake or of a GPU."""
        self._driver, self._stream, self.device = driver, self._made(driver, ordinal), Device("cuda", ordinal)
        self._handle = ctypes.c_void_p(self._stream.handle)
        module, self._spin, self._hold = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        text = Path(os.environ["CUDA_SPIN"]).read_bytes()
        driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text))
        for kernel, name in (self._spin, b"spin"), (self._hold, b"hold"):
            driver.call("cuModuleGetFunction", ctypes.byref(kernel), module, ctypes.c_char_p(name))
        self._arena, self._used = self._pinned_arena(), 0
        self._released = ctypes.c_uint32.from_address(driver.pinned(4))

    def _pinned_arena(self):
        """Pinned memory of a stream that is gone, and done with it, or more of it: to give it back a driver would wait for all
        streams."""
        arena = next((arena for arena, stream in _ARENAS if stream.is_done), None)
        if arena is None:
            pinned = ctypes.cast(self._driver.pinned(PINNED), ctypes.POINTER(ctypes.c_uint8))
            arena = numpy.ctypeslib.as_array(pinned, (PINNED,))
        else:
            _ARENAS[:] = [(other, stream) for other, stream in _ARENAS if other is not arena]
        weakref.finalize(self, _ARENAS.append, (arena, self._stream))
        return arena

    def _made(self, driver, ordinal):
        return driver.stream(ordinal)

    @property
    def cuda_stream(self):
        return self._stream.handle

    def _call(self, name, *arguments):
        self._driver.enter(self.device.index)
        self._driver.call(name, *arguments)

    def allocate(self, length):
        """The address of so many bytes."""
        return self._driver.allocate(length, self.device.index).address

    # --- what is done later ----------------------------------------------------------

    def spin(self, micros):
        """Is busy for so long."""
        self._launch(self._spin, ctypes.c_uint(micros))

    def _launch(self, kernel, parameter):
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        shape = [ctypes.c_uint(1)] * 6
        self._call("cuLaunchKernel", kernel, *shape, ctypes.c_uint(0), self._handle, arguments, None)

    def write(self, address, where, content):
        """Writes those bytes of `content`, an array, at whose indexes `where` is true."""
        edges = numpy.flatnonzero(numpy.diff(where, prepend=False, append=False)).reshape(-1, 2)
        for start, end in edges.tolist():
            pinned = self._pinned(end - start)
            pinned[:] = content[start:end]
            source = pinned.ctypes.data_as(ctypes.c_void_p)
            to, length = ctypes.c_uint64(address + start), ctypes.c_size_t(end - start)
            self._call("cuMemcpyHtoDAsync_v2", to, source, length, self._handle)

    def read(self, address, length):
        """An array that has those bytes when the stream has come there, until `reuse`."""
        pinned = self._pinned(length)
        to, length = pinned.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(length)
        self._call("cuMemcpyDtoHAsync_v2", to, ctypes.c_uint64(address), length, self._handle)
        return pinned

    def _pinned(self, length):
        """Pinned memory, without which copies are done early, and which is had before, as a driver may wait for all streams
        to allocate some."""
        start, self._used = self._used, self._used + length
        assert self._used <= len(self._arena), "reuse it more often"
        return self._arena[start : self._used]

    @property
    def room(self):
        """How many bytes may be read and written until `reuse`."""
        return len(self._arena) - self._used

    def reuse(self):
        """All that was submitted is done, and what was read has been looked at."""
        self._used = 0

    def hold(self):
        """Does nothing more before `release`, or before 5 s are over."""
        self._released.value = 0
        self._launch(self._hold, ctypes.c_uint64(ctypes.addressof(self._released)))

    def release(self):
        self._released.value = 1

    def finish(self):
        """Waits until all that was submitted is done."""
        self._stream.synchronize()
