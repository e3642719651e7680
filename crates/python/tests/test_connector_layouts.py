"""vLLM's connector between engines that lay their caches out differently: every byte is as if prefilled here."""

from types import SimpleNamespace

import pytest
from vllm_stand_in import torch_numpy as torch
from vllm_stand_in.fixtures import move, prompt
from vllm_stand_in.model import Attention, IndexKeys, PackedLatents

ORDERS = ["LBHSC", "LBSHC", "BLHSC", "BLSHC", "LHBSC"]


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (1, 2), (2, 1), (4, 2), (1, 4)])
def test_ranks(two_engines, prefill, decode):
    move(*two_engines({"tp": prefill}, {"tp": decode}), prompt(100))


def test_ranks_that_hold_the_same_head(two_engines):
    move(*two_engines({"tp": 4}, {"tp": 1}, [Attention(range(3), heads=2)]), prompt(100))
    move(*two_engines({"tp": 2}, {"tp": 4}, [Attention(range(3), heads=2)]), prompt(100))


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "CPU_ATTN"])
@pytest.mark.parametrize(("prefill", "decode"), [(32, 64), (64, 32), (32, 48)])
def test_block_sizes(two_engines, prefill, decode, backend):
    sides = two_engines({"block_size": prefill}, {"block_size": decode}, backend=backend)
    for tokens in 1, 31, 64, 200:
        move(*sides, prompt(tokens))


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "CPU_ATTN"])
@pytest.mark.parametrize(("prefill", "decode"), [((64, 32), (64, 64)), ((32, 32), (96, 32)), ((64, 16), (96, 32))])
def test_blocks_that_kernels_divide(two_engines, prefill, decode, backend):
    sides = [dict(zip(("block_size", "kernel"), side)) for side in (prefill, decode)]
    move(*two_engines(*sides, backend=backend, tp=2), prompt(150))


@pytest.mark.parametrize(("prefill", "decode"), [*zip(ORDERS, ORDERS[1:] + ORDERS), *zip(ORDERS, ORDERS[3:] + ORDERS)])
def test_orders(two_engines, prefill, decode):
    groups = [Attention(range(3), head_dim=16, dtype=torch.bfloat16)]
    sides = {"order": prefill, "tp": 2, "block_size": 16}, {"order": decode, "block_size": 32}
    move(*two_engines(*sides, groups), prompt(90))


@pytest.mark.parametrize("order", ORDERS)
def test_from_transposed_keys_to_tokens(two_engines, order):
    sides = {"backend": "CPU_ATTN"}, {"order": order, "tp": 2, "block_size": 64}
    move(*two_engines(*sides), prompt(90))
    move(*two_engines(*reversed(sides)), prompt(90))


def test_a_tensor_for_each_layer(two_engines):
    move(*two_engines({"separate": True}, {"tp": 2}), prompt(100))
    move(*two_engines({"tp": 2}, {"separate": True}), prompt(100))


def test_a_latent_is_on_every_rank(two_engines):
    groups = [Attention(range(3), heads=1, head_dim=48, dtype=torch.bfloat16, mla=True)]
    move(*two_engines({"tp": 2}, {"block_size": 64}, groups, backend="FLASHMLA"), prompt(100))
    move(*two_engines({"tp": 1}, {"tp": 4}, groups, backend="CPU_MLA"), prompt(100))


@pytest.mark.parametrize("order", ["LBHSC", "BLHSC"])
def test_packed_latents_and_the_keys_that_choose_among_them(two_engines, order):
    groups = [PackedLatents(range(3)), IndexKeys(range(3))]
    sides = {"tp": 2, "order": order}, {"block_size": 128, "kernel": 64}
    move(*two_engines(*sides, groups, uniform=True, block_size=64), prompt(200))
    move(*two_engines(*reversed(sides), groups, uniform=True, block_size=64), prompt(70))


def test_layers_that_share_a_cache(engine):
    # Layer 9 reads what layer 3 has written.
    sides = [engine(name, block_size=size, shared={9: 3}) for name, size in (("prefill", 32), ("decode", 64))]
    move(*sides, prompt(100))


@pytest.mark.parametrize(
    ("sees", "kept", "refused"), [(None, 64, True), (128, 64, True), (64, 64, False), (64, None, False), (None, None, False)]
)
def test_layers_that_share_less_than_they_see(connector, sees, kept, refused):
    from transload.vllm import windows
    from transload.vllm.specs import UnsupportedCache

    shares = SimpleNamespace(kv_sharing_target_layer_name="layers.2.attn", sliding_window=sees)
    layers = {"layers.4.attn": shares, "layers.2.attn": SimpleNamespace(sliding_window=kept), "layers.0.mixer": object()}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    if not refused:
        return windows.refuse_narrow_sharing(config)
    with pytest.raises(UnsupportedCache, match="layer layers.4.attn sees .* in the cache of layer layers.2.attn, which keeps 64"):
        windows.refuse_narrow_sharing(config)
