"""Objects: bytes of an engine under keys of its own."""

import ctypes
import os
import shutil
from array import array
from pathlib import Path

import numpy
import pytest

import transload


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def objects(folder):
    return transload.Objects(f"file://{folder}", "tests")


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
    # One meta is for all; equal objects are not written again, and another length or meta is another object.
    assert other.put(["b", "a"], [b"new", b"any"], b"bf16") == [True, False] and other.put(["a"], [b"four"], b"bf16") == [True]
    assert [info and info.bytes for info in other.get(["b", "c", "a"], [bytearray(3), bytearray(9), bytearray(3)])] == [3, None, None]
    other.delete(["a", "c", *keys[1:]])
    assert [(key, info.bytes) for key, info, _ in other.list()] == [(b"b", 3)]
    assert objects.put([], []) == objects.get([], []) == objects.has([]) == []


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


def test_metas_have_bounds(objects):
    with pytest.raises(ValueError, match="meta has 4097 bytes"):
        objects.put(["a", "b"], [b"", b""], [b"", b"m" * 4097])
    with pytest.raises(ValueError, match="2 keys and 1 metas"):
        objects.put(["a", "b"], [b"", b""], [b""])
    for meta in ("text", 3, ["text", b""]):
        with pytest.raises(TypeError, match="meta is bytes"):
            objects.put(["a", "b"], [b"", b""], meta)
    assert objects.has(["a", "b"]) == [None, None]


def test_a_store_that_is_full_says_so(folder, monkeypatch):
    monkeypatch.setenv("TRANSLOAD_FILE_CAP", "64KiB")
    objects = transload.Objects(f"file://{folder}", "tests")
    assert objects.put(["small"], [b"fits"]) == [True]
    usage = objects.usage()
    assert usage["cap"] == 64 << 10 and 0 < usage["bytes"] < 64 << 10
    with pytest.raises(transload.StoreError, match="the store is full"):
        objects.put(["large"], [os.urandom(1 << 20)])
    assert objects.has(["large"]) == [None]


@pytest.mark.parametrize("kind", [transload.Objects, transload.ObjectQueue])
def test_a_store_that_cannot_be_used_says_so(folder, kind):
    folder.write_bytes(b"no folder")
    for uri, why in ("redis://me:hunter2@127.0.0.1:1/0", "must not contain a password"), ("nowhere://", "nowhere"), (f"file://{folder}", "kv"):
        with pytest.raises(transload.StoreError, match=why) as error:
            kind(uri, "tests")
        assert "hunter2" not in str(error.value)
    folder.unlink()
    with pytest.raises(ValueError, match="namespace has 1 to 4096"):
        kind(f"file://{folder}", "")
    sizes = ("threads",) if kind is transload.Objects else ("threads", "workers")
    for name in sizes:
        for number in (0, 65):
            with pytest.raises(ValueError, match=f"{name} is 1 to 64"):
                kind(f"file://{folder}", "tests", **{name: number})


def test_a_store_that_is_gone_says_so(objects, folder):
    objects.put(["a"], [b"data"])
    shutil.rmtree(folder)
    for call in objects.list, lambda: objects.put(["b"], [b"data"]):
        with pytest.raises(transload.StoreError):
            call()
    assert objects.has(["a"]) == [None]
