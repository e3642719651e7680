"""Objects: bytes of an engine under keys of its own."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import transload


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def objects(folder):
    return transload.Objects(f"file://{folder}", "tests")


def read(objects, key, length):
    """The bytes of an object, or None."""
    memory = bytearray(length)
    [info] = objects.get([key], [memory])
    return None if info is None else bytes(memory)


def test_objects_come_back(objects, folder):
    keys = ["a", b"\x00/../", "key " * 1000]
    assert objects.put(keys, [b"one", [b"", b"tw", b"o"], b""], [b"bf16", b"", b"m" * 4096]) == [True] * 3
    other = transload.Objects(f"file://{folder}", b"tests", threads=1)
    assert [(info.bytes, info.meta) for info in other.has(keys)] == [(3, b"bf16"), (3, b""), (0, b"m" * 4096)]
    parts = [bytearray(1), bytearray(2)], bytearray(3), []
    infos = other.get(keys, parts)
    assert infos == objects.has(keys)
    assert parts[0] == [b"o", b"ne"] and parts[1] == b"two"
    assert transload.Objects(f"file://{folder}", "others").has(keys) == [None] * 3
    assert repr(infos[0]) == "<transload.ObjectInfo: 3 bytes, meta of 4>"


def test_equal_objects_are_written_once(objects):
    assert objects.put(["a", "a"], [b"old", b"one"]) == [True, True]
    assert objects.put(["a"], [b"any"]) == [False]
    assert read(objects, "a", 3) == b"one"
    # Another meta or length is another object.
    assert objects.put(["a"], [b"two"], b"meta") == [True]
    assert objects.put(["a"], [b"three"], b"meta") == [True]
    assert read(objects, "a", 3) is None
    assert read(objects, "a", 5) == b"three"


def test_batches_may_be_empty_or_long(objects):
    assert objects.put([], []) == objects.get([], []) == objects.has([]) == []
    objects.delete([])
    keys = [f"{n}" for n in range(10_000)]
    memory = numpy.arange(10_000, dtype=numpy.uint32)
    assert all(objects.put(keys, [memory[n : n + 1] for n in range(10_000)]))
    back = numpy.zeros_like(memory)
    assert all(objects.get(keys, [back[n : n + 1] for n in range(10_000)]))
    assert (back == memory).all()
    objects.delete(keys[1:])
    assert [key for key, _, _ in objects.list()] == [b"0"]


def test_every_contiguous_buffer_is_memory(objects):
    content = bytes(range(24))
    square = numpy.frombuffer(content, "<u2").reshape(3, 4)
    sources = [
        content,
        bytearray(content),
        array("H", square.flatten().tolist()),
        square,
        memoryview(square),
        memoryview((ctypes.c_ubyte * 24).from_buffer_copy(content)),
    ]
    # As LMCache's are.
    assert sources[-1].format == "<B"
    keys = [f"{n}" for n in range(7)]
    assert all(objects.put(keys, [*sources, (ctypes.addressof(sources[-1].obj), 24)]))
    targets = [
        bytearray(24),
        array("H", [0] * 12),
        numpy.zeros((3, 4), "<u2"),
        memoryview(numpy.zeros((2, 3, 4), "u1")),
        memoryview((ctypes.c_ubyte * 24)()),
        memoryview(bytearray(48))[24:],
    ]
    raw = ctypes.create_string_buffer(24)
    assert all(objects.get(keys, [*targets, (ctypes.addressof(raw), 24)]))
    assert [bytes(target) for target in targets] == [content] * len(targets)
    assert raw.raw == content


@pytest.mark.parametrize(
    ("values", "error", "why"),
    [
        ([3], TypeError, "a buffer or .address, length."),
        ([None], TypeError, "a buffer or .address, length."),
        (["text"], TypeError, "a buffer or .address, length."),
        (b"x", TypeError, "give a list"),
        ([[bytearray(1), (1, 2, 3)]], ValueError, "two numbers"),
        ([[bytearray(1), ("x", 1)]], ValueError, "two numbers"),
        ([(-1, 1)], ValueError, "two numbers, neither negative"),
        ([(1, -1)], ValueError, "two numbers, neither negative"),
        ([(1, 1 << 64)], ValueError, "nor too large"),
        ([((1 << 64) - 1, 2)], ValueError, "no memory is as long"),
        ([(1, 1 << 63)], ValueError, "no memory is as long"),
        ([(0, 1)], ValueError, "no memory at address 0"),
        ([memoryview(bytearray(9))[::3]], ValueError, "contiguous"),
        ([numpy.zeros((3, 4)).T], ValueError, "contiguous"),
        ([], ValueError, "1 keys and 0 values"),
        ([bytearray(1), bytearray(1)], ValueError, "1 keys and 2 values"),
    ],
)
def test_what_is_no_memory_is_refused(objects, values, error, why):
    for method in (objects.put, objects.get):
        with pytest.raises(error, match=why):
            method(["key"], values)
    assert objects.has(["key"]) == [None]


def test_memory_to_read_into_is_writable_and_apart(objects):
    objects.put(["a", "b"], [b"1234", b"5678"])
    memory = bytearray(7)
    whole = memoryview(memory)
    for target in (b"1234", numpy.frombuffer(b"1234", "u1"), memoryview(bytearray(4)).toreadonly()):
        with pytest.raises(ValueError, match="writable"):
            objects.get(["a"], [target])
    for values in ([whole[:4], whole[3:]], [[whole[:2], whole[2:4]], [whole[1:3], whole[5:]]]):
        with pytest.raises(ValueError, match="memory of its own"):
            objects.get(["a", "b"], values)
    # Nothing was pinned for good.
    del whole, values
    memory.extend(b"more")
    # An empty part is nowhere.
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    whole = memoryview(memory)
    assert objects.get(["a"], [[whole[:4], (address + 2, 0), (0, 0)]]) == objects.has(["a"])


@pytest.mark.parametrize(
    ("keys", "error", "why"),
    [
        ([""], ValueError, "object 0 .* 1 to 4096 bytes, not 0"),
        (["x", b"k" * 4097], ValueError, "object 1 .* not 4097"),
        (["x", "\ud800"], ValueError, "surrogates"),
        ([3], TypeError, "str or bytes, not int"),
        ([[1, 2]], TypeError, "str or bytes, not list"),
        ("key", TypeError, "give a list"),
        (b"key", TypeError, "give a list"),
        (3, TypeError, "not iterable"),
    ],
)
def test_what_is_no_key_is_refused(objects, keys, error, why):
    values = [b""] * len(keys) if isinstance(keys, list) else [b""]
    for call in (
        lambda: objects.put(keys, values),
        lambda: objects.get(keys, [[]] * len(values)),
        lambda: objects.has(keys),
        lambda: objects.delete(keys),
    ):
        with pytest.raises(error, match=why):
            call()
    assert objects.has(["x"]) == [None]


def test_metas_and_settings_have_bounds(objects, folder):
    with pytest.raises(ValueError, match="meta has 4097 bytes"):
        objects.put(["a", "b"], [b"", b""], [b"", b"m" * 4097])
    with pytest.raises(ValueError, match="2 keys and 1 metas"):
        objects.put(["a", "b"], [b"", b""], [b""])
    for meta in ("text", 3, ["text", b""]):
        with pytest.raises(TypeError, match="meta is bytes"):
            objects.put(["a", "b"], [b"", b""], meta)
    assert objects.has(["a", "b"]) == [None, None]
    with pytest.raises(ValueError, match="namespace has 1 to 4096"):
        transload.Objects(f"file://{folder}", "")
    for threads in (0, 65):
        with pytest.raises(ValueError, match="1 to 64"):
            transload.Objects(f"file://{folder}", "tests", threads=threads)


KEYS = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("put"), st.dictionaries(KEYS, st.tuples(st.binary(max_size=40), st.binary(max_size=2)))),
    st.tuples(st.just("get"), st.lists(KEYS, max_size=4)),
    st.tuples(st.just("delete"), st.lists(KEYS, max_size=2)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=12))
def test_objects_are_a_dict_with_misses(folder, steps):
    objects = transload.Objects(f"file://{folder}", os.urandom(16))
    model = {}
    for step, given in steps:
        if step == "put":
            wanted = {
                key: value
                for key, value in given.items()
                if key not in model or (len(model[key][0]), model[key][1]) != (len(value[0]), value[1])
            }
            metas = [meta for _, meta in given.values()]
            halves = [[data[:7], data[7:]] for data, _ in given.values()]
            assert objects.put(list(given), halves, metas) == [key in wanted for key in given]
            model |= wanted
        elif step == "delete":
            objects.delete(given)
            for key in given:
                model.pop(key, None)
        else:
            lengths = [len(model[key][0]) if key in model else 9 for key in given]
            memory = [bytearray(length) for length in lengths]
            infos = objects.get(given, memory)
            assert infos == objects.has(given)
            for key, info, data in zip(given, infos, memory):
                assert (info and (bytes(data), info.meta)) == model.get(key), key
    listed = {key.decode(): (info.bytes, info.meta) for key, info, _ in objects.list()}
    assert listed == {key: (len(data), meta) for key, (data, meta) in model.items()}


def test_other_processes_read_what_was_put(objects, folder):
    objects.put(["a"], [b"parent"])
    code = """
import sys, transload
objects = transload.Objects(sys.argv[1], "tests")
memory = bytearray(6)
assert objects.get(["a"], [memory])[0].bytes == 6 and memory == b"parent"
objects.put(["b"], [b"child"])
"""
    subprocess.run([sys.executable, "-c", code, f"file://{folder}"], check=True)
    assert read(objects, "b", 5) == b"child"


def test_threads_share_objects(objects):
    def work(own):
        keys = [f"{own}/{n}" for n in range(20)]
        data = [bytes([own]) * (n + 1) for n in range(20)]
        for _ in range(3):
            objects.put([*keys, "shared"], [*data, b"the same"])
            memory = [bytearray(n + 1) for n in range(20)]
            assert all(objects.get(keys, memory)) and memory == data
            objects.delete(keys[::2])
            assert objects.has(keys)[::2] == [None] * 10
            assert objects.has(["shared"])[0].bytes == 8

    failures = []

    def caught(own):
        try:
            work(own)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=caught, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def damage(folder, content):
    """Changes a byte of what a store has of this content."""
    for file in folder.rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        at = data.find(content)
        if at >= 0:
            os.chmod(file, 0o600)
            file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            return
    raise AssertionError("the store has no such content")


def test_what_is_damaged_is_a_miss_that_the_next_put_heals(folder):
    content = os.urandom(5000)

    def fresh():
        return transload.Objects(f"file://{folder}", "tests")

    fresh().put(["a", "b"], [content, b"fine"])
    damage(folder, content)
    reader, memory = fresh(), bytearray(5000)
    fine = bytearray(4)
    assert [info is not None for info in reader.get(["a", "b"], [memory, fine])] == [False, True]
    assert memory == bytes(5000) and fine == b"fine"
    assert fresh().put(["a"], [content]) == [True]
    assert read(fresh(), "a", 5000) == content


def test_a_store_that_is_full_says_so(folder, monkeypatch):
    monkeypatch.setenv("TRANSLOAD_FILE_CAP", "64KiB")
    objects = transload.Objects(f"file://{folder}", "tests")
    assert objects.put(["small"], [b"fits"]) == [True]
    usage = objects.usage()
    assert usage["cap"] == 64 << 10 and 0 < usage["bytes"] < 64 << 10
    with pytest.raises(transload.StoreError, match="the store is full"):
        objects.put(["large"], [os.urandom(1 << 20)])
    assert objects.has(["large"]) == [None]
    # The least recently used go for what does fit.
    for n in range(20):
        objects.put([f"{n}"], [os.urandom(8 << 10)])
    assert objects.usage()["bytes"] <= 64 << 10
    assert objects.has(["19"])[0].bytes == 8 << 10
    assert objects.has(["small"]) == [None]


def test_a_store_that_cannot_be_used_says_so(folder):
    with pytest.raises(transload.StoreError, match="must not contain a password") as error:
        transload.Objects("redis://me:hunter2@127.0.0.1:1/0", "tests")
    assert "hunter2" not in str(error.value)
    with pytest.raises(transload.StoreError, match="nowhere"):
        transload.Objects("nowhere://", "tests")
    folder.write_bytes(b"no folder")
    with pytest.raises(transload.StoreError):
        transload.Objects(f"file://{folder}", "tests")


def test_a_store_that_is_gone_says_so(objects, folder):
    objects.put(["a"], [b"data"])
    shutil.rmtree(folder)
    with pytest.raises(transload.StoreError):
        objects.put(["b"], [b"data"])
    with pytest.raises(transload.StoreError):
        objects.list()
    assert objects.has(["a"]) == [None]
    fresh = transload.Objects(f"file://{folder}", "tests")
    assert fresh.put(["a"], [b"data"]) == [True] and read(fresh, "a", 4) == b"data"


def test_a_forked_child_opens_its_own(folder):
    code = """
import os, sys, transload
objects = transload.Objects(sys.argv[1], "tests")
objects.put(["a"], [b"data"])
child = os.fork()
if child == 0:
    try:
        objects.has(["a"])
        os._exit(1)
    except transload.StoreError as error:
        assert "before the process forked" in str(error)
    # Dropping it ends nothing of the parent's.
    del objects
    objects = transload.Objects(sys.argv[1], "tests")
    os._exit(0 if objects.has(["a"])[0].bytes == 4 else 2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert objects.put(["b"], [b"data"]) == [True]
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, f"file://{folder}"], check=True, timeout=60)
