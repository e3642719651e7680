"""A "model": which caches its layers have, and what they hold, as a function of the tokens alone.

Every element is a number drawn from the token, its position, the layer, the head and the element of the whole model, so
that what one engine computed can be told from what another would have, whatever their ranks, blocks and layouts.
"""

import zlib
from dataclasses import dataclass

import numpy

from . import torch_numpy as torch
from . import vllm_names as vllm


def draw(itemsize, *axes):
    """Numbers of `itemsize` bytes; `axes` are broadcast against each other."""
    mixed = numpy.zeros(1, numpy.uint64)
    for axis in axes:
        mixed = (mixed ^ numpy.asarray(axis).astype(numpy.uint64)) * numpy.uint64(0x9E3779B97F4A7C15)
        mixed = mixed ^ (mixed >> numpy.uint64(29))
    return (mixed >> numpy.uint64(17)).astype(torch.UNSIGNED[itemsize])


@dataclass(frozen=True)
class Attention:
    """Layers that cache a key and a value for each token and head, or a latent (`mla`)."""

    layers: range
    heads: int = 4
    head_dim: int = 32
    dtype: torch.dtype = torch.float32
    window: int | None = None
    chunk: int | None = None
    mla: bool = False
    transfer: bool = True
    draft: bool = False
    """Whether the layers draft tokens. What they read may be missing: zeros."""
    prefix: str = "model.layers"
    recurrent = False
    suffix = "attn"
    backend = None
    """Its attention backend, where that is not the engine's."""

    def local_heads(self, tp, rank):
        if self.heads < tp:
            return numpy.array([rank * self.heads // tp])
        each = self.heads // tp
        return numpy.arange(rank * each, (rank + 1) * each)

    def spec(self, tp, block_size):
        common = {"num_kv_heads": max(1, self.heads // tp), "head_size": self.head_dim, "dtype": self.dtype}
        if self.mla:
            return vllm.MLAAttentionSpec(block_size, **common)
        if self.window:
            return vllm.SlidingWindowSpec(block_size, sliding_window=self.window, **common)
        if self.chunk:
            return vllm.ChunkedLocalAttentionSpec(block_size, attention_chunk_size=self.chunk, **common)
        return vllm.FullAttentionSpec(block_size, **common)

    def skipped(self, computed):
        """How many of the first tokens nothing sees any more, once `computed` are."""
        if self.window:
            return max(0, computed - self.window + 1)
        return computed // self.chunk * self.chunk if self.chunk else 0

    def content(self, tokens, positions, layer, heads):
        """Keys and values: by token, head and element."""
        where = [tokens[positions][:, None, None], positions[:, None, None], layer, heads[None, :, None]]
        elements = numpy.arange(self.head_dim)
        parts = [draw(self.dtype.itemsize, *where, elements, part) for part in range(1 if self.mla else 2)]
        return numpy.concatenate(parts, axis=2)

    def differ(self, found, content):
        """Where a computation would read something else than it should."""
        return (found != content) & ((found != 0) | (not self.draft))


@dataclass(frozen=True)
class Numbers(Attention):
    """Keys and values that are numbers from 0 to 1, so that something near is as good."""

    def content(self, tokens, positions, layer, heads):
        drawn = super().content(tokens, positions, layer, heads)
        return (drawn % 2**20 / 2**20).astype(numpy.float32).view(numpy.uint32)

    def differ(self, found, content):
        # A group of 32 has a range of 1 at most, and 4 bits.
        return abs(found.view(numpy.float32) - content.view(numpy.float32)) > 1 / 30 + 1 / 512


@dataclass(frozen=True)
class PackedLatents(Attention):
    """Latents in fp8 that have their scales, and what is rotated, in one piece (``fp8_ds_mla``)."""

    heads: int = 1
    head_dim: int = 656
    dtype: torch.dtype = torch.uint8
    mla: bool = True
    backend = "FLASHMLA_SPARSE"

    def spec(self, tp, block_size):
        packed = {"cache_dtype_str": "fp8_ds_mla", "kv_quant_mode": vllm.KVQuantMode.FP8_PER_TENSOR}
        packed |= {"state_content_bytes": self.head_dim, "is_index_group_leader": True, "is_draft": True}
        packed |= {"topk_buffer_width": 2048, "non_causal_multi_token_decode": True}
        return vllm.MLAAttentionSpec(block_size, num_kv_heads=1, head_size=576, dtype=self.dtype, **packed)


@dataclass(frozen=True)
class IndexKeys(Attention):
    """Keys by which sparse attention chooses tokens: of a block 128 bytes of each, and then 4 of scale."""

    heads: int = 1
    head_dim: int = 132
    dtype: torch.dtype = torch.uint8
    mla: bool = True
    suffix = "indexer.k_cache"
    backend = "DEEPSEEK_V32_INDEXER"


@dataclass(frozen=True)
class Recurrent:
    """Layers that keep the last inputs of a convolution (`taps` tokens) and a state of all tokens so far."""

    layers: range
    parts: tuple[tuple[int, int], ...]
    """Of the convolution's channels, in order: units that ranks divide (1: all have it), channels of each."""
    state: tuple[int, int, int]
    kind: str = "MAMBA2"
    taps: int = 3
    dtype: torch.dtype = torch.float32
    state_dtype: torch.dtype = torch.float32
    drafts: int = 0
    transfer: bool = True
    draft: bool = False
    prefix: str = "model.layers"
    recurrent = True
    suffix = "mixer"
    backend = None

    def channels(self, tp, rank):
        """Which of the whole model's channels a rank has."""
        mine, before = [], 0
        for units, each in self.parts:
            held = range(units) if units == 1 else range(rank * units // tp, (rank + 1) * units // tp)
            mine += [before + unit * each + at for unit in held for at in range(each)]
            before += units * each
        return numpy.array(mine)

    def shapes(self, tp):
        heads, rows, columns = self.state
        conv = (self.taps + self.drafts, len(self.channels(tp, 0)))
        return (conv[::-1] if vllm.conv_state_dim_first else conv), (heads // tp, rows, columns)

    def spec(self, tp, block_size):
        kind = vllm.MambaAttentionBackendEnum[self.kind]
        dtypes = (self.dtype, self.state_dtype)
        return vllm.MambaSpec(
            block_size, shapes=self.shapes(tp), dtypes=dtypes, mamba_type=kind, num_speculative_blocks=self.drafts
        )

    def content(self, tokens, end, layer, tp, rank):
        """What the convolution and the state hold after the first `end` tokens."""
        positions = numpy.arange(end - self.taps, end)
        known = tokens[numpy.maximum(positions, 0)]
        conv = draw(self.dtype.itemsize, known[:, None], positions[:, None] + 100, layer, self.channels(tp, rank))
        conv[positions < 0] = 0
        heads, rows, columns = (numpy.arange(extent) for extent in self.state)
        heads = heads[rank * len(heads) // tp : (rank + 1) * len(heads) // tp]
        seen = zlib.crc32(tokens[:end].tobytes())
        state = draw(self.state_dtype.itemsize, seen, layer, heads[:, None, None], rows[:, None], columns)
        return (conv.T if vllm.conv_state_dim_first else conv), state


def mamba2(layers, *, heads=8, head_dim=8, groups=1, state_size=4, **more):
    """Inputs, and what goes into and out of the state, which groups of heads share."""
    return Recurrent(layers, ((heads, head_dim), (groups, state_size), (groups, state_size)),
                     (heads, head_dim, state_size), "MAMBA2", **more)  # fmt: skip


def gdn(layers, *, key_heads=4, value_heads=8, key_dim=4, value_dim=8, **more):
    """Queries, keys and values."""
    return Recurrent(layers, ((key_heads, key_dim), (key_heads, key_dim), (value_heads, value_dim)),
                     (value_heads, value_dim, key_dim), "GDN_ATTN", **more)  # fmt: skip


def mamba1(layers, *, inner=32, state_size=4, **more):
    """Each channel has a state of its own."""
    return Recurrent(layers, ((inner, 1),), (inner, state_size, 1), "MAMBA1", **more)
