"""What the machine is: driver, GPU, bus, NUMA, C library; and whether the packed binaries run on it."""

import ctypes
import fcntl
import mmap
import os
import pathlib
import platform
import shutil
import subprocess

from .driver import PACK, Bad, Driver, may_be_missing, rate

# CU_DEVICE_ATTRIBUTE_*: what a path or a copy goes by.
ATTRIBUTES = {
    "multiprocessors": 16,
    "copy engines": 40,
    "host memory can be registered": 99,
    "virtual memory management": 102,
    "memory as POSIX descriptors": 103,
    "host memory can be registered read-only": 113,
}
PCI_BUS, PCI_DEVICE, PCI_DOMAIN = 33, 34, 50
MAJOR, MINOR = 75, 76
SMI = [
    "driver_version",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "compute_mode",
    "persistence_mode",
    "mig.mode.current",
]
F_SEAL_FUTURE_WRITE = 0x10
# CU_MEMHOSTREGISTER_READ_ONLY.
READ_ONLY = 8


def facts(tell, small):
    """Tells what is here, and runs each of the binaries."""
    driver = Driver()
    version = driver.number("cuDriverGetVersion")
    tell("CUDA of the driver", f"{version // 1000}.{version % 1000 // 10}")
    tell("its library", library(driver))
    tell("GPUs that this process sees", driver.devices)
    tell("GPU", driver.name())
    tell("UUID", driver.uuid())
    tell("compute capability", f"{driver.attribute(MAJOR)}.{driver.attribute(MINOR)}")
    total = driver.number("cuDeviceTotalMem_v2", 0, kind=ctypes.c_size_t)
    tell("memory", f"{total / 2**30:.1f} GiB")
    for what, attribute in ATTRIBUTES.items():
        tell(what, driver.attribute(attribute))
    bus(driver, tell)
    tell("system", platform.platform())
    tell("C library", os.confstr("CS_GNU_LIBC_VERSION"))
    tell("processors", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}")
    tell("in a container", pathlib.Path("/.dockerenv").exists() or "container" in os.environ)
    binaries(tell)


def library(driver):
    """Gives the file that the driver was loaded from, which may be another than one expects: a toolkit has a stub of that name."""
    inside = ctypes.cast(driver.library.cuInit, ctypes.c_void_p).value
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, file = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in addresses.split("-"))
        if start <= inside < end:
            return file
    return "not told"


def name():
    """Prints what the first GPU is called, for the name of a file."""
    print(Driver().name())


def bus(driver, tell):
    """Tells how the GPU is attached, by nvidia-smi where it is there and by the kernel where that knows."""
    place = "{:04x}:{:02x}:{:02x}.0".format(*(driver.attribute(number) for number in (PCI_DOMAIN, PCI_BUS, PCI_DEVICE)))
    tell("PCI address", place)
    device = pathlib.Path("/sys/bus/pci/devices", place)
    for file in ("numa_node", "current_link_speed", "max_link_speed", "current_link_width", "max_link_width"):
        try:
            tell(file.replace("_", " "), (device / file).read_text().strip())
        except OSError:
            pass
    if not shutil.which("nvidia-smi"):
        tell("nvidia-smi", "is not here")
        return
    for query in SMI:
        # One by one: an older nvidia-smi refuses all that it is asked where it does not know one.
        asked = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", place]
        try:
            said = subprocess.run(asked, capture_output=True, text=True, timeout=5)
        except subprocess.TimeoutExpired:
            tell("nvidia-smi", "does not answer")
            return
        tell(query, said.stdout.strip() if said.returncode == 0 else "not told")


def binaries(tell):
    """Has every binary of the pack say something."""
    for binary in sorted((PACK / "bin").iterdir()):
        asked = [binary, "--version" if binary.name == "transload" else "--list"]
        try:
            said = subprocess.run(asked, capture_output=True, text=True, timeout=20)
        except OSError as error:
            raise Bad(f"{binary.name} does not run: {error}") from None
        if said.returncode:
            raise Bad(f"{binary.name} does not run: {said.stderr.strip()}")
        tell(binary.name, said.stdout.strip().splitlines()[-1])


def registered(tell, small):
    """Pins a memfd as the staging ring has it, sealed in size; then one that nobody may write any more."""
    driver, size = Driver.of_first_gpu(), (4 if small else 64) << 20
    device, stream = driver.allocate(size), driver.stream()
    file = os.memfd_create("check", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    ring = mmap.mmap(file, size)
    address = ctypes.addressof(ctypes.c_uint8.from_buffer(ring))
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)

    with may_be_missing():
        driver("cuMemHostRegister_v2", address, size, 0)
    tell("a sealed memfd is registered", True)
    driver("cuMemsetD8Async", device, 0x5A, size, stream)
    driver.to_host(address, device, size, stream)
    driver.wait(stream)
    if ring[:] != b"\x5a" * size:
        raise Bad("what the GPU copied into the memfd is not in it")
    into = lambda: driver.to_host(address, device, size, stream)
    out_of = lambda: driver.to_device(device, address, size, stream)
    tell("into it, GB/s", rate(driver, stream, size, into))
    tell("out of it, GB/s", rate(driver, stream, size, out_of))
    driver("cuMemHostUnregister", address)

    # What the other side of a ring has: a mapping that it may only read.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    readable = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file, ctypes.c_long(0))
    if readable == ctypes.c_void_p(-1).value:
        raise Bad(f"the sealed memfd cannot be mapped to be read: {os.strerror(ctypes.get_errno())}")
    try:
        driver("cuMemHostRegister_v2", readable, size, READ_ONLY)
        tell("a mapping to be read only is registered", True)
    except Bad as why:
        tell("a mapping to be read only is registered", f"no: {why}")
