"""The CUDA driver of this machine, called through ctypes: what the checks ask of a GPU themselves."""

import contextlib
import ctypes
import functools
import pathlib
import time

PACK = pathlib.Path(__file__).resolve().parent.parent
# What the driver is called wherever it is installed.
LIBRARY = "libcuda.so.1"
# CU_STREAM_NON_BLOCKING: nothing waits for the stream of everybody.
NON_BLOCKING = 1
# CUDA_ERROR_*.
NOT_PERMITTED, NOT_SUPPORTED = 800, 801


class NotRun(Exception):
    """A check cannot be made here; it says why."""


class Bad(Exception):
    """A check has found something that is not as it should be; it says what."""


class Refused(Bad):
    """The driver has answered a call with an error."""

    def __init__(self, call, code, name):
        super().__init__(f"{call} gives {name}")
        self.code = code


@contextlib.contextmanager
def may_be_missing():
    """Within it are calls for what a machine or its container may not have: where the driver says so they cannot be checked."""
    try:
        yield
    except Refused as why:
        if why.code not in (NOT_PERMITTED, NOT_SUPPORTED):
            raise
        raise NotRun(str(why)) from None


class Driver:
    """The driver, and the context of the first GPU. Addresses and handles are numbers."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NotRun(f"no CUDA here: {error}") from None
        started = self.library.cuInit(0)
        if started:
            raise NotRun(f"no CUDA here: cuInit gives {self.name_of(started)}")
        count = self.number("cuDeviceGetCount")
        if count == 0:
            raise NotRun("no CUDA here: the driver knows no device")
        self.devices = count
        self.kernels = {}

    @classmethod
    def of_first_gpu(cls):
        """Gives the driver with the context that all share who use the first GPU in a process. It goes with the process."""
        driver = cls()
        driver.context = driver.handle("cuDevicePrimaryCtxRetain", 0)
        driver.use_context()
        return driver

    def use_context(self):
        """Makes the context this thread's own."""
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name, *arguments):
        """Calls a function, which has to succeed. Numbers are passed as 64 bits, which every shorter one is part of."""
        words = [ctypes.c_int64(a) if isinstance(a, int) else a for a in arguments]
        code = getattr(self.library, name)(*words)
        if code:
            raise Refused(name, code, self.name_of(code))

    def name_of(self, code):
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        return f"{(name.value or b'an unknown error').decode()} ({code})"

    def number(self, name, *arguments, kind=ctypes.c_int):
        """Calls a function that gives a number through its first argument."""
        value = kind()
        self(name, ctypes.byref(value), *arguments)
        return value.value

    def handle(self, name, *arguments):
        """Calls a function that gives an address or a handle through its first argument."""
        return self.number(name, *arguments, kind=ctypes.c_uint64)

    def attribute(self, number):
        """Gives a CU_DEVICE_ATTRIBUTE of the first device."""
        return self.number("cuDeviceGetAttribute", number, 0)

    def allocate(self, size):
        return self.handle("cuMemAlloc_v2", size)

    def pinned(self, size):
        """Gives the address of pinned memory."""
        return self.handle("cuMemHostAlloc", size, 0)

    def stream(self, priority=0):
        return self.handle("cuStreamCreateWithPriority", NON_BLOCKING, priority)

    def greatest_priority(self):
        """Gives the priority of the streams that transfers have."""
        greatest = ctypes.c_int()
        self("cuCtxGetStreamPriorityRange", ctypes.c_void_p(), ctypes.byref(greatest))
        return greatest.value

    def wait(self, stream):
        self("cuStreamSynchronize", stream)

    def to_device(self, to, source, size, stream):
        self("cuMemcpyHtoDAsync_v2", to, source, size, stream)

    def to_host(self, to, source, size, stream):
        self("cuMemcpyDtoHAsync_v2", to, source, size, stream)

    def within(self, to, source, size, stream):
        self("cuMemcpyDtoDAsync_v2", to, source, size, stream)

    def kernel(self, file, entry):
        """Gives an entry of a PTX file of the pack, loaded once."""
        if (file, entry) not in self.kernels:
            image = (PACK / file).read_bytes() + b"\0"
            module = self.handle("cuModuleLoadData", image)
            self.kernels[file, entry] = self.handle("cuModuleGetFunction", module, entry.encode())
        return self.kernels[file, entry]

    def launch(self, kernel, blocks, threads, stream, parameter):
        """Launches a kernel that takes one parameter, a value of ctypes."""
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        self("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, ctypes.c_void_p())

    def spin(self, micros, stream):
        """Holds a stream for so long."""
        self.launch(self.kernel("spin.ptx", "spin"), 1, 1, stream, ctypes.c_uint32(micros))

    @contextlib.contextmanager
    def held(self, stream):
        """Holds a stream until what is submitted to it meanwhile is all there, for 5 s at most, and then waits until it goes on."""
        flag, goes_on = self.for_holding
        word = ctypes.c_uint32.from_address(flag)
        word.value = 0
        self.launch(self.kernel("spin.ptx", "hold"), 1, 1, stream, ctypes.c_uint64(flag))
        self("cuEventRecord", goes_on, stream)
        try:
            yield
        finally:
            word.value = 1
        self("cuEventSynchronize", goes_on)

    @functools.cached_property
    def for_holding(self):
        """A word that the kernel waits for, and an event. To make and to free the word waits for all streams."""
        return self.pinned(4), self.handle("cuEventCreate", 0)

    def name(self):
        text = ctypes.create_string_buffer(256)
        self("cuDeviceGetName", text, len(text), 0)
        return text.value.decode()

    def uuid(self):
        raw = (ctypes.c_uint8 * 16)()
        self("cuDeviceGetUuid", ctypes.byref(raw), 0)
        text = bytes(raw).hex()
        return "GPU-" + "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])


def rate(driver, stream, count, submit, rounds=5):
    """Gives the median GB/s at which a stream does what `submit` submits, which moves `count` bytes."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        submit()
        driver.wait(stream)
        taken.append(time.perf_counter() - began)
    return round(count / sorted(taken)[rounds // 2] / 1e9, 2)


def bytes_at(address, size):
    """Gives memory of this process to read and to write."""
    return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")
