"""Caches of sparse models as vLLM lays them out. The specs, groups, offsets and strides are those that its own code makes for a
model's layers, on tensors of the host; what its kernels write where is written down here. No kernel runs."""

import importlib
import random
import re
from types import SimpleNamespace

import numpy
import pytest
import torch
from transload import Plan
from transload.vllm import cache as caches
from transload.vllm import specs as described
from vllm.model_executor.layers.mamba import mamba_utils
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.attention.backends import triton_attn
from vllm.v1.attention.backends.mla import indexer
from vllm.v1.worker import utils

try:
    planning = importlib.import_module("vllm.v1.core.kv_cache_planning")
except ImportError:  # vLLM 0.32
    planning = importlib.import_module("vllm.v1.core.kv_cache_utils")

LAYOUTS = [interface.KVCacheLayout.BLHNC, interface.KVCacheLayout.BLNHC]
POOL = 16
"""Tokens of which GLM-5.3 keeps one index key."""
APART = {584: (576, 8), 132: (128, 4), 68: (64, 4)}
"""Bytes of data and of scales, for states of these sizes that have all scales of a block behind its data."""


def said(config, layer, backend, **attributes):
    """The spec that a layer of the model says, and its backend."""
    concrete = type("Concrete", (layer,), {})
    concrete.__abstractmethods__ = frozenset()
    made = concrete.__new__(concrete)
    torch.nn.Module.__init__(made)
    vars(made).update(attributes, cache_config=config.cache_config)
    return made.get_kv_cache_spec(config), backend


def deepseek_v4(ratios, config):
    """What layers that compress so many tokens to one cache, by their names: the specs, and the backends."""
    v4 = importlib.import_module("vllm.models.deepseek_v4.attention")
    latents = importlib.import_module("vllm.models.deepseek_v4.sparse_mla").DeepseekV4FlashMLABackend
    compressor = importlib.import_module("vllm.models.deepseek_v4.compressor")
    swa = importlib.import_module("vllm.v1.attention.backends.mla.sparse_swa")
    indexer = importlib.import_module("vllm.v1.attention.backends.mla.indexer").DeepseekV4IndexerBackend
    kind = config.cache_config.cache_dtype
    dtype = torch.uint8 if kind == "fp8_ds_mla" else torch.bfloat16
    found = {}

    def add(name, *of, **attributes):
        found[f"model.layers.{name}"] = said(config, *of, **attributes)

    for number, ratio in enumerate(ratios):
        add(
            f"{number}.attn.swa_cache", swa.DeepseekV4SWACache, swa.DeepseekSparseSWABackend, block_size=64, head_dim=512, dtype=dtype,
            window_size=128, bounded_replay=False, packed_bytes_per_token=584, packed_page_alignment=576, packed_block_stride_alignment=None,
        )  # fmt: skip
        if ratio == 1:
            continue
        row = {"compress_ratio": ratio, "kv_cache_dtype": kind, "head_dim": 512, "kv_cache_torch_dtype": dtype}
        add(f"{number}.attn.mla_attn", v4.DeepseekV4Attention, latents, **row)
        state = {"dtype": torch.float32, "sliding_window": 8 if ratio == 4 else 128, "block_size": 4 if ratio == 4 else 8}
        of = compressor.CompressorStateCache, compressor.CompressorBackend
        add(f"{number}.attn.compressor.state_cache", *of, state_dim=2048 if ratio == 4 else 1024, **state)
        if ratio == 4:
            key = {"compress_ratio": 4, "head_dim": config.index_bytes, "dtype": torch.uint8}
            add(f"{number}.attn.indexer.k_cache", v4.DeepseekV4IndexerCache, indexer, **key)
            add(f"{number}.attn.indexer.compressor.state_cache", *of, state_dim=512, **state)
    return found


def minimax_m3(sparse, config):
    """Layers of MiniMax-M3, of which some are `sparse`. Others have vLLM's own attention."""
    attention = importlib.import_module("vllm.models.minimax_m3.common.sparse_attention").MiniMaxM3SparseBackend
    index = importlib.import_module("vllm.models.minimax_m3.common.indexer")
    found = {}
    for number, is_sparse in enumerate(sparse):
        heads = {"num_kv_heads": 4, "head_size": 128, "dtype": torch.bfloat16}
        found[f"model.layers.{number}.attn"] = interface.FullAttentionSpec(block_size=config.cache_config.block_size, **heads), attention
        if is_sparse:
            of = index.MiniMaxM3IndexerCache, index.MiniMaxM3IndexerBackend
            found[f"model.layers.{number}.index_cache"] = said(config, *of, head_dim=128, dtype=torch.bfloat16)
    return found


def glm_5_3(linear, config):
    """Layers of GLM-5.3, of which some have `linear` attention."""
    glm = importlib.import_module("vllm.models.glm5next.common.attention")
    mla = importlib.import_module("vllm.v1.attention.backends.mla.flashmla_sparse").FlashMLASparseBackend
    size, found = config.cache_config.block_size, {}
    for number, is_linear in enumerate(linear):
        name = f"model.layers.{number}.attn"
        if is_linear:
            shapes = mamba_utils.MambaStateShapeCalculator.kda_state_shape(1, 4, 32)
            more = {"shapes": shapes, "dtypes": (torch.bfloat16, torch.float32), "mamba_type": described.MambaAttentionBackendEnum.GDN_ATTN}
            found[name] = interface.MambaSpec(block_size=size, **more), None
            continue
        found[name] = interface.MLAAttentionSpec(block_size=size, num_kv_heads=1, head_size=512, dtype=torch.bfloat16), mla
        key = {"head_dim": 132, "dtype": torch.uint8, "_index_kpool": POOL}
        found[f"{name}.indexer.k_cache"] = said(config, glm.Glm5NextIndexerCache, indexer.Glm5NextIndexerBackend, **key)
        tail = {"head_dim": 128, "dtype": torch.bfloat16, "_index_kpool": POOL}
        found[f"{name}.indexer.tail_cache"] = said(config, glm.Glm5NextTailCache, indexer.KpoolTailBackend, **tail)
    return found


def deepseek_v41(ratios, config):
    """What layers of DeepSeek V4.1 cache that make one latent of none, one or two tokens."""
    v41 = importlib.import_module("vllm.models.deepseek_v41.attention")
    compressor = importlib.import_module("vllm.models.deepseek_v41.compressor")
    swa = importlib.import_module("vllm.v1.attention.backends.mla.sparse_swa")
    latents = importlib.import_module("vllm.models.deepseek_v41.sparse_mla").FlashMLAMegaAttnBackend
    kind, found = config.cache_config.cache_dtype, {}
    for number, ratio in enumerate(ratios):
        name = f"model.layers.{number}.attn"
        window = {"block_size": 32, "head_dim": 512, "dtype": torch.uint8, "window_size": 128, "bounded_replay": config.is_replayed}
        window |= {"packed_bytes_per_token": 528, "packed_page_alignment": 512, "packed_block_stride_alignment": 528 * 6}
        found[f"{name}.swa_cache"] = said(config, swa.DeepseekV4SWACache, swa.DeepseekSparseSWABackend, **window)
        if not ratio:
            continue
        row = {"is_kv_source": True, "kv_cache_dtype": kind, "head_dim": 512, "compress_ratio": ratio, "kv_page_alignment": 512}
        row |= {"compressed_bytes_per_token": 288 if kind == "nvfp4_ds_mla" else 528, "kv_cache_torch_dtype": torch.uint8}
        found[f"{name}.mla_attn"] = said(config, v41.DeepseekV4Attention, latents, **row)
        key = {"compress_ratio": ratio, "head_dim": config.index_bytes, "dtype": torch.uint8, "sparse_logits": False, "rocm_mxfp4": False}
        found[f"{name}.indexer.k_cache"] = said(config, v41.DeepseekV4IndexerCache, indexer.DeepseekV41IndexerBackend, **key)
        if ratio == 2:
            ring = {"state_dim": 1024, "dtype": torch.float32, "block_size": max(8, 1 << (config.num_speculative_tokens + 1).bit_length())}
            of = compressor.CompressorStateCache, compressor.CompressorBackend
            found[f"{name}.compressor.state_cache"] = said(config, *of, **ring)
    return found


class Side:
    """A server's cache: vLLM's tensors over one buffer, and what the connector reads of them."""

    def __init__(self, model, monkeypatch, *, blocks, block_size, layout, cache_dtype="auto", index_bytes=132, drafts=0, is_replayed=False, pool=POOL):
        alone = SimpleNamespace(world_size=1, rank_in_group=0)
        monkeypatch.setattr(caches, "get_pp_group", lambda: alone)
        monkeypatch.setattr(caches, "get_tp_group", lambda: alone)
        config = SimpleNamespace(
            cache_config=SimpleNamespace(
                block_size=block_size, cache_dtype=cache_dtype, num_gpu_blocks_override=blocks, prefix_cache_retention_interval=None,
                get_resolved_kv_cache_layout=lambda: layout,
            ),
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
            attention_config=SimpleNamespace(hisparse_config=None),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, decode_context_parallel_size=1),
            model_config=SimpleNamespace(served_model_name="sparse", hf_text_config=SimpleNamespace(model_type="sparse")),
            compilation_config=SimpleNamespace(static_forward_context={}),
            speculative_config=None, index_bytes=index_bytes, num_speculative_tokens=drafts, is_replayed=is_replayed,
        )  # fmt: skip
        self.pool = pool
        self.backends = {}
        self.specs = {}
        for name, (spec, backend) in model(config).items():
            self.backends[name], self.specs[name] = backend, utils.customize_attention_spec(backend, spec) if backend else spec
            layer = SimpleNamespace(get_attn_backend=lambda backend=backend: backend, _index_kpool=POOL)
            config.compilation_config.static_forward_context[name] = layer
        groups = planning.get_kv_cache_groups(config, dict(self.specs))
        self.plan = planning.get_kv_cache_config_from_groups(config, groups, 1 << 40)
        self.raw = torch.zeros(self.plan.kv_cache_tensors[0].size, dtype=torch.int8)
        self.tensors = {}
        for tensor in self.plan.kv_cache_tensors:
            [group] = [group for group in self.plan.kv_cache_groups if tensor.layers[0] in group.layer_names]
            names, spec = group.layer_names, self.specs[tensor.layers[0]]
            kernel = group.kv_cache_spec.block_size
            if not layout.is_block_outermost:
                kernel = utils.select_common_block_size(kernel, [self.backends[name] for name in names], [self.specs[name] for name in names])
            views = interface.create_kv_cache_views(self.raw, spec, blocks, layout, tensor, kernel)
            self.tensors |= dict(zip(tensor.layers, views))
        assert self.tensors.keys() == self.specs.keys()
        self.cache = caches.read(config, self.plan, self.tensors, "side")
        self.bytes = self.raw.numpy().view(numpy.uint8)

    def tables(self, tokens, draw):
        """Block tables of a request of so many tokens: as in vLLM nothing is kept of what is behind a window."""
        free = draw.sample(range(1, self.plan.num_blocks), self.plan.num_blocks - 1)
        found = []
        for group in self.plan.kv_cache_groups:
            size, window = group.kv_cache_spec.block_size, interface.get_kv_cache_spec_sliding_window(group.kv_cache_spec)
            gone = max(0, tokens - window + 1) // size if window else 0
            first = next(iter(interface.iter_layer_specs(group.kv_cache_spec)))
            entries = 1 if isinstance(first, (interface.MambaSpec, interface.CircularBufferSpec)) else -(-tokens // size)
            found.append([0 if at < gone else free.pop() for at in range(entries)])
        return tuple(found)

    def states(self, name, tables, tokens):
        """Where the kernels keep each state that a request of so many tokens goes on from: of each, its pieces."""
        [table] = [table for group, table in zip(self.plan.kv_cache_groups, tables) if name in group.layer_names]
        spec, tensor = self.specs[name], self.tensors[name]
        window = getattr(spec, "sliding_window", None) if isinstance(spec, interface.SlidingWindowSpec) else None
        item = tensor.element_size()
        base, strides, width = tensor.data_ptr() - self.raw.data_ptr(), [each * item for each in tensor.stride()], tensor.shape[3] * item
        if isinstance(spec, interface.MambaSpec):
            yield [(base + table[0] * strides[0], width)]
            return
        if isinstance(spec, interface.CircularBufferSpec):
            for token in range(tokens // self.pool * self.pool, tokens):
                start = base + table[0] * strides[0] + token % spec.block_size * strides[2]
                yield [(start + head * strides[1], width) for head in range(spec.num_heads)]
            return
        # The kernels divide a block into several, each with its data and scales.
        kernel = utils.select_common_block_size(spec.block_size, [self.backends[name]], [spec])
        split = tensor.shape[0] // self.plan.num_blocks
        inside = kernel // spec.tokens_per_state * strides[2] if split == 1 else strides[0]
        for token in range(max(0, tokens - window + 1) if window else 0, tokens):
            if (token + 1) % spec.tokens_per_state:
                continue
            start = base + table[token // spec.block_size] * split * strides[0] + token % spec.block_size // kernel * inside
            at = token % kernel // spec.tokens_per_state
            if width not in APART:
                yield [(start + head * strides[1] + at * strides[2], width) for head in range(spec.num_heads)]
                continue
            pieces = []
            for piece in APART[width]:
                pieces.append((start + at * piece, piece))
                start += kernel // spec.tokens_per_state * piece
            yield pieces


def assert_moved(source, target, draw):
    tokens = draw.randrange(1, 2000)
    tables = [side.tables(tokens, draw) for side in (source, target)]
    numbers = numpy.random.default_rng(tokens)
    for side in (source, target):
        side.bytes[:] = numbers.integers(0, 256, side.bytes.size, numpy.uint8)
    wanted = target.bytes.copy()
    for name in source.specs:
        for there, here in zip(*(side.states(name, table, tokens) for side, table in zip((source, target), tables)), strict=True):
            for (start, length), (to, same) in zip(there, here, strict=True):
                assert length == same
                wanted[to : to + length] = source.bytes[start : start + length]
    plan = Plan(source.cache.deployment, target.cache.deployment, tokens)
    bound = plan.bind(*(side.cache.tables(table, tokens) for side, table in zip((source, target), tables)))
    names = [group.name for group in source.cache.deployment.groups]
    for route in bound.routes:
        at = names.index(route.group)
        route.copy(source.cache.memories[at], target.cache.memories[at])
    differ = numpy.flatnonzero(target.bytes != wanted)
    assert not differ.size, f"{tokens} tokens: {differ.size} bytes differ, from {differ[0]} on"


def check(source, target, kinds, draw):
    """`kinds`: what groups there are. Of a kind there may be several, which are numbered."""
    assert {re.sub(r"-\d+$", "", group.name) for group in source.cache.deployment.groups} == kinds
    for _ in range(4):
        assert_moved(source, target, draw)


def ratios(draw):
    found = [1, 4, 128] + draw.choices([1, 4, 128], k=draw.randrange(6))
    draw.shuffle(found)
    return found


@pytest.mark.newer
@pytest.mark.smallest
@pytest.mark.parametrize("kind", ["fp8_ds_mla", "auto"])
@pytest.mark.parametrize("seed", range(4))
def test_deepseek_v4(monkeypatch, seed, kind):
    draw = random.Random(f"{seed}{kind}")
    layers, more = ratios(draw), {"cache_dtype": kind, "index_bytes": draw.choice([132, 68])}

    def side():
        shape = {"blocks": draw.randrange(100, 130), "block_size": 256, "layout": draw.choice(LAYOUTS)}
        return Side(lambda config: deepseek_v4(layers, config), monkeypatch, **shape, **more)

    rows = "" if kind == "fp8_ds_mla" else "/bf16"
    check(side(), side(), {"window", f"c4{rows}", f"c128{rows}", "indexer", "compressor"}, draw)


@pytest.mark.newer
@pytest.mark.smallest
@pytest.mark.parametrize("seed", range(4))
def test_minimax_m3(monkeypatch, seed):
    draw = random.Random(seed)
    sparse = draw.choices([False, True], k=draw.randrange(2, 6)) + [True]
    layouts = [layout for layout in interface.KVCacheLayout if layout.is_block_compact]

    def side():
        layout = draw.choice(layouts)
        # vLLM does not divide blocks whose layers' pages follow each other.
        size = 128 if layout.is_block_outermost else draw.choice([128, 256])
        shape = {"blocks": draw.randrange(20, 30), "block_size": size, "layout": layout}
        return Side(lambda config: minimax_m3(sparse, config), monkeypatch, **shape)

    check(side(), side(), {"attention", "indexer"}, draw)


@pytest.mark.newer
@pytest.mark.smallest
@pytest.mark.parametrize("seed", range(4))
def test_glm_5_3(monkeypatch, seed):
    draw = random.Random(seed)
    linear = draw.choices([False, True], k=draw.randrange(2, 6)) + [True, False]

    def side():
        shape = {"blocks": draw.randrange(20, 30), "block_size": draw.choice([512, 1024, 2048]), "layout": LAYOUTS[0]}
        return Side(lambda config: glm_5_3(linear, config), monkeypatch, drafts=draw.choice([0, 1, 20]), **shape)

    check(side(), side(), {"mla", "indexer", "indexer-state", "gdn"}, draw)


@pytest.mark.newer
@pytest.mark.smallest
@pytest.mark.parametrize("kind", ["fp8_ds_mla", "nvfp4_ds_mla"])
@pytest.mark.parametrize("seed", range(4))
def test_deepseek_v41(monkeypatch, seed, kind):
    draw = random.Random(f"{seed}{kind}")
    layers, more = [0, 1, 2] + draw.choices([0, 1, 2], k=draw.randrange(5)), {"cache_dtype": kind, "index_bytes": draw.choice([132, 68])}
    draw.shuffle(layers)

    def side():
        shape = {"blocks": draw.randrange(60, 80), "block_size": 128, "layout": draw.choice(LAYOUTS)}
        more.update(drafts=draw.choice([0, 1, 9]), is_replayed=draw.choice([False, True]))
        return Side(lambda config: deepseek_v41(layers, config), monkeypatch, pool=2, **shape, **more)

    check(side(), side(), {"window", "indexer", "compressor", "mla", "c2/u8"}, draw)


@pytest.mark.newer
@pytest.mark.smallest
def test_index_keys_of_two_generations_of_gpus(monkeypatch):
    """Their scales are of one size, and not of one kind."""
    spec = interface.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype=torch.uint8)
    found = []
    for exponents in (False, True):
        monkeypatch.setattr(described, "_scales_are_exponents", lambda: exponents)
        found.append(described._sparse(spec, indexer.DeepseekV32IndexerBackend, "index").kind)
    assert found == ["indexer", "indexer/ue8m0"]


@pytest.mark.newer
@pytest.mark.smallest
@pytest.mark.parametrize(("kind", "dtype"), [("int8_per_token_head", torch.int8), ("int4_per_token_head", torch.uint8)])
def test_rows_have_their_scales(kind, dtype):
    """Those of each head and token are within its row, where the backend looks for them."""
    mode = interface.get_kv_quant_mode(kind)
    spec = interface.FullAttentionSpec(block_size=32, num_kv_heads=4, head_size=64, dtype=dtype, kv_quant_mode=mode)
    spec = triton_attn.TritonAttentionBackend.customize_spec(spec)
    blocks, heads, states, width = interface.compute_layer_kv_cache_shape_bytes(spec, 5)
    cache = torch.zeros(blocks, states, heads, width, dtype=torch.int8).transpose(1, 2).view(dtype)
    backend = SimpleNamespace(_k_scale_cache=None, _v_scale_cache=None)
    triton_attn.TritonAttentionImpl._ensure_scale_caches(backend, cache)
    seen = set()
    for scales in (backend._k_scale_cache, backend._v_scale_cache):
        for block, state, head in numpy.ndindex(blocks, states, heads):
            at = scales[block, state, head].data_ptr() - cache[block, head, state].data_ptr()
            assert 0 < at <= width - 4
            seen.add(at)
    assert len(seen) == 2
