"""`transload sidecar` and `transload proxy` before real servers."""

import http.client
import json
import os
import signal
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from compare import nixl
from conftest import total
from disaggregated import prompts
from servers import Proxy, post
from test_failures import idle, wait_until


@contextmanager
def sidecar(pair, folder):
    """A sidecar of the pair's decode server."""
    arguments = ["--vllm-port", pair.decode.port, "--secure-proxy=false", "--certs", pair.certs]
    with Proxy(folder / "sidecar.log", *arguments, command="sidecar") as running:
        yield running


def ask(url, prompt, count=16, stream=False, prefill=None) -> list[int]:
    """The tokens of an answer, which comes in several events if it is streamed."""
    body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "return_token_ids": True, "stream": stream}
    headers = {"x-prefiller-host-port": f"127.0.0.1:{prefill.port}"} if prefill else {}
    with post(f"{url}/v1/completions", body, headers=headers) as answer:
        if not stream:
            return json.load(answer)["choices"][0]["token_ids"]
        lines = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]" and len(lines) > 1, lines
    return [token for line in lines for token in json.loads(line)["choices"][0]["token_ids"] or []]


@pytest.mark.smallest
def test_sidecar_and_proxy(start, alone, tmp_path):
    """Exact tokens, streamed or not; who leaves leaves nothing behind; a killed prefill server costs nobody an answer."""
    asked = prompts([300] * 5 + [900], seed=31)
    expected = alone.tokens("llama", asked)
    pair = start("llama", decode={"block_size": 64})
    with sidecar(pair, tmp_path) as beside:
        ways = [(pair.proxy, None), (beside, pair.prefill)]
        for number, (way, prefill) in enumerate(ways):
            loaded = pair.loaded()
            assert ask(way.url, asked[number], prefill=prefill) == expected[number]
            assert ask(way.url, asked[number + 2], stream=True, prefill=prefill) == expected[number + 2]
            assert pair.loaded() > loaded, "nothing was transferred"
            requests = way.status()["requests"]
            assert (requests["disaggregated"], requests["fallback"]) == (2, 0)

        for way, prefill in ways:
            leave(way.url, asked[4], prefill)
        os.killpg(pair.prefill.process.pid, signal.SIGSTOP)
        for way, prefill in ways:
            leave_in_prefill(way, asked[4], prefill)
        os.killpg(pair.prefill.process.pid, signal.SIGCONT)
        wait_until(lambda: idle(pair.prefill) and idle(pair.decode))

        # It is in the middle of both requests when it ends: stopped before they come, and killed once both have asked it.
        os.killpg(pair.prefill.process.pid, signal.SIGSTOP)
        answers = {}
        threads = [
            threading.Thread(target=lambda way=way, prefill=prefill: answers.update({way: ask(way.url, asked[5], prefill=prefill)}))
            for way, prefill in ways
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(in_flight(way, "prefill") for way, _ in ways))
        pair.prefill.kill()
        for thread in threads:
            thread.join()
        assert list(answers.values()) == [expected[5]] * 2
        assert [way.status()["requests"]["fallback"] for way, _ in ways] == [1, 1]


def in_flight(way, role):
    return sum(server["in_flight"] for server in way.status()["servers"] if server["role"] == role)


def leave_in_prefill(way, prompt, prefill):
    """Leaves while the prefill server, which is stopped, has the request."""
    client = http.client.HTTPConnection(urlsplit(way.url).netloc)
    headers = {"Content-Type": "application/json"}
    headers |= {"x-prefiller-host-port": f"127.0.0.1:{prefill.port}"} if prefill else {}
    client.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 16}), headers)
    wait_until(lambda: in_flight(way, "prefill"))
    client.close()
    wait_until(lambda: not in_flight(way, "prefill"))


def leave(url, prompt, prefill):
    """Asks for a long stream, and leaves after its first bytes."""
    body = {"prompt": prompt, "max_tokens": 500, "temperature": 0, "stream": True, "ignore_eos": True}
    headers = {"x-prefiller-host-port": f"127.0.0.1:{prefill.port}"} if prefill else {}
    answer = post(f"{url}/v1/completions", body, headers=headers)
    assert answer.read(6) == b"data: "
    answer.close()


def test_before_nixl(models, alone, tmp_path):
    """vLLM's own connector is asked alike."""
    asked = prompts([300] * 2, seed=32)
    expected = alone.tokens("llama", asked)
    prefill, decode = nixl(models("llama"), tmp_path)
    with prefill, decode:
        prefill.wait(), decode.wait()
        with Proxy(tmp_path / "proxy.log", "--prefill", prefill.url, "--decode", decode.url) as proxy:
            assert ask(proxy.url, asked[0]) == expected[0]
            assert ask(proxy.url, asked[1], stream=True) == expected[1]
            assert proxy.status()["requests"]["disaggregated"] == 2
            assert total(decode, "vllm:nixl_xfer_time_seconds_count") == 2
