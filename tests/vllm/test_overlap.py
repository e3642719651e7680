"""Prompts that are loaded while they are computed: both servers are asked at once, and answer as one does."""

import pytest
from conftest import total
from disaggregated import prompts
from servers import Proxy
from test_pairs import ask_together

LENGTHS = [5, 100, 257, 900]
IN_CHUNKS = ["--max-num-batched-tokens", "256"]


@pytest.mark.parametrize(
    ("model", "tp", "blocks"),
    [pytest.param("llama", (1, 2), (32, 64), marks=pytest.mark.newer), ("llama", (2, 1), (64, 32)), ("gemma3", (1, 1), (32, 32))],
)
def test_both_are_asked_at_once(start, alone, model, tp, blocks):
    asked = [prompts(LENGTHS, seed) for seed in (1, 2)]
    expected = [alone.tokens(model, each) for each in asked]
    sides = [{"tp": ranks, "block_size": size, "options": IN_CHUNKS} for ranks, size in zip(tp, blocks)]
    pair = start(model, prefill=sides[0], decode=sides[1])
    arguments = ["--prefill", pair.prefill.url, "--decode", pair.decode.url, "--overlap"]
    with Proxy(pair.folder / "overlap.log", *arguments) as proxy:
        pair.url = proxy.url
        assert [pair.tokens(prompt) for prompt in asked[0]] == expected[0]
        # Together they wait for each other's steps, and are preempted where there is no room.
        assert ask_together(pair, asked[1]) == expected[1]
        assert total(pair.decode, "vllm:transload_load_seconds_count") == 2 * len(LENGTHS) * tp[1]
        assert total(pair.decode, "vllm:transload_failures_total") == 0
        # A prefill server that has restarted answers with another life, so the decode server is asked again.
        pair.prefill.kill()
        pair.prefill.start().wait()
        [prompt] = prompts([300], seed=3)
        assert [pair.tokens(prompt)] == alone.tokens(model, [prompt])
        assert proxy.status()["requests"]["fallback"] == 0
