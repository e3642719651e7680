"""vLLM's connector: layers that draft tokens, which one of two servers may have alone."""

from types import SimpleNamespace

import pytest
from vllm_stand_in.fixtures import end_alike, fetch, move, prefilled, prompt, refuse
from vllm_stand_in.model import Attention, mamba2

MODEL = [Attention(range(4))]
HYBRID = [Attention(range(0, 6, 2)), Attention(range(1, 6, 2), window=40)]
BEHIND = Attention(range(6, 8), heads=2, draft=True)
"""Numbered behind the layers of the model; otherwise the same for vLLM, or with heads of its own."""
NAMED = Attention(range(1), heads=2, draft=True, prefix="draft_model.model.layers")
STATE = [Attention(range(2, 4)), mamba2(range(2))]
SIDES = {
    "alike": (MODEL, BEHIND, {}, {}),
    "a model of its own": (MODEL, NAMED, {"tp": 2}, {"block_size": 64}),
    "in common blocks": (MODEL, BEHIND, {"uniform": True}, {"tp": 2, "uniform": True, "block_size": 64, "kernel": 32}),
    "beside windows": (HYBRID, BEHIND, {"block_size": 64}, {"order": "BLHSC"}),
    "beside states": (STATE, NAMED, {}, {"tp": 2}),
}


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("have", [(True, True), (True, False), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize("what", SIDES)
def test_either_side_may_have_drafts(engine, caplog, what, have, mode):
    model, drafts, *shapes = SIDES[what]
    groups = [[*model, *([drafts] if has else [])] for has in have]
    shapes = [{"model_groups": 1} | shape for shape in shapes]
    prefill = engine("prefill", groups[0], **shapes[0])
    decode = engine("decode", groups[1], extra={"mode": mode}, **shapes[1])
    for seed in range(2):
        move(prefill, decode, prompt(100, seed), drafts=have[0])
    wanted = {(False, True): "zeroed", (True, False): "skipped"}.get(have)
    assert decode.figures.data["drafts"] == ({wanted: 2 * decode.ranks} if wanted else {})
    told = [each.getMessage() for each in caplog.records if "drafts (draft-" in each.getMessage()]
    assert len(told) == (wanted is not None), "it is said once"
    assert decode.figures.reduce().get(f"Drafts {wanted}") == (2 * decode.ranks if wanted else None)


def test_drafts_that_are_cached_here_stay(engine):
    """Only blocks that are loaded are zeroed."""
    decode = engine("decode", [*MODEL, BEHIND], prefix_caching=True)
    for server, drafts in (engine("prefill", [*MODEL, BEHIND]), True), (engine("prefill", MODEL), False):
        tokens = prompt(100) if drafts else prompt(64) + prompt(70, seed=2)
        fetch(decode, tokens, prefilled(server, tokens), drafts=drafts)
        end_alike(server, decode)


@pytest.mark.parametrize("stages", [[range(3), range(3, 8)], [range(1), range(1, 8)]], ids=str)
@pytest.mark.parametrize("have", [(True, True), (True, False), (False, True)], ids=str)
def test_stages(engine, have, stages):
    """The last one has the drafts."""
    sides = [[*HYBRID, BEHIND] if has else HYBRID for has in have]
    for shapes in ({"stages": stages}, {"tp": 2}), ({}, {"stages": stages}):
        prefill, decode = engine("prefill", sides[0], **shapes[0]), engine("decode", sides[1], **shapes[1])
        params = prefilled(prefill, prompt(100))
        # Stages before the last are told of the end of a step with the next one.
        prefill.step()
        fetch(decode, prompt(100), params, drafts=have[0])
        end_alike(prefill, decode)


def test_drafts_that_differ_are_refused(engine, caplog):
    prefill = engine("prefill", [*MODEL, BEHIND])
    decode = engine("decode", [*MODEL, Attention(range(6, 8), heads=2, head_dim=64, draft=True)])
    refuse(decode, prompt(100), prefilled(prefill, prompt(100)), "incompatible")
    assert any('group "draft-attention": spec[0].head_dim' in each.getMessage() for each in caplog.records)


def test_states_with_room_for_drafts_on_one_side(engine, caplog):
    """A convolution keeps the inputs of drafts, too: which of them are there is not known to the other side."""
    prefill = engine("prefill", STATE, model_groups=1)
    decode = engine("decode", [STATE[0], mamba2(range(2), drafts=2), NAMED], model_groups=1)
    refuse(decode, prompt(100), prefilled(prefill, prompt(100)), "incompatible")
    assert any('group "mamba2": spec[0].conv_states' in each.getMessage() for each in caplog.records)


@pytest.mark.parametrize(("prefill", "decode", "kind"), [(0, 3, "content"), (3, 0, "request")])
def test_drafts_that_look_further_ahead_on_one_side(engine, prefill, decode, kind):
    """The two servers do not agree how much of a prompt is prefilled."""
    sides = [engine("prefill", MODEL, lookahead=prefill), engine("decode", MODEL, lookahead=decode)]
    refuse(sides[1], prompt(100), prefilled(sides[0], prompt(100)), kind)


@pytest.mark.parametrize(
    ("names", "marked", "drafts"),
    [
        (["model.layers.0.attn", "model.layers.3.attn"], [], []),
        (["model.layers.3.attn", "model.layers.4.attn"], [], ["model.layers.4.attn"]),
        (["model.layers.0.attn", "mtp.layers.0.attn"], [], ["mtp.layers.0.attn"]),
        (["model.layers.0.attn", "draft_model.model.layers.0.attn"], [], ["draft_model.model.layers.0.attn"]),
        # Falcon-H1 numbers states behind all other layers: where names tell, or vLLM, numbers do not.
        (["model.layers.0.attn", "model.layers.4.mamba", "mtp.layers.0.attn"], [], ["mtp.layers.0.attn"]),
        (["model.layers.0.attn", "model.layers.4.mamba", "model.layers.9.attn"], ["model.layers.9.attn"], ["model.layers.9.attn"]),
    ],
)
def test_layers_that_draft(connector, names, marked, drafts):
    from transload.vllm.drafts import drafting, numbered

    config = SimpleNamespace(
        speculative_config=SimpleNamespace(),
        model_config=SimpleNamespace(get_total_num_hidden_layers=lambda: 4, hf_text_config=SimpleNamespace(model_type="llama")),
        compilation_config=SimpleNamespace(
            static_forward_context={name: SimpleNamespace(is_draft_layer=name in marked) for name in names}
        ),
    )
    assert drafting(config, names) == {*drafts}
    numbers = numbered(config, names, {*drafts})
    assert [numbers[name] for name in drafts] == [4] * len(drafts)
    config.speculative_config = None
    assert drafting(config, names) == set()
