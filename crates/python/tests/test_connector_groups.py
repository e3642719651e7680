"""vLLM's connector where layers cache different things, in groups that share one buffer."""

import pytest
from vllm_stand_in import torch_numpy as torch
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import assert_loaded, end_alike, load, move, prefilled, prompt
from vllm_stand_in.model import Attention, gdn, mamba1, mamba2

WINDOW = [Attention(range(0, 6, 2)), Attention(range(1, 6, 2), window=40)]
SIDES = {"tp": 2, "block_size": 16}, {"block_size": 32}


@pytest.fixture(params=["pull", "push"])
def mode(request):
    return request.param


@pytest.mark.parametrize("budget", [10_000, 24])
def test_a_window(two_engines, budget):
    prefill, decode = two_engines(*SIDES, WINDOW, budget=budget)
    for tokens in 20, 41, 103, 104, 105, 112, 113, 200:
        request = move(prefill, decode, prompt(tokens))
        _, _, (_, window) = decode.loads[request.request_id]
        assert (0 in window) == (tokens > 32 + 40)


def test_chunks_of_attention(two_engines):
    groups = [Attention(range(0, 6, 2)), Attention(range(1, 6, 2), chunk=64)]
    sides = two_engines(*SIDES, groups)
    for tokens in 20, 96, 97, 128, 129, 150:
        move(*sides, prompt(tokens))


HYBRIDS = {
    "mamba2 of one group": mamba2(range(2)),
    "mamba2": mamba2(range(2), groups=4),
    "gdn": gdn(range(2), state_dtype=torch.float32, dtype=torch.bfloat16),
    "mamba1": mamba1(range(2)),
}


@pytest.mark.parametrize(("ranks", "channels_first"), [((1, 2), False), ((2, 1), True), ((4, 2), False)])
@pytest.mark.parametrize("kind", HYBRIDS)
def test_recurrent_state(two_engines, monkeypatch, kind, ranks, channels_first):
    monkeypatch.setattr(vllm, "conv_state_dim_first", channels_first)
    groups = [Attention(range(2, 4)), HYBRIDS[kind]]
    sides = {"tp": ranks[0]}, {"tp": ranks[1], "block_size": 64}
    model = {"backend": "CPU_ATTN", "model_groups": 4 if kind == "mamba2" else 1}
    prefill, decode = two_engines(*sides, groups, **model)
    tokens = prompt(100)
    request = move(prefill, decode, tokens)
    # The last token is for the decode server.
    assert decode.loads[request.request_id][1] == 99
    assert request.all_token_ids[:100] == tokens


def test_state_behind_drafts(two_engines):
    groups = [Attention(range(2, 4)), mamba2(range(2), drafts=2)]
    move(*two_engines({"tp": 2}, {}, groups, model_groups=1), prompt(100))


def test_state_and_attention_in_every_layer(two_engines):
    groups = [Attention(range(3)), mamba2(range(3))]
    move(*two_engines({"order": "BLHSC"}, {"tp": 2}, groups, model_groups=1), prompt(100))


def test_short_prompts(two_engines):
    sides = two_engines({}, {"tp": 2}, [Attention(range(2, 4)), mamba2(range(2))], model_groups=1)
    for tokens in 2, 3, 33:
        move(*sides, prompt(tokens))
    # Of one token nothing can be left to the decode server; it has no use for what is behind it.
    prefill, decode = sides
    request = decode.add(prompt(1), prefilled(prefill, prompt(1)))
    decode.run()
    assert request.request_id not in decode.loads
    end_alike(*sides)
    assert prefill.figures.data["leases"].pop("cancelled") == 1


def test_drafts_that_look_ahead(two_engines):
    prefill, decode = two_engines(lookahead=3)
    request = move(prefill, decode, prompt(100))
    assert decode.loads[request.request_id][1] == 98


def test_a_group_that_does_not_travel(two_engines):
    groups = [Attention(range(3)), Attention(range(3, 5), transfer=False)]
    prefill, decode = two_engines({"tp": 2}, {}, groups)
    params = prefilled(prefill, prompt(100))
    request, before = load(decode, prompt(100), params)
    decode.groups = groups[:1]
    assert_loaded(decode, request, before)


def test_state_beside_blocks_that_kernels_divide(two_engines):
    groups = [Attention(range(2, 4)), gdn(range(2))]
    sides = {"tp": 2, "block_size": 96, "kernel": 32}, {"block_size": 48, "kernel": 16}
    move(*two_engines(*sides, groups), prompt(150))


def test_a_window_in_blocks_that_kernels_divide(two_engines):
    sides = two_engines({"block_size": 32, "kernel": 16}, {"tp": 2, "block_size": 64, "kernel": 32}, WINDOW)
    for tokens in 60, 103, 200:
        move(*sides, prompt(tokens))


def test_blocks_behind_the_window_may_be_of_others(two_engines):
    prefill, decode = two_engines({"tp": 2, "block_size": 16, "blocks": 24}, {}, WINDOW, budget=32)
    tokens = prompt(150)
    params = prefilled(prefill, tokens)
    # What left the window, and nothing else, is computed over.
    free = prefill.manager.free_blocks
    assert free > 0
    prefill.add(prompt(16 * (free // 2) - 1, seed=1))
    prefill.run(lambda: len(prefill.requests) == 1)
    request, before = load(decode, tokens, params)
    assert_loaded(decode, request, before)
    decode.run()
    end_alike(prefill, decode)


def test_tables_count_the_blocks_of_kernels(connector):
    from transload.vllm.cache import Group

    attention = Group(source=0, split=2, block_size=32, recurrent=False, scratch=0, tensors=[])
    # Nobody may write into what vLLM calls block 0.
    assert attention.table([0, 5, 3]) == [-1, -1, 10, 11, 6, 7]
    state = Group(source=0, split=1, block_size=32, recurrent=True, scratch=2, tensors=[])
    assert [state.table(blocks) for blocks in ([], [4], [4, 5, 6], [3, 4, 5, 6])] == [[-1], [4], [4], [4]]


def test_layers_of_several_shapes_in_one_group(two_engines):
    wide, narrow = Attention(range(0, 4, 2)), Attention(range(1, 4, 2), heads=8, head_dim=16)
    sides = {"block_size": 16}, {"block_size": 32, "order": "BLHSC"}
    move(*two_engines(*sides, [wide, narrow], uniform=True), prompt(100))
    move(*two_engines(*sides, [narrow, wide], uniform=True), prompt(100))
