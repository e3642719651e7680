"""vLLM's connector: servers that fall asleep, as vLLM 0.33 tells connectors, and wake up with other memory in place of their caches."""

from concurrent.futures import Future

import pytest
from vllm_stand_in.fixtures import FOR_DECODE, end_alike, fetch, move, prefilled, prompt, refuse
from vllm_stand_in.model import Attention, mamba2

SHAPES = {"one rank": {}, "TP 2": {"tp": 2}, "stages": {"stages": [range(3), range(3, 6)]}}
GROUPS = [Attention(range(0, 6, 2)), mamba2(range(1, 6, 2))]
TOKENS = prompt(100)


def sleep(engine, level=1):
    engine.core.sleep(level)
    engine.core.wake_up()


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_is_moved_after_a_sleep(two_engines, shape):
    prefill, decode = two_engines(shape, {}, GROUPS, model_groups=1)
    params = prefilled(prefill, TOKENS)
    fetch(decode, TOKENS, params)
    for engine in prefill, decode, prefill:
        before = engine.workers[0].get_handshake_metadata()
        sleep(engine)
        after = engine.workers[0].get_handshake_metadata()
        assert after.incarnation > before.incarnation and (after.agent, after.port) == (before.agent, before.port)
        move(prefill, decode, TOKENS)
    decode.figures.reset()
    refuse(decode, TOKENS, params, "restarted")
    end_alike(prefill, decode)


def test_who_asks_a_server_that_is_asleep(two_engines):
    prefill, decode = two_engines({}, {"extra": {"timeout_seconds": 1}})
    params = prefilled(prefill, TOKENS)
    fetch(decode, TOKENS, params)
    prefill.core.sleep()
    decode.figures.reset()
    # vLLM may say it twice.
    prefill.workers[0].unregister_kv_caches()
    refuse(decode, TOKENS, params, "timed_out")
    decode.figures.reset()
    prefill.core.wake_up()
    prefill.workers[0].restore_kv_caches()
    move(prefill, decode, TOKENS)


def test_weights_that_are_thrown_away(two_engines):
    """At level 2 they have to be loaded again, from wherever, and named."""
    prefill, decode = two_engines()
    for engine in prefill, decode:
        sleep(engine, 2)
    request = prefill.add(TOKENS, dict(FOR_DECODE))
    prefill.run()
    assert not prefill.answers[request.request_id]
    for engine in prefill, decode:
        engine.core.set_weight_version("step 2")
    move(prefill, decode, TOKENS)


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_sleep_that_fails(connector, engine, when):
    """When caches are cleared afterwards, weights may have changed."""
    from transload.vllm import engine_calls

    def fail(*_):
        if when == "at once":
            raise RuntimeError("a request is still loaded")
        return Future()

    prefill = engine("prefill")
    with pytest.raises(RuntimeError):
        waiting = engine_calls._announced(fail)(prefill.core)
        assert prefill.reset(), "it still falls asleep"
        waiting.set_exception(RuntimeError("a request is still loaded"))
        waiting.result()
    assert not prefill.reset()
