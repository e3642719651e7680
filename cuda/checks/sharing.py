"""Device memory of another process: `cuMemCreate` with a POSIX descriptor that goes over a Unix socket."""

import array
import ctypes
import os
import socket
import subprocess
import sys

from .driver import Bad, Driver, NotRun, may_be_missing

# CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and
# CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
PINNED, DEVICE, POSIX, READ_WRITE = 1, 1, 1, 3


class Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]


class Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def mapped(driver, handle, size):
    """Gives the address of memory that was created or imported."""
    address = driver.handle("cuMemAddressReserve", size, 0, 0, 0)
    driver("cuMemMap", address, size, 0, handle, 0)
    driver("cuMemSetAccess", address, size, ctypes.byref(Access(Location(DEVICE, 0), READ_WRITE)), 1)
    return address


def fill(driver, address, size, byte):
    driver("cuMemsetD8_v2", address, byte, size)
    driver("cuCtxSynchronize")


def holds(driver, address, size, byte):
    found = ctypes.create_string_buffer(size)
    driver("cuMemcpyDtoH_v2", found, address, size)
    return found.raw == bytes([byte]) * size


def descriptors(tell, small):
    """Shares memory with another process, which imports the descriptor twice and is killed with both mapped."""
    driver = Driver.of_first_gpu()
    properties = Properties(PINNED, POSIX, Location(DEVICE, 0))
    with may_be_missing():
        size = driver.number("cuMemGetAllocationGranularity", ctypes.byref(properties), 0, kind=ctypes.c_size_t)
        tell("granularity, bytes", size)
        handle = driver.handle("cuMemCreate", size, ctypes.byref(properties), 0)
        descriptor = driver.number("cuMemExportToShareableHandle", handle, POSIX, 0)
    tell("a descriptor is exported", True)
    address = mapped(driver, handle, size)
    fill(driver, address, size, 1)

    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.settimeout(20)
    command = [sys.executable, sys.argv[0], "--other-side", str(theirs.fileno())]
    other = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        ours.sendmsg([size.to_bytes(8, "little") + driver.uuid().encode()], passed)
        said = ours.recv(4096).decode()
        if said != "twice":
            raise Bad(f"the other process: {said or 'it has died'}")
        tell("another process imports it, and twice", True)
        if not holds(driver, address, size, 2):
            raise Bad("what the other process wrote is not there")
    finally:
        other.kill()
        other.wait()
    # It is gone with its mappings, and this is as it was.
    fill(driver, address, size, 3)
    if not holds(driver, address, size, 3):
        raise Bad("the memory is of no use once the other process was killed")
    tell("it outlives a process that had it mapped", True)
    driver("cuMemUnmap", address, size)
    driver("cuMemAddressFree", address, size)
    driver("cuMemRelease", handle)
    os.close(descriptor)


def other_side(number):
    """Is the other process: says `twice` when all was right, and waits to be killed."""
    link = socket.socket(fileno=number)
    try:
        said = import_twice(link)
    except (Bad, NotRun) as why:
        said = str(why)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    link.send(said.encode())
    link.recv(1)


def import_twice(link):
    driver = Driver.of_first_gpu()
    message, [(_, _, passed)], _, _ = link.recvmsg(4096, socket.CMSG_SPACE(4))
    size, uuid = int.from_bytes(message[:8], "little"), message[8:].decode()
    if uuid != driver.uuid():
        return f"its first GPU is {driver.uuid()}, not {uuid}"
    (descriptor,) = array.array("i", passed)
    # The driver takes the descriptor itself where it wants a pointer.
    imported = lambda: driver.handle("cuMemImportFromShareableHandle", descriptor, POSIX)
    first, second = (mapped(driver, imported(), size) for _ in range(2))
    if not holds(driver, first, size, 1):
        return "what the first process wrote is not there"
    fill(driver, second, size, 2)
    if not holds(driver, first, size, 2):
        return "two imports of one descriptor are two memories"
    return "twice"
