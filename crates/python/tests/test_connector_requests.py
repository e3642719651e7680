"""vLLM's connector: how requests come, wait, are interrupted and end. No block is lost, and none is freed too early."""

import threading
import time

import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import FOR_DECODE, Wrapped, assert_loaded, early_ticket, end_alike, fetch, load, move, prefilled, prompt
from vllm_stand_in.model import Attention, mamba2

import transload

TOKENS = prompt(100)
Status = vllm.RequestStatus


@pytest.fixture(params=["pull", "push"])
def mode(request):
    return request.param


def test_what_is_cached_at_decode_is_not_loaded(two_engines):
    prefill, decode = two_engines({"tp": 2}, {"block_size": 16}, prefix_caching=True)
    move(prefill, decode, TOKENS)
    other = TOKENS[:70] + prompt(60, seed=1)
    request = move(prefill, decode, other)
    assert decode.loads[request.request_id][:2] == (64, 130)
    # The very same prompt: but for its last block, which is never taken from the cache.
    request = move(prefill, decode, other[:128])
    assert decode.loads[request.request_id][:2] == (112, 128)


def test_a_prefill_server_serves_both_modes(engine):
    prefill = engine("prefill", extra={"mode": "push"})
    for mode in "pull", "push", "pull":
        decode = engine("decode", tp=2, extra={"mode": mode})
        move(prefill, decode, TOKENS)
        decode.shutdown()


@pytest.mark.parametrize("why", ["cached", "prompt logprobs"])
def test_a_ticket_that_is_not_needed_is_given_up(two_engines, why):
    # With drafts two tokens ahead, all that the prefill server computes may be cached here.
    prefill, decode = two_engines({"tp": 2}, {"tp": 2}, prefix_caching=True, lookahead=2)
    tokens = prompt(97)
    decode.add(tokens)
    decode.run()
    params = prefilled(prefill, tokens)
    assert prefill.manager.free_blocks < prefill.all_blocks
    request = decode.add(tokens, params, logprobs=why != "cached")
    decode.run()
    assert request.status is Status.FINISHED_LENGTH_CAPPED and request.request_id not in decode.loads
    end_alike(prefill, decode)
    assert prefill.figures.data["leases"] == {"cancelled": 2}


def test_an_engine_rests_while_nobody_claims_its_ticket(engine):
    prefill = engine("prefill", tp=2, extra={"lease_seconds": 1})
    prefilled(prefill, TOKENS)
    begun, steps = time.monotonic(), 0
    while prefill.requests:
        prefill.core._process_input_queue()
        prefill.step()
        steps += 1
    # As many as there are pauses in that time, and those around them that have nothing to wait for.
    assert steps <= (time.monotonic() - begun) / 0.1 + 10
    assert prefill.figures.data["leases"] == {"expired": 2}
    end_alike(prefill)


def test_a_call_ends_the_rest_at_once(engine, monkeypatch):
    """And an engine does not rest while it has something else to do."""
    prefill = engine("prefill", extra={"lease_seconds": 60})
    resting = rest(prefill, monkeypatch)
    prefill.core.input_queue.put(lambda: prefill.add(prompt(40)))
    resting.join(20)
    assert not resting.is_alive()
    prefill.step()
    prefill.core._process_input_queue()
    assert prefill.waiting
    prefill.core._process_input_queue()
    prefill.step()
    prefill.reset()
    prefill.core._process_input_queue()
    end_alike(prefill)


def test_calls_find_blocks_free_that_were_given_back_during_a_rest(two_engines, monkeypatch):
    prefill, decode = two_engines({"extra": {"reset_keeps_weights": True}}, {})
    resting = rest(prefill, monkeypatch)
    load(decode, TOKENS, next(iter(prefill.answers.values())))
    while not all(lease.ended.done() for lease in prefill.workers[0]._worker._leases.values()):
        time.sleep(0.01)
    answers = []
    prefill.core.input_queue.put(lambda: answers.append(prefill.reset()))
    resting.join(20)
    assert not resting.is_alive() and not answers
    prefill.step()
    prefill.core.input_queue.put(lambda: prefill.add(prompt(40)))
    prefill.core._process_input_queue()
    assert answers == [True]
    end_alike(prefill, decode)


def rest(prefill, monkeypatch):
    """A thread in which a prefill server rests, since all that it does is to hold blocks of a prompt."""
    from transload.vllm import engine_calls

    monkeypatch.setattr(engine_calls, "REST_SECONDS", 3600)
    prefilled(prefill, TOKENS)
    # Its workers have to hear of the ticket first, and vLLM of the request's end.
    while prefill.scheduler._scheduler._step.handed_over or prefill.finished_req_ids:
        prefill.core._process_input_queue()
        prefill.step()
    resting = threading.Thread(target=prefill.core._process_input_queue, daemon=True)
    resting.start()
    return resting


def stop_agents(engine):
    """As where their drivers have panicked: every call of theirs raises an AgentError from here on."""
    for worker in engine.workers:
        worker._worker._agent.shutdown(0)


def test_an_agent_that_has_stopped_fails_loads_and_ends_no_engine(two_engines):
    prefill, decode = two_engines({"tp": 2}, {"block_size": 16})
    params = prefilled(prefill, TOKENS)
    stop_agents(decode)
    request = decode.add(TOKENS, params)
    decode.run()
    assert request.status is Status.FINISHED_LENGTH_CAPPED and decode.figures.data["failures"] == {"other": 1}
    assert decode.manager.free_blocks == decode.all_blocks


def test_an_agent_that_has_stopped_lends_nothing_and_ends_no_engine(engine):
    prefill = engine("prefill", tp=2)
    prefilled(prefill, TOKENS)
    stop_agents(prefill)
    prefilled(prefill, prompt(80, seed=2))
    prefill.run()
    assert prefill.figures.data["leases"] == {"cancelled": 2, "failed": 2}
    assert prefill.manager.free_blocks == prefill.all_blocks


def test_many_at_a_time(two_engines):
    prefill, decode = two_engines({"tp": 2}, {"block_size": 16}, blocks=200)
    prompts = [prompt(10 + 17 * number, seed=number) for number in range(12)]
    asked = [prefill.add(tokens, dict(FOR_DECODE)) for tokens in prompts]
    prefill.run(lambda: len(prefill.answers) == len(prompts))
    requests = [decode.add(each.all_token_ids[: each.num_prompt_tokens], prefill.answers[each.request_id], max_tokens=5) for each in asked]
    decode.run()
    assert {request.status for request in requests} == {Status.FINISHED_LENGTH_CAPPED}
    assert not decode.figures.data["failures"] and len(decode.figures.data["bytes"]) == 12
    end_alike(prefill, decode)


def test_prompts_in_chunks(two_engines):
    move(*two_engines({"budget": 24, "tp": 2}, {"budget": 40}), TOKENS)


def prefilling(prefill, steps):
    """A request for another server, some steps later; it goes on behind its prompt, as one whose answer is still under way."""
    request = prefill.add(TOKENS, dict(FOR_DECODE))
    request.max_tokens = 4
    for _ in range(steps):
        prefill.step()
    return request


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_prefill_that_is_preempted_is_lent_again(two_engines, steps):
    # Two steps for the prompt. All blocks are needed, and are taken again in another order.
    prefill, decode = two_engines({"budget": 60, "blocks": 5}, {})
    request = prefilling(prefill, steps)
    first = prefill.manager.get_block_ids(request.request_id)
    prefill.preempt(request)
    prefill.run(lambda: request.request_id in prefill.answers)
    assert prefill.manager.get_block_ids(request.request_id) != first
    fetch(decode, TOKENS, prefill.answers[request.request_id])
    end_alike(prefill, decode)
    assert prefill.figures.data["leases"] == {"completed": 1}


@pytest.mark.parametrize(("steps", "end"), [(0, "abort"), (1, "abort"), (2, "abort"), (3, "abort"), (2, "preempt"), (2, "stop")])
def test_a_prefill_that_ends_otherwise_hands_nothing_over(engine, steps, end):
    prefill = engine("prefill", tp=2, budget=60)
    request = prefilling(prefill, steps)
    if end != "abort":
        prefill.preempt(request)
    if end == "stop":
        # An output that was under way ends it before it is computed again.
        prefill._finish(request, Status.FINISHED_STOPPED)
    else:
        prefill.abort(request)
    assert prefill.answers[request.request_id] is None
    assert prefill.manager.free_blocks == prefill.all_blocks
    end_alike(prefill)


def test_blocks_stay_until_every_rank_is_read(two_engines):
    prefill, decode = two_engines({"tp": 2}, {"tp": 2})
    params = prefilled(prefill, TOKENS)
    held = prefill.all_blocks - prefill.manager.free_blocks
    assert held == 4
    for _ in range(5):
        prefill.step()
    assert prefill.all_blocks - prefill.manager.free_blocks == held
    load(decode, TOKENS, params)
    end_alike(prefill, decode)
    assert prefill.figures.data["leases"] == {"completed": 2}


@pytest.mark.parametrize(("lease", "own"), [(1, 60), (3, 1)])
def test_a_lease_is_renewed_while_its_request_waits(two_engines, server_certs, lease, own):
    """For as long as the prefill server leases; what the decode server would is no matter."""
    # Longer than the test takes, so that an unknown lease is waited for meanwhile.
    patient = {"stall_seconds": 30}
    prefill, decode = two_engines(
        {"tp": 2, "blocks": 5, "extra": {"lease_seconds": lease} | patient},
        {"blocks": 5, "extra": {"lease_seconds": own} | patient},
    )
    params = prefilled(prefill, TOKENS)
    # All blocks but one are somebody else's, who loads for ever.
    other = decode.add(prompt(90, seed=1), early_ticket(server_certs, params))
    decode.step()
    request = decode.add(TOKENS, params)
    end = time.monotonic() + lease + 1.5
    while time.monotonic() < end:
        decode.step()
        time.sleep(0.02)
    assert request.status is Status.WAITING
    before = [cache.bytes() for cache in decode.caches]
    decode.abort(other)
    decode.run(lambda: request.request_id in decode.received)
    assert_loaded(decode, request, before)
    end_alike(prefill, decode)
    assert prefill.figures.data["leases"] == {"completed": 2}


def test_a_request_that_is_aborted_before_it_has_blocks(two_engines):
    prefill, decode = two_engines({"tp": 2}, {"tp": 2, "blocks": 4})
    request = decode.add(TOKENS, prefilled(prefill, TOKENS))
    decode.step()
    assert request.status is Status.WAITING
    decode.abort(request)
    decode.run()
    # Long before the lease would end by itself.
    end_alike(prefill, decode)
    assert prefill.figures.data["leases"] == {"cancelled": 2}


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_request_that_is_aborted_while_it_is_loaded(two_engines, server_certs, steps):
    prefill, decode = two_engines({"tp": 2}, {"tp": 2})
    params = prefilled(prefill, TOKENS)
    # What it waits for never comes.
    request = decode.add(TOKENS, early_ticket(server_certs, params))
    decode.step()
    for _ in range(steps):
        decode.step()
    assert request.status is Status.WAITING_FOR_REMOTE_KVS and not decode.received
    decode.abort(request)
    # Bytes may still arrive.
    assert decode.manager.free_blocks < decode.all_blocks
    end_alike(decode)
    assert decode.figures.data["failures"] == {"cancelled": 2}
    load(decode, TOKENS, params)
    end_alike(prefill, decode)


@pytest.mark.parametrize("end", ["aborted", "preempted"])
def test_a_request_that_ends_or_is_preempted_when_it_is_loaded(two_engines, end):
    prefill, decode = two_engines({}, {"tp": 2})
    request, _ = load(decode, TOKENS, prefilled(prefill, TOKENS), max_tokens=5)
    if end == "aborted":
        decode.abort(request)
    else:
        decode.step()
        decode.step()
        decode.preempt(request)
        decode.run()
        assert request.status is Status.FINISHED_LENGTH_CAPPED
    end_alike(prefill, decode)


def test_requests_that_are_for_this_server_alone(two_engines):
    for side in two_engines([], {"tp": 2}, [Attention(range(2)), mamba2(range(2, 4))], model_groups=1):
        request = side.add(TOKENS, max_tokens=3)
        side.run()
        assert len(request.all_token_ids) == 103 and side.answers[request.request_id] is None
        end_alike(side)


@pytest.mark.parametrize("together", [False, True])
def test_of_several_answers_the_first_loads(two_engines, together):
    prefill, decode = two_engines({}, {"tp": 2})
    params = prefilled(prefill, TOKENS)
    first = decode.add(TOKENS, dict(params), request_id="0_cmpl-7")
    if not together:
        decode.run()
    others = [decode.add(TOKENS, dict(params), request_id=f"{index}_cmpl-7") for index in (1, 2)]
    decode.run()
    assert decode.loads.keys() == {first.request_id}
    assert first.all_token_ids == others[0].all_token_ids == others[1].all_token_ids
    # Whoever else comes with the ticket is refused.
    other, _ = load(decode, TOKENS, params, request_id="1_cmpl-8")
    assert other.request_id in decode.failed and decode.figures.data["failures"] == {"consumed": 2}
    end_alike(prefill, decode)


def test_the_same_prompt_is_lent_twice(two_engines):
    prefill, decode = two_engines({"tp": 2, "prefix_caching": True}, {"tp": 2})
    tickets = [prefilled(prefill, TOKENS) for _ in range(2)]
    # Whole blocks are lent twice, the last one is each one's own.
    assert prefill.all_blocks - prefill.manager.free_blocks == 3 + 2
    for params in tickets:
        fetch(decode, TOKENS, params)
    end_alike(prefill, decode)


class CannotLend(Wrapped):
    """An agent that has no more room for leases."""

    def lease(self, *_, **__):
        raise transload.LeaseError("there are too many")


@pytest.mark.parametrize("lends", [False, True])
def test_what_no_rank_can_lend_is_free_at_once(engine, caplog, lends):
    prefill = engine("prefill", tp=2)
    for rank in prefill.workers[int(lends) :]:
        rank._worker._agent = CannotLend(rank._worker._agent)
    prefilled(prefill, TOKENS)
    prefill.step()
    assert prefill.figures.data["leases"] == {"failed": 1 if lends else 2}
    assert "cannot be lent: there are too many" in caplog.text
    # Where rank 0 has lent its share, the blocks wait for that.
    assert (prefill.manager.free_blocks < prefill.all_blocks) == lends


def test_a_step_that_computes_waits_for_no_load(two_engines, server_certs, monkeypatch):
    prefill, decode = two_engines()
    # It loads for ever.
    other = decode.add(prompt(90, seed=1), early_ticket(server_certs, prefilled(prefill, TOKENS)))
    decode.step()
    waited = []
    monkeypatch.setattr(type(decode.workers[0]._worker), "_wait_a_moment", lambda self: waited.append(self))
    decode.step()
    assert len(waited) == 1
    request = decode.add(prompt(40), max_tokens=3)
    decode.run(lambda: request.status is Status.FINISHED_LENGTH_CAPPED)
    assert len(waited) == 1 and other.status is Status.WAITING_FOR_REMOTE_KVS
    monkeypatch.undo()
    decode.abort(other)
    decode.run()


@pytest.mark.parametrize("tp", [1, 2])
def test_a_ticket_that_returns_to_its_server_is_computed_there(engine, tp):
    """As where a proxy picks one server for both: nothing hangs or fails, and the lease ends."""
    both = engine("prefill", tp=tp, role="kv_both")
    request = both.add(TOKENS, prefilled(both, TOKENS), max_tokens=3)
    both.run()
    assert len(request.all_token_ids) == len(TOKENS) + 3
    end_alike(both)
    assert both.figures.data["leases"] == {"cancelled": tp}
    assert not both.figures.data["failures"] and not both.loads, "nothing was loaded"


def test_giving_up_what_is_gone_does_no_harm(two_engines):
    prefill, decode = two_engines({}, {"blocks": 4})
    request = decode.add(TOKENS, prefilled(prefill, TOKENS))
    prefill.shutdown()
    decode.step()
    decode.abort(request)
    decode.run()
    request = decode.add(prompt(40), max_tokens=20)
    decode.run()
    assert request.status is Status.FINISHED_LENGTH_CAPPED
    end_alike(decode)
