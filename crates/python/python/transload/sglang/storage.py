"""Answers the calls of SGLang's storage backends with objects of a store."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult

from transload import TransloadError

from .._computes import Model, Unseen, objects
from .pool import Pool, Value

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo, PoolTransfer
    from sglang.srt.mem_cache.pool_host import HostKVCache

logger = logging.getLogger(__name__)

_OURS = {"uri", "namespace"}
_SGLANGS = {"backend_name", "module_path", "class_name", "interface_v1", "file_storage_path"}
"""Settings that SGLang reads itself and hands on all the same."""

_FROM_FILES = ("auto", "safetensors", "fastsafetensors", "instanttensor", "pt", "npcache", "gguf", "mistral", "bitsandbytes", "layered")
"""Values of ``--load-format`` with which weights come from the files of the model."""

_FIGURES = 4096
"""The number of transfers kept for `get_stats`. The scheduler asks many times a second."""


class Storage(HiCacheStorage):
    """Keeps pages as objects of a store, in a namespace for each model.

    An object is named by the hash that SGLang gives the page, which covers all tokens up to its end, and by whatever else
    decides what its bytes mean: see `Pool`.

    SGLang's threads call it, and none of them sees an exception: where the store fails nothing is found and nothing kept,
    and the log says so once.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None):
        """Raises `ValueError` for a setting that is missing, unknown or wrong, and all errors of `Objects`."""
        settings = storage_config.extra_config or {}
        if unknown := sorted(settings.keys() - _OURS - _SGLANGS):
            unknown = ", ".join(unknown)
            raise ValueError(f"transload.sglang does not know the setting {unknown}: it takes uri and namespace")
        uri, namespace = settings.get("uri"), settings.get("namespace")
        if not (isinstance(uri, str) and uri):
            raise ValueError("transload.sglang needs the setting uri, which names a store, as file:///var/cache/kv does")
        if namespace is not None and not (isinstance(namespace, str) and namespace):
            raise ValueError("the setting namespace of transload.sglang is a text that is not empty")
        if not storage_config.model_name:
            raise ValueError("SGLang names no model: set --served-model-name, or pages of two models would be the same")
        self._config = storage_config
        self._whole = not settings.get("interface_v1")
        # JSON quotes both names, so that no namespace and model together read like another pair.
        called = lambda namespace: json.dumps(["sglang", namespace, storage_config.model_name])  # noqa: E731
        self._objects = objects(uri, namespace, "default", _what_computes, called=called)
        self._pools: dict[str, Pool] = {}
        self._failing: set[str] = set()
        self._figures_lock = threading.Lock()
        self._figures: dict[str, list[tuple[int, float]]] = {"read": [], "write": []}

    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """Raises `ValueError` for a pool whose pages cannot be stored."""
        super().register_mem_pool_host(mem_pool_host)
        self._pools[PoolName.KV] = Pool(PoolName.KV, mem_pool_host, self._config, self._whole)

    def register_mem_host_pool_v2(self, host_pool: HostKVCache, host_pool_name: str) -> None:
        """Raises `ValueError` for a pool whose pages cannot be stored."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != PoolName.KV:
            self._pools[host_pool_name] = Pool(host_pool_name, host_pool, self._config, whole=False)

    # --- pages of one pool, out of and into its memory ---

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """Counts pages up to the first one that is not there or lacks a part."""
        if (pool := self._pools.get(PoolName.KV)) and pool.only_numbers:
            # This pool has no bytes: its pages lie in other pools, and this call does not say in which.
            return 0
        return _leading(self._look_up([(PoolName.KV, keys)])[0])

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Reads pages into the pool. One that is not there may have been overwritten in part."""
        return self._transfer("read", [(PoolName.KV, keys, host_indices)])[0]

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Writes pages of the pool. Pages that are already stored count as written."""
        return self._transfer("write", [(PoolName.KV, keys, host_indices)])[0]

    # --- pages of several pools ---

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Tells how many pages can be restored: by all pools together, by each of them, and where one may stop."""
        transfers = pool_transfers or []
        kv, *others = self._look_up([(PoolName.KV, keys), *((each.name, keys) for each in transfers)])
        pages = _leading(kv)
        reach, stops = {PoolName.KV: pages} if pages else {}, list(range(1, pages + 1))
        for transfer, there in zip(transfers, others):
            ends = _ends(transfer, there[:pages])
            if ends:
                reach[transfer.name] = max(ends)
            if transfer.hit_policy != PoolHitPolicy.BLOCK_GROUPS:
                stops = [stop for stop in stops if stop in ends]
        return PoolTransferResult(stops[-1] if stops else 0, reach, stops)

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Reads pages into the pool of each transfer."""
        return self._transfer_all("read", transfers)

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Writes pages of the pool of each transfer."""
        return self._transfer_all("write", transfers)

    def _transfer_all(self, action: str, transfers: list[PoolTransfer]) -> dict[str, list[bool]]:
        requests = [(each.name, each.keys or [], each.host_indices) for each in transfers]
        return {each.name: done for each, done in zip(transfers, self._transfer(action, requests))}

    # --- whole pages of the first pool, as tensors ---

    def exists(self, key: str) -> bool:
        """Tells whether `set` has put a page."""
        return self._or(False, "look up pages", lambda: self._objects.has(self._tensors.names([key])) != [None])

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """Reads a page into a contiguous tensor, and returns that, or None if the page is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Reads pages into a contiguous tensor each."""

        def read() -> list[torch.Tensor | None]:
            [there] = self._exchange("read", [(self._tensors, keys, self._tensors.locations(target_locations))])
            return [target if page else None for target, page in zip(target_locations, there)]

        return self._or([None] * len(keys), "read pages", read)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Writes a page, a tensor."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Sequence[Any] | None = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Writes pages, a tensor each."""

        def write() -> bool:
            pages = [value.contiguous() for value in values]
            self._exchange("write", [(self._tensors, keys, self._tensors.locations(pages))])
            return True

        return self._or(False, "write pages", write)

    @functools.cached_property
    def _tensors(self) -> Pool:
        return Pool(PoolName.KV, self.mem_pool_host, self._config, whole=True)

    # --- the rest ---

    def clear(self) -> bool:
        """Removes the pages of this model and namespace, in all layouts, and no others."""

        def remove() -> bool:
            self._objects.delete([key for key, *_ in self._objects.list()])
            return True

        return self._or(False, "clear pages", remove)

    def get_stats(self) -> Any:
        """Tells pages and GB/s of what each transfer has moved since the last call, for SGLang's metrics."""
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._figures_lock:
            read, written = self._figures.values()
            self._figures = {"read": [], "write": []}
        return StorageMetrics(
            prefetch_pgs=[pages for pages, _ in read],
            prefetch_bandwidth=[speed for _, speed in read],
            backup_pgs=[pages for pages, _ in written],
            backup_bandwidth=[speed for _, speed in written],
        )

    def _look_up(self, requests: list[tuple[str, list[str]]]) -> list[list[bool]]:
        """Returns which pages of several pools are stored, in one round trip."""
        nothing = [[False] * len(keys) for _, keys in requests]

        def look_up() -> list[list[bool]]:
            pools = [self._pools.get(name) for name, _ in requests]
            names = [pool.names(keys) if pool else [] for pool, (_, keys) in zip(pools, requests)]
            found = iter(self._objects.has([name for each in names for name in each]))
            there = [[next(found) is not None for _ in each] for each in names]
            return [pool.pages(each, len(no)) if pool else no for pool, each, no in zip(pools, there, nothing)]

        return self._or(nothing, "look up pages", look_up)

    def _transfer(self, action: str, requests: list[tuple[str, list[str], torch.Tensor]]) -> list[list[bool]]:
        """Reads or writes pages of several pools, and tells which are done. A request that makes no sense fails alone."""
        nothing = [[False] * len(keys) for _, keys, _ in requests]
        done, asked, rooms = nothing.copy(), [], []
        for at, (name, keys, indices) in enumerate(requests):
            locate = functools.partial(self._locate, name, indices, len(keys), action == "write")
            if keys and (located := self._or(None, f"{action} pages of {name}", locate)):
                values, copies = located
                asked.append((self._pools[name], keys, values))
                rooms.append((at, indices, copies))

        def move() -> list[list[bool]]:
            for (pool, keys, _), (at, indices, copies), moved in zip(asked, rooms, self._exchange(action, asked)):
                # A write that changed nothing is done as well.
                done[at] = moved if action == "read" else [True] * len(keys)
                if action == "read" and copies:
                    pool.restore(indices, copies, moved)
            return done

        return self._or(nothing, f"{action} pages", move) if asked else done

    def _locate(self, name: str, *where: Any) -> tuple[list[Value], list[torch.Tensor]]:
        if name not in self._pools:
            raise ValueError(f"SGLang has registered no pool of the name {name}")
        return self._pools[name].locate(*where)

    def _exchange(self, action: str, asked: list[tuple[Pool, list[str], list[Value]]]) -> list[list[bool]]:
        """Reads or writes the objects of pages of several pools in one call, and tells which pages were moved."""
        names = [name for pool, keys, _ in asked for name in pool.names(keys)]
        values = [value for *_, each in asked for value in each]
        start = time.perf_counter()
        told = self._objects.get(names, values) if action == "read" else self._objects.put(names, values)
        seconds = time.perf_counter() - start
        moved = [bool(each) for each in told]
        objects = iter(moved)
        pages = [pool.pages([next(objects) for _ in each], len(keys)) for pool, keys, each in asked]
        # Bytes count for incomplete pages as well: the objects that are there were moved.
        size = sum(length for value, is_moved in zip(values, moved) if is_moved for _, length in value)
        if size and self._config.enable_storage_metrics:
            # A pool without memory has pages, and nothing to move.
            count = sum(sum(each) for each, (*_, located) in zip(pages, asked) if located)
            with self._figures_lock:
                self._figures[action].append((count, size / seconds / 1e9))
                del self._figures[action][:-_FIGURES]
        return pages

    def _or(self, otherwise: Any, action: str, work: Callable[[], Any]) -> Any:
        """Does `work`, or returns `otherwise` where that fails; the log says so once, until it works again."""
        try:
            result = work()
        except Exception as error:
            if action not in self._failing:
                self._failing.add(action)
                expected = isinstance(error, TransloadError)
                logger.warning("cannot %s, which counts as a miss: %s", action, error, exc_info=not expected)
            return otherwise
        if action in self._failing:
            self._failing.discard(action)
            logger.warning("can %s again", action)
        return result


def _what_computes() -> tuple[list[Model], Any]:
    """Returns the models and adapters of the server in this process, and what it was told to do otherwise than their files say.
    That is the same in the process of each rank.

    Raises:
        Unseen: there is no server, or its weights come from elsewhere.
    """
    try:
        from sglang.srt.runtime_context import get_lora, get_model, get_spec

        model, spec, lora = get_model(), get_spec(), get_lora()
        formats = [model.load_format, spec.speculative_draft_load_format]
        models = [Model(model.model_path, model.revision)]
        if spec.speculative_draft_model_path:
            models.append(Model(spec.speculative_draft_model_path, spec.speculative_draft_model_revision))
        adapters = sorted(_adapters(lora.lora_paths))
        # What is chosen by length is in no file, nor are scales that are given beside.
        settings = [model.quantization, model.json_model_override_args, model.model_loader_extra_config, model.context_length]
        settings += [spec.speculative_draft_model_quantization, [name for name, _ in adapters]]
        beside = model.quantization_param_path
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unseen(f"this process has no server of a version that is known here: {error}") from error
    if elsewhere := [each for each in formats if each and str(getattr(each, "value", each)) not in _FROM_FILES]:
        raise Unseen(f"--load-format {elsewhere[0]} takes weights from elsewhere than the files of the model")
    if beside:
        settings.append(Path(beside).read_text())
    return models + [Model(path) for _, path in adapters], settings


def _adapters(given: Any) -> Iterator[tuple[str, str]]:
    """Returns name and path of each adapter, in whichever form SGLang has them: as they were typed, or read."""
    if isinstance(given, dict):
        yield from given.items()
        return
    for each in given or ():
        if isinstance(each, str):
            name, is_named, path = each.partition("=")
            yield name, path if is_named else name
        else:
            of = each if isinstance(each, dict) else {name: getattr(each, name) for name in ("lora_name", "lora_path")}
            yield str(of["lora_name"]), of["lora_path"]


def _leading(there: list[bool]) -> int:
    return there.index(False) if False in there else len(there)


def _ends(transfer: PoolTransfer, there: list[bool]) -> set[int]:
    """Tells at which numbers of pages a prefix may end for what a pool has of its pages."""
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, _leading(there) + 1))
    if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
        window, run, ends = max(1, len(transfer.keys or [])), 0, set()
        for end, page in enumerate(there, 1):
            run = run + 1 if page else 0
            if run >= min(window, end):
                ends.add(end)
        return ends
    # The pages of a group are the last ones of its block: their hashes are the first to cover it.
    block, group = transfer.block_pages, transfer.group_pages
    if not 0 < group <= block:
        return set()
    blocks = [all(there[end - group : end]) for end in range(block, len(there) + 1, block)]
    return {block * (index + 1) for index in range(_leading(blocks))}
