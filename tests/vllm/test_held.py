"""Servers out of P/D: one loads what only the other has computed, and answers as one does."""

import pytest
from conftest import total
from disaggregated import certificates, prompts
from servers import Server, connector, free_port
from test_failures import wait_until


@pytest.fixture
def servers(models, tmp_path):
    """Starts a server that holds what it has computed, and one that asks it."""
    certs, started = certificates(tmp_path / "certs"), []

    def start(first, second):
        port = free_port()
        for name, options, extra in (
            ("holds", first, {"port": port, "held_share": 0.5, "held_seconds": 600}),
            ("asks", second, {"port": free_port(), "pull_from": [f"127.0.0.1:{port}"], "ask_seconds": 10}),
        ):
            transfer = connector("kv_both", certs, **extra)
            started.append(Server(models("llama"), tmp_path, name, core=len(started), transfer=transfer, **options))
        return [server.wait() for server in started]

    yield start
    for server in started:
        server.stop()
        print(f"--- {server.log}\n{server.tail()}")


def test_another_has_computed_it(servers, alone):
    """With blocks of another size. Servers with another TP load like this in tests with an engine that stands for vLLM."""
    [first, second] = prompts([900, 700], seed=1)
    longer = first[:600] + second
    asked = [first, longer[:1000], second]
    expected = alone.tokens("llama", asked)
    one, two = servers({"block_size": 32}, {"block_size": 64})

    def answer(server, prompt, **more):
        return server.complete(prompt, 16, **more)["choices"][0]["token_ids"]

    def loads():
        return total(two, "vllm:transload_load_seconds_count")

    assert answer(one, first) == expected[0]
    # Only tenants with one salt share.
    assert answer(two, first, cache_salt="b") == expected[0] and loads() == 0
    assert [answer(two, prompt) for prompt in asked[:2]] == expected[:2]
    # Of the second, 576 tokens are cached by then, so there is nothing to load.
    assert loads() == 1
    assert total(two, "vllm:transload_lookups_total", "found") == 1
    assert total(two, "vllm:transload_failures_total") == 0
    assert answer(one, second) == expected[2]
    one.kill()
    assert answer(two, second) == expected[2] and loads() == 1
    wait_until(lambda: total(two, "vllm:num_requests_") == 0)
