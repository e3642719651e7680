"""vLLM's connector: decode context parallelism, whose ranks have some of the tokens each."""

import logging

import pytest
from vllm_stand_in.fixtures import move, prompt
from vllm_stand_in.model import Attention, IndexKeys, PackedLatents, mamba2

import transload

LATENT = [Attention(range(4), heads=1, mla=True)]
TWO_HEADS = [Attention(range(4), heads=2)]
HYBRID = [Attention([1, 3], heads=2), mamba2([0, 2])]
SPARSE = [PackedLatents(range(3)), IndexKeys(range(3))]
WHOLE, BY_ONE, BY_FOUR = {}, {"tp": 4, "dcp": 2}, {"tp": 4, "dcp": 2, "interleave": 4}
BY_BLOCK = {"tp": 4, "dcp": 2, "block_size": 16, "interleave": 16}


@pytest.fixture(params=["pull", "push"])
def mode(request):
    return request.param


@pytest.mark.parametrize("groups", [LATENT, TWO_HEADS, HYBRID, SPARSE], ids=["latent", "heads", "hybrid", "sparse"])
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (WHOLE, BY_ONE),
        (WHOLE, BY_BLOCK),
        (BY_ONE, WHOLE),
        (BY_FOUR, {"tp": 2}),
        (BY_FOUR, BY_BLOCK),
        (BY_ONE, BY_ONE | {"block_size": 64}),
        ({"tp": 2}, BY_FOUR | {"kernel": 8}),
    ],
    ids=str,
)
def test_any_part_of_the_tokens_on_either_side(two_engines, prefill, decode, groups):
    uniform = groups is SPARSE
    sides = [side | {"uniform": uniform, "model_groups": 1} for side in (prefill, decode)]
    first, second = two_engines(*sides, groups)
    for seed, tokens in enumerate((100, 300)):
        move(first, second, prompt(tokens, seed))


@pytest.mark.parametrize("dcp", [(4, 1), (1, 4), (4, 2), (2, 4)], ids=str)
def test_all_ranks_have_other_tokens(two_engines, dcp):
    sides = [{"tp": 4, "dcp": ranks, "interleave": 2} for ranks in dcp]
    move(*two_engines(*sides, LATENT), prompt(300))


def test_a_prompt_in_parts_whose_beginning_is_cached(two_engines):
    prefill, decode = two_engines(BY_FOUR | {"budget": 32}, BY_ONE | {"prefix_caching": True}, TWO_HEADS)
    tokens = prompt(300)
    move(prefill, decode, tokens[:150])
    request = move(prefill, decode, tokens)
    assert decode.loads[request.request_id][0] == 128


def test_what_is_described(engine):
    """Recurrent state, and what vLLM keeps whole, is on each rank."""
    decode = engine("decode", HYBRID, model_groups=1, **BY_FOUR)
    described = transload.Deployment(decode.workers[0].get_handshake_metadata().document)
    assert '"dcp": 2, "interleave": 4' in described.document
    assert [group.block_size for group in described.groups if not group.is_recurrent] == [32]


@pytest.mark.parametrize(
    ("shape", "told"), [(BY_ONE, "--cp-kv-cache-interleave-size 32"), (BY_BLOCK, ""), (WHOLE, "")], ids=["by one", "by block", "whole"]
)
def test_short_chunks_are_told_of_once(engine, caplog, shape, told):
    with caplog.at_level(logging.WARNING):
        engine("decode", TWO_HEADS, **shape)
    lines = [record.getMessage() for record in caplog.records if "interleave" in record.getMessage()]
    assert [told in line for line in lines] == [True] * bool(told)
