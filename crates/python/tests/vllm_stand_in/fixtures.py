"""Pairs of engines for tests, and what tests do with them."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import transload

from . import vllm_names as vllm
from .engine import Engine
from .installed import installed
from .model import Attention


@pytest.fixture(scope="module")
def connector():
    """The connector's package, `transload.vllm`, for all tests of a module."""
    with installed() as package:
        yield package


@pytest.fixture(scope="session")
def server_certs(tmp_path_factory):
    """Certificates for servers `prefill` and `decode` of up to six ranks."""
    folder = tmp_path_factory.mktemp("servers") / "certs"
    roles = "serve,pull,push,renew"
    agents = [f"--agent={name}-{rank}={roles}" for name in ("prefill", "decode") for rank in range(6)]
    command = [sys.executable, "-m", "transload", "certs", "init", str(folder), *agents]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def engine(connector, server_certs):
    """Starts engines, which end with the test."""
    engines = []

    def start(agent, groups=None, *, certs=server_certs, **shape):
        made = Engine(certs, agent, groups or [Attention(range(4))], **shape)
        engines.append(made)
        return made

    yield start
    # All at once and without patience for what is still lent: what connectors do takes a second.
    workers = [worker._worker for each in engines for worker in each.workers]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda worker: worker._agent and worker._agent.shutdown(0), workers))


@pytest.fixture
def mode():
    """How blocks come to a decode server. Modules that test both ways have a fixture of this name with both."""
    return "pull"


@pytest.fixture
def two_engines(engine, mode):
    """Starts a prefill and a decode engine of one model."""

    def start(prefill=None, decode=None, groups=None, **both):
        first = engine("prefill", groups, **(both | (prefill or {})))
        second = both | (decode or {})
        second["extra"] = {"mode": mode} | (second.get("extra") or {})
        return first, engine("decode", groups, **second)

    return start


class Wrapped:
    """An agent, with what a test has it do otherwise."""

    def __init__(self, agent):
        self._agent = agent

    def __getattr__(self, name):
        return getattr(self._agent, name)


FOR_DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
"""What a proxy sends along to the prefill server."""


def prompt(count, seed=0):
    return [int(token) for token in numpy.random.default_rng(seed).integers(0, 32_000, count)]


def prefilled(engine, tokens, **more):
    """What a prefill server answers with."""
    request = engine.add(tokens, dict(FOR_DECODE), **more)
    engine.run(lambda: request.request_id in engine.answers)
    params = engine.answers[request.request_id]
    assert params and params["do_remote_prefill"], "there is no ticket"
    return params


def early_ticket(server_certs, params, **claims):
    """A ticket like that in `params`, but for a lease that there is not yet, or with other claims."""
    identity = transload.Identity(server_certs, "prefill-0")
    known = transload.Ticket(params["transload_ticket"]).open(identity) | {"set": os.urandom(16)} | claims
    named = {name: known[name] for name in ("deployment", "incarnation", "valid_tokens")}
    ticket = transload.Ticket.mint(identity, known["set"], known["ranks"], **named)
    return params | {"transload_ticket": ticket.text}


def load(engine, tokens, params, **more):
    """A request at the decode server, as soon as its load has ended, and the memory from before."""
    before = [cache.bytes() for cache in engine.caches]
    request = engine.add(tokens, dict(params), **more)
    engine.run(lambda: request.request_id in engine.received or request.request_id not in engine.requests)
    return request, before


def assert_loaded(engine, request, before, drafts=True):
    """Of all memory, what a prefill here would have written has changed, with or without its drafts, and the rest of blocks that had to be
    zeroed."""
    start, end, tables = engine.loads[request.request_id]
    assert request.request_id not in engine.failed
    for cache, old in zip(engine.caches, before):
        new = cache.bytes()
        cache.restore(old)
        for group, table in zip(cache.groups, tables):
            cache.clear(group, table, start, end)
            first = start if group.recurrent else max(start, group.skipped(end))
            if drafts or not group.draft:
                cache.write(group, table, numpy.array(request.all_token_ids), first, end)
        for number, (found, wanted) in enumerate(zip(new, cache.bytes())):
            differ = numpy.flatnonzero(found != wanted)
            assert not differ.size, f"rank {cache.rank}: {differ.size} bytes of {number} differ, from {differ[0]} on"
        cache.restore(new)


def fetch(decode, tokens, params, *, drafts=True, **more):
    """Loads a prompt, checks every byte, and lets it be decoded."""
    request, before = load(decode, tokens, params, **more)
    assert_loaded(decode, request, before, drafts)
    decode.run()
    return request


def refuse(decode, tokens, params, kind, **more):
    """A load has to fail on all ranks, be counted as `kind`, and the request be computed here instead."""
    request, _ = load(decode, tokens, params, **more)
    assert request.request_id in decode.failed
    assert decode.figures.data["failures"] == {kind: decode.ranks}
    assert not decode.figures.data["bytes"]
    decode.run()
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED
    assert decode.manager.free_blocks == decode.all_blocks


def move(prefill, decode, tokens, *, drafts=True, **more):
    """Prefills and loads a prompt, checks every byte, lets it be decoded, and sees that no block is lost."""
    params = prefilled(prefill, tokens, **more)
    request = fetch(decode, tokens, params, drafts=drafts, max_tokens=3, **more)
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED
    end_alike(prefill, decode)
    return request


def end_alike(*engines):
    """Everything is over: all blocks are free again, nothing is lent, and nobody remembers a request."""
    for engine in engines:
        engine.run()
        assert engine.manager.free_blocks == engine.all_blocks
        scheduler, workers = engine.scheduler._scheduler, [worker._worker for worker in engine.workers]
        assert not (scheduler._lending or scheduler._waiting or scheduler._loading)
        assert not any(worker._leases or worker._ahead or worker._handed_over or worker._loads for worker in workers)
        deadline = time.monotonic() + 5
        while any(worker._agent and worker._agent.gauges()["leases"] for worker in workers):
            assert time.monotonic() < deadline, "there is a lease of which nobody knows"
            time.sleep(0.01)
