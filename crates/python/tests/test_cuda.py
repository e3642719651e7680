"""Caches in the memory of a GPU, and marks: on the fake driver, in processes of their own."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest
from conftest import Engine, expected, fill
from fake_cuda import Array
from test_package import EXAMPLES

import transload
from transload import CacheMemoryError, CudaError, Mark, Memory

LENGTH = 30
CONTENT = transload.Prompt(range(LENGTH)).digest()
TABLES = ([[5, 2]], [[6]])


class Device:
    """What this package asks of a `torch.device`."""

    def __init__(self, type, index):
        self.type, self.index = type, index

    def __str__(self):
        return f"{self.type}:{self.index}"


class Tensor:
    """And of a tensor on a GPU."""

    def __init__(self, array, index=0, contiguous=True):
        self.array, self.contiguous, self.device = array, contiguous, Device("cuda", index)

    def data_ptr(self):
        return self.array.address

    def is_contiguous(self):
        return self.contiguous

    def numel(self):
        return self.array.nbytes // 2

    def element_size(self):
        return 2

    def untyped_storage(self):
        return Storage(self.array, self.device)


class Storage:
    """And of its storage."""

    def __init__(self, array, device):
        self.array, self.device = array, device

    def data_ptr(self):
        return self.array.address

    def nbytes(self):
        return self.array.nbytes


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


def test_no_device_is_no_cuda(on_gpu):
    # The fake refuses to start then, so it is not asked before.
    code = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
import transload
print(transload.cuda.available())
"""
    driver = on_gpu(prints_its_library)
    command = [sys.executable, "-c", code, driver.strip()]
    variables = os.environ | {"FAKE_CUDA_DEVICES": "0"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.stdout == "(False, 'no CUDA here: the driver knows no device')\n", done.stderr


def prints_its_library(driver):
    assert transload.cuda.available() == (True, "")
    print(sys.argv[1])


# --- memory ------------------------------------------------------------------------------


def test_memory_of_a_gpu_is_registered_in_place(on_gpu):
    on_gpu(registers_in_place)


def registers_in_place(driver):
    array = driver.allocate(64)
    array.content = bytes(range(64))
    given = [
        array,
        Array(array.address, 64, version=2),
        Array(array.address, 64, shape=(4, 2, 1, 4), typestr="<f2", strides=(16, 8, 3, 2)),
        Tensor(array),
        Tensor(array, index=None),
        Tensor(array).untyped_storage(),
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


def test_what_is_registered_is_kept_alive(on_gpu):
    on_gpu(keeps_alive)


def keeps_alive(driver):
    array = driver.allocate(64)
    alive = weakref.ref(array)
    memory = Memory([array])
    del array
    gc.collect()
    assert alive() is not None
    del memory
    gc.collect()
    assert alive() is None


def test_what_cannot_be_registered_is_refused(on_gpu):
    on_gpu(refuses)


def refuses(driver):
    array, freed = driver.allocate(64), driver.allocate(64)
    pinned, managed = driver.pinned(64), driver.managed(64)
    driver.free(freed)
    host = bytearray(64)

    def changed(**more):
        return Array(array.address, 64, **more)

    for given, message in [
        (freed, "allocation 0 is memory that the driver does not know"),
        (Tensor(freed), "allocation 0 is memory that the driver does not know"),
        (Array(managed, 64), "allocation 0 is managed memory, not memory of a CUDA device"),
        (Array(pinned, 64), "allocation 0 is pinned host memory, not memory of a CUDA device"),
        (Tensor(Array(id(host), 64)), "allocation 0 is memory that the driver does not know"),
        (Array(0, 64), "allocation 0 is memory that the driver does not know"),
        (Array(array.address + 1, 64), "allocation 0 of 64 bytes has only 63 mapped"),
        (Array(array.address, 1 << 40), "has only 64 mapped"),
        (Tensor(array, contiguous=False), "give its untyped_storage"),
        (Tensor(array, index=1), "no device 1: this process sees 1"),
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


def test_memory_of_two_gpus_is_told_apart(on_gpu, certs):
    on_gpu(tells_gpus_apart, str(certs), FAKE_CUDA_DEVICES=2)


def tells_gpus_apart(driver, certs):
    here, there = driver.allocate(64, 0), driver.allocate(64, 1)
    assert Memory([there]).device == "cuda:1"
    assert Memory([Tensor(there, index=1)]).device == "cuda:1"
    assert Memory.allocate([8], "cuda:1").device == "cuda:1"
    with pytest.raises(CacheMemoryError, match="allocation 1 is memory of device 1, not of device 0"):
        Memory([here, there])
    with pytest.raises(CacheMemoryError, match="allocation 0 is memory of device 1, not of device 0"):
        Memory([Tensor(there, index=0)])
    # An agent can hold ranks on several GPUs, but each on one.
    groups = [
        {"name": name, "layers": layers, "spec": [{"kind": "attention", "heads": 2, "head_dim": 64, "dtype": "bf16"}]}
        for name, layers in [("a", "0-1"), ("b", "2-3")]
    ]
    deployment = transload.Deployment(
        {"schema": "transload.deployment/1", "tp": 2, "block_size": 16, "num_blocks": 4, "group": groups}
    )
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


def test_a_forked_child_is_refused_by_name(on_gpu):
    on_gpu(refuses_a_child)


def refuses_a_child(driver):
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


def test_chunks_are_copied_from_and_to_a_gpu(on_gpu):
    on_gpu(copies_chunks)


def copies_chunks(driver):
    source = driver.allocate(4096)
    source.content = bytes(at % 251 for at in range(4096))

    def side(order):
        spec = {"kind": "attention", "heads": 2, "head_dim": 8, "dtype": "bf16"}
        group = {"name": "attn", "layers": "0-1", "spec": [spec]}
        return transload.Deployment(
            {"schema": "transload.deployment/1", "block_size": 4, "num_blocks": 8, "order": order, "group": [group]}
        )

    [route] = transload.Plan(side("NHD"), side("HND"), 8).bind([[1, 2]], [[0, 3]]).routes
    on_gpu, on_host = Memory([source]), Memory.allocate([4096])
    on_host.write(0, source.content)
    found = []
    for src in (on_host, on_gpu):
        for device in ("cpu", "cuda:0"):
            dst = Memory.allocate([4096], device)
            dst.write(0, bytes(4096))
            route.copy(src, dst)
            found.append(dst.read(0, 4096))
    assert found[0] != bytes(4096) and found == [found[0]] * 4
    with pytest.raises(CacheMemoryError, match="which has 8"):
        route.copy(on_gpu, Memory.allocate([8], "cuda:0"))


def test_blocks_on_a_gpu_are_saved_and_restored(on_gpu, tmp_path):
    on_gpu(archives, str(tmp_path))


def archives(driver, folder):
    def side(order):
        spec = {"kind": "attention", "heads": 2, "head_dim": 8, "dtype": "bf16"}
        group = {"name": "attn", "layers": "0", "spec": [spec]}
        return transload.Deployment(
            {"schema": "transload.deployment/1", "block_size": 128, "num_blocks": 4, "order": order, "group": [group]}
        )

    prefill, decode, prompt = side("NHD"), side("HND"), transload.Prompt(range(256))
    [length] = prefill.groups[0].allocations(0)
    source, restored, stream = driver.allocate(length), driver.allocate(length), driver.stream()
    archive = transload.Archive(f"file://{folder}/kv", "m", "w", prefill)
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
    with pytest.raises(transload.ArchiveError, match="given up"):
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


def test_the_example_of_the_manual_runs(on_gpu):
    on_gpu(runs_the_example)


def runs_the_example(driver):
    [example] = [each for each in EXAMPLES if "cuda.available" in each]
    exec(compile(example, "the manual", "exec"), {"__name__": "example"})
    assert driver.calls("cuEventRecord") > 0


# --- marks -------------------------------------------------------------------------------


def test_marks_are_done_when_their_stream_has_come_there(on_gpu):
    on_gpu(marks_streams)


def is_reached(mark):
    """Whether its stream comes there, soon enough."""
    deadline = time.monotonic() + 30
    while not mark.done and time.monotonic() < deadline:
        time.sleep(0.001)
    return mark.done


class TorchStream:
    def __init__(self, stream):
        self.cuda_stream, self.device = stream.handle, Device("cuda", stream.index)


def marks_streams(driver):
    stream, array = driver.stream(), driver.allocate(8)
    for given in (
        (stream,),
        (TorchStream(stream),),
        (stream.handle,),
        (stream.handle, "cuda:0"),
        (TorchStream(stream), Device("cuda", 0)),
    ):
        assert is_reached(Mark(*given))
        stream.hold()
        stream.write(array, b"computed")
        mark = Mark(*given)
        assert not mark.done
        stream.release()
        stream.synchronize()
        assert mark.done
    assert is_reached(Mark()) and is_reached(Mark(0, "cuda:0"))
    for given, error, message in [
        ((0, "cpu"), ValueError, "the CPU, which has no streams"),
        ((0, "gpu"), ValueError, "give \"cpu\", or a GPU"),
        ((TorchStream(stream), "cuda:1"), ValueError, "device is cuda:1, and the stream is one of cuda:0"),
        ((0, "cuda:7"), CudaError, "no device 7"),
        (("stream",), TypeError, "the stream is a <class 'str'>"),
        ((-1,), TypeError, "the stream is a"),
    ]:
        with pytest.raises(error, match=message):
            Mark(*given)

    class Newer:
        def __cuda_stream__(self):
            return 1, stream.handle

    with pytest.raises(TypeError, match="of version 1"):
        Mark(Newer())
    stream.destroy()
    with pytest.raises(CudaError, match="is none of device 0, or was destroyed: cuEventRecord gives"):
        Mark(stream)
    # Of a thread that has used no GPU nobody knows whose default stream it means.
    failed = []

    def marks():
        try:
            Mark()
        except CudaError as error:
            failed.append(str(error))

    thread = threading.Thread(target=marks)
    thread.start()
    thread.join()
    assert failed == ["no context is current in this thread: give the stream's device"]


def test_a_stream_of_another_gpu_is_refused(on_gpu):
    on_gpu(marks_two_gpus, FAKE_CUDA_DEVICES=2)


def marks_two_gpus(driver):
    here, there = driver.stream(0), driver.stream(1)
    # The context of device 1 is current.
    assert is_reached(Mark(there)) and is_reached(Mark(TorchStream(here)))
    with pytest.raises(CudaError, match="is none of device 1"):
        Mark(here)
    with pytest.raises(CudaError, match="is none of device 0"):
        Mark(there, "cuda:0")


def test_a_mark_of_a_lost_gpu_says_so(on_gpu):
    on_gpu(marks_a_lost_gpu)


def marks_a_lost_gpu(driver):
    stream = driver.stream()
    stream.hold()
    stream.write(driver.allocate(8), b"computed")
    mark = Mark(stream)
    driver.fail("cuEventQuery", 1, 700)
    for _ in range(2):
        with pytest.raises(CudaError, match="device 0 is lost: cu[A-Za-z_0-9]+ gives CUDA_ERROR_ILLEGAL_ADDRESS"):
            assert mark.done
    with pytest.raises(CudaError):
        Mark(stream)


# --- agents ------------------------------------------------------------------------------


class Pair:
    """A prefill engine of one rank and a decode engine of two, on the GPU or on the host."""

    def __init__(self, driver, certs, where=("gpu", "gpu")):
        self.driver, self.arrays = driver, ([], [])

        def on(side):
            def allocate(lengths):
                arrays = [driver.allocate(length) for length in lengths]
                self.arrays[side].extend(arrays)
                return Memory(arrays)

            return allocate if where[side] == "gpu" else Memory.allocate

        self.prefill = Engine(certs, "prefill", allocate=on(0))
        self.decode = Engine(certs, "decode", tp=2, block_size=64, order="HND", allocate=on(1))
        self.stream = driver.stream()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.release()
        self.decode.agent.shutdown(1)
        self.prefill.agent.shutdown(1)

    def lease(self, **more):
        """Leases the request's blocks, and returns that and the ticket."""
        set = os.urandom(16)
        return self.prefill.agent.lease(set, 0, TABLES[0], CONTENT, LENGTH, **more), self.prefill.ticket(set, LENGTH)

    def pull(self, ticket, **more):
        return self.decode.agent.pull(ticket, [0, 1], TABLES[1], CONTENT, LENGTH, **more)

    def open(self, **more):
        set = os.urandom(16)
        opened = [self.decode.agent.open(set, rank, TABLES[1], CONTENT, LENGTH, **more) for rank in (0, 1)]
        return opened, self.decode.ticket(set, LENGTH, push=True)

    def push(self, ticket, **more):
        return self.prefill.agent.push(ticket, [0], TABLES[0], CONTENT, LENGTH, **more)

    def is_right(self):
        """Whether the destination holds what it has to: the request in its blocks, and zeros."""
        right = expected(self.prefill, self.decode, TABLES, LENGTH)
        return right == {rank: memory.read(0, memory.nbytes) for rank, [memory] in self.decode.memories.items()}

    def compute_later(self):
        """Has the stream write the prefill engine's cache, once it is released."""
        [cache] = self.arrays[0]
        self.stream.hold()
        self.stream.write(cache, bytes((7 * at + at // 251) % 255 + 1 for at in range(cache.nbytes)))

    def read_later(self):
        """Has the stream read the decode engine's cache, once it is released; whether it has found only zeros then."""
        self.stream.hold()
        reads = [self.stream.read(cache) for cache in self.arrays[1]]
        return lambda: not any(any(read()) for read in reads)

    def release(self):
        self.stream.release()
        self.stream.synchronize()


@pytest.mark.parametrize("where", [("gpu", "gpu"), ("gpu", "host"), ("host", "gpu")])
def test_pulls_and_pushes_reach_every_byte(on_gpu, certs, where):
    on_gpu(moves, str(certs), where)


def moves(driver, certs, where):
    for paths, path in [("local", "ring"), ("quic", "quic")]:
        with Pair(driver, certs, where) as pair:
            fill(pair.prefill.memories[0][0])
            lease, ticket = pair.lease()
            report = pair.pull(ticket, paths=paths).ended.result(30)
            assert {route["path"] for route in report["routes"]} == {path}
            assert lease.ended.result(30) == "completed"
            assert pair.is_right()
        with Pair(driver, certs, where) as pair:
            fill(pair.prefill.memories[0][0])
            opened, ticket = pair.open()
            push = pair.push(ticket, prefilled=False, by_layer=True, paths=paths)
            for layer in range(4):
                push.ready(0, layer, LENGTH)
            push.finish_prefill()
            push.ended.result(30)
            assert [lease.ended.result(30) for lease in opened] == ["completed"] * 2
            assert pair.is_right()


def waits(completion):
    """Whether it has not ended, and does not for a while."""
    return not completion.wait(0.3)


@pytest.mark.parametrize("marked", [True, False])
def test_blocks_are_read_when_they_are_computed(on_gpu, certs, marked):
    on_gpu(reads_computed_blocks, str(certs), marked)


def reads_computed_blocks(driver, certs, marked):
    def after(pair):
        return Mark(pair.stream) if marked else None

    def finish(pair, transfer):
        """Whether it moved what was computed."""
        if marked:
            assert waits(transfer.ended)
            pair.release()
        transfer.ended.result(30)
        pair.release()
        return pair.is_right()

    def leased(pair):
        _lease, ticket = pair.lease(after=after(pair))
        return pair.pull(ticket)

    def told(pair):
        lease, ticket = pair.lease(prefilled=False)
        for layer in range(4):
            lease.ready(layer, LENGTH, after=after(pair))
        lease.finish_prefill(after=after(pair))
        return pair.pull(ticket, by_layer=True)

    def pushed(pair):
        _opened, ticket = pair.open()
        return pair.push(ticket, after=after(pair))

    def pushed_and_told(pair):
        _opened, ticket = pair.open()
        push = pair.push(ticket, prefilled=False, by_layer=True)
        for layer in range(4):
            push.ready(0, layer, LENGTH, after=after(pair))
        push.finish_prefill(after=after(pair))
        return push

    for begin in (leased, told, pushed, pushed_and_told):
        with Pair(driver, certs) as pair:
            pair.compute_later()
            assert finish(pair, begin(pair)) == marked, begin.__name__


@pytest.mark.parametrize("marked", [True, False])
def test_blocks_are_written_when_nobody_reads_them_any_more(on_gpu, certs, marked):
    on_gpu(writes_read_blocks, str(certs), marked)


def writes_read_blocks(driver, certs, marked):
    with Pair(driver, certs) as pair:
        fill(pair.prefill.memories[0][0])
        _lease, ticket = pair.lease()
        found_zeros = pair.read_later()
        pull = pair.pull(ticket, after=Mark(pair.stream) if marked else None)
        if marked:
            assert waits(pull.ended)
            # Of a pull there is nothing to tell.
            pull.ready(0, 0, LENGTH)
            pull.finish_prefill()
        else:
            pull.ended.result(30)
        pair.release()
        pull.ended.result(30)
        assert pair.is_right()
        assert found_zeros() == marked
    # The same for blocks that are pushed into. It waits without the interpreter's lock, or nobody would release the stream.
    with Pair(driver, certs) as pair:
        fill(pair.prefill.memories[0][0])
        found_zeros = pair.read_later()
        mark = Mark(pair.stream) if marked else None
        opened = []
        thread = threading.Thread(target=lambda: opened.append(pair.open(after=mark)))
        thread.start()
        if marked:
            thread.join(0.3)
            assert not opened
            pair.release()
        thread.join()
        pair.push(opened[0][1]).ended.result(30)
        pair.release()
        assert pair.is_right()
        assert found_zeros() == marked


def test_what_waits_for_a_mark_can_be_given_up(on_gpu, certs):
    on_gpu(gives_up, str(certs))


def gives_up(driver, certs):
    with Pair(driver, certs) as pair:
        pair.compute_later()
        mark = Mark(pair.stream)
        lease, ticket = pair.lease()
        # A pull, before it has begun, by hand and by its time.
        pull = pair.pull(ticket, after=mark)
        pull.cancel()
        pull.cancel()
        with pytest.raises(transload.TransferError) as raised:
            pull.ended.result(30)
        assert raised.value.kind == "cancelled"
        with pytest.raises(transload.TransferError, match="longer than 200ms") as raised:
            pair.pull(ticket, after=mark, timeout=0.2).ended.result(30)
        assert raised.value.kind == "timed_out"
        # What is wrong with a request is said at once.
        with pytest.raises(transload.TransferError) as raised:
            pair.prefill.agent.pull(ticket, [0], [[5]], CONTENT, LENGTH, after=mark)
        assert raised.value.kind == "request"
        # Blocks that are to be opened.
        with pytest.raises(transload.LeaseError, match="not reached within 0.2 s"):
            pair.open(after=mark, ttl=0.2)
        # A lease expires, and is cancelled.
        late, _ = pair.lease(after=mark, ttl=0.2)
        assert late.ended.result(30) == "expired"
        given_up, _ = pair.lease(after=mark)
        given_up.cancel()
        assert given_up.ended.result(30) == "cancelled"
        # What had to wait for its mark is too late, and harms nobody.
        given_up.ready(0, LENGTH, after=mark)
        given_up.finish_prefill(after=mark)
        # Nobody else waits.
        pair.pull(ticket).ended.result(30)
        assert lease.ended.result(30) == "completed"
        # A pull is cancelled after it has begun.
        never, ticket = pair.lease(prefilled=False)
        pull = pair.pull(ticket, after=mark)
        pair.release()
        assert waits(pull.ended)
        pull.cancel()
        with pytest.raises(transload.TransferError) as raised:
            pull.ended.result(30)
        assert raised.value.kind == "cancelled"
        assert never.ended.result(30) == "cancelled"


def test_a_mark_that_is_never_reached_fails_what_waits(on_gpu, certs):
    on_gpu(fails_what_waits, str(certs))


def fails_what_waits(driver, certs):
    with Pair(driver, certs) as pair:
        pair.compute_later()
        mark = Mark(pair.stream)
        lease, _ = pair.lease(after=mark)
        told, _ = pair.lease(prefilled=False)
        told.finish_prefill(after=mark)
        _free, ticket = pair.lease()
        pull = pair.pull(ticket, after=mark)
        driver.fail("cuEventQuery", 1, 700)
        assert lease.ended.result(30) == "cancelled"
        assert told.ended.result(30) == "cancelled"
        with pytest.raises(transload.TransferError, match="device 0 is lost") as raised:
            pull.ended.result(30)
        assert raised.value.kind == "failed"
