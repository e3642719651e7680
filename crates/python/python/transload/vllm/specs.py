"""Describes what a layer of vLLM caches, as deployment documents do: that of the whole model, before TP."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

try:
    from vllm.v1.kv_cache_interface import CircularBufferSpec
except ImportError:
    # Before 0.32.
    CircularBufferSpec = None  # type: ignore[assignment, misc]

from . import versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.uint8: "u8",
    torch.int8: "i8",
}

FP8 = {"fp8": "f8e4m3", "fp8_e4m3": "f8e4m3", "fp8_e5m2": "f8e5m2"}
"""The dtype of a cache with these values of vLLM's ``--kv-cache-dtype``. Its tensors say bytes for all of them."""
TYPED = {"auto", "float16", "bfloat16", "fp8_inc"}
"""Values of ``--kv-cache-dtype`` with which the tensors' own dtype says what an element is."""

KEY_THEN_VALUE = {
    "FLASH_ATTN",
    "FLASHINFER",
    "FLEX_ATTENTION",
    "FLASH_ATTN_DIFFKV",
    "TRITON_ATTN",
    "MINIMAX_M3_SPARSE",
    "TRITON_MSA",
    "CUTLASS_MSA",
    "TRITON_MLA",
    "FLASHMLA",
    "FLASHINFER_MLA",
    "FLASH_ATTN_MLA",
    "FLASHMLA_SPARSE",
    "FLASH_ATTN_MLA_SPARSE",
    "FLASHINFER_MLA_SPARSE",
    "FLASHINFER_MLA_SPARSE_SM90",
    "CUTLASS_MLA",
    "CPU_MLA",
}
"""Attention backends whose state is, for one head, a key and then its value, or one latent."""

_TOKEN_HEAD = {"int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"}
PACKED_ROWS = {
    "TRITON_ATTN": _TOKEN_HEAD,
    "TRITON_MLA": _TOKEN_HEAD,
    "TURBOQUANT": {"turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"},
}
"""Values of ``--kv-cache-dtype`` with which a head's key and value of a token, or its latent, are one row of bytes, with all scales."""

KEYS_TRANSPOSED = "[DS,SD]"
"""The order inside a block and head: all keys, element by element, and then all values, state by state."""

PACKED_LATENTS = {"FLASHMLA_SPARSE": {656, 352}, "FLASHINFER_MLA_SPARSE_SM120": {656}}
"""Bytes of a token's latent with ``fp8_ds_mla``: 512 elements in fp8, their four scales, and 64 rotated ones in bf16; and with
``nvfp4_ds_mla``, where all are smaller."""

INDEX_KEYS = {"DEEPSEEK_V32_INDEXER", "DEEPSEEK_V4_INDEXER", "DEEPSEEK_V41_INDEXER", "DEEPSEEK_V41_SPARSE_INDEXER"}
"""The backends of layers that choose which tokens sparse attention sees."""
ROWS = {
    "DEEPSEEK_SPARSE_SWA",
    "FLASHMLA_SPARSE_DSV4",
    "FLASHINFER_MLA_SPARSE_DSV4",
    "FLASHMLA_SPARSE_DSV41",
    "FLASHMLA_MEGA_ATTN_DSV41",
    "FLASHINFER_MLA_SPARSE_DSV41",
}
"""The backends of latents of DeepSeek V4 and V4.1, of the last tokens or of several tokens each."""
RECORDS = {528, 288}
"""Bytes of latents of DeepSeek V4.1 that have their scales behind them, in fp8 and in NVFP4."""
PLAIN_INDEX_KEYS = {"MINIMAX_M3_SPARSE_INDEXER"}
"""The backends of such layers whose keys have no scales."""
COMPRESSOR = "CompressorBackend"
"""The backend of what tokens leave for the state of several tokens that they will be part of."""

DATA_THEN_SCALES = KEYS_THEN_SCORES = "[SD,SD]"
"""The order inside a block: all of one, state by state, and then all of the other."""

POOLED = "KPOOL_TAIL"
"""The backend of index keys, and of how much each of them counts, that are not yet pooled to one for several tokens."""

SCALED = (
    dict.fromkeys(((backend, 584) for backend in ROWS), (576, 8))
    | dict.fromkeys(((backend, 132) for backend in INDEX_KEYS), (128, 4))
    | dict.fromkeys(((backend, 68) for backend in INDEX_KEYS), (64, 4))
)
"""Of backends that keep scales of a block behind its data: the bytes of a state's data and of its scales. Latents have 448
elements in fp8 and 64 rotated ones in bf16; index keys 128 elements in fp8, or in fp4."""


_ANY = {"block_size", "block_stride_alignment", "page_size_padded", "dcp_sharded", "is_draft"}
"""Fields of all specs that say where pages are, which is read off the tensors, or what plays no part here."""
_ATTENTION = _ANY | {
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "dtype",
    "kv_quant_mode",
    "max_tp_shards",
    "num_head_slots",
    "state_content_bytes",
    "tokens_per_state",
}
# A window that full attention merely applies frees no blocks.
_APPLIED = {"sliding_window", "attention_chunk_size"}
KNOWN = {
    FullAttentionSpec: _ATTENTION | _APPLIED,
    MLAAttentionSpec: _ATTENTION
    | _APPLIED
    | {
        "cache_dtype_str",
        "cache_role",
        "is_index_group_leader",
        # To what pages are padded, which is read off the tensors, and who manages their blocks.
        "alignment",
        "model_version",
        # The size of a buffer beside the cache, and how several tokens of a request are computed at once.
        "topk_buffer_width",
        "non_causal_multi_token_decode",
    },
    SlidingWindowSpec: _ATTENTION | {"sliding_window"},
    SlidingWindowMLASpec: _ATTENTION
    | {
        "sliding_window",
        "cache_dtype_str",
        "alignment",
        "model_version",
        # Whether vLLM computes a window anew behind a prefix that it has cached: not where the window is loaded with it, as here.
        "bounded_replay",
    },
    ChunkedLocalAttentionSpec: _ATTENTION | {"attention_chunk_size"},
    MambaSpec: _ANY
    | {
        "shapes",
        "dtypes",
        "mamba_type",
        "mamba_cache_mode",
        "num_speculative_blocks",
        "num_prefill_checkpoint_blocks",
        "prefill_checkpoint_alignment",
    },
}
"""The specs that are described below, by exact type, and the fields that were read to do so. A field that is not among
them may change what blocks hold, or what of them may be used, so it has to be as vLLM has it by default."""


if CircularBufferSpec is not None:
    KNOWN[CircularBufferSpec] = _ATTENTION


class UnsupportedCache(NotImplementedError):
    """This connector does not know how to read a cache. Refusing it is better than wrong tokens."""


class UnknownLayout(UnsupportedCache):
    """This connector does not know how a backend orders a block. The block can be moved whole."""


PAGES = "pages/"
"""The names of groups whose blocks are moved whole begin with it."""


@dataclass(frozen=True)
class Layer:
    """Describes what one layer caches."""

    kind: str
    """The name of the deployment's group begins with it."""
    specs: list[dict[str, Any]]
    """Specs of a deployment document; several for one page."""
    inside: str = ""
    """Order inside a block of one head, where it is not state by state."""
    kernel_blocks: tuple[Any, ...] = field(default=(), compare=False)
    """Tokens of the blocks that its kernels can take, where more than strides depends on it: `inside` is within one of these."""
    recurrent: bool = False
    is_ring: bool = False
    """Whether a request has a single block, in which a token's place is its position modulo the block's size."""
    draft: bool = False
    """Whether it drafts tokens that the model then checks."""
    scratch: int = field(default=0, compare=False)
    """Blocks of a request behind its running state, for drafts."""
    alike: tuple[tuple[str, str], ...] = ()
    """Names and values that must be the same on both servers, for blocks that are moved whole."""


def layers(vllm_config: VllmConfig) -> dict[str, Any]:
    """Returns the model's layers that have a cache, by name.

    Raises:
        UnsupportedCache: this vLLM does not have them where others do.
    """
    found = getattr(vllm_config.compilation_config, "static_forward_context", None)
    if found is None:
        raise UnsupportedCache("this version of vLLM does not tell which attention backend a layer has")
    return found


def describe(vllm_config: VllmConfig, spec: KVCacheSpec, name: str) -> Layer:
    """Describes the cache of the layer `name`.

    Raises:
        UnsupportedCache: nobody has written down how it lies in memory.
    """
    if type(spec) not in KNOWN:
        raise UnsupportedCache(f"layer {name}: a cache of {type(spec).__name__} cannot be moved")
    for each in fields(spec):
        value, usual = getattr(spec, each.name), each.default
        if each.name not in KNOWN[type(spec)] and (usual is MISSING or value != usual):
            raise UnsupportedCache(
                f"layer {name}: a cache of {type(spec).__name__} with {each.name} {value!r} cannot be moved: what that "
                "changes is not known here"
            )
    if isinstance(spec, MambaSpec):
        return _recurrent(vllm_config, spec, name)
    if CircularBufferSpec is not None and isinstance(spec, CircularBufferSpec):
        return _ring(layers(vllm_config)[name], spec, name)
    try:
        return _attention(vllm_config, spec, name)
    except UnknownLayout as unknown:
        return _page(vllm_config, spec, name, unknown)


def _page(vllm_config: VllmConfig, spec: AttentionSpec, name: str, unknown: UnknownLayout) -> Layer:
    """Describes a block as one piece of bytes, which a server that is alike in everything can read.

    Raises:
        UnsupportedCache: a block of such a spec need not hold all of its tokens, or not tokens that follow each other.
    """
    is_full = type(spec) in (FullAttentionSpec, MLAAttentionSpec) and isinstance(spec.tokens_per_state, int)
    # Other layers of DeepSeek V4 have a backend of one name, however these are computed.
    if not is_full or getattr(spec, "model_version", None):
        raise unknown
    layer, parallel = layers(vllm_config)[name], vllm_config.parallel_config
    dcp = parallel.decode_context_parallel_size if spec.dcp_sharded else 1
    if dcp > 1 and parallel.cp_kv_cache_interleave_size % spec.block_size:
        raise UnsupportedCache(f"{unknown}; whole blocks can be moved with --cp-kv-cache-interleave-size {spec.block_size}")
    backend = layer.get_attn_backend().get_name()
    alike = {each.name: getattr(spec, each.name) for each in fields(spec) if each.name not in _ANY}
    alike |= {"vLLM": getattr(vllm, "__version__", ""), "backend": backend, "kv_cache_dtype": _cache_dtype(vllm_config, layer)}
    if backend == "CPU_ATTN":
        alike["isa"] = _isa(vllm_config, spec)
    size = spec.num_heads * (spec.block_size // spec.tokens_per_state) * spec.state_content_size_bytes
    # Each rank has a page of its own, of the tokens that are dealt out to it.
    page = {"kind": "opaque", "heads": parallel.tensor_parallel_size // dcp, "entry_bytes": size, "tokens_per_state": spec.block_size}
    return Layer(f"{PAGES}{backend}"[:40], [page], alike=tuple((key, str(value)) for key, value in alike.items()))


def _cache_dtype(vllm_config: VllmConfig, layer: Any) -> str:
    # Layers may be left out of what the server's option says.
    return getattr(layer, "kv_cache_dtype", None) or vllm_config.cache_config.cache_dtype


def _attention(vllm_config: VllmConfig, spec: AttentionSpec, name: str) -> Layer:
    if spec.num_heads != spec.num_kv_heads:
        raise UnknownLayout(
            f"layer {name}: {spec.num_heads} head slots for {spec.num_kv_heads} heads cannot be moved yet"
        )
    layer = layers(vllm_config)[name]
    kernels = layer.get_attn_backend()
    backend = kernels.get_name()
    kind = _cache_dtype(vllm_config, layer)
    is_latent = isinstance(spec, (MLAAttentionSpec, SlidingWindowMLASpec))
    if is_latent and (found := _sparse(spec, kernels, name)) is not None:
        return found
    if spec.tokens_per_state != 1:
        raise UnknownLayout(f"layer {name}: how {backend} keeps a state of {spec.tokens_per_state} tokens is not known here")
    is_row = kind in PACKED_ROWS.get(backend, ()) and spec.state_content_bytes is not None
    # Not by the mode alone: a platform's own dtype may have any, and in vLLM 0.33 two modes are one number.
    is_plain = kind in FP8.keys() | TYPED and spec.kv_quant_mode in (KVQuantMode.NONE, KVQuantMode.FP8_PER_TENSOR)
    if not is_row and not is_plain:
        raise UnknownLayout(
            f"layer {name}: how {backend} keeps {spec.state_content_size_bytes} B of a head and token in a cache of {kind} "
            "is not known here"
        )
    # Another format may have rows of as many bytes.
    suffix = f"/{kind}-{spec.head_size}" if is_row else ""
    if is_row:
        # Kinds of specs that have windows have a key and a value. Where one ends in a row does not matter: it is never divided.
        key, value, dtype = -(-spec.state_content_bytes // 2), spec.state_content_bytes // 2, "u8"
    else:
        key, value = spec.head_size, spec.head_size_v
        dtype = FP8[kind] if kind in FP8 and spec.dtype is torch.uint8 else _dtype(spec.dtype, name)
    if is_latent:
        if is_row and isinstance(spec, MLAAttentionSpec):
            return Layer(f"mla{suffix}", [{"kind": "opaque", "heads": 1, "entry_bytes": spec.state_content_bytes}])
        latent = spec.head_size * spec.dtype.itemsize
        if backend not in KEY_THEN_VALUE or not isinstance(spec, MLAAttentionSpec) or spec.state_content_size_bytes != latent:
            raise UnknownLayout(
                f"layer {name}: how {backend} keeps {spec.state_content_size_bytes} B of a latent of {latent} B "
                "is not known here"
            )
        return Layer("mla", [{"kind": "mla", "latent": spec.head_size, "dtype": dtype}])
    content = (key + value) * (1 if is_row else spec.dtype.itemsize)
    if spec.state_content_size_bytes != content:
        raise UnknownLayout(
            f"layer {name}: {backend} keeps {spec.state_content_size_bytes} B of a head and token, "
            f"a key and a value are {content} B"
        )
    described = {"kind": "attention", "heads": _heads(vllm_config, spec, name), "head_dim": key, "dtype": dtype}
    if value != key:
        described["v_head_dim"] = value
    kind = "attention"
    # A window that full attention merely applies frees no blocks, and so plays no part here.
    if isinstance(spec, SlidingWindowSpec):
        kind, described["sliding_window"] = "sliding", spec.sliding_window
    elif isinstance(spec, ChunkedLocalAttentionSpec):
        kind, described["chunk_size"] = "chunked", spec.attention_chunk_size
    return Layer(kind + suffix, [described], inside="" if is_row else _inside(vllm_config, spec, backend, name))


def _sparse(spec: MLAAttentionSpec | SlidingWindowMLASpec, kernels: Any, name: str) -> Layer | None:
    """Describes what sparse attention caches, which is the same on every rank. None if its `kernels` cache latents as others do."""
    backend, size, tokens = kernels.get_name(), spec.state_content_size_bytes, spec.tokens_per_state
    is_packed = (spec.cache_dtype_str or "").endswith("_ds_mla")
    plain = ROWS | PLAIN_INDEX_KEYS | {COMPRESSOR}
    if backend not in plain | INDEX_KEYS and not is_packed:
        return None
    window = {"sliding_window": spec.sliding_window} if isinstance(spec, SlidingWindowSpec) else {}
    if backend == COMPRESSOR:
        kind = "compressor"
    elif backend in INDEX_KEYS | PLAIN_INDEX_KEYS:
        kind = "indexer"
    else:
        kind = "window" if window else "mla" if tokens == 1 else f"c{tokens}"
    if spec.num_kv_heads == 1 and isinstance(tokens, int) and bool(window) == (kind in ("compressor", "window")):
        if spec.dtype is torch.uint8 and (backend, size) in SCALED:
            data, scales = SCALED[backend, size]
            described = {"kind": "compressed", "data_bytes": data, "scale_bytes": scales, "tokens_per_state": tokens} | window
            if kind == "indexer":
                described["kind"] = kind
                if data == 128 and _scales_are_exponents():
                    kind = "indexer/ue8m0"
            return Layer(kind, [described], DATA_THEN_SCALES, tuple(kernels.get_supported_kernel_block_sizes(spec)))
        if is_packed and tokens == 1 and not window and size in PACKED_LATENTS.get(backend, ()):
            return Layer("mla", [{"kind": "opaque", "heads": 1, "entry_bytes": size}])
        is_record = spec.dtype is torch.uint8 and backend in ROWS and size in RECORDS
        if is_record or backend in plain and spec.dtype is not torch.uint8 and size == spec.head_size * spec.dtype.itemsize:
            dtype, latent = _dtype(spec.dtype, name), size // spec.dtype.itemsize
            if tokens == 1:
                return Layer(kind, [{"kind": "mla", "latent": latent, "dtype": dtype} | window])
            if not window:
                row = {"kind": "opaque", "heads": 1, "entry_bytes": size, "tokens_per_state": tokens}
                return Layer(f"{kind}/{dtype}", [row])
    raise UnknownLayout(f"layer {name}: how {backend} keeps a state of {size} B is not known here")


def _ring(layer: Any, spec: AttentionSpec, name: str) -> Layer:
    """Describes the cache of tokens that are collected until they make one state. Only this part of a ring is moved: the tokens after the
    last multiple of a state's length. So two servers may have rings of different sizes, which depend on how many tokens are drafted."""
    backend = layer.get_attn_backend().get_name()
    shape = spec.num_kv_heads, spec.head_size_v, spec.tokens_per_state, spec.state_content_bytes
    if backend == POOLED and shape == (2, 0, 1, None):
        kind, tokens, width, inside = "indexer-state", getattr(layer, "_index_kpool", 0), spec.head_size, KEYS_THEN_SCORES
    elif backend == COMPRESSOR and shape == (1, 0, 1, None) and spec.head_size % 2 == 0:
        # DeepSeek V4.1 makes one state of two tokens; a token's latent and what it counts are one row.
        kind, tokens, width, inside = "compressor", 2, spec.head_size // 2, ""
    else:
        tokens = 0
    # The size is a multiple, so that these tokens are one run in it.
    if not tokens or spec.block_size % tokens:
        raise UnsupportedCache(f"layer {name}: what {backend} keeps in a ring of {spec.block_size} tokens is not known here")
    described = {"kind": "attention", "heads": 1, "head_dim": width, "dtype": _dtype(spec.dtype, name), "chunk_size": tokens}
    return Layer(kind, [described], inside, is_ring=True)


def _scales_are_exponents() -> bool:
    """Returns whether the scale of an index key in fp8 is four bytes of its exponent, in place of a float. With vLLM 0.33 that depends
    on the GPU. A server takes neither for the other: groups are matched by their names.

    Raises:
        UnsupportedCache: this version of vLLM does not tell. Servers that are alike otherwise may differ in it.
    """
    try:
        from vllm.utils import deep_gemm
    except ImportError:
        deep_gemm = None
    told = getattr(deep_gemm, "mqa_logits_use_mx_scales", None)
    if told is not None:
        return told()
    if versions.number() not in ((0, 31), (0, 32)):
        raise UnsupportedCache("this version of vLLM does not tell what the scales of index keys are")
    return False


def _inside(vllm_config: VllmConfig, spec: AttentionSpec, backend: str, name: str) -> str:
    if backend in KEY_THEN_VALUE:
        return ""
    if backend != "CPU_ATTN":
        raise UnknownLayout(f"layer {name}: how {backend} orders a block is not known here")
    isa = _isa(vllm_config, spec)
    if isa != "vec":
        raise UnknownLayout(
            f"layer {name}: how CPU_ATTN orders a block for {isa!r} is not known here; it is for 'vec', which takes "
            "float32, blocks of a multiple of 32 tokens, and heads of a multiple of 32 elements"
        )
    return KEYS_TRANSPOSED


def _isa(vllm_config: VllmConfig, spec: AttentionSpec) -> str:
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    cache_dtype = vllm_config.cache_config.cache_dtype
    return _get_attn_isa(vllm_config.model_config.dtype, spec.block_size, spec.head_size, cache_dtype)


def _heads(vllm_config: VllmConfig, spec: AttentionSpec, name: str) -> int:
    """Returns the KV heads of the whole model: `spec` counts those of one rank."""
    tp = vllm_config.parallel_config.tensor_parallel_size
    if tp == 1:
        return spec.num_kv_heads
    if spec.max_tp_shards is not None:
        return spec.num_kv_heads * min(tp, spec.max_tp_shards)
    total = vllm_config.model_config.get_total_num_kv_heads()
    if max(1, total // tp) != spec.num_kv_heads:
        raise UnsupportedCache(
            f"layer {name}: {spec.num_kv_heads} KV heads on each of {tp} ranks, but the model has {total}"
        )
    return total


def _recurrent(vllm_config: VllmConfig, spec: MambaSpec, name: str) -> Layer:
    tp = vllm_config.parallel_config.tensor_parallel_size
    if len(spec.shapes) != 2 or spec.tp_replicated:
        raise UnsupportedCache(f"layer {name}: a recurrent cache of {len(spec.shapes)} parts cannot be moved yet")
    conv, state = spec.shapes
    channels, taps = conv if is_conv_state_dim_first() else (conv[1], conv[0])
    conv_dtype, state_dtype = (_dtype(dtype, name) for dtype in spec.dtypes)
    described = {
        "conv_kernel": taps - spec.num_speculative_blocks + 1,
        "conv_layout": "DS" if is_conv_state_dim_first() else "SD",
        "dtype": conv_dtype,
    }
    if spec.num_speculative_blocks:
        described["conv_states"] = taps
    if spec.mamba_type is MambaAttentionBackendEnum.MAMBA2:
        heads, head_dim, state_size = state[0] * tp, state[1], state[2]
        groups = _groups(vllm_config, (channels - state[0] * head_dim) // (2 * state_size), name)
        inner = {"d_inner": heads * head_dim, "groups": groups}
        of_state = {"heads": heads, "state_size": state_size}
        kind = "mamba2"
        parts = [
            described | inner | of_state | {"kind": "mamba2_conv"},
            of_state | {"kind": "mamba2_ssm", "head_dim": head_dim, "dtype": state_dtype},
        ]
    elif spec.mamba_type is MambaAttentionBackendEnum.GDN_ATTN:
        value_heads, value_dim, key_dim = state
        keys = channels - value_heads * value_dim
        if keys <= 0 or keys % (2 * key_dim):
            raise UnsupportedCache(f"layer {name}: {channels} channels are not keys and values of {state}")
        of_state = {"value_heads": value_heads * tp, "value_head_dim": value_dim, "key_head_dim": key_dim}
        kind = "gdn"
        parts = [
            described | of_state | {"kind": "gdn_conv", "key_heads": keys // (2 * key_dim) * tp},
            of_state | {"kind": "gdn_ssm", "dtype": state_dtype},
        ]
    elif spec.mamba_type is MambaAttentionBackendEnum.MAMBA1:
        inner = {"d_inner": channels * tp}
        kind = "mamba1"
        parts = [
            described | inner | {"kind": "mamba1_conv"},
            inner | {"kind": "mamba1_ssm", "state_size": state[1], "dtype": state_dtype},
        ]
    else:
        raise UnsupportedCache(f"layer {name}: recurrent state of {spec.mamba_type.name} cannot be moved yet")
    return Layer(kind, parts, recurrent=True, scratch=spec.num_speculative_blocks)


def _groups(vllm_config: VllmConfig, local: int, name: str) -> int:
    """Returns the groups of a Mamba2 model whose rank holds `local`. One on each rank may be parts of many, or copies of one."""
    tp = vllm_config.parallel_config.tensor_parallel_size
    if tp == 1 or local > 1:
        return local * tp
    config = vllm_config.model_config.hf_text_config
    for field_name in ("mamba_n_groups", "n_groups", "mamba_num_groups", "mamba_ngroups"):
        groups = getattr(config, field_name, None)
        if groups in (1, tp):
            return groups
    raise UnsupportedCache(f"layer {name}: the model's config does not say how many Mamba2 groups it has")


def _dtype(dtype: torch.dtype, name: str) -> str:
    if dtype not in DTYPES:
        raise UnsupportedCache(f"layer {name}: elements of {dtype} cannot be moved")
    return DTYPES[dtype]
