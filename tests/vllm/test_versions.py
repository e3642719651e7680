"""What the connector expects of vLLM is there, by name, signature and field; and servers of two versions answer as one."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import vllm
from conftest import NEWER, total
from disaggregated import prompts
from test_pairs import LENGTHS, check
from transload.vllm import specs, versions
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.attention.backends.mla import flashmla_sparse, indexer

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from vllm_names import faults  # noqa: E402

newer = pytest.mark.newer


@newer
@pytest.mark.smallest
def test_names_and_signatures():
    assert faults(Path(vllm.__file__).parents[1]) == []


@newer
def test_names_that_are_not_there(tmp_path):
    (tmp_path / "vllm").mkdir()
    assert "scheduler.py: there is no vllm.v1.request" in faults(tmp_path)


@newer
@pytest.mark.smallest
def test_this_version_is_named_as_tested(caplog):
    versions.check()
    assert not caplog.records


REFUSED = {
    "FullAttentionSpec": {"non_causal"},
    "MLAAttentionSpec": {"non_causal"},
    "SlidingWindowSpec": {"extra_retained_tokens"},
    "SlidingWindowMLASpec": {"extra_retained_tokens"},
    "MambaSpec": {"num_heads", "tokens_per_state", "tp_replicated"},
}
"""Fields that somebody has read about, and that are refused where they are not as by default."""
UNKNOWN = {
    "KVCacheSpec", "AttentionSpec", "UniformTypeKVCacheSpecs",  # what others are made of
    "HiSparseHotSpec", "HiSparseResidentSpec", "HiddenStateCacheSpec", "RSWASpec", "SinkFullAttentionSpec",
    "EncoderOnlyAttentionSpec", "CrossAttentionSpec",
}  # fmt: skip
"""Kinds of cache that are refused as a whole."""


@newer
@pytest.mark.smallest
def test_every_field_of_every_kind_of_cache_was_read_about():
    """A version of vLLM that adds one changes what is refused: read what it does, and put it here or in `specs.KNOWN`."""
    kinds = {name: kind for name, kind in vars(interface).items() if isinstance(kind, type) and issubclass(kind, interface.KVCacheSpec)}
    known = {kind.__name__: set(names) for kind, names in specs.KNOWN.items()}
    assert kinds.keys() - known.keys() <= UNKNOWN
    for name, read in known.items():
        there = {field.name for field in dataclasses.fields(kinds[name])}
        assert there - read == REFUSED.get(name, set()) & there, name
        assert not read & REFUSED.get(name, set()), name


@newer
@pytest.mark.smallest
def test_deepseek_v32(monkeypatch):
    """What its layers say of their caches, with all that vLLM 0.33 sets, is described as before."""
    fields = {field.name for field in dataclasses.fields(interface.MLAAttentionSpec)}
    more = {"topk_buffer_width": 2048, "non_causal_multi_token_decode": True, "is_draft": True, "is_index_group_leader": True}
    common = {"block_size": 64, "num_kv_heads": 1, "max_tp_shards": 1, "dtype": torch.uint8}
    latents = interface.MLAAttentionSpec(
        **common, head_size=576, state_content_bytes=656, cache_dtype_str="fp8_ds_mla",
        kv_quant_mode=interface.get_kv_quant_mode("fp8_ds_mla"), **{name: value for name, value in more.items() if name in fields},
    )  # fmt: skip
    index = interface.MLAAttentionSpec(**common, head_size=132, cache_role=interface.SparseCacheRole.INDEXER)
    backends = {"latents": flashmla_sparse.FlashMLASparseBackend, "index": indexer.DeepseekV32IndexerBackend}
    layers = {name: SimpleNamespace(get_attn_backend=lambda backend=backend: backend) for name, backend in backends.items()}
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context=layers), cache_config=SimpleNamespace(cache_dtype="fp8_ds_mla")
    )
    assert specs.describe(config, latents, "latents").specs == [{"kind": "opaque", "heads": 1, "entry_bytes": 656}]
    assert specs.describe(config, index, "index").specs == [{"kind": "indexer", "data_bytes": 128, "scale_bytes": 4, "tokens_per_state": 1}]


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_pairs_of_two_versions(start, alone, side, mode):
    asked = prompts(LENGTHS, seed=1)
    expected = alone.tokens("llama", asked)
    sides = {"prefill": {"block_size": 32}, "decode": {"block_size": 64, "tp": 2 if mode == "push" else 1}}
    sides[side]["environment"] = NEWER.environment
    pair = start("llama", **sides, mode=mode)
    assert f"version {NEWER.version}" in {"prefill": pair.prefill, "decode": pair.decode}[side].log.read_text()
    check(pair, expected, asked)


@pytest.mark.parametrize("model", ["falcon_h1", "gemma3"])
def test_states_and_windows_between_two_versions(start, alone, model):
    asked = prompts(LENGTHS, seed=2)
    side = {"options": ["--no-enable-prefix-caching"]}
    expected = alone.tokens(model, asked, **side)
    check(start(model, prefill=side | {"environment": NEWER.environment}, decode=side), expected, asked)


def test_two_versions_that_do_not_fit(start):
    """They are told what differs, as two of one version are."""
    pair = start("llama", prefill={"environment": NEWER.environment}, decode={"dtype": "bfloat16"}, policy="recompute")
    [asked] = prompts([100], seed=3)
    assert len(pair.tokens(asked)) == 16
    assert total(pair.decode, "vllm:transload_failures_total", 'kind="incompatible"') == 1
    said = [line for line in pair.decode.log.read_text().splitlines() if "was not loaded" in line]
    assert len(said) == 1 and "dtype" in said[0] and "f32" in said[0] and "bf16" in said[0], said
