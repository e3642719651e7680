"""vLLM's connector: what clients send as parameters of a transfer, and what they do not learn from logs."""

import io
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import FOR_DECODE, end_alike, load, prefilled, prompt

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


@pytest.fixture(params=["fail", "recompute"])
def both(request, engine):
    """A server of both roles."""
    return engine("decode", role="kv_both", policy=request.param)


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


@pytest.mark.parametrize("value", ["true", 1, [True], {"a": 1}, float("nan")])
@pytest.mark.parametrize("flag", ["do_remote_prefill", "do_remote_decode"])
def test_a_flag_that_is_none(both, flag, value, caplog):
    request = both.add(TOKENS, {flag: value})
    assert f"{request.request_id} has {flag}, which is ignored: it is a {type(value).__name__}" in caplog.text
    both.run()
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED and not both.answers[request.request_id]
    end_alike(both)


def test_both_flags(both):
    """It cannot be prefilled here for another server and there for this one."""
    request = both.add(TOKENS, {"do_remote_prefill": True, "do_remote_decode": True, "transload_ticket": "tl1.A"})
    both.run()
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
