"""Passages behind each other: the rotation, the share that is computed again, the gate, and what is refused."""

import math
import re
import shutil
from pathlib import Path

import pytest
import tiny_models
import torch
from tiny_models import VOCABULARY
from transformers import DynamicCache
from transload.hf.blend import Blend, Prompt
from transload.hf.errors import NotMovable, NotReused
from transload.hf.rotation import Rotation, error

from transload.hf import Reuse

MOVABLE = ["llama", "qwen3", "gemma3_wide", "gpt_oss", "deepseek", "partial", "yarn", "cohere2"]

def draw(seed, *lengths):
    numbers = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (length,), generator=numbers).tolist() for length in lengths]


def make(name, store, *, max_kl=math.inf, **how):
    """A model, and its blends."""
    model = tiny_models.make(name, **how)
    return model, Blend(Reuse(model, store, name=name, weights="of the test"), max_kl=max_kl)


# --- rotation ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, most", [(torch.float64, 1e-15), (torch.float32, 1e-7), (torch.bfloat16, 3e-3)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("by", [1, -700, 100_000])
def test_a_rotation_is_that_of_complex_numbers(dtype, most, interleaved, by):
    frequencies = 10000 ** -(torch.arange(6, dtype=torch.float64) / 6)
    keys = torch.randn(1, 2, 5, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    values = keys + 1
    moved = Rotation(0, 4, frequencies, interleaved)((keys, values), by)
    rotary = keys[..., 4:16].double()
    pairs = rotary.unflatten(-1, (6, 2)) if interleaved else rotary.unflatten(-1, (2, 6)).transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(6).double(), frequencies * by))
    right = keys.double().clone()
    right[..., 4:16] = (turned if interleaved else turned.transpose(-1, -2)).flatten(-2)
    assert error(moved, (right, values)) < most
    assert torch.equal(moved[1], values) and torch.equal(moved[0][..., :4], keys[..., :4])


@pytest.mark.parametrize("name", MOVABLE)
def test_rotated_rows_are_those_of_the_model_at_their_position(name, store):
    model, blend = make(name, store)
    ids = torch.tensor(draw(1, 60))
    found = []
    for first in (0, 900):
        cache = DynamicCache(config=model.config)
        mask = torch.ones(1, 60, dtype=torch.long)
        with torch.no_grad():
            given = {"input_ids": ids, "position_ids": torch.arange(first, first + 60)[None], "attention_mask": mask}
            model(**given, **{blend._decoder.word: cache})
        found.append([(layer.keys, layer.values) for layer in cache.layers])
    for rotate, here, there in zip(blend._rotations, *found):
        assert error(rotate(here, 900), there) < 1e-5
    assert any(error(here, there) > 0.1 for here, there in zip(*found)), "nothing would have turned"


# --- what is computed ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gemma3_wide", "deepseek"])
def test_all_computed_again_is_the_plain_forward_to_the_last_bit(name, attention, dtype, store):
    model = tiny_models.make(name, dtype=dtype)
    model.set_attn_implementation(attention)
    blend = Blend(Reuse(model, store, name=name, weights="of the test"), max_kl=0)
    *passages, question = draw(2, 40, 70, 30, 20)
    ids = torch.tensor([sum(passages, []) + question])
    with torch.no_grad():
        plain = model(input_ids=ids).logits[0, -20:]
    assert torch.equal(blend.logits(Prompt(passages, question), 1.0, "first"), plain)
    answer = blend.generate_passages(passages, question, 1.0, max_new_tokens=8, do_sample=False)
    assert torch.equal(answer.sequences, model.generate(ids, max_new_tokens=8, do_sample=False))
    assert (answer.approximate, answer.share, answer.why) == (False, 1.0, None)


@pytest.mark.parametrize("name", [*MOVABLE, "mistral"])
@pytest.mark.parametrize("select", ["first", "deviation"])
def test_a_share_is_computed_as_token_by_token(name, select, store):
    """One token at a time, each behind the rows of all before it, in the model's own cache and without a mask of ours."""
    kinds = tiny_models.ALL[name][1].get("layer_types")
    model, blend = make(name, store, num_hidden_layers=4, **({"layer_types": kinds * 2} if kinds else {}))
    *passages, question = draw(3, 40, 50, 60, 10)
    prompt = Prompt(passages, question)
    joined = blend._joined(prompt, len(prompt.ids))
    chosen = blend._chosen(joined, prompt, 0.2, select)
    before = [(keys.clone(), values.clone()) for keys, values in joined.rows]
    assert len(chosen) == 30 and chosen.min() >= 40 and (chosen.diff() > 0).all()
    said = []
    for at in [*chosen.tolist(), *range(150, 160)]:
        cache = DynamicCache(config=model.config)
        for index, (keys, values) in enumerate(before):
            cache.update(keys[:, :, :at], values[:, :, :at], index)
        with torch.no_grad():
            said.append(model(input_ids=torch.tensor([[prompt.ids[at]]]), **{blend._decoder.word: cache}).logits[0, -1])
        for layer, rows in zip(cache.layers, before):
            for kept, new in zip(rows, (layer.keys, layer.values)):
                kept[:, :, at] = new[:, :, -1]
    blended = blend.logits(prompt, 0.2, select)
    assert (blended - torch.stack(said[-10:])).abs().max() < 1e-3 * blended.abs().max()


def test_what_is_chosen_deviates_most_and_first_is_the_beginning_of_each(store):
    _, blend = make("llama", store)
    prompt = Prompt(*(lambda *all: (all[:-1], all[-1]))(*draw(4, 20, 40, 60, 5)))
    joined = blend._joined(prompt, 125)
    assert blend._chosen(joined, prompt, 0.25, "first").tolist() == [*range(20, 32), *range(60, 78)]
    assert len(blend._chosen(joined, prompt, 0.0, "deviation")) == 0
    assert blend._chosen(joined, prompt, 0.99, "deviation").tolist() == [*range(20, 120)]
    cache = DynamicCache(config=blend._decoder.config)
    blend._decoder.forward(prompt.ids, cache)
    apart = (cache.layers[1].keys[..., :120, :] - joined.layers[1].keys[..., :120, :]).square().sum(dim=(0, 1, 3))
    assert set(blend._chosen(joined, prompt, 0.25, "deviation").tolist()) == set(apart.topk(30).indices.tolist())


@pytest.mark.parametrize("name", ["llama", "gemma3_wide"])
def test_nothing_is_approximate_where_all_behind_the_first_passage_is_computed(name, store):
    model, blend = make(name, store)
    *passages, question = draw(5, 100, 20, 12)
    blend.verify([(passages, question), (passages[:1], question)], 0.2)
    for given in (passages, passages[:1]):
        answer = blend.generate_passages(given, question, 0.2, max_new_tokens=6, do_sample=False)
        ids = torch.tensor([sum(given, []) + question])
        assert not answer.approximate and answer.share == (len(given) - 1) * 20 / 120 and answer.why is None
        assert torch.equal(answer.sequences, model.generate(ids, max_new_tokens=6, do_sample=False))


@pytest.mark.parametrize("name, lengths", [("llama", (512, 300)), ("deepseek", (512, 300)), ("gemma3_wide", (300, 280))])
def test_passages_are_restored_and_may_be_there_twice(name, lengths, store, monkeypatch):
    model, blend = make(name, store)
    one, two, question = draw(6, *lengths, 1)
    passages = (one, two, one)
    every = sum(passages, []) + question
    measured = blend.verify([(passages, question)], select="first")
    answer = blend.generate_passages(passages, question, select="first", max_new_tokens=4)
    assert answer.approximate and answer.why is None and abs(answer.share - 0.15) < 1e-3
    assert answer.sequences[0, : len(every)].tolist() == every and answer.sequences.shape[1] > len(every)
    again = Blend(Reuse(model, store, name=name, weights="of the test"), max_kl=math.inf)
    forward, computed = again._decoder.forward, []
    count = lambda ids, *rest, **how: computed.append(len(ids)) or forward(ids, *rest, **how)  # noqa: E731
    monkeypatch.setattr(again._decoder, "forward", count)
    assert again.verify([(passages, question)], select="first") == measured
    # What is behind whole chunks, then the blend, and the whole prompt to compare it with.
    rests = [len(each) % 256 for each in passages if len(each) % 256]
    assert computed == [*rests, round(0.15 * (len(every) - 1)) + 1, len(every)] and again._reuse.stats()["saved_tokens"] == 0


@pytest.mark.parametrize("attached", [False, True])
def test_what_a_blend_has_computed_is_not_saved(attached, store):
    model, blend = make("llama", store)
    *passages, question = draw(7, 256, 256, 300)
    if attached:
        blend._reuse.attach()
    blend.verify([(passages, question)])
    answer = blend.generate_passages(passages, question, max_new_tokens=300, min_new_tokens=300)
    assert answer.approximate
    blend._reuse.detach()
    fresh = Reuse(model, store, name="llama", weights="of the test")
    _, restored = fresh.restore(answer.sequences[0].tolist(), fresh.decoder.identity())
    assert restored == 256, "the first passage, and nothing that stands behind it"


def test_a_store_that_fails_is_a_miss(store):
    model, blend = make("llama", store)
    *passages, question = draw(13, 300, 300, 12)
    measured = blend.verify([(passages, question)])
    folder = Path(store.removeprefix("file://"))
    shutil.rmtree(folder)
    folder.write_text("no folder")
    failing = Blend(blend._reuse, max_kl=math.inf)
    assert failing.verify([(passages, question)]).kl == pytest.approx(measured.kl, rel=1e-3)
    assert failing.generate_passages(passages, question, max_new_tokens=2).approximate
    assert failing._reuse.stats()["failures"] > 0


@pytest.mark.parametrize("how", [dict(num_beams=3), dict(do_sample=True, num_return_sequences=3), {}])
def test_beams_and_several_answers(how, store):
    model, blend = make("llama", store)
    *passages, question = draw(8, 100, 20, 12)
    blend.verify([(passages, question)], 0.2)
    torch.manual_seed(0)
    answer = blend.generate_passages(passages, question, 0.2, max_new_tokens=6, **how).sequences
    torch.manual_seed(0)
    ids = torch.tensor([sum(passages, []) + question])
    assert torch.equal(answer, model.generate(ids, max_new_tokens=6, **how))


def test_what_a_lossy_codec_has_stored_is_approximate_however_much_is_computed(store):
    model = tiny_models.make("llama")
    blend = Blend(Reuse(model, store, name="llama", weights="of the test", codec="q4"), max_kl=math.inf)
    passage, question = draw(15, 300, 12)
    blend._reuse.warm(passage)
    for recompute in (1, 0.15):  # The second was not measured.
        assert blend.generate_passages([passage], question, recompute, max_new_tokens=1).approximate
    assert blend._reuse.stats()["restored_tokens"] == 512


# --- the gate ------------------------------------------------------------------------------


@pytest.mark.smallest
def test_the_gate(store, caplog):
    model, blend = make("llama", store, max_kl=1e-9, num_hidden_layers=4)
    *passages, question = draw(9, 50, 50, 50, 12)
    ids = torch.tensor([sum(passages, []) + question])
    right = model.generate(ids, max_new_tokens=6)

    def said(blend, *how):
        answer = blend.generate_passages(passages, question, *how, max_new_tokens=6)
        assert torch.equal(answer.sequences, right) or answer.approximate
        assert (answer.share == 1.0) == (answer.why is not None)
        return answer.why

    assert "verify has not measured this model with recompute=0.15, select='deviation'" in said(blend)
    assert "not blended: verify has not measured" in caplog.text
    measured = blend.verify([(passages, question)])
    assert (measured.prompts, measured.restored, measured.compared) == (1, 150, 12)
    assert measured.kl > 1e-9 and 0 <= measured.top1 <= 1
    assert said(blend) == f"verify has measured {measured.kl:.3g} nats, and max_kl is 1e-09"
    near = Blend(blend._reuse, max_kl=measured.kl * 1.01)
    assert near.verify([(passages, question)]) == measured
    assert said(near) is None
    assert "recompute=0.2" in said(near, 0.2)
    assert "select='first'" in said(near, 0.15, "first")


@pytest.mark.parametrize("weights, why", [(None, "has not measured this model"), ("given", "weights have changed")])
def test_a_measurement_is_of_the_weights(weights, why, store):
    model = tiny_models.make("llama")
    blend = Blend(Reuse(model, store, name="llama", weights=weights), max_kl=math.inf)
    *passages, question = draw(10, 50, 50, 12)
    blend.verify([(passages, question)])
    assert blend.generate_passages(passages, question, max_new_tokens=1).why is None
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    assert why in blend.generate_passages(passages, question, max_new_tokens=1).why


@pytest.mark.parametrize("change", [lambda model: model.set_attn_implementation("eager"), lambda model: model.to(torch.bfloat16)])
def test_a_measurement_is_of_attention_and_dtype(change, store):
    model = tiny_models.make("llama")
    blend = Blend(Reuse(model, store, name="llama"), max_kl=math.inf)
    *passages, question = draw(10, 50, 50, 12)
    blend.verify([(passages, question)])
    change(model)
    assert "has not measured" in blend.generate_passages(passages, question, max_new_tokens=1).why
    blend.verify([(passages, question)])
    assert blend.generate_passages(passages, question, max_new_tokens=1).approximate


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "falcon_h1", "lfm2", "llama4", "gpt2", "bloom", "gptj"])
def test_models_whose_rows_cannot_move(name, store):
    reason = "RoPE" if name in ("gpt2", "bloom", "gptj") else "can move"
    with pytest.raises(NotMovable, match=reason):
        make(name, store)


def test_a_wrong_frequency_is_not_taken_for_the_right_one(store):
    model = tiny_models.make("llama")
    reuse = Reuse(model, store, name="llama", weights="of the test")
    forward = model.model.rotary_emb.forward
    # As a model that computes with another base than its buffer says.
    model.model.rotary_emb.forward = lambda x, position_ids: forward(x, position_ids * 1.01)
    with pytest.raises(NotMovable, match="do not turn"):
        Blend(reuse, max_kl=1)


def test_a_model_that_takes_one_mask_for_layers_of_two_kinds(store):
    with pytest.raises(NotMovable, match="takes no positions, or no masks"):
        make("llama", store, layer_types=["sliding_attention", "full_attention"], sliding_window=64)


def test_positions_of_three_dimensions(store):
    with pytest.raises(ValueError, match="M-RoPE"):
        make("mrope", store)


def test_flash_attention_takes_no_masks(store):
    model = tiny_models.make("llama")
    reuse = Reuse(model, store, name="llama", weights="of the test")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(NotMovable, match="eager and sdpa"):
        Blend(reuse, max_kl=1)


@pytest.mark.parametrize("name, why", [("dynamic", "for 200 tokens, and these are 210"), ("mistral", "window of 64")])
def test_what_cannot_be_blended_is_computed(name, why, store):
    model, blend = make(name, store)
    *passages, question = draw(11, 90, 90, 30)
    short = [passage[:50] for passage in passages]
    blend.verify([(short, question)])
    assert blend.generate_passages(short, question, max_new_tokens=2).why is None
    with pytest.raises(ValueError, match=why):
        blend.verify([(passages, question)])
    answer = blend.generate_passages(passages, question, max_new_tokens=4)
    assert answer.why and not answer.approximate and answer.share == 1.0
    assert torch.equal(answer.sequences, model.generate(torch.tensor([sum(passages, []) + question]), max_new_tokens=4))


def test_bad_input(store):
    model, blend = make("llama", store)
    *passages, question = draw(12, 20, 20, 5)
    for wrong in (-1, math.nan, 1.01, math.inf):
        with pytest.raises(ValueError, match="recompute"):
            blend.generate_passages(passages, question, wrong)
        with pytest.raises(ValueError, match="recompute"):
            blend.verify([(passages, question)], wrong)
    for empty in (([], question), ([[], passages[0]], question), (passages, [])):
        with pytest.raises(ValueError, match="a token in each"):
            blend.generate_passages(*empty)
    with pytest.raises(ValueError, match="select"):
        blend.generate_passages(passages, question, select="last")
    with pytest.raises(ValueError, match="no samples"):
        blend.verify([])
    with pytest.raises(ValueError, match="4096 tokens, and these are 5005"):
        blend.verify([([passages[0] * 250], question)])
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError, match="max_kl"):
            Blend(blend._reuse, max_kl=wrong)
    blend.verify([(passages, question)])
    other = torch.ones(1, 3, dtype=torch.long)
    answer = blend.generate_passages(passages, question, max_new_tokens=1, input_ids=other, attention_mask=other).sequences
    assert answer[0, :-1].tolist() == sum(passages, []) + question
    model.train()
    with pytest.raises(NotReused, match="training"):
        blend.verify([(passages, question)])
    assert blend.generate_passages(passages, question, max_new_tokens=1).why == "the model is in training mode"
    model.eval()
    for edge in (0, 1, 0.0):
        blend.verify([(passages, question)], edge)
        assert blend.generate_passages(passages, question, edge, max_new_tokens=1).why is None


# --- the guide -----------------------------------------------------------------------------

GUIDE = Path(__file__).parents[2] / "docs/src/guide/reuse.md"


def test_the_guide_s_example(store, capsys):
    *passages, question = draw(14, 300, 280, 12)
    [example] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    said = dict(model=tiny_models.make("llama"), passages=passages, question=question, samples=[(passages, question)])
    exec(example.replace("file:///var/kv", store).replace("max_kl=0.1", "max_kl=5"), said)
    assert said["answer"].approximate and said["report"].kl < 5
    assert "True 0.15 None" in capsys.readouterr().out
