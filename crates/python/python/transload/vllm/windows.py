"""Knows layers that see a window of the tokens before theirs, and whether a request still has the blocks that they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, SlidingWindowSpec, iter_layer_specs

from .config import ConfigError
from .messages import NULL_BLOCK
from .specs import CircularBufferSpec, UnsupportedCache, layers

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


@dataclass(frozen=True)
class Window:
    """Layers attend to this many previous tokens. Blocks before them are freed while a request continues."""

    block_size: int
    sliding: int | None
    chunk: int | None

    def first(self, end: int) -> int:
        """Returns the first token that is needed to go on at token `end`."""
        return max(0, end - self.sliding + 1) if self.sliding else end // self.chunk * self.chunk if self.chunk else 0

    def is_there(self, end: int, table: list[int]) -> bool:
        """Returns whether a request still has everything that is needed to continue at token `end`."""
        return NULL_BLOCK not in table[self.first(end) // self.block_size : -(-end // self.block_size)]

    def whole_from(self, start: int, end: int) -> int:
        """Returns how many entries of a table have no block, or one that is not whole, where tokens from `start` to `end` are loaded; 0 where
        there is none behind those that were here."""
        first = self.first(end)
        return -(-first // self.block_size) if first > start else 0


def window_of(spec: KVCacheSpec) -> Window | None:
    """Returns the window of a group's layers; None if they see everything."""
    for each in iter_layer_specs(spec):
        # A window that full attention merely applies gives nothing back.
        if isinstance(each, SlidingWindowSpec):
            return Window(spec.block_size, each.sliding_window, None)
        if isinstance(each, ChunkedLocalAttentionSpec):
            return Window(spec.block_size, None, each.attention_chunk_size)
    return None


def has_windows(kv_cache_config: KVCacheConfig) -> bool:
    """Returns whether any group's layers see a window."""
    return any(window_of(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups)


def has_rings(kv_cache_config: KVCacheConfig) -> bool:
    """Returns whether any layer keeps the last tokens of a request in a ring."""
    specs = (spec for group in kv_cache_config.kv_cache_groups for spec in iter_layer_specs(group.kv_cache_spec))
    return CircularBufferSpec is not None and any(isinstance(spec, CircularBufferSpec) for spec in specs)


class Uncached:
    """Keeps blocks of windows out of vLLM's prefix cache of which only the end is loaded: it would give them to others as whole.

    vLLM counts, for each request and group, the entries of the table that it has looked at. It begins to cache behind them.
    """

    def __init__(self, manager: KVCacheManager, kv_cache_config: KVCacheConfig) -> None:
        """
        Raises:
            ConfigError: this vLLM does not count so.
        """
        windows = [window_of(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
        try:
            counts = [each.num_cached_block for each in manager.coordinator.single_type_managers]
        except AttributeError as error:
            raise ConfigError(
                f"some layers see a window of the tokens before theirs, and this version of vLLM does not let blocks of a window be kept out of "
                f"its prefix cache ({error}): start the server with --no-enable-prefix-caching"
            ) from error
        self._groups = [(window, count) for window, count in zip(windows, counts, strict=True) if window is not None]

    def load(self, request_id: str, start: int, end: int) -> None:
        """Takes note of a load of these tokens, before vLLM caches its blocks."""
        for window, counts in self._groups:
            counts[request_id] = max(counts.get(request_id, 0), window.whole_from(start, end))


def refuse_narrow_sharing(vllm_config: VllmConfig) -> None:
    """Refuses layers that share a cache which keeps fewer tokens than they attend to.

    vLLM 0.32 computes that for some models whose layers are in an order of their own: Gemma 3n's sharing layers take the
    caches of the two layers before them, whatever these see. What is behind a window has been given back by then, or not,
    as a prompt was divided into steps: one server alone gives several answers.

    Raises:
        UnsupportedCache: it names the layers.
    """
    all_layers = layers(vllm_config)
    for name, layer in all_layers.items():
        target = getattr(layer, "kv_sharing_target_layer_name", None)
        if target is None:
            continue
        sees, kept = (getattr(each, "sliding_window", None) for each in (layer, all_layers.get(target)))
        if kept is not None and (sees is None or sees > kept):
            raise UnsupportedCache(
                f"layer {name} sees {'all' if sees is None else sees} tokens in the cache of layer {target}, which keeps "
                f"{kept}: vLLM computes something else each time that it divides a prompt otherwise"
            )
