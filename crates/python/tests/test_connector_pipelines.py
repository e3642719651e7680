"""vLLM's connector: pipeline stages, whose ranks have some of the layers each."""

import dataclasses
import itertools
import time

import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import end_alike, fetch, load, move, prefilled, prompt, refuse
from vllm_stand_in.model import Attention, gdn, mamba2

import transload

TOKENS = prompt(100)
SIZES = [Attention(range(0, 6, 2)), Attention(range(1, 6, 2), head_dim=64)]
EVEN, UNEVEN, LAST = [range(3), range(3, 6)], [range(5), range(5, 6)], [range(1), range(1, 2), range(2, 6)]


@pytest.fixture(params=["pull", "push"])
def mode(request):
    return request.param


@pytest.mark.parametrize("tp", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize(("prefill", "decode"), [(EVEN, None), (None, EVEN), (UNEVEN, EVEN), (EVEN, LAST)], ids=str)
def test_any_stages_on_either_side(two_engines, prefill, decode, tp):
    sides = [{"tp": ranks, **({"stages": stages} if stages else {})} for stages, ranks in zip((prefill, decode), tp)]
    sides[1]["block_size"] = 64
    move(*two_engines(*sides, [Attention(range(6))]), TOKENS)


def test_blocks_that_are_moved_whole(two_engines):
    """Their order is not known, so what the stages of one server say of them has to be the same."""
    both = {"backend": "ROCM_ATTN", "block_size": 32, "order": "LBHSC", "model_groups": 1}
    sides = two_engines({"stages": UNEVEN}, {"stages": EVEN}, [Attention(range(6), heads=2)], **both)
    for tokens in (33, 200):
        move(*sides, prompt(tokens))


HYBRIDS = {
    # Each kind on one stage alone, on both, and with one layer on one of them.
    "windows": [Attention(range(0, 6, 2)), Attention(range(1, 6, 2), window=40)],
    "windows of the last stage": [Attention(range(3)), Attention(range(3, 6), window=40)],
    "states": [Attention(range(0, 6, 2)), mamba2(range(1, 6, 2))],
    "states of the first stage": [mamba2(range(3)), Attention(range(3, 6))],
    "two sizes of heads": [Attention(range(0, 6, 3)), Attention([1, 2, 4, 5], head_dim=64)],
    "states of another kind": [Attention([5]), gdn(range(5))],
    "states named behind all other layers": [Attention(range(6)), mamba2(range(6), behind=6)],
}


@pytest.mark.parametrize("groups", HYBRIDS.values(), ids=HYBRIDS)
@pytest.mark.parametrize("stages", [EVEN, UNEVEN, LAST], ids=str)
def test_hybrid_models(two_engines, groups, stages):
    prefill, decode = two_engines({"stages": stages}, {"stages": EVEN}, groups, model_groups=1)
    for seed in range(2):
        move(prefill, decode, prompt(100, seed))
    alone = two_engines({}, {"stages": stages, "tp": 2}, groups, model_groups=1)
    move(*alone, TOKENS)


@pytest.mark.parametrize("order", ["LBHSC", "LBSHC", "BLHSC", "BLSHC"])
@pytest.mark.parametrize("stages", [EVEN, UNEVEN, LAST], ids=str)
@pytest.mark.parametrize("groups", [[Attention(range(6))], SIZES], ids=["one size", "two sizes"])
def test_orders(two_engines, order, stages, groups):
    """With blocks outermost strides depend on how many layers a stage has, and so does where the second kind of them begins."""
    move(*two_engines({"stages": stages}, {"stages": EVEN}, groups, order=order, uniform=True), TOKENS)


def test_layers_that_have_an_allocation_each(two_engines):
    move(*two_engines({"stages": UNEVEN, "separate": True}, {"stages": EVEN}, [Attention(range(6))]), TOKENS)


def test_ranks_have_ports_and_names_by_stage(engine):
    prefill = engine("prefill", [Attention(range(6))], tp=2, stages=EVEN)
    addresses = [worker.get_handshake_metadata() for worker in prefill.workers]
    server = transload.default_instance(prefill.port)
    assert [each.port - prefill.port for each in addresses] == [0, 1, 2, 3]
    assert [each.agent.partition("/")[2] for each in addresses] == [f"{server}-{rank}" for rank in range(4)]
    assert len({(each.deployment, each.incarnation) for each in addresses}) == 1


def test_one_stage_has_as_many_layers_as_another_engine_has(two_engines):
    """What is described does not depend on which layers a rank has."""
    prefill, decode = two_engines({"stages": UNEVEN}, {}, HYBRIDS["windows"])
    described = [transload.Deployment(each.workers[0].get_handshake_metadata().document) for each in (prefill, decode)]
    names = [[(group.name, list(group.layers)) for group in each.groups] for each in described]
    assert names[0] == names[1]
    assert (described[0].pp, described[1].pp) == (2, 1)


@pytest.mark.parametrize("groups", [[Attention(range(6))], HYBRIDS["states"]])
def test_drafts(two_engines, groups):
    """Only the last stage hears when a step is submitted. The others lend when the next one begins."""
    prefill, decode = two_engines({"stages": LAST, "drafts": True}, {"stages": EVEN, "drafts": True}, groups, model_groups=1)
    for seed in range(3):
        params = prefilled(prefill, prompt(100, seed))
        # vLLM goes on at once: workers have to hear that the ticket went out.
        prefill.step()
        fetch(decode, prompt(100, seed), params)
        end_alike(prefill, decode)


def test_a_prompt_in_parts(two_engines):
    prefill, decode = two_engines({"stages": EVEN, "budget": 32}, {"stages": UNEVEN}, [Attention(range(6))])
    move(prefill, decode, TOKENS)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_fails(two_engines, stage):
    """Its request is computed, on all stages."""
    prefill, decode = two_engines({"stages": EVEN}, {"stages": EVEN}, [Attention(range(6))], extra={"timeout_seconds": 1})
    params = prefilled(prefill, TOKENS)
    decode.workers[stage]._worker._agent.shutdown(0)
    request, _ = load(decode, TOKENS, params)
    assert request.request_id in decode.failed and sum(decode.figures.data["failures"].values()) >= 1
    decode.run()
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED
    assert decode.manager.free_blocks == decode.all_blocks


def changed(change):
    """Has what the last stage says of itself changed before the others hear it."""

    def gather(group, found, own, gather=vllm.Group.gather):
        gather(group, found, own if group.rank_in_group == 0 else change(own))

    return gather


def moved_by(count, name=None):
    def change(parts):
        [part] = parts
        location = part.location | ({name: part.location[name] + count} if name else {})
        layers = part.layers if name else tuple(layer + count for layer in part.layers)
        return [dataclasses.replace(part, layers=layers, location=location)]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (moved_by(1, "num_blocks"), r"stage 1 has num_blocks 65 for its layers \(3, 4, 5\), and another has 64"),
        (moved_by(64, "offset"), "layer 3 of group 'attention' does not lie as it was described: .*'offset': 64"),
        (moved_by(-1), "stage 1 caches layer 2, and a stage before it layer 2"),
    ],
)
def test_stages_that_disagree(engine, monkeypatch, change, message):
    monkeypatch.setattr(vllm.Group, "gather", changed(change))
    with pytest.raises((NotImplementedError, transload.DocumentError), match=message):
        engine("prefill", [Attention(range(6))], stages=EVEN)


def test_a_layer_that_no_stage_tells_of(two_engines, monkeypatch):
    """Servers of the model find that it is missing."""
    monkeypatch.setattr(vllm.Group, "gather", changed(lambda parts: [dataclasses.replace(parts[0], layers=parts[0].layers[:-1])]))
    prefill, decode = two_engines({"stages": EVEN}, {}, [Attention(range(6))])
    refuse(decode, TOKENS, prefilled(prefill, TOKENS), "incompatible")


def test_a_prefix_is_saved_when_every_stage_has_saved(engine, tmp_path, monkeypatch):
    from transload.vllm import saved_worker

    extra = {"store": f"file://{tmp_path}/kv", "store_weights": "r1", "store_wait_seconds": 20}
    groups, tokens = [Attention(range(6))], prompt(600)
    first = engine("prefill", groups, stages=UNEVEN, blocks=64, extra=extra)
    save, held = saved_worker.SavedWorker._save, []

    def late(half, *arguments):
        while half._rank == 1 and not held:
            time.sleep(0.01)
        return save(half, *arguments)

    monkeypatch.setattr(saved_worker.SavedWorker, "_save", late)
    request = first.add(tokens)
    first.run(lambda: request.finished)
    for _ in range(20):
        first.step()
    other = engine("decode", groups, extra=extra)
    request = other.add(tokens)
    other.run()
    assert request.request_id not in other.loads
    held.append(True)
    first.run()
    assert first.figures.data["store_tokens"] == {"saved": 512}
    for tp, stages in itertools.product((1, 2), (EVEN, UNEVEN, [range(6)])):
        other = engine("decode", groups, tp=tp, stages=stages, extra=extra)
        request = other.add(tokens)
        other.run()
        assert other.loads[request.request_id][:2] == (0, 512)
        assert other.figures.data["store_tokens"]["loaded"] == 512


@pytest.mark.parametrize("stages", [1, 2])
def test_steps_between_those_of_a_request_do_not_wait(engine, monkeypatch, stages):
    """With stages vLLM makes a step that computes nothing between two of one request."""
    from transload.vllm import worker

    prefill = engine("prefill", [Attention(range(6))], **({"stages": EVEN} if stages == 2 else {}))
    prefilled(prefill, TOKENS)
    prefill.step()
    waited = []
    monkeypatch.setattr(worker.Worker, "_wait_a_moment", lambda half: waited.append(half))
    other = prefill.add(prompt(20), max_tokens=1)
    prefill.step()
    assert other.finished and not waited
    prefill.step()
    assert bool(waited) == (stages == 1)
    prefill.step()
    assert waited
