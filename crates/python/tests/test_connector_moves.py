"""vLLM's connector between engines that lay their caches out differently: every byte is as if prefilled here. Layers may cache
different things, in groups that share one buffer."""

import json
from itertools import product
from types import SimpleNamespace

import pytest
from vllm_stand_in import torch_numpy as torch
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import FOR_DECODE, assert_loaded, end_alike, fetch, load, move, prefilled, prompt, refuse
from vllm_stand_in.model import Attention, IndexKeys, PackedLatents, PackedRows, deepseek_v4, deepseek_v41, gdn, glm_5_3, mamba1, mamba2, minimax_m3
from vllm_stand_in.request import Request

ORDERS = ["LBHSC", "LBSHC", "BLHSC", "BLSHC", "LHBSC"]
WINDOW = [Attention(range(0, 6, 2)), Attention(range(1, 6, 2), window=40)]
CHUNKS = [Attention(range(0, 6, 2)), Attention(range(1, 6, 2), chunk=64)]
BF16 = [Attention(range(3), head_dim=16, dtype=torch.bfloat16)]
TWO_HEADS = [Attention(range(3), heads=2)]
LATENT = [Attention(range(3), heads=1, head_dim=48, dtype=torch.bfloat16, mla=True)]
PACKED = [PackedLatents(range(3)), IndexKeys(range(3))]
WIDE, NARROW = Attention(range(0, 4, 2)), Attention(range(1, 4, 2), heads=8, head_dim=16)


def state(kind, **more):
    return [Attention(range(2, 4)), kind(range(2), **more)]


def ranks(prefill, decode, groups=None, **both):
    return {"tp": prefill}, {"tp": decode}, groups, both


def blocks(prefill, decode, **both):
    """Blocks of the managers, and of the kernels."""
    return *(dict(zip(("block_size", "kernel"), side)) for side in (prefill, decode)), None, both


# What prefills, what decodes, the groups of layers, and what both have: prompts of these lengths are moved.
MOVES = {
    **{f"ranks {one}, {two}": (ranks(one, two), [100]) for one, two in [(1, 1), (1, 2), (2, 1), (4, 2), (1, 4)]},
    "ranks that hold the same head, 4, 1": (ranks(4, 1, TWO_HEADS), [100]),
    "ranks that hold the same head, 2, 4": (ranks(2, 4, TWO_HEADS), [100]),
    **{
        f"blocks of {one}, {two}, {backend}": (blocks([one], [two], backend=backend), [1, 31, 64, 200])
        for one, two in [(32, 64), (64, 32), (32, 48)]
        for backend in ("FLASH_ATTN", "CPU_ATTN")
    },
    **{
        f"blocks that kernels divide, {one}, {two}, {backend}": (blocks(one, two, backend=backend, tp=2), [150])
        for one, two in [((64, 32), (64, 64)), ((32, 32), (96, 32)), ((64, 16), (96, 32))]
        for backend in ("FLASH_ATTN", "CPU_ATTN")
    },
    **{
        f"orders {one}, {two}": (({"order": one, "tp": 2, "block_size": 16}, {"order": two, "block_size": 32}, BF16, {}), [90])
        for one, two in [*zip(ORDERS, ORDERS[1:] + ORDERS), *zip(ORDERS, ORDERS[3:] + ORDERS)]
    },
    **{
        f"transposed keys, {'there' if turned else 'here'}, {order}": ((*sides[:: -1 if turned else 1], None, {}), [90])
        for order in ORDERS
        for sides in [({"backend": "CPU_ATTN"}, {"order": order, "tp": 2, "block_size": 64})]
        for turned in (False, True)
    },
    "a tensor for each layer, here": (({"separate": True}, {"tp": 2}, None, {}), [100]),
    "a tensor for each layer, there": (({"tp": 2}, {"separate": True}, None, {}), [100]),
    "a latent on every rank": (({"tp": 2}, {"block_size": 64}, LATENT, {"backend": "FLASHMLA"}), [100]),
    "a latent on every rank, of a CPU": (ranks(1, 4, LATENT, backend="CPU_MLA"), [100]),
    **{
        f"packed latents and index keys, {order}, {tokens}": (
            ({"tp": 2, "order": order}, {"block_size": 128, "kernel": 64}, PACKED, {"uniform": True, "block_size": 64}), [tokens]
        )
        for order in ("LBHSC", "BLHSC")
        for tokens in (70, 200)
    },
    # Layer 9 reads what layer 3 has written.
    "layers that share a cache": (({"block_size": 32}, {"block_size": 64}, None, {"shared": {9: 3}}), [100]),
}  # fmt: skip
# The same of layers that cache different things. These are pushed, too.
GROUPS = {
    "chunks of attention": (({"tp": 2, "block_size": 16}, {"block_size": 32}, CHUNKS, {}), [20, 96, 97, 128, 129, 150]),
    "a window in blocks that kernels divide": (
        ({"block_size": 32, "kernel": 16}, {"tp": 2, "block_size": 64, "kernel": 32}, WINDOW, {}), [60, 103, 200]
    ),
    "state behind drafts": (ranks(2, 1, state(mamba2, drafts=2), model_groups=1), [100]),
    "state and attention in every layer": (
        ({"order": "BLHSC"}, {"tp": 2}, [Attention(range(3)), mamba2(range(3))], {"model_groups": 1}), [100]
    ),
    "state beside blocks that kernels divide": (
        ({"tp": 2, "block_size": 96, "kernel": 32}, {"block_size": 48, "kernel": 16}, state(gdn), {}), [150]
    ),
    **{
        f"DeepSeek V4 in {what}, {order}": (
            ({"tp": 2, "order": order, "block_size": 64}, {"block_size": 128, "order": "BLHSC"}, deepseek_v4(*rows), {}),
            [20, 64, 65, 68, 129, 250],
        )
        for order in ("LBHSC", "BLHSC")
        for what, rows in [("data and scales", ()), ("bf16", (32, (), torch.bfloat16))]
    },
    **{
        f"MiniMax-M3, {backend}": (({"tp": 2, "block_size": 16}, {"block_size": 32}, minimax_m3(), {"uniform": True, "backend": backend}), [100])
        for backend in ("MINIMAX_M3_SPARSE", "TRITON_MSA", "CUTLASS_MSA")
    },
    "rows with their scales": (
        ({"tp": 2, "block_size": 16}, {"order": "LBSHC", "block_size": 32},
         [PackedRows(range(0, 4, 2)), PackedRows(range(1, 4, 2), window=40)],
         {"backend": "TRITON_ATTN", "cache_dtype": "int8_per_token_head"}), [20, 100],
    ),
    "latents with their scales": (
        ({"tp": 2}, {"block_size": 64}, [PackedRows(range(2), heads=1, mla=True)],
         {"backend": "TRITON_MLA", "cache_dtype": "int8_per_token_head"}), [100],
    ),
    "layers of two shapes": (({"block_size": 16}, {"block_size": 32, "order": "BLHSC"}, [WIDE, NARROW], {"uniform": True}), [100]),
    "layers of two shapes, turned": (
        ({"block_size": 16}, {"block_size": 32, "order": "BLHSC"}, [NARROW, WIDE], {"uniform": True}), [100]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("what", "mode"), [*product(MOVES, ["pull"]), *product(GROUPS, ["pull", "push"])])
def test_every_byte_is_moved(two_engines, what, mode):
    (prefill, decode, groups, both), lengths = (MOVES | GROUPS)[what]
    sides = two_engines(prefill, decode, groups, **both)
    for tokens in lengths:
        move(*sides, prompt(tokens))


def test_a_cache_that_layers_share_is_described_once(engine):
    [group] = engine("prefill", shared={9: 3}).workers[0]._worker._cache.deployment.groups
    assert group.layers == [0, 1, 2, 3]


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


@pytest.mark.parametrize(("mode", "model"), [("pull", glm_5_3), ("push", glm_5_3), ("pull", deepseek_v41), ("push", deepseek_v41)])
def test_rings_of_two_sizes(engine, mode, model):
    """They depend on how many tokens a server drafts."""
    prefill = engine("prefill", model(), tp=2, block_size=64)
    decode = engine("decode", model(ring=32), block_size=128, order="BLHSC", extra={"mode": mode})
    for tokens in (2, 15, 17, 18, 33, 130):
        move(prefill, decode, prompt(tokens))


WHOLE = {"backend": "ROCM_ATTN", "tp": 2, "block_size": 32, "order": "LBHSC"}


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("kernel", [32, 16])
def test_blocks_that_are_moved_whole(two_engines, mode, kernel):
    """Their order is not known, so the decode server computes what would be the last part of one."""
    prefill, decode = two_engines(WHOLE | {"kernel": kernel}, WHOLE | {"kernel": kernel, "blocks": 40}, WINDOW[:1])
    for tokens in (33, 64, 65, 127):
        request = move(prefill, decode, prompt(tokens))
        _, end, _ = decode.loads[request.request_id]
        assert end == tokens // 32 * 32
    short = decode.add(prompt(20), prefilled(prefill, prompt(20)), max_tokens=3)
    decode.run()
    assert short.request_id not in decode.loads
    end_alike(prefill, decode)


@pytest.mark.parametrize(
    "other",
    [{"tp": 1}, {"dcp": 2, "interleave": 32}, {"block_size": 64}, {"order": "LBSHC"}, {"backend": "OTHER"}, {"cache_dtype": "fp8"}, {"kernel": 16}],
)
def test_blocks_that_are_moved_whole_between_unlike_servers(two_engines, other):
    prefill, decode = two_engines(WHOLE, WHOLE | other)
    tokens = prompt(130)
    refuse(decode, tokens, prefilled(prefill, tokens), "incompatible")
    end_alike(prefill, decode)


def test_blocks_that_are_moved_whole_with_context_parallelism(two_engines):
    prefill, decode = two_engines(WHOLE, WHOLE, [Attention(range(4), heads=2)], tp=4, dcp=2, interleave=32)
    for tokens in (33, 200):
        move(prefill, decode, prompt(tokens))


def test_blocks_that_are_moved_whole_from_a_store(engine, tmp_path):
    stored = {"extra": {"store": f"file://{tmp_path}", "store_weights": "w"}, "certs": None, "blocks": 256}
    saver, loader = (engine(name, **WHOLE, **stored) for name in ("saver", "loader"))
    saver.add(prompt(600), max_tokens=2)
    saver.run(lambda: saver.figures.data["store_tokens"].get("saved") == 512)
    request, before = load(loader, prompt(600), {}, max_tokens=2)
    assert loader.loads[request.request_id][1] == 512
    assert_loaded(loader, request, before)
    end_alike(saver, loader)


CANNOT_BE_WHOLE = {
    "parts of blocks": ({"tp": 4, "dcp": 2}, False, "whole blocks can be moved with --cp-kv-cache-interleave-size 32"),
    "drafts": ({}, True, "how blocks of these drafts are ordered is not known"),
    "a store of other chunks": ({"block_size": 48, "extra": {"store": "memory://", "store_weights": "w"}}, False, "blocks of 48 tokens"),
}


@pytest.mark.parametrize("what", CANNOT_BE_WHOLE)
def test_blocks_that_cannot_be_moved_whole(engine, what):
    shape, drafts, message = CANNOT_BE_WHOLE[what]
    groups = [Attention(range(4), heads=2), *([Attention(range(4, 6), heads=2, draft=True)] if drafts else [])]
    with pytest.raises((NotImplementedError, ValueError), match=message):
        engine("decode", groups, **WHOLE | {"model_groups": 1} | shape)


@pytest.mark.parametrize(("end", "lent"), [(64, True), (65, False)])
def test_an_image_is_not_cut(engine, caplog, end, lent):
    """Of a prompt of 90 tokens the last 26 are computed by the decode server."""
    prefill = engine("prefill", **WHOLE)
    request = prefill.add(prompt(90), dict(FOR_DECODE), images=[("an image", 60, end - 60)])
    prefill.run(lambda: request.finished)
    assert bool(prefill.answers.get(request.request_id)) == lent
    assert ("the end of an image" in caplog.text) != lent


# --- groups ------------------------------------------------------------------------------

BOTH_WAYS = pytest.mark.parametrize("mode", ["pull", "push"])


@BOTH_WAYS
@pytest.mark.parametrize("budget", [10_000, 24])
def test_a_window(two_engines, budget):
    prefill, decode = two_engines({"tp": 2, "block_size": 16}, {"block_size": 32}, WINDOW, budget=budget)
    for tokens in 20, 41, 103, 104, 105, 112, 113, 200:
        request = move(prefill, decode, prompt(tokens))
        _, _, (_, window) = decode.loads[request.request_id]
        assert (0 in window) == (tokens > 32 + 40)


HYBRIDS = {
    "mamba2 of one group": state(mamba2),
    "mamba2": state(mamba2, groups=4),
    "gdn": state(gdn, state_dtype=torch.float32, dtype=torch.bfloat16),
    "mamba1": state(mamba1),
}


@BOTH_WAYS
@pytest.mark.parametrize(("ranks", "channels_first"), [((1, 2), False), ((2, 1), True), ((4, 2), False)])
@pytest.mark.parametrize("kind", HYBRIDS)
def test_recurrent_state(two_engines, monkeypatch, kind, ranks, channels_first):
    monkeypatch.setattr(vllm, "conv_state_dim_first", channels_first)
    model = {"backend": "CPU_ATTN", "model_groups": 4 if kind == "mamba2" else 1}
    prefill, decode = two_engines({"tp": ranks[0]}, {"tp": ranks[1], "block_size": 64}, HYBRIDS[kind], **model)
    tokens = prompt(100)
    request = move(prefill, decode, tokens)
    # The last token is for the decode server.
    assert decode.loads[request.request_id][1] == 99
    assert request.all_token_ids[:100] == tokens


def test_drafts_are_no_taps_of_a_convolution(engine):
    sides = [engine("prefill", state(mamba2, drafts=count), model_groups=1) for count in (0, 2)]
    groups = [group for each in sides for group in json.loads(each.workers[0]._worker._cache.deployment.document)["group"]]
    assert len({spec["conv_kernel"] for group in groups for spec in group["spec"] if "conv_kernel" in spec}) == 1


@BOTH_WAYS
def test_short_prompts(two_engines):
    prefill, decode = two_engines({}, {"tp": 2}, state(mamba2), model_groups=1)
    for tokens in 2, 3, 33:
        move(prefill, decode, prompt(tokens))
    # Of one token nothing can be left to the decode server; it has no use for what is behind it.
    request = decode.add(prompt(1), prefilled(prefill, prompt(1)))
    decode.run()
    assert request.request_id not in decode.loads
    end_alike(prefill, decode)
    assert prefill.figures.data["leases"].pop("cancelled") == 1


def test_drafts_that_look_ahead(two_engines):
    prefill, decode = two_engines(lookahead=3)
    request = move(prefill, decode, prompt(100))
    assert decode.loads[request.request_id][1] == 98


@BOTH_WAYS
def test_a_group_that_does_not_travel(two_engines):
    groups = [Attention(range(3)), Attention(range(3, 5), transfer=False)]
    prefill, decode = two_engines({"tp": 2}, {}, groups)
    request, before = load(decode, prompt(100), prefilled(prefill, prompt(100)))
    decode.caches[0].groups = groups[:1]
    assert_loaded(decode, request, before)


@BOTH_WAYS
@pytest.mark.parametrize("groups", [WINDOW, [Attention(range(3)), Attention(range(3, 5), chunk=80)]], ids=["window", "chunk"])
def test_blocks_of_a_window_that_are_not_whole_are_not_cached(engine, groups, mode):
    """As long as all other blocks of windows stay cached, what goes on behind an answer finds as much as at an engine that has computed everything."""
    plain, prefill = engine("prefill", groups, prefix_caching=True, blocks=256), engine("prefill", groups)
    decode = engine("decode", groups, prefix_caching=True, blocks=256, extra={"mode": mode})
    for seed, count in enumerate([5, 64, 97, 98, 100, 127, 128, 129, 200]):
        tokens = prompt(count, seed)
        request = fetch(decode, tokens, prefilled(prefill, tokens), max_tokens=40)
        assert plain.add(tokens, max_tokens=40).prompt_token_ids == tokens
        plain.run()
        # Asks for the prompt again, which is partly cached now. The engine checks every byte that a step reads.
        for more in ([], prompt(10)):
            decode.add(tokens + more, max_tokens=3)
            decode.run()
        turn = Request(request.all_token_ids + prompt(10, seed=99))
        assert decode.manager.cached(turn) == plain.manager.cached(turn) > 0
        decode.add(turn.all_token_ids, max_tokens=3)
        decode.run()


@BOTH_WAYS
def test_blocks_behind_the_window_may_be_of_others(two_engines):
    prefill, decode = two_engines({"tp": 2, "block_size": 16, "blocks": 24}, {}, WINDOW, budget=32)
    tokens = prompt(150)
    params = prefilled(prefill, tokens)
    # What left the window, and nothing else, is computed over.
    free = prefill.manager.free_blocks
    assert free > 0
    prefill.add(prompt(16 * (free // 2) - 1, seed=1))
    prefill.run(lambda: len(prefill.requests) == 1)
    fetch(decode, tokens, params)
    end_alike(prefill, decode)


def test_tables_count_the_blocks_of_kernels(connector):
    from transload.vllm.cache import Group
    from transload.vllm.specs import Layer

    attention = Group(Layer("attention", []), source=0, split=2, step=2, block_size=32, tensors=[])
    # Nobody may write into what vLLM calls block 0.
    assert attention.table([0, 5, 3], 90) == [-1, -1, 10, 11, 6, 7]
    recurrent = Group(Layer("mamba", [], recurrent=True, scratch=2), source=0, split=1, step=1, block_size=32, tensors=[])
    assert [recurrent.table(blocks, 90) for blocks in ([], [4], [4, 5, 6], [3, 4, 5, 6])] == [[-1], [4], [4], [4]]
    ring = Group(Layer("compressor", [], is_ring=True), source=0, split=1, step=1, block_size=16, tensors=[])
    assert [ring.table([7], tokens) for tokens in (1, 16, 17, 33)] == [[7], [7], [-1, 7], [-1, -1, 7]]
