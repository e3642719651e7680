"""Names the pages of a host pool in a store, and tells where they lie in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.pool_host import HostKVCache

Value = list[tuple[int, int]]
"""The memory of an object: addresses and lengths in bytes."""

_AXES = "pp", "attn_cp", "dcp"
"""Ways of dividing a cache, besides TP, in which each rank has its own data under the same page hash."""


class Pool:
    """Knows a host pool. A page of it is one object, or one for each head group, or none where it has no memory.

    `only_numbers` tells whether that is because its pages lie in other pools.
    """

    def __init__(self, name: str, host: HostKVCache, config: HiCacheStorageConfig, whole: bool):
        """`whole` has pages copied as one tensor each, in the order of `HostKVCache.get_data_page`.

        Raises `ValueError` if its pages cannot be stored.
        """
        self._name, self._host, self._whole = name, host, whole
        self._page = getattr(host, "logical_page_size", None) or host.page_size or 1
        # An MLA cache is the same on all TP ranks, and SGLang has one of them write. What has heads, or is a state, differs.
        shared = config.is_mla_model and name != PoolName.MAMBA and not hasattr(host, "head_num")
        self._objects = 1
        if name == PoolName.KV and getattr(host, "kv_buffer", None) is None:
            # It numbers pages that lie in other pools, or on another rank.
            self._objects = 0
        elif config.should_split_heads and not (whole or shared) and host.layout == "page_head":
            self._objects = config.tp_lcm_size // config.tp_size
            if host.head_num % self._objects:
                raise ValueError(
                    f"tp_lcm_size {config.tp_lcm_size} asks for {self._objects} head groups of {name} on each of "
                    f"{config.tp_size} ranks, which have {host.head_num} heads"
                )
        self.only_numbers = not self._objects and host.layer_num == 0
        length = self._measure()
        # A recurrent state does not tell its layers. They are those of its stage of PP.
        layers = f"layers{getattr(host, 'start_layer', '')}-{getattr(host, 'end_layer', '')}"
        form = f"{name}.{_dtype(host)}.{host.layout}.{self._page}.{layers}.{length}" + ".whole" * self._whole
        for axis in _AXES:
            if (size := getattr(config, f"{axis}_size", 1)) > 1:
                form += f".{axis}{getattr(config, f'{axis}_rank')}of{size}"
        # A head group of a rank is what a rank of a larger TP has.
        first, ranks = config.tp_rank * self._objects, config.tp_size * self._objects
        shares = [""] if shared else [f".tp{first + group}of{ranks}" for group in range(self._objects)]
        self._suffixes = [f".{form}{share}" for share in shares[: self._objects]]

    def names(self, keys: list[str]) -> list[str]:
        """Names the objects of each page in turn."""
        return [key + suffix for key in keys for suffix in self._suffixes]

    def pages(self, objects: list[bool], count: int) -> list[bool]:
        """Tells of each of `count` pages whether all its objects are true."""
        return [all(objects[i * self._objects : (i + 1) * self._objects]) for i in range(count)]

    def locate(self, indices: torch.Tensor, count: int, copied: bool) -> tuple[list[Value], list[torch.Tensor]]:
        """Tells where each object of `count` pages is, and which tensors stand for pages that are copied whole.

        Those hold the pages if `copied`, and otherwise have room for them.
        Raises `ValueError` if `indices`, those of all tokens, are not of so many pages.
        """
        if not self._objects:
            return [], []
        if indices is None or len(indices) != count * self._page:
            given = "no" if indices is None else len(indices)
            raise ValueError(f"{given} indices for {count} pages of {self._page} in {self._name}")
        if self._whole:
            take, room = self._host.get_data_page, self._host.get_dummy_flat_data_page
            pages = [take(start).contiguous() if copied else room() for start in self._starts(indices)]
            return self.locations(pages), pages
        parts = list(zip(*self._meta(indices)))
        each = len(parts) // (count * self._objects)
        return [parts[i : i + each] for i in range(0, len(parts), each)], []

    def locations(self, pages: Sequence[torch.Tensor]) -> list[Value]:
        """Tells where the objects of pages lie that are a contiguous tensor each. Raises `ValueError` for any other."""
        return [[location(page)] for page in pages] if self._objects else []

    def restore(self, indices: torch.Tensor, pages: list[torch.Tensor], wanted: list[bool]) -> None:
        """Copies those whole pages into the pool that are `wanted`."""
        for start, page, want in zip(self._starts(indices), pages, wanted):
            if want:
                self._host.set_from_flat_data_page(start, page)

    def _starts(self, indices: torch.Tensor) -> list[int]:
        return indices[:: self._page].tolist()

    def _meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        if self._objects > 1:
            return self._host.get_split_heads_page_buffer_meta(indices, self._objects)
        return self._host.get_page_buffer_meta(indices)

    def _measure(self) -> int:
        """Tells the bytes of an object. A pool that tells no addresses has its pages copied whole."""
        if not self._objects:
            return 0
        refused = NotImplementedError, ValueError
        if not self._whole:
            try:
                return sum(self._meta(torch.arange(self._page))[1]) // self._objects
            except refused:
                self._whole, self._objects = True, 1
        try:
            return location(self._host.get_dummy_flat_data_page())[1]
        except refused as error:
            raise ValueError(f"pages of {self._name} in layout {self._host.layout} cannot be stored: {error}") from error


def location(tensor: torch.Tensor) -> tuple[int, int]:
    """Tells where a contiguous tensor lies: its address and length in bytes. Raises `ValueError` for any other."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError("a page has to be contiguous and in the memory of the host")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _dtype(host: HostKVCache) -> str:
    """Names the types of a pool's elements. Pools keep both kinds of fp8 as bytes, so there the server's setting decides."""
    # A recurrent state is of several: that of the convolution, of the recurrence, and of what a model keeps beside them.
    beside = [buffer.dtype for buffer in getattr(host, "slot_state_buffers", ())]
    types = [host.dtype, getattr(host, "temporal_dtype", None), *beside]
    named = "-".join(str(each).removeprefix("torch.") for each in types if each)
    if named != "uint8":
        return named
    try:
        from sglang.srt.runtime_context import get_model

        return str(get_model().kv_cache_dtype)
    except ImportError as error:
        raise ValueError(
            f"a pool of bytes holds fp8 of one kind or another, and this version of SGLang has no settings that say which ({error}): "
            "start the server with --kv-cache-dtype auto, or with another version of SGLang"
        ) from error
    except ValueError:
        # Outside of a server there is no setting.
        return named
