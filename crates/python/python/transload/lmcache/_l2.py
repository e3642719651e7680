"""Keeps the second level of LMCache's server in a store."""

import os
import threading
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from itertools import islice
from operator import itemgetter

import torch  # noqa: F401  LMCache's native module needs its libraries.
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import KeyEntry, KeyListPage, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase

from .. import Objects, StoreError
from . import Threads, describe, log, read_settings, tell_what_is_not_seen

KINDS = ("store", "lookup", "load")
# So many keys are accounted for where a store cannot list what it has, and what it has removed is not seen.
MOST_UNLISTED = 1 << 18


class L2AdapterConfig(L2AdapterConfigBase):
    """Holds the settings of an `L2Adapter`: its `adapter_params`."""

    def __init__(self, **settings):
        defaults = {"namespace": "lmcache.L2Adapter", "workers": 4, "max_capacity_gb": 0}
        self.__dict__.update(read_settings(settings, "adapter_params", **defaults))
        tell_what_is_not_seen(settings)

    @classmethod
    def from_dict(cls, d: dict) -> "L2AdapterConfig":
        return cls(**d)

    @classmethod
    def help(cls) -> str:
        return "uri (required), namespace, workers, threads and max_capacity_gb, as in Transload's guide to LMCache"


class L2Adapter(L2AdapterInterface):
    """Keeps LMCache's objects in a store.

    It tells LMCache what is there: what the store has when the adapter begins, so that nothing is forgotten with a restart, and
    what others put or remove meanwhile when that is looked up, and now and then.
    """

    def __init__(self, config: L2AdapterConfig | dict, **_later):
        if isinstance(config, dict):
            config = L2AdapterConfig.from_dict(config)
        self._objects = Objects(config.uri, config.namespace, threads=config.threads)
        self._cap = int(config.max_capacity_gb * (1 << 30))
        super().__init__(max_capacity_bytes=self._cap or (self._objects.usage() or {}).get("cap") or 0)
        self._lock = threading.Lock()
        self._closed = False
        self._tasks = 0
        self._done: dict[str, dict[int, object]] = {kind: {} for kind in KINDS}
        # The last failure of each kind, until one goes well.
        self._errors: dict[str, str] = {}
        # The size of each object that LMCache was told is there; the least recently used comes first.
        self._sizes: dict[ObjectKey, int] = {}
        self._since_refresh = 0
        # The keys of a listing that goes page by page, sorted by their texts when it began; None if no listing is under way.
        self._listing: list[tuple[str, ObjectKey]] | None = None
        self._locks: Counter[ObjectKey] = Counter()
        # Locked keys that are to be deleted when they are unlocked.
        self._doomed: set[ObjectKey] = set()
        # Keys that are being deleted, by how many calls: a look-up must not promise them.
        self._deleting: Counter[ObjectKey] = Counter()
        self._signals = {kind: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for kind in KINDS}
        self._threads = {kind: Threads(kind, config.workers) for kind in KINDS}
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
            for key in keys:
                if self._locks[key] > 1:
                    self._locks[key] -= 1
                else:
                    del self._locks[key]
            free = [key for key in dict.fromkeys(keys) if key in self._doomed and key not in self._locks]
            self._doomed.difference_update(free)
        if free:
            try:
                self._threads["store"].submit(self.delete, free)
            except RuntimeError as error:
                # LMCache still knows the objects, and can delete them again.
                self._report("delete", error)

    def delete(self, keys) -> None:
        """Removes objects. Those that are locked are removed when they are unlocked."""
        with self._lock:
            self._doomed.update(key for key in keys if key in self._locks)
            free = [key for key in dict.fromkeys(keys) if key not in self._locks]
            self._deleting.update(free)
        try:
            self._objects.delete(list(map(_text, free)))
        except Exception as error:
            self._report("delete", error)
        else:
            self._report("delete", None)
            self._account({}, gone=free)
        finally:
            with self._lock:
                self._deleting -= Counter(free)

    def list_l2_keys(self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None) -> KeyListPage:
        if page_size <= 0:
            raise ValueError(f"page_size is 1 at least, not {page_size}")
        if cursor is not None and _key(cursor.encode()) is None:
            raise ValueError(f"cursor {cursor!r} is none of list_l2_keys")
        listing = self._listing if cursor is not None else None
        if listing is None:
            with self._lock:
                known = list(self._sizes)
            listing = sorted((_text(key), key) for key in known)
        start = bisect_right(listing, cursor, key=itemgetter(0)) if cursor is not None else 0
        rest = (listing[at] for at in range(start, len(listing)))
        rest = ((text, key, self._sizes.get(key)) for text, key in rest if model_name in (None, key.model_name))
        page = list(islice((entry for entry in rest if entry[2] is not None), page_size + 1))
        more = len(page) > page_size
        self._listing = listing if more else None
        entries = tuple(KeyEntry(key=key.to_encoded_object_key(), size_bytes=size) for _, key, size in page[:page_size])
        return KeyListPage(entries=entries, next_page_token=page[page_size - 1][0] if more else None)

    def register_listener(self, listener) -> None:
        """Adds a listener, and reports to it the objects that the store already has."""
        super().register_listener(listener)
        with self._lock:
            # LMCache takes the first of a batch for what is to be evicted last.
            known = dict(reversed(self._sizes.items()))
        if known:
            listener.on_l2_keys_stored(list(known), list(known.values()))

    def report_status(self) -> dict:
        with self._lock:
            counts = {"stored_object_count": len(self._sizes), "locked_key_count": len(self._locks)}
            errors = dict(self._errors)
        return {"is_healthy": not errors, "type": "transload.lmcache.L2Adapter", "errors": errors, **counts}

    def close(self) -> None:
        """Waits until all submitted work is done, and ends."""
        for threads in self._threads.values():
            threads.shutdown()
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            for signal in self._signals.values():
                os.close(signal)

    def _submit(self, kind: str, work, *arguments, failed) -> int:
        with self._lock:
            self._tasks += 1
            task = self._tasks

        def finish(result, error: Exception | None) -> None:
            self._report(kind, error)
            with self._lock:
                self._done[kind][task] = result
                if not self._closed:
                    os.eventfd_write(self._signals[kind], 1)

        def run() -> None:
            try:
                result, error = work(*arguments), None
            except Exception as raised:
                result, error = failed, raised
            finish(result, error)

        try:
            self._threads[kind].submit(run)
        except RuntimeError as error:
            finish(failed, error)
        return task

    def _report(self, kind: str, error: Exception | None) -> None:
        if error is not None:
            log.warning("LMCache's %s of objects failed: %s", kind, error)
        with self._lock:
            self._errors.pop(kind, None)
            if error is not None:
                self._errors[kind] = str(error)

    def _store(self, keys, objects) -> L2StoreResult:
        with self._lock:
            self._doomed.difference_update(keys)
        sizes = [each.get_size() for each in objects]
        values, metas = [each.byte_array for each in objects], [describe(each) for each in objects]
        written = self._objects.put(list(map(_text, keys)), values, metas)
        self._account(dict(zip(keys, sizes)))
        if again := [key for key, new in zip(keys, written) if not new]:
            self._notify_keys_accessed(again)
        with self._lock:
            self._since_refresh += len(keys)
            if due := self._since_refresh > max(4096, len(self._sizes) // 2):
                self._since_refresh = 0
        if due:
            # Behind this task: it reads what the store has of every object.
            with suppress(RuntimeError):
                self._threads["store"].submit(self._refresh_again)
        if self._cap:
            self._evict()
        return L2StoreResult(True, sum(size for size, new in zip(sizes, written) if new))

    def _look_up(self, keys) -> Bitmap:
        # Locked first, so that no deletion begins between the look-up and the lock. One that had begun may end at any time.
        with self._lock:
            self._locks.update(keys)
            going = set(keys) & self._deleting.keys() if self._deleting else ()
        infos = [None] * len(keys)
        try:
            found = self._objects.has(list(map(_text, keys)))
            infos = [None if key in going else info for key, info in zip(keys, found)]
        finally:
            missing = [key for key, info in zip(keys, infos) if info is None]
            self.submit_unlock(missing)
        self._account({key: info.bytes for key, info in zip(keys, infos) if info is not None}, gone=missing)
        return _bitmap(info is not None for info in infos)

    def _load(self, keys, objects) -> Bitmap:
        infos = self._objects.get(list(map(_text, keys)), [each.byte_array for each in objects])
        # An object of the same length can have another shape or dtype: LMCache must not read it as its own.
        loaded = [info is not None and info.meta == describe(each) for info, each in zip(infos, objects)]
        if used := [key for key, good in zip(keys, loaded) if good]:
            with self._lock:
                self._sizes.update({key: self._sizes.pop(key) for key in reversed(used) if key in self._sizes})
            self._notify_keys_accessed(used)
        return _bitmap(loaded)

    def _evict(self) -> None:
        """Deletes the least recently used objects, down to the cap. LMCache's own eviction leaves more room, if it is configured."""
        over, victims = self.get_usage().total_bytes_used - self._cap, []
        with self._lock:
            for key, size in self._sizes.items():
                if over <= 0:
                    break
                if key not in self._locks:
                    victims.append(key)
                    over -= size
        if victims:
            self.delete(victims)

    def _account(self, there: dict[ObjectKey, int], gone=()) -> None:
        """Reports to LMCache the objects that are present and those that are gone, as far as it does not know."""
        with self._lock:
            new = {key: size for key, size in there.items() if self._sizes.get(key) != size}
            old = {key: self._sizes.pop(key) for key in (*gone, *new) if key in self._sizes}
            self._sizes.update(reversed(new.items()))
        if old:
            self._notify_keys_deleted(list(old), list(old.values()))
        if new:
            self._notify_keys_stored(list(new), list(new.values()))

    def _refresh_again(self) -> None:
        try:
            self._refresh()
        except Exception as error:  # noqa: BLE001: of a listener's, nobody else would hear
            self._report("listing", error)

    def _refresh(self) -> None:
        """Compares what LMCache knows with what the store has: its cap removes objects, and others put some."""
        with self._lock:
            known = dict(self._sizes)
        try:
            # The last used first, as LMCache wants them.
            listed = sorted(self._objects.list(), key=lambda entry: -(entry[2] or 0))
        except StoreError as error:
            log.info("what is in the store from before is not known: %s", error)
            self._account({}, gone=list(known)[:-MOST_UNLISTED])
            return
        there = {_key(name): info.bytes for name, info, _ in listed}
        there.pop(None, None)
        self._account({key: there[key] for key in there if key not in known}, gone=known.keys() - there.keys())


def _bitmap(bits) -> Bitmap:
    bits = list(bits)
    bitmap = Bitmap(len(bits))
    for index, bit in enumerate(bits):
        if bit:
            bitmap.set(index)
    return bitmap


def _text(key: ObjectKey) -> str:
    # LMCache refuses an `@` in names.
    text = f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id:x}@{key.chunk_hash.hex()}"
    return f"{text}@{key.cache_salt}" if key.cache_salt else text


def _key(name: bytes) -> ObjectKey | None:
    """Parses the text that `_text` writes. Returns None for anything else in the namespace."""
    try:
        model, rank, group, digest, *salt = name.decode().split("@")
        key = ObjectKey(bytes.fromhex(digest), model, int(rank, 16), int(group, 16), *salt)
        return key if _text(key) == name.decode() else None
    except (ValueError, TypeError):
        return None
