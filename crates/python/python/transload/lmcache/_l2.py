"""An adapter for the second level of LMCache's server."""

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import torch  # noqa: F401  LMCache's native module needs its libraries.
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import KeyEntry, KeyListPage, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase

from .. import Objects, StoreError
from . import describe, log, read_settings

# LMCache reads these itself, and may leave them in what it passes on.
_LMCACHES = {"type", "eviction", "serde", "shared", "persist_enabled", "affinity_tag"}


class L2AdapterConfig(L2AdapterConfigBase):
    """The settings of an `L2Adapter`: its `adapter_params`."""

    def __init__(self, **settings):
        defaults = {"namespace": "lmcache.L2Adapter", "workers": 4, "max_capacity_gb": 0}
        self.__dict__.update(read_settings(settings, "adapter_params", **defaults))

    @classmethod
    def from_dict(cls, d: dict) -> "L2AdapterConfig":
        return cls(**{name: value for name, value in d.items() if name not in _LMCACHES})

    @classmethod
    def help(cls) -> str:
        return (
            "- uri (str): the store, such as file:///var/cache/kv (required)\n"
            "- namespace (str): a part of every key; another one for other weights (default lmcache.L2Adapter)\n"
            "- workers (int): how many tasks of a kind are worked on at once (default 4)\n"
            "- threads (int): how many threads hash and copy for one task\n"
            "- max_capacity_gb (float): the adapter keeps no more than this (default: what the store's own cap lets it)"
        )


class L2Adapter(L2AdapterInterface):
    """Keeps LMCache's objects in a store.

    What its controllers know of the store (sizes, order of use) is read from it when they begin, so nothing is forgotten
    with a restart; what others put or remove meanwhile is noticed when it is looked up, and now and then.
    """

    def __init__(self, config: L2AdapterConfig | dict, **_later):
        if isinstance(config, dict):
            config = L2AdapterConfig.from_dict(config)
        self._objects = Objects(config.uri, config.namespace, threads=config.threads)
        self._cap = int(config.max_capacity_gb * (1 << 30))
        super().__init__(max_capacity_bytes=self._cap or (self._objects.usage() or {}).get("cap") or 0)
        self._lock = threading.Lock()
        self._next = 0
        self._closed = False
        self._error: Exception | None = None
        # In the order of their use.
        self._sizes: dict[ObjectKey, int] = {}
        self._until_refresh = 0
        self._locks: Counter[ObjectKey] = Counter()
        # Keys to delete when they are unlocked.
        self._doomed: set[ObjectKey] = set()
        kinds = ("store", "lookup", "load")
        self._done: dict[str, dict[int, object]] = {kind: {} for kind in kinds}
        self._signals = {kind: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for kind in kinds}
        self._threads = {kind: ThreadPoolExecutor(config.workers, f"transload-{kind}") for kind in kinds}
        self._refresh()

    def get_store_event_fd(self) -> int:
        return self._signals["store"]

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._signals["lookup"]

    def get_load_event_fd(self) -> int:
        return self._signals["load"]

    def submit_store_task(self, keys, objects) -> int:
        return self._submit("store", self._store, list(keys), list(objects), failed=L2StoreResult(False, 0))

    def submit_lookup_and_lock_task(self, keys, group_layout_descs=None) -> int:
        return self._submit("lookup", self._look_up, list(keys), failed=Bitmap(len(keys)))

    def submit_load_task(self, keys, objects) -> int:
        return self._submit("load", self._load, list(keys), list(objects), failed=Bitmap(len(keys)))

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._lock:
            done, self._done["store"] = self._done["store"], {}
        return done

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._done["lookup"].pop(task_id, None)

    def query_load_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._done["load"].pop(task_id, None)

    def submit_unlock(self, keys) -> None:
        with self._lock:
            self._unlock(keys)
            free = [key for key in dict.fromkeys(keys) if key in self._doomed and key not in self._locks]
            self._doomed.difference_update(free)
        if free:
            self._threads["store"].submit(self.delete, free)

    def delete(self, keys) -> None:
        """Removes objects. Those that are locked are removed when they are unlocked."""
        with self._lock:
            locked = {key for key in keys if key in self._locks}
            self._doomed |= locked
        free = [key for key in dict.fromkeys(keys) if key not in locked]
        try:
            self._objects.delete([_text(key) for key in free])
            self._forget(free)
        except StoreError as error:
            self._failed("delete", error)

    def list_l2_keys(self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None) -> KeyListPage:
        if page_size <= 0:
            raise ValueError(f"page_size is 1 at least, not {page_size}")
        if cursor is not None and _key(cursor.encode()) is None:
            raise ValueError(f"cursor {cursor!r} is none of list_l2_keys")
        found = sorted((name.decode(), key, size) for name, key, size, _ in self._listed())
        found = [(name, key, size) for name, key, size in found if model_name in (None, key.model_name)]
        page = [entry for entry in found if cursor is None or entry[0] > cursor][: page_size + 1]
        entries = tuple(KeyEntry(key=key.to_encoded_object_key(), size_bytes=size) for _, key, size in page[:page_size])
        return KeyListPage(entries=entries, next_page_token=page[page_size - 1][0] if len(page) > page_size else None)

    def register_listener(self, listener) -> None:
        """Adds a listener, and tells it what is in the store from before."""
        super().register_listener(listener)
        with self._lock:
            known = dict(self._sizes)
        if known:
            listener.on_l2_keys_stored(list(known), list(known.values()))

    def report_status(self) -> dict:
        with self._lock:
            counts = {"stored_object_count": len(self._sizes), "locked_key_count": len(self._locks)}
        error = None if self._error is None else str(self._error)
        return {"is_healthy": error is None, "type": "transload.lmcache.L2Adapter", "last_error": error, **counts}

    def close(self) -> None:
        """Ends when all that was submitted is done."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            for threads in self._threads.values():
                threads.shutdown()
            for signal in self._signals.values():
                os.close(signal)

    def _submit(self, kind: str, work, *arguments, failed) -> int:
        with self._lock:
            self._next += 1
            task = self._next

        def run() -> None:
            try:
                result = work(*arguments)
                self._error = None
            except Exception as error:
                self._failed(kind, error)
                result = failed
            with self._lock:
                self._done[kind][task] = result
            os.eventfd_write(self._signals[kind], 1)

        self._threads[kind].submit(run)
        return task

    def _failed(self, what: str, error: Exception) -> None:
        self._error = error
        log.warning("LMCache's %s of objects failed: %s", what, error)

    def _store(self, keys, objects) -> L2StoreResult:
        with self._lock:
            self._doomed.difference_update(keys)
        sizes = [each.get_size() for each in objects]
        values, metas = [each.byte_array for each in objects], [describe(each) for each in objects]
        written = self._objects.put([_text(key) for key in keys], values, metas)
        self._learn(keys, sizes)
        self._until_refresh -= len(keys)
        if self._until_refresh < 0:
            self._refresh()
        self._evict()
        return L2StoreResult(True, sum(size for size, new in zip(sizes, written, strict=True) if new))

    def _look_up(self, keys) -> Bitmap:
        # Locked first, so that none is deleted between the look-up and the lock.
        with self._lock:
            self._locks.update(keys)
        found, there = Bitmap(len(keys)), []
        try:
            there = self._objects.has([_text(key) for key in keys])
        finally:
            missing = [key for index, key in enumerate(keys) if not there or there[index] is None]
            self.submit_unlock(missing)
        for index, info in enumerate(there):
            if info is not None:
                found.set(index)
        self._forget(missing)
        strange = {key: info.bytes for key, info in zip(keys, there) if info is not None and key not in self._sizes}
        self._learn(list(strange), list(strange.values()))
        return found

    def _load(self, keys, objects) -> Bitmap:
        got = self._objects.get([_text(key) for key in keys], [each.byte_array for each in objects])
        loaded, used = Bitmap(len(keys)), []
        for index, (key, info, each) in enumerate(zip(keys, got, objects, strict=True)):
            # As many bytes in another shape or type are not what was asked for.
            if info is not None and info.meta == describe(each):
                loaded.set(index)
                used.append(key)
        if used:
            with self._lock:
                self._sizes.update({key: self._sizes.pop(key) for key in used if key in self._sizes})
            self._notify_keys_accessed(used)
        return loaded

    def _unlock(self, keys) -> None:
        for key in keys:
            if self._locks[key] > 1:
                self._locks[key] -= 1
            else:
                del self._locks[key]

    def _learn(self, keys, sizes) -> None:
        """Accounts for objects that are there, each once."""
        new, replaced = {}, {}
        with self._lock:
            for key, size in zip(keys, sizes):
                old = self._sizes.pop(key, None)
                self._sizes[key] = size
                if old == size:
                    new.setdefault(key, 0)
                    continue
                new[key] = size
                if old is not None:
                    replaced.setdefault(key, old)
        if replaced:
            self._notify_keys_deleted(list(replaced), list(replaced.values()))
        if new:
            self._notify_keys_stored(list(new), list(new.values()))

    def _forget(self, keys) -> None:
        """Accounts for objects that are not there any more."""
        with self._lock:
            gone = {key: self._sizes.pop(key) for key in keys if key in self._sizes}
        if gone:
            self._notify_keys_deleted(list(gone), list(gone.values()))

    def _evict(self) -> None:
        """Deletes what was not used for longest while there is more than `max_capacity_gb`."""
        over, victims = self.get_usage().total_bytes_used - self._cap, []
        with self._lock:
            for key, size in self._sizes.items() if self._cap else ():
                if over <= 0:
                    break
                if key not in self._locks:
                    victims.append(key)
                    over -= size
        if victims:
            self.delete(victims)

    def _listed(self) -> list[tuple[bytes, ObjectKey, int, float]]:
        listed = ((name, _key(name), info.bytes, used or 0.0) for name, info, used in self._objects.list())
        return [entry for entry in listed if entry[1] is not None]

    def _refresh(self) -> None:
        """Holds what is accounted for against what the store has: its cap removes objects, and others put some."""
        with self._lock:
            known = set(self._sizes)
        try:
            there = {key: size for _, key, size, _ in sorted(self._listed(), key=lambda entry: entry[3])}
        except StoreError as error:
            # Not every store can list.
            log.info("what is in the store from before is not known: %s", error)
            there = dict.fromkeys(known, 0)
        self._until_refresh = max(4096, len(there) // 2)
        self._forget([key for key in known if key not in there])
        new = {key: size for key, size in there.items() if key not in known}
        self._learn(list(new), list(new.values()))


def _text(key: ObjectKey) -> str:
    # LMCache refuses an `@` in names.
    text = f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id:x}@{key.chunk_hash.hex()}"
    return f"{text}@{key.cache_salt}" if key.cache_salt else text


def _key(name: bytes) -> ObjectKey | None:
    """Reads what `_text` writes; whatever else is in the namespace is None."""
    try:
        model, rank, group, digest, *salt = name.decode().split("@")
        key = ObjectKey(bytes.fromhex(digest), model, int(rank, 16), int(group, 16), *salt)
        return key if _text(key) == name.decode() else None
    except (ValueError, TypeError):
        return None
