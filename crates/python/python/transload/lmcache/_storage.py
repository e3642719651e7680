"""A storage plugin for LMCache's engine in one process."""

import asyncio
import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

from .. import Objects, StoreError
from . import describe, log, read_settings


class Storage(StoragePluginInterface):
    """Keeps LMCache's chunks in a store.

    A pin is nothing here: what is looked up is what a store's cap takes last, and a read of what is gone all the same is a miss.
    What a store fails at is a miss as well, or a put that is not done, and a warning.
    """

    def __init__(self, dst_device="cpu", config=None, metadata=None, local_cpu_backend=None, loop=None, **_later):
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        settings = _settings(getattr(config, "extra_config", None) or {})
        self._objects = Objects(settings["uri"], settings["namespace"], threads=settings["threads"])
        self._readers = ThreadPoolExecutor(settings["workers"], "transload-load")
        self._writers = ThreadPoolExecutor(settings["workers"], "transload-store")
        self._lock = threading.Lock()
        self._putting: set = set()
        if local_cpu_backend is not None:
            # It is closed first, and its memory is what puts read.
            close_memory = local_cpu_backend.close
            local_cpu_backend.close = lambda: (self.close(), close_memory())[1]

    def __str__(self) -> str:
        return "transload.lmcache.Storage"

    def contains(self, key, pin: bool = False) -> bool:
        return self.batched_contains([key]) == 1

    def batched_contains(self, keys, pin: bool = False) -> int:
        found = [info is not None and self._usable(info) for info in self._has(keys)]
        return (found + [False]).index(False)

    def exists_in_put_tasks(self, key) -> bool:
        with self._lock:
            return key in self._putting

    def batched_submit_put_task(self, keys, objs, transfer_spec=None, on_complete_callback=None) -> list[Future] | None:
        batch = {}
        with self._lock:
            for key, each in zip(keys, objs, strict=True):
                if key not in self._putting:
                    self._putting.add(key)
                    batch[key] = each
        # The caller lets go of its own as soon as this returns.
        for each in batch.values():
            each.ref_count_up()
        try:
            return [self._writers.submit(self._put, batch, on_complete_callback)] if batch else None
        except RuntimeError:  # It is closed.
            self._finish(batch)
            return None

    async def async_batched_submit_put_task(self, keys, objs, transfer_spec=None, on_complete_callback=None) -> None:
        for task in self.batched_submit_put_task(keys, objs, transfer_spec, on_complete_callback) or ():
            await asyncio.wrap_future(task)

    def get_blocking(self, key) -> MemoryObj | None:
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys) -> list[MemoryObj | None]:
        if self.local_cpu_backend is None:
            return [None] * len(keys)
        objs = [self._allocate(info) for info in self._has(keys)]
        wanted = [index for index, each in enumerate(objs) if each is not None]
        try:
            values = [objs[index].byte_array for index in wanted]
            got = self._objects.get([keys[index].to_string() for index in wanted], values)
        except StoreError as error:
            log.warning("chunks are not loaded: %s", error)
            got = [None] * len(wanted)
        for index, info in zip(wanted, got):
            if info is None or info.meta != self._describe(objs[index]):
                objs[index].ref_count_down()
                objs[index] = None
        return objs

    async def batched_async_contains(self, lookup_id: str, keys, pin: bool = False) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.batched_contains, keys)

    async def batched_get_non_blocking(self, lookup_id: str, keys, transfer_spec=None) -> list[MemoryObj]:
        objs = await asyncio.get_running_loop().run_in_executor(self._readers, self.batched_get_blocking, keys)
        count = (objs + [None]).index(None)
        for each in objs[count:]:
            if each is not None:
                each.ref_count_down()
        return objs[:count]

    def pin(self, key) -> bool:
        return self.contains(key)

    def unpin(self, key) -> bool:
        return True

    def remove(self, key, force: bool = True) -> bool:
        return self.batched_remove([key], force) == 1

    def batched_remove(self, keys, force: bool = True) -> int:
        there = [key.to_string() for key, info in zip(keys, self._has(keys)) if info is not None]
        try:
            self._objects.delete(there)
        except StoreError as error:
            log.warning("chunks are not removed: %s", error)
            return 0
        return len(there)

    def get_allocator_backend(self):
        if self.local_cpu_backend is None:
            raise RuntimeError("LMCache's scheduler has no memory for chunks")
        return self.local_cpu_backend

    def touch_cache(self) -> None:
        """Does nothing: a store knows itself what was used."""

    def close(self) -> None:
        """Ends when all that was put is stored."""
        self._writers.shutdown()
        self._readers.shutdown()

    def _put(self, batch: dict, on_complete_callback) -> None:
        try:
            metas = [self._describe(each) for each in batch.values()]
            self._objects.put([key.to_string() for key in batch], [each.byte_array for each in batch.values()], metas)
        except Exception as error:
            log.warning("%d chunks are not stored: %s", len(batch), error)
            on_complete_callback = None
        finally:
            self._finish(batch)
        for key in batch if on_complete_callback is not None else ():
            try:
                on_complete_callback(key)
            except Exception as error:
                log.warning("what is called when a chunk is stored failed: %s", error)

    def _finish(self, batch: dict) -> None:
        with self._lock:
            self._putting.difference_update(batch)
        for each in batch.values():
            each.ref_count_down()

    def _has(self, keys) -> list:
        try:
            return self._objects.has([key.to_string() for key in keys])
        except StoreError as error:
            log.warning("chunks are not looked up: %s", error)
            return [None] * len(keys)

    def _usable(self, info) -> bool:
        # A scheduler does not know what its workers' memory looks like.
        return self.local_cpu_backend is None or _read_meta(info.meta).get("layout") == self._layout()

    def _allocate(self, info) -> MemoryObj | None:
        """Memory for a chunk, if it is of the layout that this engine has."""
        if info is None or not self._usable(info):
            return None
        meta = _read_meta(info.meta)
        shapes, dtypes = map(torch.Size, meta["shapes"]), (getattr(torch, name) for name in meta["dtypes"])
        return self.local_cpu_backend.allocate(list(shapes), list(dtypes), MemoryFormat[meta["format"]])

    def _describe(self, each) -> bytes:
        return describe(each, format=each.metadata.fmt.name, layout=self._layout())

    def _layout(self) -> str | None:
        """What the engine's cache looks like: a chunk's own shape does not tell in which heads and layers it has it."""
        if self.metadata is None:
            return None
        return f"{[list(shape) for shape in self.metadata.get_shapes()]} {self.metadata.get_dtypes()}"


def _settings(extra: dict) -> dict:
    """The settings of the one plugin in LMCache's `extra_config` that is this one, whatever name it has there."""
    ours = [
        name.removesuffix(".class_name")
        for name, value in extra.items()
        if name.startswith("storage_plugin.") and name.endswith(".class_name") and value == "Storage"
        if extra.get(name.removesuffix("class_name") + "module_path") == "transload.lmcache"
    ]
    if len(ours) != 1:
        raise ValueError(f"extra_config has {len(ours)} storage plugins of transload.lmcache; it may have one")
    prefix = ours[0] + "."
    given = {name.removeprefix(prefix): value for name, value in extra.items() if name.startswith(prefix)}
    given = {name: value for name, value in given.items() if name not in ("class_name", "module_path")}
    return read_settings(given, f"extra_config's {ours[0]}", namespace="lmcache.Storage", workers=4)


def _read_meta(meta: bytes) -> dict:
    try:
        read = json.loads(meta)
        return read if isinstance(read, dict) else {}
    except ValueError:
        return {}
