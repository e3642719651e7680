"""Objects put and read in the background, with the methods of LMCache's native clients."""

import asyncio
import ctypes
import gc
import os
import select
import subprocess
import sys
import threading

import numpy
import pytest

import transload


@pytest.fixture
def uri(tmp_path) -> str:
    return f"file://{tmp_path}/kv"


@pytest.fixture
def queue(uri):
    queue = transload.ObjectQueue(uri, "tests")
    yield queue
    queue.close()


def drain(queue, count=1):
    """So many results, by id."""
    results = {}
    while len(results) < count:
        assert select.select([queue.event_fd()], [], [], 60)[0], f"{len(results)} results of {count}"
        for id, *result in queue.drain_completions():
            assert id not in results
            results[id] = tuple(result)
    return results


def wait(queue, id):
    """The result of the only batch under way."""
    return drain(queue)[id]


def is_readable(queue):
    return bool(select.select([queue.event_fd()], [], [], 0)[0])


def test_a_queue_puts_finds_reads_and_removes(queue, uri):
    keys = ["model@00000000@0@aa", "b" * 4096, b"\x00/.."]
    data = [os.urandom(n) for n in (5000, 0, 3)]
    assert wait(queue, queue.submit_batch_set(keys, [memoryview(one) for one in data])) == (True, "", None)
    assert wait(queue, queue.submit_batch_exists([*keys, "c"])) == (True, "", [True, True, True, False])
    memory = [bytearray(len(one)) for one in data] + [bytearray(7)]
    assert wait(queue, queue.submit_batch_get([*keys, "c"], memory)) == (True, "", [True, True, True, False])
    assert memory == [*data, bytes(7)]
    assert [info.bytes for info in transload.Objects(uri, b"tests").has(keys)] == [5000, 0, 3]
    assert wait(queue, queue.submit_batch_delete([keys[0], "c"])) == (True, "", [True, True])
    assert wait(queue, queue.submit_batch_exists(keys)) == (True, "", [False, True, True])
    # Nothing, and more than one word of answers.
    assert wait(queue, queue.submit_batch_set([], [])) == (True, "", None)
    for submit in (queue.submit_batch_exists, queue.submit_batch_delete, lambda keys: queue.submit_batch_get(keys, [])):
        assert wait(queue, submit([])) == (True, "", [])
    assert wait(queue, queue.submit_batch_exists([f"{n}" for n in range(10_000)])) == (True, "", [False] * 10_000)


def test_a_thousand_submits_wait_for_a_drain(queue):
    memory = numpy.arange(500, dtype="u4")
    ids = [queue.submit_batch_set([f"{n}"], [memory[n : n + 1]]) for n in range(500)]
    ids += [queue.submit_batch_exists(["x"]) for _ in range(500)]
    assert len(set(ids)) == 1000 and ids == sorted(ids)
    results = drain(queue, 1000)
    assert set(results) == set(ids)
    assert all(ok for ok, _, _ in results.values())
    # One signal covers many, and draining takes it back.
    assert not is_readable(queue)
    assert queue.drain_completions() == []
    back = numpy.zeros_like(memory)
    keys = [f"{n}" for n in range(500)]
    assert wait(queue, queue.submit_batch_get(keys, [back[n : n + 1] for n in range(500)]))[2] == [True] * 500
    assert (back == memory).all()


def test_buffers_are_held_until_they_are_drained(queue):
    memory = bytearray(1 << 16)
    id = queue.submit_batch_set(["a"], [memory])
    assert select.select([queue.event_fd()], [], [], 60)[0]
    with pytest.raises(BufferError):
        memory.append(1)
    assert queue.drain_completions() == [(id, True, "", None)]
    memory.append(1)

    # The caller's own reference is not needed.
    target = bytearray(1 << 16)
    view = memoryview(target)
    queue.submit_batch_get(["a"], [view])
    del view, target
    gc.collect()
    assert drain(queue)[id + 1][2] == [True]

    # Closing lets them go as well.
    queue.submit_batch_get(["a"], [memory])
    queue.close()
    memory.append(1)


@pytest.mark.parametrize(
    ("keys", "values", "error"),
    [
        (["a"], [], ValueError),
        (["a"], [3], TypeError),
        (["a"], [memoryview(bytearray(9))[::3]], ValueError),
        (["a"], [(0, 1)], ValueError),
        ([3], [bytearray(1)], TypeError),
        ("a", [bytearray(1)], TypeError),
        (["a"], bytearray(1), TypeError),
    ],
)
def test_what_cannot_be_a_batch_is_refused(queue, keys, values, error):
    for submit in (queue.submit_batch_set, queue.submit_batch_get):
        with pytest.raises(error):
            submit(keys, values)
    with pytest.raises(ValueError, match="writable"):
        queue.submit_batch_get(["a"], [b"read-only"])
    assert queue.drain_completions() == [] and not is_readable(queue)


def test_a_key_that_cannot_be_fails_its_batch(queue):
    for key in ("", "k" * 4097):
        queue.submit_batch_set(["a", key], [b"1", b"2"])
        queue.submit_batch_get(["a", key], [bytearray(1), bytearray(1)])
        queue.submit_batch_exists(["a", key])
        queue.submit_batch_delete(["a", key])
        for ok, error, answers in drain(queue, 4).values():
            assert (ok, answers) == (False, None) and "1 to 4096 bytes" in error
    assert wait(queue, queue.submit_batch_exists(["a"]))[2] == [False]


def test_what_the_store_cannot_do_is_a_result(uri, monkeypatch):
    monkeypatch.setenv("TRANSLOAD_FILE_CAP", "64KiB")
    queue = transload.ObjectQueue(uri, "tests")
    ok, error, answers = wait(queue, queue.submit_batch_set(["large"], [os.urandom(1 << 20)]))
    assert (ok, answers) == (False, None) and "the store is full" in error


def test_results_that_nobody_drains_have_a_bound(queue):
    for _ in range(1 << 16):
        queue.submit_batch_exists([])
    with pytest.raises(transload.StoreError, match="65536 results"):
        queue.submit_batch_exists([])
    drain(queue, 1 << 16)
    wait(queue, queue.submit_batch_exists([]))


def test_threads_of_a_queue_need_no_interpreter(queue):
    """`poll` is called here without giving the interpreter's lock back."""
    queue.submit_batch_set(["a"], [os.urandom(1 << 20)])
    libc = ctypes.PyDLL(None)
    waited = (ctypes.c_int * 2)(queue.event_fd(), select.POLLIN)
    assert libc.poll(waited, 1, 60_000) == 1
    assert [ok for _, ok, _, _ in queue.drain_completions()] == [True]


def test_threads_submit_and_drain(queue):
    results, ids, lock = [], [], threading.Lock()

    def submit(own):
        for n in range(50):
            id = queue.submit_batch_set([f"{own}/{n}"], [bytes([own])])
            with lock:
                ids.append(id)

    def take():
        while True:
            select.select([queue.event_fd()], [], [], 0.1)
            drained = queue.drain_completions()
            with lock:
                results.extend(drained)
                if len(results) == 200:
                    return

    threads = [threading.Thread(target=submit, args=(own,)) for own in range(4)]
    threads += [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(id for id, *_ in results) == sorted(ids) == list(range(1, 201))
    assert all(ok for _, ok, _, _ in results)


def test_an_event_loop_is_told(uri):
    """As LMCache does it in its engine, closing in the callback."""

    async def one():
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        queue, drained = transload.ObjectQueue(uri, "tests"), []

        def ready():
            drained.extend(queue.drain_completions())
            if len(drained) == 20:
                loop.remove_reader(queue.event_fd())
                queue.close()
                done.set()

        loop.add_reader(queue.event_fd(), ready)
        for n in range(20):
            queue.submit_batch_set([f"{n}"], [b"data"])
        await asyncio.wait_for(done.wait(), 60)
        return drained

    assert sorted(id for id, *_ in asyncio.run(one())) == list(range(1, 21))
    assert all(transload.Objects(uri, "tests").has([f"{n}" for n in range(20)]))


def test_a_close_does_what_was_submitted(uri):
    queue = transload.ObjectQueue(uri, "tests", workers=1)
    for n in range(20):
        queue.submit_batch_set([f"{n}"], [os.urandom(1 << 16)])
    queue.submit_batch_get(["0"], [memory := bytearray(1 << 16)])
    closers = [threading.Thread(target=queue.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(60)
        assert not closer.is_alive()
    queue.close()
    memory.append(1)
    assert all(transload.Objects(uri, "tests").has([f"{n}" for n in range(20)]))
    assert queue.drain_completions() == [] and not is_readable(queue)
    for submit in (queue.submit_batch_exists, queue.submit_batch_delete):
        with pytest.raises(ValueError, match="the queue is closed"):
            submit(["0"])
    with pytest.raises(ValueError, match="the queue is closed"):
        queue.submit_batch_set(["0"], [memory])
    memory.append(1)


def test_a_queue_that_is_dropped_ends_as_closed(uri):
    queue = transload.ObjectQueue(uri, "tests")
    memory = bytearray(1 << 20)
    queue.submit_batch_set(["a"], [memory])
    descriptor = queue.event_fd()
    del queue
    memory.append(1)
    with pytest.raises(OSError):
        os.fstat(descriptor)
    assert transload.Objects(uri, "tests").has(["a"])[0].bytes == 1 << 20


@pytest.mark.parametrize(
    "ending", ["pass", "del queue", "sys.exit()", "raise KeyboardInterrupt", "cycle = [queue]; cycle.append(cycle)"]
)
def test_an_interpreter_ends_with_a_queue(uri, ending):
    code = f"""
import os, sys, transload
queue = transload.ObjectQueue(sys.argv[1], "tests")
data = [os.urandom(1 << 18) for _ in range(16)]
for n, one in enumerate(data):
    queue.submit_batch_set([f"{{n}}"], [one])
    queue.submit_batch_get([f"{{n}}"], [bytearray(1 << 18)])
print("submitted")
{ending}
"""
    done = subprocess.run([sys.executable, "-c", code, uri], timeout=60, capture_output=True, text=True)
    assert done.stdout == "submitted\n"
    if "raise" in ending:
        assert done.stderr.strip().endswith("KeyboardInterrupt")
    else:
        assert (done.returncode, done.stderr) == (0, "")
