"""vLLM's connector: a load that may not be is refused, counted and told of, and its request is computed here."""

import time
from dataclasses import replace

import numpy
import pytest
from vllm_stand_in import torch_numpy as torch
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import Wrapped, early_ticket, end_alike, fetch, load, move, prefilled, prompt, refuse
from vllm_stand_in.model import Attention, PackedRows, mamba2

import transload

TOKENS = prompt(100)


@pytest.fixture(params=["pull", "push"])
def mode(request):
    return request.param


def test_a_lease_that_has_expired(two_engines):
    prefill, decode = two_engines({"tp": 2, "extra": {"lease_seconds": 1}}, {"tp": 2})
    params = prefilled(prefill, TOKENS)
    end_alike(prefill)
    # Its blocks are somebody else's.
    prefilled(prefill, prompt(100, seed=1))
    refuse(decode, TOKENS, params, "expired")


def test_a_ticket_that_is_used_up(two_engines):
    prefill, decode = two_engines({"tp": 2}, {"tp": 2})
    params = prefilled(prefill, TOKENS)
    load(decode, TOKENS, params)
    end_alike(prefill, decode)
    decode.figures.reset()
    refuse(decode, TOKENS, params, "consumed")


def test_a_request_that_fails_is_told(two_engines):
    prefill, decode = two_engines({}, {"tp": 2, "policy": "fail"})
    params = prefilled(prefill, TOKENS)
    request, _ = load(decode, prompt(100, seed=1), params)
    assert request.status is vllm.RequestStatus.FINISHED_ERROR
    end_alike(decode)
    load(decode, TOKENS, params)
    end_alike(prefill, decode)


OTHERS = [
    *({"tokens": each} for each in (TOKENS[:-1] + [TOKENS[-1] + 1], [TOKENS[0] + 1] + TOKENS[1:], TOKENS[:-1])),
    *({name: other} for name in ("adapter", "salt") for other in ("b", None)),
    *({"images": each} for each in ([("b", 3, 20)], [("a", 4, 20)], [])),
]


def test_a_ticket_for_other_content(two_engines):
    prefill, decode = two_engines({"tp": 2}, {"tp": 2})
    same = {"tokens": TOKENS, "adapter": "a", "salt": "a", "images": [("a", 3, 20)]}
    params = prefilled(prefill, **same)
    for other in OTHERS:
        decode.figures.reset()
        refuse(decode, params=params, kind="content", **(same | other))
    # For what it is for, it is as good as before.
    more = {name: value for name, value in same.items() if name != "tokens"}
    fetch(decode, TOKENS, params, **more)
    end_alike(prefill, decode)


def test_another_model(two_engines):
    prefill, decode = two_engines({"extra": {"model": "base"}}, {"extra": {"model": "tuned"}})
    refuse(decode, TOKENS, prefilled(prefill, TOKENS), "content")


def test_several_answers_to_one_prompt(two_engines):
    """One of them loads; the others are computed, and fail for nothing."""
    prefill, decode = two_engines()
    params = prefilled(prefill, TOKENS)
    requests = [decode.add(TOKENS, dict(params)) for _ in range(3)]
    decode.run()
    assert [request.request_id in decode.loads for request in requests] == [True, False, False]
    assert not decode.figures.data["failures"]
    end_alike(prefill, decode)


def test_what_is_no_ticket_is_not_kept(two_engines):
    """Requests that want several answers are remembered with their ticket."""
    _, decode = two_engines()
    long = {"do_remote_prefill": True, "transload_ticket": "A" * 1_000_000}
    requests = [decode.add(TOKENS, dict(long), request_id=f"{index}_cmpl-7") for index in range(2)]
    decode.run()
    assert all(request.request_id in decode.failed or request.status.name.startswith("FINISHED") for request in requests)
    assert decode.figures.data["failures"] == {"ticket": 2}
    assert "A" * 5000 not in repr(vars(decode.scheduler._scheduler))
    end_alike(decode)


def test_a_request_for_another_role(two_engines):
    prefill, decode = two_engines()
    request = decode.add(TOKENS, {"do_remote_decode": True})
    decode.run(lambda: request.request_id not in decode.requests)
    assert not decode.answers.get(request.request_id)
    request = prefill.add(TOKENS, prefilled(prefill, TOKENS))
    prefill.run(lambda: request.request_id not in prefill.requests)
    assert request.request_id not in prefill.loads


@pytest.mark.parametrize("params", ["x", ["do_remote_decode"], 1])
def test_parameters_that_are_none(two_engines, params):
    for engine in two_engines():
        request = engine.add(TOKENS)
        request.kv_transfer_params = params
        engine.scheduler.on_new_request(request)
        engine.run()
        end_alike(engine)


def test_a_prompt_that_goes_on(two_engines):
    """A session whose input is streamed is not finished when its first part is prefilled."""
    prefill, _ = two_engines()
    request = prefill.add(TOKENS)
    request.resumable, request.kv_transfer_params = True, dict(do_remote_decode=True)
    prefill.scheduler.on_new_request(request)
    prefill.run()
    assert not prefill.answers.get(request.request_id)


def test_a_ticket_for_fewer_tokens(two_engines):
    prefill, decode = two_engines()
    refuse(decode, TOKENS + [1], prefilled(prefill, TOKENS), "request")


def embeddings(seed):
    return torch.from_numpy(numpy.random.default_rng(seed).random((100, 8), numpy.float32), torch.float32)


@pytest.mark.parametrize("groups", [None, [Attention(range(2)), mamba2(range(2, 4))]])
def test_prompts_of_embeddings(two_engines, groups):
    prefill, decode = two_engines({}, {"tp": 2}, groups, model_groups=1)
    params = prefilled(prefill, [0] * 100, embeddings=embeddings(1))
    refuse(decode, [0] * 100, params, "content", embeddings=embeddings(2))
    fetch(decode, [0] * 100, params, embeddings=embeddings(1))
    end_alike(prefill, decode)


def test_an_image_at_the_end_of_a_prompt(two_engines):
    # The last token of it is left to the decode server.
    groups = [Attention(range(2)), mamba2(range(2, 4))]
    move(*two_engines({}, {"tp": 2}, groups, model_groups=1), TOKENS, images=[("a", 90, 10)])


def garbled(params):
    text = params["transload_ticket"]
    return {
        "forged": text[:-4] + ("AAAA" if text[-4:] != "AAAA" else "BBBB"),
        "cut off": text[:20],
        "no ticket": "hello",
        "empty": "",
        "none": None,
        "a number": 7,
    }


def test_tickets_that_are_none(two_engines):
    prefill, decode = two_engines({}, {"tp": 2})
    params = prefilled(prefill, TOKENS)
    for ticket in garbled(params).values():
        decode.figures.reset()
        refuse(decode, TOKENS, params | {"transload_ticket": ticket}, "ticket")
    decode.figures.reset()
    # What a connector of another kind answers.
    refuse(decode, TOKENS, {"do_remote_prefill": True, "remote_block_ids": [[1, 2]]}, "ticket")


def test_tickets_that_are_none_while_requests_wait_and_go(two_engines, server_certs):
    prefill, decode = two_engines({}, {"blocks": 5}, extra={"lease_seconds": 1})
    params = prefilled(prefill, TOKENS)
    other = decode.add(prompt(90, seed=1), early_ticket(server_certs, params))
    decode.step()
    for ticket in garbled(params).values():
        decode.add(TOKENS, params | {"transload_ticket": ticket})
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        decode.step()
    for request in list(decode.requests.values()):
        decode.abort(request)
    end_alike(decode)
    assert other.status is vllm.RequestStatus.FINISHED_ABORTED


def test_a_prefill_server_that_was_started_again(two_engines, engine):
    prefill, decode = two_engines({}, {"tp": 2})
    params = prefilled(prefill, TOKENS)
    prefill.shutdown()
    again = engine("prefill", port=prefill.port)
    refuse(decode, TOKENS, params, "restarted")
    move(again, decode, TOKENS)


def test_a_prefill_server_that_is_gone(two_engines):
    prefill, decode = two_engines({}, {"tp": 2}, extra={"timeout_seconds": 1})
    params = prefilled(prefill, TOKENS)
    prefill.shutdown()
    request, _ = load(decode, TOKENS, params)
    assert request.request_id in decode.failed
    [(kind, count)] = decode.figures.data["failures"].items()
    assert kind in ("unreachable", "timed_out", "peer_lost") and count == 2
    end_alike(decode)


def test_one_rank_that_fails(two_engines, server_certs, mode):
    prefill, decode = two_engines({"tp": 2}, {"tp": 2}, extra={"timeout_seconds": 1})
    params = prefilled(prefill, TOKENS)
    set = prefill.workers[0]._worker._leases
    [lease] = set.values()
    # Where rank 1 is said to be, there is nobody.
    names = [worker.get_handshake_metadata().agent for worker in prefill.workers]
    ranks = [(names[0], "127.0.0.1", prefill.port), (names[1], "127.0.0.1", decode.port + 7)]
    params = early_ticket(server_certs, params, set=lease.set, ranks=ranks)
    request, _ = load(decode, TOKENS, params)
    assert request.request_id in decode.failed
    # Each rank is pulled from one, and invites all.
    failed = {"pull": 1, "push": 2}[mode]
    assert sum(decode.figures.data["failures"].values()) == failed and len(decode.figures.data["bytes"]) == 2 - failed
    end_alike(decode)


def test_bytes_that_are_two_kinds_of_numbers(two_engines):
    """vLLM keeps 8-bit floats of either kind in tensors of bytes."""

    class Quantized(Attention):
        def spec(self, tp, block_size):
            return replace(super().spec(tp, block_size), kv_quant_mode=vllm.KVQuantMode.FP8_PER_TENSOR)

    groups = [Quantized(range(2), dtype=torch.uint8)]
    prefill, decode = two_engines({"cache_dtype": "fp8"}, {"cache_dtype": "fp8_e5m2"}, groups)
    refuse(decode, TOKENS, prefilled(prefill, TOKENS), "incompatible")
    move(*two_engines({"cache_dtype": "fp8"}, {"cache_dtype": "fp8_e4m3"}, groups), TOKENS)
    prefill, decode = two_engines({"cache_dtype": "fp8_new"}, {"cache_dtype": "fp8"}, groups)
    whole = TOKENS[:96]
    refuse(decode, whole, prefilled(prefill, whole), "incompatible")


def test_rows_that_are_as_long(two_engines):
    """Two formats whose rows have the same bytes are told apart by their names."""
    sides = {"cache_dtype": "int8_per_token_head"}, {"cache_dtype": "fp8_per_token_head"}
    prefill, decode = two_engines(*sides, [PackedRows(range(2))], backend="TRITON_ATTN")
    refuse(decode, TOKENS, prefilled(prefill, TOKENS), "incompatible")


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([Attention(range(4), heads=2)], ["heads", "2", "4"]),
        ([Attention(range(4), head_dim=64)], ["head_dim", "32", "64"]),
        ([Attention(range(4), dtype=torch.bfloat16)], ["dtype", "f32", "bf16"]),
        ([Attention(range(5))], ["layer", "4"]),
    ],
)
def test_sides_of_two_models(engine, caplog, groups, words):
    prefill, decode = engine("prefill"), engine("decode", groups)
    params = prefilled(prefill, TOKENS)
    refuse(decode, TOKENS, params, "incompatible")
    [message] = [record.getMessage() for record in caplog.records if "was not loaded" in record.getMessage()]
    assert "(incompatible)" in message
    missing = [word for word in words if word not in message]
    assert not missing, message
    # Both agents log it, on threads of their own.
    end, told = time.monotonic() + 10, []
    while len(told) < 2 and time.monotonic() < end:
        time.sleep(0.01)
        logged = [record.getMessage() for record in caplog.records]
        told = [[line for line in logged if f"something else agent={of}-0" in line] for of in ("prefill", "decode")]
        told = [lines[0] for lines in told if lines]
    assert len(told) == 2 and all(word in line for word in words for line in told), logged


def give_up_one_that_waits(prefill, decode):
    """Has a request aborted while it waits for blocks, and with it who has them."""
    params = prefilled(prefill, TOKENS)
    other = decode.add(prompt(250, seed=8), max_tokens=10**6)
    decode.run(lambda: other.status is vllm.RequestStatus.RUNNING)
    waits = decode.add(TOKENS, dict(params))
    decode.step()
    assert waits.status is vllm.RequestStatus.WAITING
    decode.abort(waits)
    decode.abort(other)


def test_sides_that_never_fit_are_told_once(engine, caplog, mode):
    """Each request is computed here, and its blocks there are given back at once, whatever their lease."""
    caplog.set_level("DEBUG")
    prefill = engine("prefill", [Attention(range(4), dtype=torch.bfloat16)], tp=2)
    decode = engine("decode", tp=2, blocks=12, extra={"mode": mode})

    def lines(text, level="WARNING"):
        return [each.getMessage() for each in caplog.records if each.levelname == level and text in each.getMessage()]

    for seed in range(3):
        decode.figures.reset()
        tokens = prompt(100, seed)
        refuse(decode, tokens, prefilled(prefill, tokens), "incompatible")
        # Leases last 60 s.
        end_alike(prefill, decode)
        # Each rank of either side says so once.
        assert len(lines("was not loaded")) == 2, lines("was not loaded")
        assert all("nor will others be from there, until either server is started otherwise" in line for line in lines("was not loaded"))
        assert not lines("was not loaded", "ERROR")
        assert len(lines("was not loaded", "DEBUG")) == 2 * seed
    told = len(lines("something else"))
    assert told
    give_up_one_that_waits(prefill, decode)
    end_alike(decode, prefill)
    assert prefill.figures.data["leases"] == {"cancelled": 8}
    assert not lines("ended before its ticket went out")
    assert len(lines("something else")) == told
    # It is another server when it is started otherwise.
    prefill.shutdown()
    move(engine("prefill", tp=2, port=prefill.port), decode, TOKENS)


def test_servers_of_another_protocol_are_not_dialled_again(engine, caplog, monkeypatch):
    """No agent of this server can tell them anything, be it one without memory."""
    caplog.set_level("DEBUG")
    prefill, decode = engine("prefill", extra={"lease_seconds": 1}), engine("decode", blocks=12)
    [worker] = [each._worker for each in decode.workers]
    dialled = []

    class OfAnotherVersion(Wrapped):
        """Stands for an agent whose peers run another release: one process can load one release only."""

        def pull(self, *_, **__):
            dialled.append("pull")
            error = transload.TransferError("protocol versions (1, 2) here, (3, 3) there")
            error.kind, error.is_misfit = "version", True
            raise error

        def cancel(self, _):
            dialled.append("cancel")
            raise transload.AgentError("it was dialled")

        renew = cancel

    monkeypatch.setattr(worker, "_agent", OfAnotherVersion(worker._agent))
    for seed in range(3):
        decode.figures.reset()
        tokens = prompt(100, seed)
        refuse(decode, tokens, prefilled(prefill, tokens), "version")
    # To nobody.
    give_up_one_that_waits(prefill, decode)
    end_alike(decode, prefill)
    assert dialled == ["pull"] and worker._misfits._agent is None
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING" and "was not loaded" in each.getMessage()]
    assert "(version)" in line and "nor will others be from there" in line
    assert prefill.figures.data["leases"] == {"expired": 4}
    # One that is started again may be of this version, whatever it caches.
    monkeypatch.undo()
    prefill.shutdown()
    move(engine("prefill", port=prefill.port), decode, TOKENS)


def test_a_refusal_leaves_what_is_cached_as_it_is(two_engines, monkeypatch):
    monkeypatch.setattr(vllm.KVCacheConfig, "needs_kv_cache_zeroing", True)
    prefill, decode = two_engines({}, {"tp": 2, "prefix_caching": True})
    move(prefill, decode, prompt(100))
    for number, ticket in enumerate((None, "none", "")):
        tokens = prompt(100) + prompt(50, seed=number + 1)
        request, before = load(decode, tokens, prefilled(prefill, tokens) | {"transload_ticket": ticket})
        assert request.request_id in decode.failed
        assert decode.loads[request.request_id][0] == 96
        for cache, old in zip(decode.caches, before):
            assert all((new == was).all() for new, was in zip(cache.bytes(), old))
        decode.run()
    tokens = prompt(100) + prompt(50, seed=9)
    fetch(decode, tokens, prefilled(prefill, tokens))
