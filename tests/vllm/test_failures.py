"""What fails is never taken for loaded, and what is left serves on."""

import asyncio
import collections
import concurrent.futures
import contextlib
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error

import pytest
from aioquic.asyncio import connect
from aioquic.quic.configuration import QuicConfiguration
from conftest import total
from disaggregated import prompts
from servers import prefill
from test_engines import ENGINES
from test_stages import side

LEASE = 3.0


def ticket(pair, prompt) -> dict:
    """Has a prompt prefilled; the parameters for the decode server."""
    params = prefill(pair.prefill.url, prompt)
    assert params["transload_ticket"]
    return params


def wait_until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.2)


def idle(server):
    """All blocks are free, and nothing is under way."""
    return total(server, "vllm:kv_cache_usage_perc") == 0 and total(server, "vllm:num_requests_") == 0


class Refused:
    """The tokens of a request that the decode server must not load."""

    def __init__(self, pair, policy, alone):
        self.pair, self.policy, self.alone = pair, policy, alone

    def ask(self, prompt, params, kind):
        [expected] = self.alone.tokens("llama", [prompt])
        failures = total(self.pair.decode, "vllm:transload_failures_total", f'kind="{kind}"')
        if self.policy == "fail":
            with pytest.raises(urllib.error.HTTPError) as raised:
                self.pair.decode.complete(prompt, kv_transfer_params=params)
            assert raised.value.code == 500
        else:
            answer = self.pair.decode.complete(prompt, kv_transfer_params=params)
            assert answer["choices"][0]["token_ids"] == expected
        found = total(self.pair.decode, "vllm:transload_failures_total", f'kind="{kind}"')
        assert found == failures + 1, self.pair.decode.tail()
        wait_until(lambda: idle(self.pair.decode))


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_ticket_that_is_not_good(start, alone, policy):
    asked = prompts([200, 200, 200, 100], seed=11)
    # Before there are tickets: a server that starts takes longer than a lease lives.
    expected = alone.tokens("llama", asked)[3]
    decode = {"block_size": 64, "options": ["--no-enable-prefix-caching"]}
    pair = start("llama", decode=decode, policy=policy, lease_seconds=LEASE)
    refused = Refused(pair, policy, alone)

    # Its lease has expired, and others have its blocks.
    late = ticket(pair, asked[0])
    wait_until(lambda: idle(pair.prefill))
    for prompt in prompts([900] * 8, seed=12):
        ticket(pair, prompt)
    refused.ask(asked[0], late, "expired")

    # Somebody has used it.
    used = ticket(pair, asked[1])
    assert pair.decode.complete(asked[1], kv_transfer_params=used)
    refused.ask(asked[1], used, "consumed")

    # It is for another prompt of this length.
    other = ticket(pair, asked[1])
    refused.ask(asked[2], other, "content")

    # It is none.
    garbled = {"do_remote_prefill": True, "do_remote_decode": False, "transload_ticket": "none"}
    refused.ask(asked[2], garbled, "ticket")

    # And all of this has changed nothing for the next one.
    assert pair.tokens(asked[3]) == expected
    wait_until(lambda: idle(pair.prefill))
    assert total(pair.prefill, "vllm:transload_leases_ended_total", 'end="expired"') >= 1


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_prefill_killed_after_its_answer(start, alone, policy):
    asked = prompts([300, 300, 100], seed=13)
    expected = alone.tokens("llama", asked)
    pair = start("llama", decode={"block_size": 64}, policy=policy, lease_seconds=LEASE, timeout_seconds=20)
    assert pair.tokens(asked[0]) == expected[0]
    params = ticket(pair, asked[1])
    pair.prefill.kill()
    if policy == "fail":
        with pytest.raises(urllib.error.HTTPError):
            pair.decode.complete(asked[1], kv_transfer_params=params)
    else:
        answer = pair.decode.complete(asked[1], kv_transfer_params=params)
        assert answer["choices"][0]["token_ids"] == expected[1]
    wait_until(lambda: idle(pair.decode))

    # It comes back, as another life of the same server; old tickets are not good there.
    pair.prefill.start().wait()
    assert pair.tokens(asked[2]) == expected[2]
    refused = Refused(pair, policy, alone)
    refused.ask(asked[1], params, "restarted")


@contextlib.contextmanager
def loading(pair, prompt):
    """A decode server that is in the middle of a load: it has asked for the blocks, and the prefill server, which stands
    still meanwhile, has not sent them."""
    params = ticket(pair, prompt)
    os.killpg(pair.prefill.process.pid, signal.SIGSTOP)
    try:
        with client(pair.decode.url, prompt, params) as asking:
            wait_until(lambda: total(pair.decode, "vllm:kv_cache_usage_perc") > 0)
            assert asking.poll() is None and total(pair.decode, "vllm:transload_bytes_total") == 0
            yield asking
    finally:
        os.killpg(pair.prefill.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def client(url, prompt, params=None):
    """A process that asks for an answer, to be killed."""
    script = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from servers import complete;"
        "complete(sys.argv[2], json.loads(sys.argv[3]), 64, kv_transfer_params=json.loads(sys.argv[4]))"
    )
    arguments = [os.path.dirname(sys.modules["servers"].__file__), url, json.dumps(prompt), json.dumps(params)]
    asking = subprocess.Popen([sys.executable, "-c", script, *arguments], stderr=subprocess.DEVNULL)
    try:
        yield asking
    finally:
        asking.kill()
        asking.wait()


SHAPES = {"one engine": {}, "stages": side(2), "engines": ENGINES}
"""What both servers of a pair are."""


@pytest.mark.parametrize("shape", SHAPES)
def test_decode_killed_in_the_middle_of_a_load(start, alone, shape):
    asked = prompts([900, 100], seed=14)
    expected = alone.tokens("llama", asked)
    pair = start("llama", prefill=SHAPES[shape], decode=SHAPES[shape] | {"block_size": 64}, lease_seconds=LEASE)
    with loading(pair, asked[0]):
        pair.decode.kill()
    wait_until(lambda: idle(pair.prefill))
    pair.decode.start().wait()
    assert [pair.tokens(prompt) for prompt in asked] == expected
    wait_until(lambda: idle(pair.prefill))


def test_whoever_comes_to_the_port(start, alone, tmp_path):
    asked = prompts([200] * 4, seed=15)
    expected = alone.tokens("llama", asked)
    pair = start("llama", decode={"block_size": 64})
    ports = [pair.settings(server)["port"] for server in (pair.prefill, pair.decode)]
    assert pair.tokens(asked[0]) == expected[0]

    # Garbage of every length.
    chosen = random.Random(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for port in ports:
            for length in [0, 1, 20, 1200, 1472, 9000] * 50:
                sender.sendto(chosen.randbytes(length), ("127.0.0.1", port))
    assert pair.tokens(asked[1]) == expected[1]

    # A peer of another cluster with a ticket that it cannot have.
    script = """
import subprocess, sys, transload
subprocess.run([sys.executable, "-m", "transload", "certs", "init", "other"], check=True, capture_output=True)
document = {"schema": "transload.deployment/1", "block_size": 16, "num_blocks": 8, "group": [{"name": "attention",
    "layers": "0-3", "spec": [{"kind": "attention", "heads": 4, "head_dim": 32, "dtype": "f32"}]}]}
deployment = transload.Deployment(document)
memory = transload.Memory.allocate(deployment.groups[0].allocations())
identity = transload.Identity("other", "decode")
agent = transload.Agent(identity, deployment, {0: [memory]}, bind="127.0.0.1:0")
ticket = transload.Ticket.mint(identity, bytes(16), [("prefill-0/host", "127.0.0.1", int(sys.argv[1]))],
    deployment=deployment.digest, incarnation=1, valid_tokens=16)
try:
    agent.pull(ticket, [0], [[1]], bytes(32), 16, timeout=5).ended.result(20)
except transload.TransferError as error:
    print(error.kind)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(ports[0])], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() in ("unreachable", "timed_out"), done
    assert pair.tokens(asked[2]) == expected[2]

    # A thousand connections without a certificate, all at once: no handshake is completed.
    with concurrent.futures.ThreadPoolExecutor(1) as aside:
        asked_aside = aside.submit(pair.tokens, asked[3])
        assert asyncio.run(strangers(ports, 500)) == {"refused": 1000}
        assert asked_aside.result() == expected[3]
    assert total(pair.decode, "vllm:transload_failures_total") == 0


async def strangers(ports, each) -> collections.Counter:
    """What becomes of so many connections to each port from somebody who speaks QUIC and has no certificate."""

    async def meet(port):
        configuration = QuicConfiguration(alpn_protocols=["transload/1"], verify_mode=ssl.CERT_NONE)
        async with connect("127.0.0.1", port, configuration=configuration) as connection:
            # The client's part of the handshake is over before the server has seen that nothing certifies it.
            await connection.ping()

    async def stranger(port):
        try:
            await asyncio.wait_for(meet(port), 120)
            return "let in"
        except ConnectionError:
            return "refused"
        except asyncio.TimeoutError:
            return "unanswered"

    return collections.Counter(await asyncio.gather(*(stranger(port) for port in ports for _ in range(each))))


@pytest.mark.newer
@pytest.mark.parametrize("shape", SHAPES)
def test_clients_that_go_away(start, alone, shape):
    """Aborted in the middle of a load, and at either side at any moment: all blocks come back."""
    asked = prompts([900] * 12 + [100], seed=16)
    [expected] = alone.tokens("llama", asked[12:])
    pair = start("llama", prefill=SHAPES[shape], decode=SHAPES[shape] | {"block_size": 64}, lease_seconds=LEASE)
    with loading(pair, asked[0]) as asking:
        asking.kill()
        wait_until(lambda: total(pair.decode, "vllm:num_requests_") == 0)
    wait_until(lambda: idle(pair.prefill) and idle(pair.decode))
    # Each rank of the engine has given up its part.
    assert total(pair.decode, "vllm:transload_failures_total", 'kind="cancelled"') == (2 if shape == "stages" else 1)

    chosen = random.Random(2)
    for prompt in asked[:12]:
        with client(pair.url, prompt):
            time.sleep(chosen.uniform(0.1, 1.0))
    assert pair.tokens(asked[12]) == expected
    wait_until(lambda: idle(pair.prefill) and idle(pair.decode))
