"""vLLM's connector: what clients send as parameters of a transfer, and what they do not learn from logs."""

import io
import logging
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import FOR_DECODE, end_alike, fetch, load, move, prefilled, prompt, refuse

import transload

TOKENS = prompt(40)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**400])
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(["\ud800", "tl1.", "tl1.\udfff", "tl1.AAAA", "tl1." + "A" * 5000, "A" * 1_000_000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3),
    max_leaves=5,
)
"""What a JSON parser of Python returns: also NaN, numbers of any size, and halves of surrogate pairs."""


SHAPES = {
    "one engine": {},
    "stages": {"stages": [range(2), range(2, 4)]},
    "engines": {"parallel": {"data_parallel_size": 2, "data_parallel_index": 1, "data_parallel_rank_local": 1}},
}


@pytest.fixture
def shape():
    return {}


@pytest.fixture(params=["fail", "recompute"])
def both(request, engine, shape):
    """A server of both roles."""
    return engine("decode", role="kv_both", policy=request.param, **shape)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_parameters_that_are_anything(both):
    """Whatever they are, their own request ends, and another one does not notice. What makes a ticket is left out."""
    parameters = st.fixed_dictionaries(
        {},
        optional={
            "do_remote_prefill": JSON | st.just(True),
            "do_remote_decode": JSON.filter(lambda value: value is not True),
            "transload_ticket": JSON,
            "remote_block_ids": JSON,
        },
    )

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(JSON | parameters)
    def check(params):
        mine, other = both.add(TOKENS, params), both.add(TOKENS)
        both.run()
        assert mine.finished and other.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED
        assert both.manager.free_blocks == both.all_blocks
        assert not both.answers[mine.request_id]
        # vLLM asks them for a flag.
        assert not mine.kv_transfer_params or not mine.kv_transfer_params.get("do_remote_prefill")

    check()
    end_alike(both)
    assert set(both.figures.data["failures"]) <= {"ticket"}


FLAGS = "do_remote_prefill", "do_remote_decode"


@pytest.mark.parametrize(
    ("params", "flag", "why"),
    [
        *(({flag: value}, flag, f"it is a {type(value).__name__}") for flag in FLAGS for value in ("true", 1, [True], {"a": 1}, float("nan"))),
        # It cannot be prefilled here for another server and there for this one.
        *((dict.fromkeys(FLAGS, True) | {"transload_ticket": "tl1.A"}, flag, "a request has one of the two") for flag in FLAGS),
    ],
)
def test_flags_that_are_ignored(both, params, flag, why, caplog):
    request = both.add(TOKENS, dict(params))
    both.run()
    assert f"{request.request_id} has {flag}, which is ignored: {why}" in caplog.text
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED and not both.answers[request.request_id]
    assert not both.figures.data["failures"]
    end_alike(both)


def written(message, *arguments):
    """What vLLM writes to its log."""
    stream = io.StringIO()
    logger, handler = logging.getLogger("vllm.entrypoints.request_logger"), logging.StreamHandler(stream)
    logger.addHandler(handler)
    logger.error(message, *arguments)
    logger.removeHandler(handler)
    return stream.getvalue()


def test_tickets_are_not_logged(two_engines):
    prefill, decode = two_engines()
    params = prefilled(prefill, TOKENS)
    ticket = params["transload_ticket"]
    # As vLLM logs requests; and steps, when its engine dies.
    for line in (
        written("Received request %s: params: %s", "a", f"SamplingParams(extra_args={params})"),
        written(str(params)[:-20]),
        written("tl1.%s" % ticket[4:]),
    ):
        assert ticket[:20] not in line and ticket[-20:-15] not in line
        assert "ticket#" in line
    assert written("100 %s", "tokens") == "100 tokens\n"
    request = decode.add(TOKENS, dict(params))
    decode.step()
    assert request.status is vllm.RequestStatus.WAITING_FOR_REMOTE_KVS
    decode.run()
    end_alike(prefill, decode)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_steps_show_no_tickets(two_engines, mode):
    """vLLM logs what the scheduler tells the workers, when its engine dies."""
    prefill, decode = two_engines()
    params, steps = prefilled(prefill, TOKENS), []
    build = decode.scheduler.build_connector_meta
    decode.scheduler.build_connector_meta = lambda scheduled: steps.append(build(scheduled)) or steps[-1]
    load(decode, TOKENS, params)
    end_alike(prefill, decode)
    [step] = [step for step in steps if step.load]
    [moved] = step.load.values()
    assert "ticket#" in repr(vars(moved)) and "tl1." not in repr(vars(moved)) + repr(vars(step))


def test_who_prefills_for_nobody_holds_half_of_the_cache(two_engines):
    """Beyond it the oldest tickets are taken back: their blocks are used again, and loads with them fail. But one prompt may
    hold more."""
    prefill, decode = two_engines({"blocks": 64}, {"blocks": 64})
    move(prefill, decode, prompt(1500))
    for engine in prefill, decode:
        engine.figures.reset()
    prompts = [prompt(300, seed) for seed in range(8)]
    # 10 blocks each, of 63.
    tickets = [prefilled(prefill, tokens) for tokens in prompts]
    prefill.run(lambda: prefill.figures.data["leases"].get("reclaimed") == 5)
    assert prefill.all_blocks - prefill.manager.free_blocks == 3 * 10
    refuse(decode, prompts[0], tickets[0], "cancelled")
    for tokens, ticket in list(zip(prompts, tickets))[5:]:
        fetch(decode, tokens, ticket)
    end_alike(prefill, decode)
    assert prefill.figures.data["leases"] == {"reclaimed": 5, "completed": 3}


def test_who_waits_at_a_decode_server_keeps_its_blocks(two_engines, caplog):
    """It has renewed its ticket as soon as it came."""
    prefill, decode = two_engines({"blocks": 64}, {"blocks": 32})
    first, params = prompt(300), prefilled(prefill, prompt(300))
    # Nothing is left for another.
    other = decode.add(prompt(900, 9), max_tokens=10**6)
    decode.run(lambda: other.status is vllm.RequestStatus.RUNNING)
    waits = decode.add(first, dict(params))
    decode.step()
    assert waits.status is vllm.RequestStatus.WAITING
    prefill.run(lambda: not prefill.scheduler._scheduler._unclaimed)
    for seed in range(1, 6):
        prefilled(prefill, prompt(300, seed))
    prefill.run(lambda: prefill.figures.data["leases"].get("reclaimed") == 2)
    decode.abort(other)
    decode.run(lambda: waits.request_id in decode.received or waits.request_id not in decode.requests)
    assert not decode.figures.data["failures"]


def test_both_ends_say_why_in_a_line(two_engines, caplog):
    caplog.set_level("DEBUG")
    prefill, decode = two_engines({"extra": {"lease_seconds": 1}})
    first = prefill.add(TOKENS, dict(FOR_DECODE))
    prefill.run(lambda: first.request_id in prefill.answers)
    params = prefill.answers[first.request_id]
    end_alike(prefill)
    request, _ = load(decode, TOKENS, params)
    ticket = repr(transload.Ticket(params["transload_ticket"]))
    lines = [record.getMessage() for record in caplog.records if ticket in record.getMessage()]
    assert lines[0] == f"request {first.request_id} was prefilled, and not fetched with {ticket} (expired)"
    assert lines[1].startswith(f"request {request.request_id} was not loaded with {ticket} (expired): ")
    assert len(lines) == 2
    end_alike(decode)


def test_a_vllm_without_connectors_starts(connector, monkeypatch, caplog):
    """It calls the entry points of all that is installed, and an exception of one would end it."""
    from transload._vllm_plugin import register

    monkeypatch.setitem(sys.modules, "vllm.distributed.kv_transfer.kv_connector.factory", None)
    register()
    assert "TransloadConnector is not registered" in caplog.text
