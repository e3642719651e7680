"""Stands for SGLang and torch where neither is installed: the names that `transload.sglang` uses, and host pools in memory.

It has been written after SGLang 0.5.23. The tests in tests/engines hold the storage against SGLang itself.
"""

import sys
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace

import numpy
import stand_in
from stand_in import dtype

bfloat16, float16, uint8 = dtype("bfloat16", 2), dtype("float16", 2), dtype("uint8", 1)
# Only their bytes are compared.
KINDS = {1: numpy.uint8, 2: numpy.uint16}


class Tensor:
    """As much of a tensor as the storage asks for."""

    def __init__(self, array, device="cpu"):
        self.array, self.device = array, SimpleNamespace(type=device)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        return Tensor(self.array[index])

    def tolist(self):
        return self.array.tolist()

    def data_ptr(self):
        return self.array.ctypes.data

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def contiguous(self):
        return Tensor(numpy.ascontiguousarray(self.array))


def arange(*limits):
    return Tensor(numpy.arange(*limits))


class PoolName(str, Enum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"
    INDEXER = "indexer"
    DRAFT = "draft"

    def __str__(self):
        return self.value


class PoolHitPolicy(str, Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Tensor | None = None
    keys: list[str] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES
    block_pages: int = 0
    group_pages: int = 0


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list[int] | None = None


@dataclass
class StorageMetrics:
    prefetch_pgs: list = field(default_factory=list)
    backup_pgs: list = field(default_factory=list)
    prefetch_bandwidth: list = field(default_factory=list)
    backup_bandwidth: list = field(default_factory=list)


@dataclass
class HiCacheStorageConfig:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    model_name: str | None = "org/model"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    extra_config: dict | None = None
    dcp_size: int = 1
    dcp_rank: int = 0


class HiCacheStorage:
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        self.registered_pools = {**getattr(self, "registered_pools", {}), host_pool_name: host_pool}


class Server:
    """Has the settings of a server, or is none."""

    model_path = "org/model"
    kv_cache_dtype = revision = quantization = quantization_param_path = context_length = None
    load_format, json_model_override_args, model_loader_extra_config = "auto", "{}", "{}"
    speculative_draft_model_path = speculative_draft_model_revision = None
    speculative_draft_load_format = speculative_draft_model_quantization = lora_paths = None

    @classmethod
    def get_model(cls):
        if cls.kv_cache_dtype is None:
            raise ValueError("not published")
        return cls


ORDERS = {
    # Which axes of a page [planes, layers, tokens, heads, content] the layout has in which order.
    "layer_first": (0, 1, 2, 3, 4),
    "page_first": (0, 2, 1, 3, 4),
    "page_first_direct": (0, 1, 2, 3, 4),
    "page_head": (0, 3, 2, 1, 4),
}


class HostPool:
    """A host pool of SGLang's in one of its layouts: keys and values of heads, or for MLA one plane without heads."""

    def __init__(
        self, layout, *, mla=False, heads=4, layers=3, page=4, pages=160, dtype=bfloat16, start_layer=0, content=8
    ):
        self.layout, self.page_size, self.dtype = layout, page, dtype
        self.start_layer, self.end_layer, self.layer_num = start_layer, start_layer + layers, layers
        if not mla:
            self.head_num = heads
        shape = (1 if mla else 2, layers, page, 1 if mla else heads, content)
        order = ORDERS[layout]
        page_shape = [shape[axis] for axis in order]
        # Layers or pages are outermost below the plane.
        self.inner = layout == "layer_first"
        at = 2 if self.inner else 1
        self.kv_buffer = numpy.zeros([*page_shape[:at], pages, *page_shape[at:]], KINDS[dtype.itemsize])
        self.back = numpy.argsort(order)

    def raw(self, number):
        """A view of page `number`, as the layout has it."""
        return self.kv_buffer[:, :, number] if self.inner else self.kv_buffer[:, number]

    def page(self, number):
        """A view of it as [planes, layers, tokens, heads, content]."""
        return self.raw(number).transpose(self.back)

    def fill(self, seed):
        kept = self.kv_buffer
        kept[...] = numpy.random.default_rng(seed).integers(0, 1 << 8 * kept.itemsize, kept.shape, kept.dtype)
        return self

    def indices(self, numbers):
        return Tensor((numpy.array(numbers, int)[:, None] * self.page_size + numpy.arange(self.page_size)).reshape(-1))

    def _numbers(self, indices):
        return [start // self.page_size for start in indices.tolist()[:: self.page_size]]

    def get_page_buffer_meta(self, indices):
        return _where([part for number in self._numbers(indices) for part in self._parts(self.raw(number))])

    def _parts(self, page):
        if not self.inner:
            return list(page)
        # Layers lie apart: both planes of each.
        return [page[plane, layer] for layer in range(page.shape[1]) for plane in range(len(page))]

    def get_split_heads_page_buffer_meta(self, indices, split):
        assert self.layout == "page_head"
        pages = [self.raw(number) for number in self._numbers(indices)]
        groups = [page.reshape(len(page), split, -1) for page in pages]
        return _where([group[plane, i] for group in groups for i in range(split) for plane in range(2)])

    def get_data_page(self, index):
        return Tensor(self.raw(index // self.page_size).flatten())

    def get_dummy_flat_data_page(self):
        return Tensor(numpy.zeros(self.raw(0).size, self.kv_buffer.dtype))

    def set_from_flat_data_page(self, index, page):
        raw = self.raw(index // self.page_size)
        raw[...] = page.array.reshape(raw.shape)


class PoolWithoutAddresses(HostPool):
    def get_page_buffer_meta(self, indices):
        raise ValueError(f"Unsupported layout: {self.layout}")

    def get_split_heads_page_buffer_meta(self, indices, split):
        return self.get_page_buffer_meta(indices)


class LogicalPool(HostPool):
    """Numbers pages whose content other pools have."""

    def __init__(self):
        super().__init__("layer_first", mla=True)
        self.kv_buffer, self.end_layer, self.layer_num = None, 0, 0

    def get_page_buffer_meta(self, indices):
        return None

    def get_data_page(self, index):
        return Tensor(numpy.zeros(0, numpy.uint8))

    def get_dummy_flat_data_page(self):
        return Tensor(numpy.zeros(0, numpy.uint8))


class StatePool(HostPool):
    """A recurrent state, whose elements are of several types. It does not tell its layers."""

    def __init__(self, temporal=bfloat16, beside=bfloat16):
        super().__init__("page_first", mla=True, page=1)
        del self.start_layer, self.end_layer, self.layer_num
        self.temporal_dtype, self.slot_state_buffers = temporal, [SimpleNamespace(dtype=beside)]


class PoolWithoutPages(PoolWithoutAddresses):
    def get_dummy_flat_data_page(self):
        raise NotImplementedError("scales lie elsewhere")


def _where(parts):
    assert all(part.flags.c_contiguous for part in parts)
    return [part.ctypes.data for part in parts], [part.nbytes for part in parts]


PLACES = ["mem_cache.hicache_storage", "observability.metrics_collector", "runtime_context"]


def installed():
    """Gives `transload.sglang`."""
    here = sys.modules[__name__]
    modules = {"torch": here, "sglang": ModuleType("sglang"), "sglang.srt": ModuleType("sglang.srt")}
    for place in PLACES:
        modules |= {f"sglang.srt.{place.split('.')[0]}": ModuleType(place), f"sglang.srt.{place}": here}
    return stand_in.installed("transload.sglang", modules)


get_model = get_spec = get_lora = Server.get_model
