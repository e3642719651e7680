"""LMCache's plugins where there is no LMCache. `tests/engines/test_lmcache.py` has them under LMCache itself."""

import asyncio
import json
import os
import select
import sys
import threading
import time
from types import SimpleNamespace

import lmcache_stand_in as stand_in
import pytest
from lmcache_stand_in import CacheEngineKey, MemoryObj, ObjectKey, bfloat16, uint8

import transload.lmcache
from transload import Objects, StoreError
from transload.lmcache import Client


def test_client_needs_no_lmcache(tmp_path):
    client = Client(uri=f"file://{tmp_path}/store")
    data, into = b"some bytes", bytearray(10)
    for submit in (
        lambda: client.submit_batch_set(["key"], [memoryview(data)]),
        lambda: client.submit_batch_get(["key"], [memoryview(into)]),
    ):
        task = submit()
        assert select.select([client.event_fd()], [], [], 60)[0]
        [(done, ok, error, _)] = client.drain_completions()
        assert (done, ok, error) == (task, True, "")
    assert into == data
    client.close()


@pytest.mark.parametrize(
    "settings, told",
    [
        ({}, "has no 'uri'"),
        ({"uri": "file:///x", "urri": "x", "a": 1}, "'a', 'urri', which transload does not know; it knows uri, "),
        ({"uri": ""}, "'uri' is a text"),
        ({"uri": "file:///x", "namespace": 1}, "'namespace' is a text"),
        ({"uri": "file:///x", "workers": 0}, "'workers' is a number above 0"),
        ({"uri": "file:///x", "workers": -1}, "'workers' is a number above 0"),
        ({"uri": "file:///x", "workers": 65}, "'workers' is a number above 0, and at most 64"),
        ({"uri": "file:///x", "threads": True}, "'threads' is a number above 0"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, told):
    with pytest.raises(ValueError, match=told):
        Client(**settings)


@pytest.mark.parametrize("name", ["L2Adapter", "L2AdapterConfig", "Storage"])
def test_others_say_what_to_install(name, monkeypatch):
    # None there is what Python takes for a package that is not installed.
    for package in ("lmcache", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    for module in ("_l2", "_storage"):
        monkeypatch.delitem(sys.modules, f"transload.lmcache.{module}", raising=False)
    with pytest.raises(ImportError, match="pip install lmcache"):
        getattr(transload.lmcache, name)
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        transload.lmcache.Other


def test_what_the_server_cannot_see_is_told(plugins, tmp_path, caplog):
    uri = f"file://{tmp_path}/store"
    Client(uri=uri, namespace="mine").close()
    plugins.L2Adapter({"uri": uri, "namespace": "mine"}).close()
    assert not caplog.records
    for make in lambda: Client(uri=uri), lambda: plugins.L2Adapter({"uri": uri}):
        caplog.clear()
        make().close()
        [line] = [each.getMessage() for each in caplog.records]
        assert "LMCache's server sees none: give adapter_params a 'namespace' that is another for each" in line


def test_chunks_of_other_weights_are_not_found(plugins, tmp_path, monkeypatch, caplog):
    from transload import _computes as computes

    monkeypatch.setattr(computes, "_process_began", lambda: time.time() + 60)
    config = SimpleNamespace(extra_config={
        "p.module_path": "transload.lmcache", "p.class_name": "Storage", "p.uri": f"file://{tmp_path}/store"
    })  # fmt: skip

    def storage(model, role, memory=None):
        metadata = SimpleNamespace(model_name=str(model), role=role, get_shapes=lambda: [(2,)], get_dtypes=lambda: ["bf16"])
        made = plugins.Storage(config=config, metadata=metadata, local_cpu_backend=memory)
        if hasattr(made._objects, "_thread"):
            made._objects._thread.join(20)
        return made

    def of(content):
        folder = tmp_path / content
        folder.mkdir()
        (folder / "model.safetensors").write_text(content)
        return folder

    first, other, key = of("first"), of("other"), CacheEngineKey(1)
    worker = storage(first, "worker", stand_in.LocalCPUBackend())
    [task] = worker.batched_submit_put_task([key], [MemoryObj([(100,)], [uint8])])
    task.result(20)
    assert storage(first, "scheduler").contains(key) and worker.contains(key)
    assert "adapters, quantization and overrides that the engine is told of are not" in caplog.text
    assert not storage(other, "scheduler").contains(key)
    caplog.clear()
    assert not storage("org/model", "scheduler").contains(key)
    assert "'org/model' is no folder of weights" in caplog.text


class Fails:
    """Objects of a store that has failed, or that cannot list."""

    def __init__(self, works=None):
        self.works = works

    def __getattr__(self, name):
        if self.works is not None and name != "list":
            return getattr(self.works, name)

        def fail(*_):
            raise StoreError("the disk is full")

        fail.__name__ = name
        return fail


@pytest.fixture
def plugins():
    with stand_in.installed() as plugins:
        yield plugins


# --- the server's adapter ----------------------------------------------------------------


@pytest.fixture
def adapter(plugins, tmp_path):
    made = []

    def make(**settings):
        made.append(plugins.L2Adapter({"uri": f"file://{tmp_path}/store", **settings}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def key(number, **more):
    return ObjectKey(bytes([number]) * 16, "org/model", 7, **more)


def chunk(number, size=100, dtype=uint8):
    made = MemoryObj([(size,)], [dtype])
    made.byte_array[:] = bytes([number]) * made.get_size()
    return made


def wait(descriptor):
    assert select.select([descriptor], [], [], 60)[0]
    os.eventfd_read(descriptor)


def store(adapter, keys, objects):
    task = adapter.submit_store_task(keys, objects)
    wait(adapter.get_store_event_fd())
    return adapter.pop_completed_store_tasks()[task]


def look_up(adapter, keys):
    task = adapter.submit_lookup_and_lock_task(keys)
    wait(adapter.get_lookup_and_lock_event_fd())
    return adapter.query_lookup_and_lock_result(task).bits


def load(adapter, keys, objects):
    task = adapter.submit_load_task(keys, objects)
    wait(adapter.get_load_event_fd())
    return adapter.query_load_result(task).bits


def test_pages_are_of_one_listing(adapter):
    one, keys = adapter(), [key(number) for number in range(5)]
    store(one, keys, [chunk(number) for number in range(5)])
    listed = [entry.key for entry in one.list_l2_keys().entries]
    page = one.list_l2_keys(page_size=2)
    # A key removed between two pages is not in the second page; one added then is in the next listing.
    one.delete([listed[2]])
    store(one, [key(9)], [chunk(9)])
    rest = one.list_l2_keys(cursor=page.next_page_token)
    assert [entry.key for entry in page.entries + rest.entries] == listed[:2] + listed[3:]
    assert key(9) in {entry.key for entry in one.list_l2_keys().entries}
    # After a restart nobody knows of the listing: it goes on where it was.
    rest = adapter().list_l2_keys(cursor=page.next_page_token)
    assert [entry.key for entry in rest.entries] == listed[3:] + [key(9)]


def test_adapter_hears_now_and_then_what_others_put(adapter):
    one, other = adapter(), adapter()
    store(other, [key(1)], [chunk(1)])
    one._since_refresh = 4096
    assert store(one, [key(2)], [chunk(2)]).success
    # Behind the task, so that nobody waits for it.
    one._threads["store"].shutdown()
    assert one.report_status()["stored_object_count"] == 2


def test_adapter_tells_lmcache_what_is_there(adapter):
    first, keys = adapter(), [key(1), key(2, cache_salt="-SEP-" + "s" * 123), key(3, object_group_id=2)]
    done = store(first, keys, [chunk(1), chunk(2, size=0), chunk(3)])
    assert (done.success, done.bytes) == (True, 200)
    assert store(first, keys[:1], [chunk(1)]).bytes == 0 and first.heard.accessed == keys[:1]
    assert load(first, keys[:1], [chunk(0)]) == [True]

    second, listener = adapter(), stand_in.Heard()
    second.register_listener(listener)
    assert dict(listener.stored) == {keys[0]: 100, keys[1]: 0, keys[2]: 100} and second.used == 200
    # What is first is evicted last.
    assert listener.stored[0][0] == keys[0]
    page = second.list_l2_keys(page_size=2)
    rest = second.list_l2_keys(page_size=2, cursor=page.next_page_token)
    assert {entry.key for entry in page.entries + rest.entries} == set(keys) and rest.next_page_token is None
    for wrong in (dict(page_size=0), dict(cursor="of nobody")):
        with pytest.raises(ValueError, match="page_size is|cursor"):
            second.list_l2_keys(**wrong)

    # Another length replaces, and counts once.
    assert store(second, keys[:1], [chunk(5, size=50)]).bytes == 50 and second.used == 150
    # As many bytes of another dtype are no hit.
    assert load(second, keys[:1], [chunk(0, size=25, dtype=bfloat16)]) == [False]
    # What others have removed is noticed.
    first.delete(keys[:1])
    assert look_up(second, keys) == [False, True, True] and second.used == 100


def test_locked_keys_outlive_a_delete(adapter):
    one = adapter()
    store(one, [key(1), key(2)], [chunk(1), chunk(2)])
    assert look_up(one, [key(1), key(1), key(9)]) == [True, True, False]
    one.delete([key(1), key(2)])
    one.submit_unlock([key(1), key(9), key(8)])
    assert load(one, [key(1), key(2)], [chunk(0), chunk(0)]) == [True, False]
    one.submit_unlock([key(1)])
    # It ends when all is done.
    one.close()
    one.close()
    assert one.heard.deleted == [(key(2), 100), (key(1), 100)] and one.report_status()["locked_key_count"] == 0


def test_a_look_up_promises_nothing_that_is_being_deleted(adapter):
    one = adapter()
    store(one, [key(1)], [chunk(1)])
    objects, asked, go = one._objects, threading.Event(), threading.Event()

    def delete(keys):
        asked.set()
        assert go.wait(60)
        objects.delete(keys)

    one._objects = SimpleNamespace(has=objects.has, delete=delete)
    deletion = threading.Thread(target=one.delete, args=[[key(1)]])
    deletion.start()
    assert asked.wait(60)
    # It is still there.
    assert look_up(one, [key(1)]) == [False]
    go.set()
    deletion.join(60)
    one._objects = objects
    store(one, [key(1)], [chunk(1)])
    assert look_up(one, [key(1)]) == [True] and one.report_status()["locked_key_count"] == 1


def test_cap_of_the_adapter_is_kept(adapter):
    one = adapter(max_capacity_gb=250 / (1 << 30))
    store(one, [key(1), key(2)], [chunk(1), chunk(2)])
    assert load(one, [key(2)], [chunk(0)]) == [True]
    store(one, [key(3)], [chunk(3)])
    assert one.used == 200 and look_up(one, [key(1), key(2), key(3)]) == [False, True, True]


def test_adapter_fails_softly(adapter, plugins):
    one = adapter()
    store(one, [key(1)], [chunk(1)])
    works, one._objects = one._objects, Fails()
    assert not store(one, [key(2)], [chunk(2)]).success
    assert look_up(one, [key(1)]) == [False] and load(one, [key(1)], [chunk(0)]) == [False]
    one.delete([key(1)])
    status = one.report_status()
    assert not status["is_healthy"] and status["locked_key_count"] == 0
    assert status["errors"] == dict.fromkeys(["store", "lookup", "load", "delete"], "the disk is full")

    # One that only cannot list forgets nothing that it knows, but does not know more and more.
    one._objects = Fails(works)
    limit, module = 3, sys.modules["transload.lmcache._l2"]
    module.MOST_UNLISTED = limit
    store(one, [key(number) for number in range(5)], [chunk(number) for number in range(5)])
    one._refresh()
    assert one.report_status()["stored_object_count"] == limit
    one.close()
    late = one.submit_lookup_and_lock_task([key(1)])
    assert one.query_lookup_and_lock_result(late).bits == [False]


def test_what_waits_for_a_store_is_bounded(plugins):
    threads, go = plugins.Threads("test", 1), threading.Event()
    waiting = [threads.submit(go.wait) for _ in range(4096)]
    with pytest.raises(RuntimeError, match="4096 calls wait"):
        threads.submit(go.wait)
    go.set()
    for each in waiting:
        each.result(60)
    assert threads.submit(lambda: 5).result(60) == 5
    threads.shutdown()


# --- the engine's plugin -----------------------------------------------------------------


@pytest.fixture
def storage(plugins, tmp_path):
    made = []

    def make(memory=True, layout="a", **settings):
        metadata = SimpleNamespace(model_name="org/model", get_shapes=lambda: [[layout]], get_dtypes=lambda: [uint8])
        ours = {"module_path": "transload.lmcache", "class_name": "Storage", "uri": f"file://{tmp_path}/store", **settings}
        config = SimpleNamespace(extra_config={f"storage_plugin.ours.{name}": value for name, value in ours.items()})
        memory = stand_in.LocalCPUBackend() if memory else None
        made.append(plugins.Storage(config=config, metadata=metadata, local_cpu_backend=memory))
        return made[-1]

    yield make
    for each in made:
        each.close()


KEYS = [CacheEngineKey(number) for number in range(3)]


def put(storage, keys, objects, called=None):
    asyncio.run(storage.async_batched_submit_put_task(keys, objects, on_complete_callback=called))


def test_storage_keeps_chunks_over_a_restart(storage):
    before, objects, called = storage(), [chunk(0), chunk(1)], []

    def call_back(key):
        called.append(key)
        raise RuntimeError("of somebody else's")

    put(before, KEYS[:2], objects, call_back)
    assert called == KEYS[:2] and [each.references for each in objects] == [1, 1]
    before.local_cpu_backend.close()
    assert before.local_cpu_backend.closed and before.batched_submit_put_task(KEYS[2:], objects[:1]) is None
    assert objects[0].references == 1 and not before.exists_in_put_tasks(KEYS[2])

    after = storage()
    assert after.batched_contains(KEYS) == 2 == asyncio.run(after.batched_async_contains("request", KEYS))
    got = after.batched_get_blocking([KEYS[1], KEYS[2], KEYS[0]])
    assert [each and bytes(each.byte_array) for each in got] == [b"\1" * 100, None, b"\0" * 100]
    # Only what is before a miss, and the rest goes back.
    prefix = asyncio.run(after.batched_get_non_blocking("request", [KEYS[0], KEYS[2], KEYS[1]]))
    assert len(prefix) == 1 and after.local_cpu_backend.given[-1].references == 0
    after.local_cpu_backend.room = 50
    assert after.get_blocking(KEYS[0]) is None
    assert storage(memory=False).contains(KEYS[0]) and storage(memory=False).get_blocking(KEYS[0]) is None
    assert not storage(layout="b").contains(KEYS[0]) and storage(layout="b").get_blocking(KEYS[0]) is None
    assert after.remove(KEYS[0]) and not after.remove(KEYS[0]) and not after.pin(KEYS[0])


HAS = "the call `has` of the store of LMCache's chunks"


def test_storage_fails_softly(storage, caplog):
    one, objects, called = storage(), [chunk(0)], []
    put(one, KEYS[:1], objects)
    works, one._objects = one._objects, Fails()
    caplog.clear()
    assert not any(one.contains(KEYS[0]) for _ in range(3))
    # It says so once, until it works again.
    one._objects = works
    assert one.contains(KEYS[0]) and one.contains(KEYS[0])
    one._objects = Fails()
    assert not one.contains(KEYS[0])
    told = [each.getMessage() for each in caplog.records]
    assert told == [f"{HAS} fails: the disk is full", f"{HAS} works again", told[0]]
    put(one, KEYS[1:2], objects, called.append)
    assert not called and objects[0].references == 1 and not one.exists_in_put_tasks(KEYS[1])
    assert not one.contains(KEYS[0]) and one.get_blocking(KEYS[0]) is None and not one.remove(KEYS[0])
    one.close()
    assert asyncio.run(one.batched_async_contains("request", KEYS)) == 0
    assert asyncio.run(one.batched_get_non_blocking("request", KEYS)) == []


@pytest.mark.parametrize("wrong", [b"", b"[" * 4096, b"[]", dict(shapes=[[99]]), dict(shapes=[[-10], [-10]]),
                                   dict(shapes=[[1 << 70]]), dict(shapes=[]), dict(dtypes=["Size"]), dict(format="OF_NOBODY"),
                                   dict(layout=None)])  # fmt: skip
def test_a_meta_of_somebody_else_is_a_miss(storage, tmp_path, wrong):
    one = storage()
    put(one, KEYS[:1], [chunk(0)])
    objects, name = Objects(f"file://{tmp_path}/store", "lmcache.Storage"), KEYS[0].to_string()
    meta = json.loads(objects.has([name])[0].meta)
    objects.put([name], [bytes(100)], wrong if isinstance(wrong, bytes) else json.dumps({**meta, **wrong}).encode())
    assert not one.contains(KEYS[0]) and one.get_blocking(KEYS[0]) is None and not one.local_cpu_backend.given
