"""Servers with pipeline stages, on either side, answer as one without."""

import os
from pathlib import Path

import pytest
from conftest import total
from disaggregated import prompts
from servers import Server, connector
from test_pairs import check

PLUGIN = Path(__file__).with_name("stages")


def side(stages, tp=1, layers=None, options=(), **more):
    """A server with pipeline stages; `layers`: how many each has, in place of vLLM's own choice."""
    if stages == 1:
        return {"tp": tp, "options": list(options), **more}
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        "PYTHONPATH": f"{PLUGIN}:{os.environ.get('PYTHONPATH', '')}",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(stages * tp)),
    }
    if layers:
        environment["VLLM_PP_LAYER_PARTITION"] = layers
    return {"tp": tp, "options": [*options, "--pipeline-parallel-size", str(stages)], "environment": environment, **more}


@pytest.mark.newer
@pytest.mark.parametrize(
    ("prefill", "decode", "mode"),
    [
        (side(2, block_size=32), side(1, block_size=64), "pull"),
        (side(1, block_size=32), side(2, layers="3,1", block_size=64), "push"),
        (side(2, layers="1,3", block_size=64), side(1, tp=2, block_size=32), "pull"),
    ],
    ids=["prefill", "decode", "tp"],
)
def test_llama(start, alone, prefill, decode, mode):
    asked = prompts([5, 100, 900, 64, 65], seed=51)
    check(start("llama", prefill=prefill, decode=decode, mode=mode), alone.tokens("llama", asked), asked)


def test_windows(start, alone):
    asked = prompts([5, 100, 900, 64, 65], seed=52)
    check(start("gemma3", prefill=side(1), decode=side(2, block_size=64)), alone.tokens("gemma3", asked), asked)


def test_falcon_h1(start, alone):
    """It names its recurrent layers behind all others, so that each stage has some of both."""
    asked = prompts([5, 100, 900], seed=53)
    options = ["--no-enable-prefix-caching"]
    expected = alone.tokens("falcon_h1", asked, options=options)
    check(start("falcon_h1", prefill=side(2, options=options), decode=side(1, options=options)), expected, asked)


def test_a_store(alone, models, tmp_path):
    """A prefix is saved by all stages, and loaded into another number of them."""
    [asked] = prompts([600], seed=54)
    [expected] = alone.tokens("llama", [asked])
    transfer = connector("kv_both", None, "recompute", store=f"file://{tmp_path}/store", store_wait_seconds=30)
    for name, stages, what in ("saver", 2, "saved"), ("loader", 1, "loaded"):
        with Server(models("llama"), tmp_path, name, transfer=transfer, **side(stages)) as server:
            server.wait()
            assert server.complete(asked)["choices"][0]["token_ids"] == expected
            for _ in range(30):
                server.complete([1, 2, 3])
                if moved := total(server, "vllm:transload_store_tokens_total", f'what="{what}"'):
                    break
            assert moved == 512, server.tail()
