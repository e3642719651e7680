"""Stands for LMCache and torch where neither is installed: the names that `transload.lmcache` uses, and chunks in memory.

It has been written after LMCache 0.5.6. The tests in tests/engines hold the adapters against LMCache itself.
"""

import sys
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace

import stand_in
from stand_in import dtype

bfloat16, uint8 = dtype("bfloat16", 2), dtype("uint8", 1)
Size = tuple


class MemoryFormat(Enum):
    KV_2LTD = 1


class MemoryObj:
    """A chunk, of which somebody holds a reference."""

    def __init__(self, shapes, dtypes, fmt=MemoryFormat.KV_2LTD):
        self.metadata = SimpleNamespace(shapes=shapes, shape=shapes[0], dtypes=dtypes, dtype=dtypes[0], fmt=fmt)
        self.references = 1
        self.byte_array = memoryview(bytearray(shapes[0][0] * dtypes[0].itemsize))

    def get_size(self):
        return self.byte_array.nbytes

    def ref_count_up(self):
        self.references += 1

    def ref_count_down(self):
        self.references -= 1


class LocalCPUBackend:
    """Memory for chunks."""

    def __init__(self):
        self.room, self.given, self.closed = 1 << 20, [], False

    def allocate(self, shapes, dtypes, fmt, busy_loop=True):
        assert not busy_loop
        made = MemoryObj(shapes, dtypes, fmt)
        if made.get_size() > self.room:
            return None
        self.given.append(made)
        return made

    def close(self):
        self.closed = True


class Bitmap:
    def __init__(self, length):
        self.bits = [False] * length

    def set(self, index):
        self.bits[index] = True


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""

    def to_encoded_object_key(self):
        return self


@dataclass(frozen=True)
class KeyEntry:
    key: ObjectKey
    size_bytes: int


@dataclass(frozen=True)
class KeyListPage:
    entries: tuple
    next_page_token: str | None


@dataclass(frozen=True)
class L2StoreResult:
    success: bool
    bytes: int


class L2AdapterConfigBase: ...


@dataclass
class Heard:
    """What a listener, and LMCache's own count of bytes, hears."""

    stored: list = field(default_factory=list)
    accessed: list = field(default_factory=list)
    deleted: list = field(default_factory=list)

    def on_l2_keys_stored(self, keys, sizes):
        self.stored += zip(keys, sizes, strict=True)


class L2AdapterInterface:
    def __init__(self, max_capacity_bytes=0):
        self.capacity, self.heard, self.used = max_capacity_bytes, Heard(), 0

    def register_listener(self, listener):
        self.listener = listener

    def get_usage(self):
        return SimpleNamespace(total_bytes_used=self.used)

    def _notify_keys_stored(self, keys, sizes):
        self.used += sum(sizes)
        self.heard.on_l2_keys_stored(keys, sizes)

    def _notify_keys_accessed(self, keys):
        self.heard.accessed += keys

    def _notify_keys_deleted(self, keys, sizes):
        self.used -= sum(sizes)
        self.heard.deleted += zip(keys, sizes, strict=True)


class StoragePluginInterface:
    def __init__(self, dst_device, config, metadata, local_cpu_backend, loop):
        self.metadata, self.local_cpu_backend = metadata, local_cpu_backend


@dataclass(frozen=True)
class CacheEngineKey:
    number: int

    def to_string(self):
        return f"model@{self.number}"


PLACES = [
    "lmcache_native",
    "v1.distributed.api",
    "v1.distributed.internal_api",
    "v1.distributed.l2_adapters.base",
    "v1.distributed.l2_adapters.config",
    "v1.memory_management",
    "v1.storage_backend.abstract_backend",
]


def installed():
    """Gives `transload.lmcache` with all its classes."""
    here = sys.modules[__name__]
    modules = {"torch": here, "lmcache": ModuleType("lmcache")}
    for place in PLACES:
        parts = place.split(".")
        modules |= {f"lmcache.{'.'.join(parts[:end])}": ModuleType(place) for end in range(1, len(parts))}
        modules[f"lmcache.{place}"] = here
    return stand_in.installed("transload.lmcache", modules)
