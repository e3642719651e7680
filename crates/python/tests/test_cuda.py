"""Memory of a GPU, on the fake driver, in processes of their own."""

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref

import pytest
from fake_cuda import Array, Device, on_gpu
from stand_in import Tensor
from test_package import EXAMPLES

import transload
from transload import CacheMemoryError, Mark, Memory


def tensor(array, index=0, **more):
    """A tensor with the memory of an array."""
    return Tensor(array.address, array.nbytes, Device("cuda", index), **more)


# --- without a driver --------------------------------------------------------------------


def alone(code):
    """What a process prints that has no fake driver."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_driver_everything_says_so():
    if alone("import transload; print(transload.cuda.available()[0])") == "True\n":
        print("NOT RUN: there is a GPU", file=sys.stderr)
        return
    said = alone("""
import transload
from transload import cuda

print(cuda.available()[1])
for attempt in [
    lambda: transload.Memory.allocate([8], "cuda:0"),
    lambda: transload.Mark(),
    lambda: transload.Mark(1, "cuda:0"),
    lambda: transload.Memory([type("Array", (), {"__cuda_array_interface__": {
        "shape": (8,), "typestr": "|u1", "data": (1 << 40, False), "version": 3}})()]),
]:
    try:
        attempt()
    except transload.TransloadError as error:
        print(error)
""").splitlines()
    assert len(said) == 5 and len(set(said)) == 1
    assert said[0].startswith("no CUDA here: the driver's library")


@pytest.mark.parametrize("lacks", ["cuEventQuery", "everything"])
def test_a_driver_that_lacks_something_is_none(fake_driver, tmp_path, lacks):
    library = tmp_path / "libcuda.so.1"
    if lacks == "everything":
        compile = ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", os.devnull, "-o", str(library)]
        if shutil.which("cc") is None:
            pytest.skip("NOT RUN: there is no C compiler")
        subprocess.run(compile, check=True)
    else:
        driver = open(fake_driver, "rb").read()
        assert b"\0cuEventQuery\0" in driver
        library.write_bytes(driver.replace(b"\0cuEventQuery\0", b"\0-uEventQuery\0"))
    code = "import transload; print(*transload.cuda.available()); print(transload.Memory.allocate([8]).device)"
    variables = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    said, on_the_host = done.stdout.splitlines()
    assert said.startswith("False no CUDA here: ") and (lacks == "everything" or lacks in said), said
    assert on_the_host == "cpu"


def test_no_device_is_no_cuda(fake_driver):
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); import transload; print(transload.cuda.available())"
    said = []
    for devices in "1", "0":
        command, variables = [sys.executable, "-c", code, fake_driver], os.environ | {"FAKE_CUDA_DEVICES": devices}
        said.append(subprocess.run(command, env=variables, capture_output=True, text=True).stdout)
    assert said == ["(True, '')\n", "(False, 'no CUDA here: the driver knows no device')\n"]


def side(order="NHD", *, block_size=128, num_blocks=4, layers="0", **more):
    """A deployment of small heads."""
    spec = {"kind": "attention", "heads": 2, "head_dim": 8, "dtype": "bf16"}
    group = {"name": "attn", "layers": layers, "spec": [spec]}
    whole = {"schema": "transload.deployment/1", "block_size": block_size, "num_blocks": num_blocks, "group": [group]}
    return transload.Deployment(whole | {"order": order} | more)


def until(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- memory ------------------------------------------------------------------------------


@on_gpu()
def test_memory_of_a_gpu_is_registered_in_place(driver):
    array = driver.allocate(64)
    array.content = bytes(range(64))
    given = [
        array,
        Array(array.address, 64, version=2),
        Array(array.address, 64, shape=(4, 2, 1, 4), typestr="<f2", strides=(16, 8, 3, 2)),
        tensor(array),
        tensor(array, index=None),
        tensor(array).untyped_storage(),
    ]
    for one in given:
        memory = Memory([one])
        assert (memory.allocations, memory.nbytes) == ([(array.address, 64)], 64)
        assert memory.device == "cuda:0"
        assert memory.read(10, 3) == bytes([10, 11, 12])
        assert memory.read(64, 0) == b""
    memory = Memory([array, driver.allocate(8)])
    memory.write(62, b"ab")
    memory.write(0, b"")
    memory.write(7, b"c", allocation=1)
    assert array.content[61:] == b"=ab"
    assert memory.read(0, 8, allocation=1) == bytes(7) + b"c"
    with pytest.raises(CacheMemoryError, match="which has 64 bytes"):
        memory.read(60, 5)
    with pytest.raises(CacheMemoryError, match="which has 0 bytes"):
        memory.write(0, b"a", allocation=2)
    read_only = Memory([Array(array.address, 64, data=(array.address, True))], writable=False)
    assert read_only.read(62, 2) == b"ab"
    with pytest.raises(CacheMemoryError, match="read"):
        read_only.write(0, b"a")
    own = Memory.allocate([16, 32], device=Device("cuda", 0))
    assert ([length for _, length in own.allocations], own.device) == ([16, 32], "cuda:0")
    own.write(0, bytes(range(16)))
    assert own.read(0, 16) == bytes(range(16))
    assert repr(own) == "<transload.Memory: 48 bytes in 2 allocations on cuda:0>"
    assert Memory.allocate([16], "cpu").device == "cpu"


@on_gpu()
def test_what_is_registered_is_kept_alive(driver):
    array = driver.allocate(64)
    alive = weakref.ref(array)
    memory = Memory([array])
    del array
    gc.collect()
    assert alive() is not None
    del memory
    gc.collect()
    assert alive() is None


@on_gpu()
def test_what_cannot_be_registered_is_refused(driver):
    array, freed = driver.allocate(64), driver.allocate(64)
    pinned, managed = driver.pinned(64), driver.managed(64)
    driver.free(freed)
    host = bytearray(64)

    def changed(**more):
        return Array(array.address, 64, **more)

    for given, message in [
        (freed, "allocation 0 is memory that the driver does not know"),
        (tensor(freed), "allocation 0 is memory that the driver does not know"),
        (Array(managed, 64), "allocation 0 is managed memory, not memory of a CUDA device"),
        (Array(pinned, 64), "allocation 0 is pinned host memory, not memory of a CUDA device"),
        (tensor(Array(id(host), 64)), "allocation 0 is memory that the driver does not know"),
        (Array(0, 64), "allocation 0 is memory that the driver does not know"),
        (Array(array.address + 1, 64), "allocation 0 of 64 bytes has only 63 mapped"),
        (Array(array.address, 1 << 40), "has only 64 mapped"),
        (tensor(array, contiguous=False), "give its untyped_storage"),
        (tensor(array, index=1), "no device 1: this process sees 1"),
        (changed(strides=(2,)), "not contiguous"),
        (changed(shape=(8, 8), strides=(1, 8)), "not contiguous"),
        (changed(strides=(-1,)), "not contiguous"),
        (changed(shape=(8, 0)), "empty"),
        (changed(mask=array), "mask"),
        (changed(typestr="|O"), "typestr"),
        (changed(version=1), "version 1"),
        (changed(data=(array.address, True)), "read-only; register it with writable=False"),
        ((array.address, 64), "memory of cuda:0, given as memory of the host"),
    ]:
        with pytest.raises(CacheMemoryError, match=message):
            Memory([given])
    for mixed, message in [
        ([array, (pinned, 64)], "allocation 1 is memory of the host, allocation 0 of a GPU"),
        ([(pinned, 64), array], "allocation 1 is memory of a GPU, allocation 0 of the host"),
        ([array, freed], "allocation 1 is memory that the driver does not know"),
    ]:
        with pytest.raises(CacheMemoryError, match=message):
            Memory(mixed)
    with pytest.raises(TypeError, match="give a list"):
        Memory(array)
    broken = changed()
    del broken.__cuda_array_interface__["shape"]
    with pytest.raises(TypeError, match="without 'shape'|without \"shape\""):
        Memory([broken])
    with pytest.raises(CacheMemoryError, match="no device 1"):
        Memory.allocate([8], "cuda:1")
    with pytest.raises(CacheMemoryError, match="OUT_OF_MEMORY"):
        Memory.allocate([8, 1 << 42], "cuda:0")
    for device in ("cuda", "cuda:-1", "cuda:x", "xpu:0", 0):
        with pytest.raises(ValueError, match="give \"cpu\", or a GPU as \"cuda:0\""):
            Memory.allocate([8], device)


@on_gpu(FAKE_CUDA_DEVICES=2)
def test_memory_of_two_gpus_is_told_apart(driver, certs):
    here, there = driver.allocate(64, 0), driver.allocate(64, 1)
    assert Memory([there]).device == "cuda:1"
    assert Memory([tensor(there, index=1)]).device == "cuda:1"
    assert Memory.allocate([8], "cuda:1").device == "cuda:1"
    with pytest.raises(CacheMemoryError, match="allocation 1 is memory of device 1, not of device 0"):
        Memory([here, there])
    with pytest.raises(CacheMemoryError, match="allocation 0 is memory of device 1, not of device 0"):
        Memory([tensor(there, index=0)])
    # An agent can hold ranks on several GPUs, but each on one.
    spec = [{"kind": "attention", "heads": 2, "head_dim": 64, "dtype": "bf16"}]
    groups = [{"name": name, "layers": layers, "spec": spec} for name, layers in [("a", "0-1"), ("b", "2-3")]]
    deployment = side(tp=2, block_size=16, group=groups)
    identity = transload.Identity(certs, "prefill")

    def memories(rank, *devices):
        return [
            Memory.allocate(group.allocations(rank), device) for group, device in zip(deployment.groups, devices)
        ]

    def agent(zero, one):
        return transload.Agent(identity, deployment, {0: memories(0, *zero), 1: memories(1, *one)}, bind="127.0.0.1:0")

    with pytest.raises(transload.AgentError, match='rank 1, group "b": it is on device 0, another group of the rank on device 1'):
        agent(("cuda:0", "cuda:0"), ("cuda:1", "cuda:0"))
    agent(("cuda:0", "cpu"), ("cuda:1", "cuda:1")).shutdown(1)


@on_gpu()
def test_a_forked_child_is_refused_by_name(driver):
    memory = Memory([driver.allocate(64)])
    child = os.fork()
    if child == 0:
        attempts = [
            lambda: Memory.allocate([8], "cuda:0"),
            lambda: memory.read(0, 1),
            lambda: Memory([Array(memory.allocations[0][0], 8)]),
            lambda: Mark(device="cuda:0"),
        ]
        try:
            for attempt in attempts:
                with pytest.raises(transload.TransloadError, match="before this process was forked"):
                    attempt()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@on_gpu()
def test_chunks_are_copied_from_and_to_a_gpu(driver):
    source = driver.allocate(4096)
    source.content = bytes(at % 251 for at in range(4096))
    sides = (side(order, block_size=4, num_blocks=8, layers="0-1") for order in ("NHD", "HND"))
    [route] = transload.Plan(*sides, 8).bind([[1, 2]], [[0, 3]]).routes
    on_device, on_host = Memory([source]), Memory.allocate([4096])
    on_host.write(0, source.content)
    found = []
    for src in (on_host, on_device):
        for device in ("cpu", "cuda:0"):
            dst = Memory.allocate([4096], device)
            dst.write(0, bytes(4096))
            route.copy(src, dst)
            found.append(dst.read(0, 4096))
    assert found[0] != bytes(4096) and found == [found[0]] * 4
    with pytest.raises(CacheMemoryError, match="which has 8"):
        route.copy(on_device, Memory.allocate([8], "cuda:0"))


@on_gpu()
def test_blocks_on_a_gpu_are_saved_and_restored(driver, tmp_path):
    prefill, decode, prompt = side("NHD"), side("HND"), transload.Prompt(range(256))
    [length] = prefill.groups[0].allocations(0)
    source, restored, stream = driver.allocate(length), driver.allocate(length), driver.stream()
    archive = transload.Archive(f"file://{tmp_path}/kv", "m", "w", prefill)
    missing = archive.missing(prompt)

    # What is computed later is saved when it is there, or not at all.
    content = bytes(at % 255 + 1 for at in range(length))
    stream.hold()
    stream.write(source, content)
    mark, permit, staging = Mark(stream), transload.Permit(), transload.Staging(1 << 20)

    def stage():
        return archive.stage(missing, prefill, 0, [Memory([source])], [[2, 1]], staging, permit=permit, after=mark)

    ended = []
    thread = threading.Thread(target=lambda: ended.append(stage()))
    thread.start()
    thread.join(0.3)
    assert not ended
    stream.release()
    thread.join()
    parts = [archive.put(*ended)]
    assert parts == [archive.save(missing, prefill, 0, [Memory([source])], [[2, 1]], after=mark)]
    assert archive.publish(missing, parts) == 1
    stream.hold()
    stream.write(source, content)
    mark = Mark(stream)
    permit.revoke()
    with pytest.raises(transload.ArchiveError, match="was revoked"):
        stage()

    # What is still read is overwritten afterwards.
    read, mark = stream.read(restored), Mark(stream)
    thread = threading.Thread(
        target=archive.restore,
        args=(archive.find(prompt), decode, 0, [Memory([restored])], [[0, 3]]),
        kwargs={"after": mark},
    )
    thread.start()
    thread.join(0.3)
    stream.release()
    thread.join()
    assert read() == bytes(length)
    [route] = transload.Plan(prefill, decode, 256).bind([[2, 1]], [[0, 3]]).routes
    right = Memory.allocate([length])
    route.copy(Memory([source]), right)
    assert restored.content == right.read(0, length) != bytes(length)


@on_gpu()
def test_a_gpu_that_hangs_is_not_waited_for(driver, tmp_path):
    deployment = side()
    [length] = deployment.groups[0].allocations(0)
    cache = driver.allocate(length)
    memories = [Memory([cache])]
    archive = transload.Archive(f"file://{tmp_path}/kv", "m", "w", deployment)
    missing, permit = archive.missing(transload.Prompt(range(256))), transload.Permit()
    errors = []

    def save():
        try:
            archive.save(missing, deployment, 0, memories, [None], permit=permit)
        except transload.ArchiveError as error:
            errors.append(error)

    before = driver.calls("cuMemcpyHtoDAsync_v2")
    driver.hang(True)
    thread = threading.Thread(target=save)
    thread.start()
    until(lambda: driver.calls("cuMemcpyHtoDAsync_v2") > before)
    permit.revoke()
    assert not permit.is_quiet
    driver.hang(False)
    until(lambda: permit.is_quiet)
    # What was copied before is saved all the same.
    thread.join()
    assert not errors
    with pytest.raises(transload.ArchiveError, match="was revoked"):
        archive.save(missing, deployment, 0, memories, [None], permit=permit)


@on_gpu()
def test_the_example_of_the_manual_runs(driver):
    [example] = [each for each in EXAMPLES if "cuda.available" in each]
    exec(compile(example, "the manual", "exec"), {"__name__": "example"})
    assert driver.calls("cuEventRecord") > 0
