"""Requests with the same token ids and other content never see each other's blocks."""

import urllib.error

import pytest
import tiny_models
from conftest import total
from disaggregated import prompts
from servers import Server, prefill


def test_two_adapters(start, models, tmp_path):
    [asked] = prompts([300], seed=21)
    folders = {name: tiny_models.adapter(name, tmp_path / name) for name in ("red", "blue")}
    modules = ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--lora-modules"]
    modules += [f"{name}={folder}" for name, folder in folders.items()]
    names = [None, *folders]
    with Server(models("llama"), tmp_path, "alone", options=modules) as alone:
        alone.wait()
        expected = [tokens(alone.complete(asked, **chosen(name))) for name in names]
    assert len({tuple(answer) for answer in expected}) == 3, "the adapters change nothing"

    pair = start("llama", prefill={"tp": 2, "options": modules}, decode={"block_size": 64, "options": modules})
    # Twice, so that the second time each has blocks of its own cached at both servers.
    for _ in range(2):
        for name, answer in zip(names, expected):
            assert pair.tokens(asked, **chosen(name)) == answer, name

    # Blocks of one, for a request of the other.
    [other] = prompts([300], seed=22)
    params = prefill(pair.prefill.url, other, **chosen("red"))
    with pytest.raises(urllib.error.HTTPError):
        pair.decode.complete(other, kv_transfer_params=params, **chosen("blue"))
    assert total(pair.decode, "vllm:transload_failures_total", 'kind="content"') == 1


def test_two_tenants(start, alone):
    [asked] = prompts([300], seed=23)
    [expected] = alone.tokens("llama", [asked])
    pair = start("llama", decode={"block_size": 64})
    assert pair.tokens(asked, cache_salt="one") == expected
    params = prefill(pair.prefill.url, asked, cache_salt="one")
    with pytest.raises(urllib.error.HTTPError):
        pair.decode.complete(asked, kv_transfer_params=params, cache_salt="two")
    assert total(pair.decode, "vllm:transload_failures_total", 'kind="content"') == 1


def chosen(adapter):
    return {} if adapter is None else {"model": adapter}


def tokens(answer):
    return answer["choices"][0]["token_ids"]
