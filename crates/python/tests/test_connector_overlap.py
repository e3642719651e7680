"""vLLM's connector: prompts that are loaded while they are prefilled. What is used is exact, whatever happens to either server meanwhile."""

import os
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.engine import free_ports
from vllm_stand_in.fixtures import FOR_DECODE, assert_loaded, end_alike, fetch, move, prefilled, prompt
from vllm_stand_in.model import Attention, mamba2

import transload

Status = vllm.RequestStatus
TOKENS = prompt(900)


def earlier_answer(prefill, decode):
    """Returns a prefill server's answer to an earlier request."""
    tokens = prompt(20, seed=5)
    params = prefilled(prefill, tokens)
    fetch(decode, tokens, params)
    return params


class Pair:
    """A request at both servers, at the same time."""

    def __init__(self, prefill, decode, tokens=TOKENS, params=None, other=None):
        """`other`: what the prefill server is asked for instead."""
        name = os.urandom(16).hex()
        self.sides, self.prefill, self.decode = (prefill, decode), prefill, decode
        self.earlier = params or earlier_answer(prefill, decode)
        self.before = [cache.bytes() for cache in decode.caches]
        self.lent = prefill.add(other or tokens, FOR_DECODE | {"transload_overlap": name})
        self.request = decode.add(tokens, self.earlier | {"transload_overlap": name}, max_tokens=3)

    def run(self, until, seconds=20):
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, (self.lent.status, self.request.status)
            for side in self.sides:
                side.step()

    @property
    def life(self):
        return f"{self.prefill.workers[0]._worker._incarnation:032x}"

    @property
    def load(self):
        return self.decode.workers[0]._worker._loads[self.request.request_id].transfer

    def reach(self, tokens):
        """Goes on with the decode server alone until so much has landed."""
        self.decode.run(lambda: self.request.request_id in self.decode.loads)
        self.decode.run(lambda: self.load._reached >= tokens)

    @property
    def is_over(self):
        return self.request.request_id in self.decode.received or self.request.request_id not in self.decode.requests

    def finish(self):
        """Every byte has to be as if prefilled here."""
        self.run(lambda: self.is_over)
        assert_loaded(self.decode, self.request, self.before)
        end_alike(*self.sides)
        assert self.request.status is Status.FINISHED_LENGTH_CAPPED

    def fail(self):
        """It is computed here instead."""
        self.run(lambda: self.is_over)
        assert self.request.request_id in self.decode.failed
        end_alike(*self.sides)
        assert self.request.status is Status.FINISHED_LENGTH_CAPPED


MODELS = {
    "ranks 1, 2": ({}, {"tp": 2}, None),
    "ranks 2, 1": ({"tp": 2, "block_size": 16, "blocks": 128}, {"block_size": 96}, None),
    "orders": ({"order": "BLSHC"}, {"order": "LHBSC", "block_size": 64}, None),
    "drafts": ({"lookahead": 3}, {"lookahead": 3, "tp": 2}, None),
    "latents": ({"tp": 2}, {"block_size": 64}, [Attention(range(3), heads=1, head_dim=48, mla=True)]),
    "windows": ({"tp": 2}, {}, [Attention(range(2)), Attention(range(2, 4), window=40)]),
    "states": ({}, {"tp": 2}, [Attention(range(2)), mamba2(range(2, 4))]),
}


# The mode is for requests that are sent to one server after the other. Pieces are always pulled.
@pytest.mark.parametrize(("budget", "mode"), [(100, "push"), (256, "pull"), (10_000, "pull")])
@pytest.mark.parametrize("model", MODELS)
def test_every_byte_is_moved(two_engines, model, budget, mode):
    prefill, decode, groups = MODELS[model]
    sides = two_engines(prefill | {"budget": budget}, decode, groups, **({"model_groups": 1} if model == "states" else {}))
    earlier = earlier_answer(*sides)
    for tokens in (5, 257, 900):
        Pair(*sides, prompt(tokens), earlier).finish()
        # A request that is sent to one server after the other still works.
        move(*sides, prompt(tokens, seed=1))


def test_pieces_come_while_the_rest_is_computed(two_engines):
    pair = Pair(*two_engines({"budget": 300}, {"tp": 2}))
    # Steps end at 300, 600 and 900 tokens.
    for reached in (256, 512):
        pair.prefill.step()
        pair.reach(reached)
    assert pair.lent.status is Status.RUNNING
    pair.finish()
    assert pair.prefill.figures.data["leases"] == {"completed": 2}


@pytest.mark.parametrize("again", [False, True], ids=["before its last step", "behind it"])
def test_a_prefill_that_is_preempted(two_engines, again):
    """What has landed stays, and other requests have the blocks of the rest meanwhile. A lease of the whole prompt has another name then, so
    the answer does not say that it is loaded already."""
    pair = Pair(*two_engines({"budget": 300, "blocks": 40}, {}))
    pair.lent.max_tokens = 4
    pair.prefill.step()
    pair.reach(256)
    for _ in range(2 if again else 1):
        pair.prefill.step()
    if again:
        pair.load.cancel()
    pair.prefill.preempt(pair.lent)
    pair.prefill.waiting.remove(pair.lent)
    other = pair.prefill.add(prompt(1000, seed=2), max_tokens=9)
    pair.prefill.run(lambda: other.finished)
    pair.prefill.waiting.append(pair.lent)
    if again:
        pair.run(lambda: pair.lent.request_id in pair.prefill.answers)
        answer = pair.prefill.answers[pair.lent.request_id]
        assert "transload_life" not in answer
        pair.decode.run()
        fetch(pair.decode, TOKENS, answer)
        return end_alike(*pair.sides)
    pair.finish()
    assert pair.prefill.answers[pair.lent.request_id]["transload_life"] == pair.life


@pytest.mark.parametrize("landed", [0, 256])
@pytest.mark.parametrize("end", ["abort", "reset"])
def test_a_prefill_that_ends_otherwise(two_engines, end, landed):
    """Nobody tells the decode server, so that its own time ends the load."""
    pair = Pair(*two_engines({"budget": 300}, {"tp": 2, "extra": {"timeout_seconds": 2}}))
    if landed:
        pair.prefill.step()
        pair.reach(landed)
    if end == "reset":
        pair.prefill.reset()
        pair.prefill.run(lambda: pair.lent.finished)
    else:
        pair.prefill.abort(pair.lent)
    assert pair.prefill.answers[pair.lent.request_id] is None
    pair.fail()
    assert pair.decode.figures.data["failures"] == {"timed_out": 2}


def test_another_prompt(two_engines):
    pair = Pair(*two_engines({"budget": 300}, {"tp": 2}), other=prompt(900, seed=9))
    pair.fail()
    assert pair.decode.figures.data["failures"] == {"content": 2}


def test_a_prefill_server_that_has_restarted(engine):
    port = free_ports(1)
    prefill, decode = engine("prefill", port=port), engine("decode", tp=2)
    earlier = earlier_answer(prefill, decode)
    prefill.shutdown()
    pair = Pair(engine("prefill", port=port), decode, params=earlier)
    pair.run(lambda: pair.is_over and pair.lent.finished)
    assert decode.figures.data["failures"] == {"restarted": 2}
    # The answer says that it is another one, and has a ticket of it.
    answer = pair.prefill.answers[pair.lent.request_id]
    assert answer["transload_life"] == pair.life
    decode.run()
    fetch(decode, TOKENS, answer)
    end_alike(*pair.sides)


def test_a_prompt_of_which_nothing_is_loaded(two_engines):
    pair = Pair(*two_engines(lookahead=3), prompt(2))
    pair.run(lambda: pair.request.finished and pair.lent.finished)
    end_alike(*pair.sides)
    assert pair.request.request_id not in pair.decode.loads and not pair.decode.figures.data["failures"]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_request_that_is_aborted(two_engines, steps):
    pair = Pair(*two_engines({"budget": 300, "tp": 2}, {"tp": 2}))
    for _ in range(steps):
        pair.prefill.step()
        pair.decode.step()
    pair.decode.abort(pair.request)
    pair.decode.run()
    assert pair.decode.manager.free_blocks == pair.decode.all_blocks
    # Long before the lease would end by itself.
    end_alike(*pair.sides)
    assert pair.prefill.figures.data["leases"] == {"completed": 2, "cancelled": 2}


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_cached_prefix(two_engines, side):
    prefill, decode = two_engines({"budget": 300, "prefix_caching": True}, {"prefix_caching": True})
    {"prefill": prefill, "decode": decode}[side].add(TOKENS[:600])
    for each in (prefill, decode):
        each.run()
    pair = Pair(prefill, decode)
    pair.finish()
    assert decode.loads[pair.request.request_id][0] == (576 if side == "decode" else 0)


def test_requests_beyond_the_share_have_no_blocks(two_engines):
    """They are loaded all the same, one after the other."""
    prefill, decode = two_engines({"budget": 300}, {"extra": {"overlap_share": 0.001}})
    earlier = earlier_answer(prefill, decode)
    first, second = (Pair(prefill, decode, prompt(900, seed), earlier) for seed in (1, 2))
    first.reach(0)
    decode.step()
    assert second.request.status is Status.WAITING and second.request.request_id not in decode.loads
    first.run(lambda: second.lent.finished and second.is_over)
    assert first.is_over and not decode.failed
    end_alike(prefill, decode)
    assert not decode.figures.data["failures"] and len(decode.figures.data["bytes"]) == 3


@pytest.mark.parametrize("name", [None, 7, "", "zz" * 16, "00" * 15])
def test_what_is_no_name_is_none(engine, name):
    prefill = engine("prefill")
    lent = prefill.add(TOKENS, FOR_DECODE | {"transload_overlap": name})
    prefill.run(lambda: lent.request_id in prefill.answers)
    assert prefill.answers[lent.request_id].keys() == {"do_remote_prefill", "do_remote_decode", "transload_ticket"}
    assert not prefill.workers[0]._worker._ahead


class Scripted:
    """Transfers that end as a test says."""

    def __init__(self):
        self.begun, self.under_way = [], {}

    def pull(self, part, seconds):
        assert (part.start, part.end) not in self.under_way
        self.begun.append((part.start, part.end))
        transfer = SimpleNamespace(ended=Future())
        transfer.cancel = lambda: transfer.ended.done() or transfer.ended.set_exception(failure("cancelled"))
        self.under_way[part.start, part.end] = transfer
        return transfer

    def end(self, start, end, kind=None):
        ended = self.under_way.pop((start, end)).ended
        if kind is None:
            ended.set_result({"bytes": end - start, "queued": 0.1, "routes": [start]})
        else:
            ended.set_exception(failure(kind))


def failure(kind):
    error = transload.TransferError(kind)
    error.kind, error.is_misfit = kind, False
    return error


# Each row: a part that ends, how it ends (None is well), and the parts that are asked for then. Last, the kind of error.
SCRIPTS = {
    "all is well": ([(0, 4, None, [(8, 12)]), (4, 8, None, []), (8, 12, None, [(12, 15)]), (12, 15, None, [])], None),
    "not computed yet": ([(0, 4, "unknown", [(0, 4)]), (4, 8, "unknown", []), (0, 4, None, [(4, 8), (8, 12)])], ...),
    "a piece fails": ([(0, 4, None, [(8, 12)]), (4, 8, "failed", [(4, 15)]), (4, 15, None, [])], None),
    "the first one fails": ([(0, 4, "expired", [(0, 15)]), (0, 15, "unknown", [(0, 15)]), (0, 15, None, [])], None),
    "all fails": ([(0, 4, "failed", [(0, 15)]), (0, 15, "content", [])], "content"),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_parts(connector, script):
    from transload.vllm.messages import Part
    from transload.vllm.overlap import Overlapped

    agent, (ends, kind) = Scripted(), SCRIPTS[script]
    parts = [Part(None, b"", start, end) for start, end in [(0, 4), (4, 8), (8, 12), (0, 15)]]
    load = Overlapped(parts[:3], parts[3], 60, agent.pull)
    assert agent.begun == [(0, 4), (4, 8)]
    for start, end, how, asked in ends:
        agent.begun.clear()
        assert not load.done()
        agent.end(start, end, how)
        is_over = load.done()
        assert agent.begun == asked
        agent.under_way = {key: each for key, each in agent.under_way.items() if not each.ended.done()}
    assert is_over == (kind is not ...)
    if kind is None:
        assert load.result(0)["bytes"] == 15 and load.result(0)["routes"][0] == 0
    elif kind is not ...:
        with pytest.raises(transload.TransferError, match=kind):
            load.result(0)


def test_parts_that_are_cancelled(connector):
    from transload.vllm.messages import Part
    from transload.vllm.overlap import Overlapped

    agent = Scripted()
    load = Overlapped([Part(None, b"", 0, 4)], Part(None, b"", 0, 9), 60, agent.pull)
    agent.end(0, 4)
    load.cancel()
    assert load.done() and agent.begun == [(0, 4)]
    with pytest.raises(transload.TransferError, match="cancelled"):
        load.result(0)


@pytest.mark.parametrize("tokens", [0, 1, 256, 257, 900, 4096, 4097, 5000, 131_072])
def test_pieces_are_few_and_end_before_the_prompt(connector, tokens):
    from transload.vllm.overlap import piece_ends

    ends = piece_ends(tokens)
    assert len(ends) < 16 and all(end % 256 == 0 and 0 < end < tokens for end in ends)
    assert tokens <= 256 or tokens - ends[-1] <= ends[0]
