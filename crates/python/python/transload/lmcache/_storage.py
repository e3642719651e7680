"""Keeps the chunks of LMCache's engine in one process in a store."""

import asyncio
import functools
import json
import math
import threading
from concurrent.futures import Future

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

from .._computes import Model, Unseen, objects
from . import Threads, describe, log, read_settings


NAMESPACE = "lmcache.Storage"


class Storage(StoragePluginInterface):
    """Keeps LMCache's chunks in a store.

    A pin is nothing here: what is looked up is what a store's cap takes last, and a read of what is gone all the same is a miss.
    What a store fails at is a miss as well, or a put that is not done, and the log says so once.
    """

    def __init__(self, dst_device="cpu", config=None, metadata=None, local_cpu_backend=None, loop=None, **_later):
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        settings = _settings(getattr(config, "extra_config", None) or {})
        what = functools.partial(_what_computes, metadata)
        self._objects = objects(settings["uri"], settings["namespace"], NAMESPACE, what, threads=settings["threads"])
        self._readers, self._writers = Threads("load", settings["workers"]), Threads("store", settings["workers"])
        self._lock = threading.Lock()
        self._putting: set = set()
        self._failing: set[str] = set()
        if local_cpu_backend is not None:
            # It is closed first, and its memory is what puts read.
            close_memory = local_cpu_backend.close
            local_cpu_backend.close = lambda: (self.close(), close_memory())[1]

    def __str__(self) -> str:
        return "transload.lmcache.Storage"

    def contains(self, key, pin: bool = False) -> bool:
        return self.batched_contains([key]) == 1

    def batched_contains(self, keys, pin: bool = False) -> int:
        # A scheduler has no memory, and does not know what its workers' looks like.
        usable = (lambda info: True) if self.local_cpu_backend is None else self._read_meta
        found = [info is not None and usable(info) is not None for info in self._ask(self._objects.has, keys)]
        return (found + [False]).index(False)

    def exists_in_put_tasks(self, key) -> bool:
        with self._lock:
            return key in self._putting

    def batched_submit_put_task(self, keys, objs, transfer_spec=None, on_complete_callback=None) -> list[Future] | None:
        with self._lock:
            batch = {key: each for key, each in zip(keys, objs, strict=True) if key not in self._putting}
            self._putting.update(batch)
        # The caller lets go of its own as soon as this returns.
        for each in batch.values():
            each.ref_count_up()
        try:
            return [self._writers.submit(self._put, batch, on_complete_callback)] if batch else None
        except RuntimeError as error:
            log.warning("%d chunks are not stored: %s", len(batch), error)
            self._let_go(batch)
            return None

    async def async_batched_submit_put_task(self, keys, objs, transfer_spec=None, on_complete_callback=None) -> None:
        for task in self.batched_submit_put_task(keys, objs, transfer_spec, on_complete_callback) or ():
            await asyncio.wrap_future(task)

    def get_blocking(self, key) -> MemoryObj | None:
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys) -> list[MemoryObj | None]:
        infos = self._ask(self._objects.has, keys)
        objs = [self._allocate(info) for info in infos]
        wanted = [index for index, each in enumerate(objs) if each is not None]
        got = self._ask(self._objects.get, [keys[index] for index in wanted], [objs[index].byte_array for index in wanted])
        for index, info in zip(wanted, got):
            # Another one may have taken its place meanwhile.
            if info is None or info.meta != infos[index].meta:
                objs[index].ref_count_down()
                objs[index] = None
        return objs

    async def batched_async_contains(self, lookup_id: str, keys, pin: bool = False) -> int:
        return await self._in_thread(self.batched_contains, keys) or 0

    async def batched_get_non_blocking(self, lookup_id: str, keys, transfer_spec=None) -> list[MemoryObj]:
        objs = await self._in_thread(self.batched_get_blocking, keys) or []
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
        there = [key for key, info in zip(keys, self._ask(self._objects.has, keys)) if info is not None]
        # `delete` returns None if it went well, and `_ask` a list if the store failed or there is nothing to ask.
        return len(there) if self._ask(self._objects.delete, there) is None else 0

    def get_allocator_backend(self):
        if self.local_cpu_backend is None:
            raise RuntimeError("LMCache's scheduler has no memory for chunks")
        return self.local_cpu_backend

    def touch_cache(self) -> None:
        """Does nothing, since a store records uses itself."""

    def close(self) -> None:
        """Waits until all chunks are stored, and ends."""
        self._writers.shutdown()
        self._readers.shutdown()

    def _put(self, batch: dict, on_complete_callback) -> None:
        try:
            metas = [describe(each, format=each.metadata.fmt.name, layout=self._layout()) for each in batch.values()]
            written = self._ask(self._objects.put, list(batch), [each.byte_array for each in batch.values()], metas)
        finally:
            self._let_go(batch)
        for key, known in zip(batch, written):
            if on_complete_callback is None or known is None:
                continue
            try:
                on_complete_callback(key)
            except Exception as error:
                log.warning("what is called when a chunk is stored failed: %s", error)

    def _let_go(self, batch: dict) -> None:
        with self._lock:
            self._putting.difference_update(batch)
        for each in batch.values():
            each.ref_count_down()

    def _ask(self, method, keys, *more):
        """Asks the store. If it fails, it knows nothing of each key, and the log says so once, until it works again."""
        if not keys:
            return []
        call = method.__name__
        try:
            result = method([key.to_string() for key in keys], *more)
        except Exception as error:
            if call not in self._failing:
                self._failing.add(call)
                log.warning("the call `%s` of the store of LMCache's chunks fails: %s", call, error)
            return [None] * len(keys)
        if call in self._failing:
            self._failing.discard(call)
            log.warning("the call `%s` of the store of LMCache's chunks works again", call)
        return result

    async def _in_thread(self, method, keys):
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, method, keys)
        except RuntimeError as error:
            log.warning("chunks are not looked for: %s", error)
            return None

    def _allocate(self, info) -> MemoryObj | None:
        """Allocates memory for a chunk, if its layout is that of this engine and memory is available."""
        if info is None or self.local_cpu_backend is None or (read := self._read_meta(info)) is None:
            return None
        return self.local_cpu_backend.allocate(*read, busy_loop=False)

    def _read_meta(self, info) -> tuple | None:
        """Reads shapes, dtypes and format of a chunk; None if this engine has another layout, or they are not of as many bytes."""
        try:
            meta = json.loads(info.meta)
            dtypes, form = [getattr(torch, name) for name in meta["dtypes"]], MemoryFormat[meta["format"]]
            shapes = [torch.Size(shape) for shape in meta["shapes"] if min(shape) > 0]
            sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
            return (shapes, dtypes, form) if meta["layout"] == self._layout() and sum(sizes) == info.bytes else None
        except Exception as error:
            log.warning("a chunk has a meta that is none of LMCache's: %r", error)
            return None

    def _layout(self) -> str | None:
        """Describes the engine's cache: a chunk's own shape does not tell its heads and layers apart."""
        if self.metadata is None:
            return None
        return f"{[list(shape) for shape in self.metadata.get_shapes()]} {self.metadata.get_dtypes()}"


def _what_computes(metadata) -> tuple[list[Model], list]:
    """Returns the model that LMCache reports. A scheduler uses no more than its workers know, since the two must agree.

    Raises:
        Unseen: it tells of none.
    """
    if metadata is None:
        raise Unseen("LMCache tells of no model")
    model = Model(str(metadata.model_name))
    model.check()
    log.warning(
        "the weight files of %r are in the namespace; adapters, quantization and overrides that the engine is told of are not, which "
        "LMCache does not tell: where these differ, give a namespace that is another for each",
        model.path,
    )
    return [model], []


def _settings(extra: dict) -> dict:
    """Returns the settings of this plugin in LMCache's `extra_config`, under any name."""
    ours = [
        name.removesuffix("module_path")
        for name, value in extra.items()
        if name.endswith(".module_path") and value == "transload.lmcache"
        if extra.get(name.removesuffix("module_path") + "class_name") == "Storage"
    ]
    if len(ours) != 1:
        raise ValueError(f"extra_config has {len(ours)} storage plugins of transload.lmcache; it may have one")
    given = {name.removeprefix(ours[0]): value for name, value in extra.items() if name.startswith(ours[0])}
    del given["module_path"], given["class_name"]
    return read_settings(given, f"extra_config's {ours[0][:-1]}", namespace=None, workers=4)
