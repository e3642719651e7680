"""Servers with data parallelism: engines of their own behind one URL, any of which may prefill or decode."""

import itertools
import json

import pytest
from conftest import total
from disaggregated import prompts
from servers import post
from test_pairs import ask_together

ENGINES = {"options": ["--data-parallel-size", "2"], "environment": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}}
"""What a server with two engines has more than one with one."""


def ask(server, engine, prompt, tokens, **more):
    """Asks one of a server's engines; None has the server choose."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "return_token_ids": True, **more}
    headers = {} if engine is None else {"X-data-parallel-rank": str(engine)}
    with post(f"{server.url}/v1/completions", body, headers=headers) as answer:
        return json.load(answer)


@pytest.mark.newer
@pytest.mark.parametrize(("engines", "mode"), [((2, 1), "pull"), ((1, 2), "pull"), ((1, 2), "push")], ids=str)
def test_engines_of_a_dense_model(start, alone, engines, mode):
    sides = [{"block_size": size, **(ENGINES if count == 2 else {})} for count, size in zip(engines, (32, 64))]
    pair = start("llama", prefill=sides[0], decode=sides[1], mode=mode)
    ways = list(itertools.product(*(range(count) if count > 1 else [None] for count in engines)))
    asked = prompts([100 + 300 * number for number in range(len(ways))] + [70, 80, 90, 33], seed=41)
    expected = alone.tokens("llama", asked)
    for way, prompt, tokens in zip(ways, asked, expected):
        params = ask(pair.prefill, way[0], prompt, 1, kv_transfer_params={"do_remote_decode": True})["kv_transfer_params"]
        answer = ask(pair.decode, way[1], prompt, 16, kv_transfer_params=params)
        assert answer["choices"][0]["token_ids"] == tokens
    # The servers choose.
    assert ask_together(pair, asked) == expected
    assert total(pair.decode, "vllm:transload_failures_total") == 0
    for server, metric, count in ((pair.prefill, "leases_ended_total", engines[0]), (pair.decode, "load_bytes_count", engines[1])):
        for engine in range(count):
            assert total(server, f"vllm:transload_{metric}", f'engine="{engine}"') > 0, server.metrics()
