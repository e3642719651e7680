"""The fake CUDA driver (`tests/fake-cuda`), for tests that need a GPU.

A process has one driver, and it is found once. So a test that is decorated with `on_gpu` runs in a process of its own that has
loaded the fake first; tests that need none never meet it:

    @on_gpu()
    def test_a_cache_is_registered(driver, certs):
        cache = driver.allocate(4096)
        ...

What it is given but the driver are fixtures and parameters, which go there as JSON.
"""

import ctypes
import importlib
import inspect
import json
import os
import subprocess
import sys
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import pytest
from transload import Mark

HERE = Path(__file__).parent

# What a device address is ahead of the same byte's address in this process: `OFFSET` in `tests/fake-cuda/src/memory.rs`.
OFFSET = 1 << 48


def build() -> str:
    """Builds the driver, and returns its file."""
    command = [os.environ.get("CARGO", "cargo"), "build", "-q", "--locked", "-p", "transload-fake-cuda"]
    done = subprocess.run([*command, "--message-format", "json"], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr}"
    for line in done.stdout.splitlines():
        for name in json.loads(line).get("filenames", ()):
            if Path(name).name == "libfake_cuda.so":
                return name
    raise AssertionError("cargo build made no libfake_cuda.so")


@pytest.fixture(scope="session")
def fake_driver() -> str:
    return build()


def on_gpu(**variables):
    """Has a test run in a process with this driver, and with these environment variables: `on_gpu(FAKE_CUDA_DEVICES=2)`."""

    def decorate(body):
        def test(fake_driver, **given):
            arguments = json.dumps({name: str(each) if isinstance(each, Path) else each for name, each in given.items()})
            command = [sys.executable, __file__, fake_driver, body.__module__, body.__name__, arguments]
            environment = os.environ | {name: str(value) for name, value in variables.items()}
            done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"

        _, *given = inspect.signature(body).parameters.values()
        test.__signature__ = inspect.Signature([inspect.Parameter("fake_driver", inspect.Parameter.POSITIONAL_OR_KEYWORD), *given])
        test.__name__, test.__module__, test.__doc__, test.body = body.__name__, body.__module__, body.__doc__, body
        return test

    return decorate


class Driver:
    """The driver as an engine uses it, beside Transload: in the primary contexts of the devices."""

    def __init__(self, library: str):
        self._library = ctypes.CDLL(library)
        self.call("cuInit", c_uint32(0))

    def call(self, name: str, *arguments):
        """Calls a function that has to succeed."""
        code = self.code(name, *arguments)
        assert code == 0, f"{name} gives {code}"

    def code(self, name: str, *arguments) -> int:
        """Calls a function, and returns its code."""
        return getattr(self._library, name)(*arguments)

    @property
    def is_fake(self) -> bool:
        """Whether it can be told to fail or to hold a stream."""
        return hasattr(self._library, "fake_cuda_fail")

    @property
    def devices(self) -> int:
        """How many there are."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def enter(self, device: int = 0):
        """Makes the context of a device the current one of this thread."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
        self.call("cuCtxSetCurrent", context)

    def allocate(self, length: int, device: int = 0) -> "Array":
        """Memory of a device, of zeros."""
        self.enter(device)
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(length))
        return Array(address.value, length)

    def free(self, array: "Array"):
        self.call("cuMemFree_v2", c_uint64(array.address))

    def pinned(self, length: int) -> int:
        """The address of host memory that copies need not stage."""
        address = c_void_p()
        self.call("cuMemHostAlloc", byref(address), c_size_t(length), c_uint32(0))
        return address.value

    def managed(self, length: int) -> int:
        """The address of memory that moves between host and device."""
        address = c_uint64()
        self.call("cuMemAllocManaged", byref(address), c_size_t(length), c_uint32(1))
        return address.value

    def stream(self, device: int = 0) -> "Stream":
        self.enter(device)
        handle = c_void_p()
        self.call("cuStreamCreate", byref(handle), c_uint32(1))
        return Stream(self, handle.value, device)

    def fail(self, name: str, nth: int, code: int):
        """Has the nth next call of a function fail with that code."""
        self._library.fake_cuda_fail(name.encode(), c_uint32(nth), c_uint32(code))

    def calls(self, name: str) -> int:
        """How often a function was called."""
        self._library.fake_cuda_calls.restype = c_uint64
        return self._library.fake_cuda_calls(name.encode())

    def hold(self, handle: int, on: bool):
        """Keeps a stream from going on to its next operation, or lets it."""
        self._library.fake_cuda_hold_stream(c_size_t(handle), c_uint32(on))

    def hang(self, on: bool):
        """Keeps all streams from that, or lets them."""
        self._library.fake_cuda_hold(c_uint32(on))


class Array:
    """Bytes in the memory of a device, as other libraries hand them over. Whoever knows the fake reads and writes them in
    place, whatever streams have still to do."""

    def __init__(self, address: int, length: int, **more):
        self.address, self.nbytes = address, length
        self.__cuda_array_interface__ = {
            "shape": (length,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3,
        } | more

    @property
    def content(self) -> bytes:
        return ctypes.string_at(self.address - OFFSET, self.nbytes)

    @content.setter
    def content(self, data: bytes):
        assert len(data) == self.nbytes
        ctypes.memmove(self.address - OFFSET, data, self.nbytes)


class Stream:
    """A stream of an engine. What it is given is done in order, and not before `release` where it was held."""

    def __init__(self, driver: Driver, handle: int, device: int):
        self.driver, self.handle, self.index = driver, handle, device
        self._pin(1 << 24)

    def _pin(self, length: int):
        self._next, self._pinned = self.driver.pinned(length), length

    def _host(self, length: int) -> int:
        """The address of pinned memory, out of what was pinned before: a driver may let pinning wait for a stream that is held."""
        if length > self._pinned:
            self._pin(length)
        address = self._next
        self._next, self._pinned = address + length, self._pinned - length
        return address

    def __cuda_stream__(self):
        return 0, self.handle

    def hold(self):
        # The first mark makes Transload allocate memory on the GPU. Later, that could wait for the stream that is held.
        Mark(self)
        self.driver.hold(self.handle, True)

    def release(self):
        self.driver.hold(self.handle, False)

    def write(self, array: Array, data: bytes):
        """Has bytes written, later."""
        self.driver.enter(self.index)
        address = self._host(len(data))
        ctypes.memmove(address, data, len(data))
        self.driver.call(
            "cuMemcpyHtoDAsync_v2", c_uint64(array.address), c_void_p(address), c_size_t(len(data)), c_void_p(self.handle)
        )

    def read(self, array: Array):
        """Has all bytes read, later. What is returned tells them when that is done."""
        self.driver.enter(self.index)
        address = self._host(array.nbytes)
        self.driver.call(
            "cuMemcpyDtoHAsync_v2", c_void_p(address), c_uint64(array.address), c_size_t(array.nbytes), c_void_p(self.handle)
        )
        return lambda: ctypes.string_at(address, array.nbytes)

    @property
    def is_done(self) -> bool:
        """Whether all that it was given is done."""
        self.driver.enter(self.index)
        return self.driver.code("cuStreamQuery", c_void_p(self.handle)) == 0

    def synchronize(self):
        self.driver.enter(self.index)
        self.driver.call("cuStreamSynchronize", c_void_p(self.handle))

    def destroy(self):
        self.driver.enter(self.index)
        self.driver.call("cuStreamDestroy_v2", c_void_p(self.handle))


class Device:
    """What Transload asks of a `torch.device`."""

    def __init__(self, type, index):
        self.type, self.index = type, index

    def __str__(self):
        return f"{self.type}:{self.index}"


def main(library: str, module: str, body: str, arguments: str):
    # Whoever asks for the driver by its name gets the library that is there.
    driver = Driver(library)
    getattr(importlib.import_module(module), body).body(driver, **json.loads(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
