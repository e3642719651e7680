"""A "model": which caches its layers have, and what they hold, as a function of the tokens alone.

Every element is a number drawn from the token, its position, the layer, the head and the element of the whole model, so
that what one engine computed can be told from what another would have, whatever their ranks, blocks and layouts.
"""

import zlib
from dataclasses import dataclass, replace

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
    behind = 0
    suffix = "attn"
    backend = None
    """Its attention backend, where that is not the engine's."""
    ring = None
    """Of how many tokens there is room, where a request has one block for its last ones."""
    tokens_per_state = 1
    parts = ()
    """Bytes of what a block has apart: all of the first part, then all of the next."""

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
class PackedRows(Attention):
    """A key and a value of a head and token that have their scales in one row, as with ``int8_per_token_head``."""

    head_dim: int = 36
    dtype: torch.dtype = torch.uint8

    def spec(self, tp, block_size):
        packed = {"head_size": 32, "head_size_v": 0 if self.mla else 32, "kv_quant_mode": vllm.KVQuantMode.INT8_PER_TOKEN_HEAD}
        size = self.head_dim * (1 if self.mla else 2)
        return replace(super().spec(tp, block_size), **packed, state_content_bytes=size)


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
    parts = (128, 4)


@dataclass(frozen=True)
class Latents(Attention):
    """What sparse attention keeps on every rank: a state for one token or for several, of a window or of all."""

    heads: int = 1
    head_dim: int = 584
    dtype: torch.dtype = torch.uint8
    mla: bool = True
    tokens_per_state: int = 1
    parts: tuple = ()
    backend: str = "DEEPSEEK_SPARSE_SWA"
    suffix: str = "swa_cache"

    def spec(self, tp, block_size):
        common = {"num_kv_heads": 1, "max_tp_shards": 1, "head_size": self.head_dim, "dtype": self.dtype, "alignment": 576}
        common |= {"tokens_per_state": self.tokens_per_state, "model_version": "deepseek_v4"}
        if self.window:
            return vllm.SlidingWindowMLASpec(block_size, sliding_window=self.window, **common)
        return vllm.MLAAttentionSpec(block_size, **common)


@dataclass(frozen=True)
class Ring(Attention):
    """Keys, and behind all of a block how much each counts, of tokens for which there is no state yet: fewer than `chunk` of them."""

    heads: int = 1
    head_dim: int = 8
    dtype: torch.dtype = torch.bfloat16
    chunk: int = 16
    ring: int = 16
    suffix: str = "indexer.tail_cache"
    backend: str = "KPOOL_TAIL"

    def spec(self, tp, block_size):
        size = {"num_kv_heads": 2, "head_size": self.head_dim}
        if self.backend == "CompressorBackend":
            size = {"num_kv_heads": 1, "head_size": 2 * self.head_dim}
        return vllm.CircularBufferSpec(self.ring, **size, head_size_v=0, dtype=self.dtype)


def glm_5_3(ring=16):
    """Latents, a key for 16 tokens of them, those that are not 16 yet, and in other layers recurrent state."""
    index = {"head_dim": 132, "parts": (128, 4), "backend": "DEEPSEEK_V32_INDEXER", "suffix": "indexer.k_cache"}
    return [
        Latents([1, 3], head_dim=48, dtype=torch.bfloat16, backend="FLASHMLA_SPARSE", suffix="mla_attn"),
        Latents([1, 3], tokens_per_state=16, **index),
        Ring([1, 3], ring=ring),
        gdn([0, 2]),
    ]


def deepseek_v41(ring=8, row=528):
    """Latents of a window and of one or two tokens, their index keys, and in a ring the token that waits for its second."""
    latents = {"backend": "FLASHMLA_MEGA_ATTN_DSV41", "suffix": "mla_attn"}
    index = {"head_dim": 68, "parts": (64, 4), "backend": "DEEPSEEK_V41_INDEXER", "suffix": "indexer.k_cache"}
    ring = Ring([1, 3], dtype=torch.float32, chunk=2, ring=ring, backend="CompressorBackend", suffix="compressor.state_cache")
    return [
        Latents(range(4), window=40, head_dim=528),
        Latents([0], head_dim=row, **latents),
        Latents([1, 3], tokens_per_state=2, head_dim=row, **latents),
        Latents([1, 3], tokens_per_state=2, **index),
        ring,
    ]


def minimax_m3(dtype=torch.bfloat16):
    """Keys and values, and in layers of sparse attention a plain key by which blocks are chosen."""
    index = {"head_dim": 16, "dtype": dtype, "backend": "MINIMAX_M3_SPARSE_INDEXER", "suffix": "index_cache"}
    return [Attention(range(2)), Attention(range(2, 4), head_dim=16, dtype=torch.bfloat16), Latents([2, 3], **index)]


def deepseek_v4(rows=584, parts=(576, 8), dtype=torch.uint8):
    """All that layers of DeepSeek V4 cache: of a window, of 4 tokens, and of many. A compressor keeps those of which there is no state yet."""

    def compressor(layers, size, window, of=""):
        more = {"dtype": torch.float32, "window": window, "backend": "CompressorBackend", "suffix": f"{of}compressor.state_cache"}
        return Latents(layers, head_dim=size, **more)

    row = {"head_dim": rows, "dtype": dtype, "parts": parts}
    attention = {"backend": "FLASHMLA_SPARSE_DSV4", "suffix": "mla_attn"}
    index = {"head_dim": 132, "parts": (128, 4), "backend": "DEEPSEEK_V4_INDEXER", "suffix": "indexer.k_cache"}
    return [
        Latents(range(5), window=40, **row),
        Latents([1, 3], tokens_per_state=4, **row, **attention),
        Latents([1, 3], tokens_per_state=4, **index),
        compressor([1, 3], 48, 8),
        compressor([1, 3], 16, 8, "indexer."),
        Latents([2, 4], tokens_per_state=64, **row, **attention),
        compressor([2, 4], 24, 64),
    ]


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
    ring = None
    suffix = "mixer"
    backend = None
    behind: int = 0
    """How many numbers behind its own a layer is named, as those of Falcon-H1 are."""

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
