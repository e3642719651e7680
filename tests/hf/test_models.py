"""Cold equals warm: for each way in which layers cache, what is computed behind a restored prefix is what is computed without."""

import inspect

import pytest
import tiny_models
import torch
from transload.hf import Layers, Reuse, UnsupportedCache
from transformers import DynamicCache, cache_utils

WHOLE = 700
SHARED = [name for name in tiny_models.CONFIGS if name not in tiny_models.MAMBA_1]


def prompt(length, seed=1):
    return torch.randint(3, tiny_models.VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def answer(generate, ids, count=6, **more):
    return generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, return_dict_in_generate=True,
        output_logits=True, **more,
    )  # fmt: skip


def apart(one, other):
    """How far the logits of two answers are from each other, where their tokens are the same."""
    assert torch.equal(one.sequences, other.sequences)
    return max((a - b).abs().max().item() for a, b in zip(one.logits, other.logits))


def behind_its_own(model, ids, cut):
    """An answer behind a cache of the first tokens that the model itself filled: where it can be cut, with all tokens at once, as when
    it was saved, since some processors round products of many rows otherwise than those of few."""
    cache = DynamicCache(config=model.config)
    word = next(word for word in ("cache", "past_key_values") if word in inspect.signature(model.forward).parameters)
    can_be_cut = all(type(layer) is cache_utils.DynamicLayer for layer in cache.layers)
    with torch.no_grad():
        model(input_ids=ids if can_be_cut else ids[:, :cut], use_cache=True, **{word: cache})
    if can_be_cut:
        cache.crop(cut - ids.shape[1])
    return answer(model.generate, ids, **{word: cache})


@pytest.mark.smallest
@pytest.mark.parametrize("name", SHARED)
def test_cold_equals_warm(name, store):
    model, ids = tiny_models.make(name), prompt(WHOLE)
    cold = answer(model.generate, ids)
    reuse = Reuse(model, store, name=name)
    first = answer(reuse.generate, ids)
    warm = answer(reuse.generate, ids)
    assert reuse.stats() == {
        "restored_tokens": 512, "saved_tokens": 512, "hits": 1, "misses": 1, "failures": 0, "not_reused": {}
    }  # fmt: skip
    assert apart(cold, first) < 1e-4
    assert apart(cold, warm) < 1e-4
    if not reuse.decoder.layers.are_states:
        assert apart(behind_its_own(model, ids, 512), warm) == 0
    # Another object, as of another process, behind a longer prompt.
    longer = torch.cat([ids[:, :512], prompt(300, seed=2)], 1)
    other = Reuse(model, store, name=name)
    assert apart(answer(model.generate, longer), answer(other.generate, longer)) < 1e-4
    assert other.stats()["restored_tokens"] == 512
    # What is restored is what counts: with another prefix under the same name it would be another answer.
    changed = torch.cat([prompt(512, seed=3), ids[:, 512:]], 1)
    with torch.no_grad():
        assert (model(changed).logits[0, -1] - cold.logits[0][0]).abs().max() > 1e-3


@pytest.mark.smallest
@pytest.mark.parametrize("name", tiny_models.MAMBA_1)
@pytest.mark.parametrize("seed", range(2))
def test_what_forgets_its_state_is_refused(name, seed, store):
    with pytest.raises(UnsupportedCache, match="keeps a state of Mamba 1"):
        Reuse(tiny_models.make(name, seed), store, name=name)


def test_unknown_layers_are_refused_by_name():
    class Folded(cache_utils.DynamicLayer):
        pass

    cache = DynamicCache(config=tiny_models.make("llama").config)
    cache.layers[1] = Folded()
    with pytest.raises(UnsupportedCache, match="layer 1: a cache of Folded"):
        Layers(cache, None)
    cache.layers[1] = cache_utils.DynamicIndexedLayer()
    with pytest.raises(UnsupportedCache, match="layer 1: a cache of DynamicIndexedLayer"):
        Layers(cache, None)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma3_wide", "mamba2", "qwen3_next"])
@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 511, 512, 513])
def test_lengths(name, length, store):
    model, ids = tiny_models.make(name), prompt(length)
    cold = answer(model.generate, ids)
    reuse = Reuse(model, store, name=name)
    for _ in range(2):
        assert apart(cold, answer(reuse.generate, ids)) < 1e-4
    # All but the last token, where a layer still has them.
    whole = length // 256 * 256
    restored = min(whole, length - 1) if not reuse.decoder.layers.forget else (length - 1) // 256 * 256
    assert reuse.stats()["restored_tokens"] == restored
    assert reuse.warm(ids[0]) == whole
    longer = torch.cat([ids, prompt(50, seed=9)], 1)
    assert apart(answer(model.generate, longer), answer(reuse.generate, longer)) < 1e-4
    assert reuse.stats()["restored_tokens"] == restored + (whole if whole < longer.shape[1] else 0)
    assert reuse.stats()["failures"] == 0


def test_prompts_longer_than_the_model(store):
    model = tiny_models.make("llama", max_position_embeddings=300)
    ids = prompt(600)
    reuse = Reuse(model, store, name="short")
    cold = answer(model.generate, ids)
    assert apart(cold, answer(reuse.generate, ids)) < 1e-4
    assert apart(cold, answer(reuse.generate, ids)) < 1e-4
    # Keys of these depend on how long the whole prompt is.
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = tiny_models.make("llama", max_position_embeddings=300, rope_parameters=rope)
    reuse = Reuse(model, store, name="ntk")
    for length, restored in ((290, 0), (290, 256), (600, 256)):
        ids = prompt(length)
        # transformers keep the factors of the longest prompt that a model has seen.
        fresh = tiny_models.make("llama", max_position_embeddings=300, rope_parameters=rope)
        assert apart(answer(fresh.generate, ids, 2), answer(reuse.generate, ids, 2)) < 1e-4
        assert reuse.stats()["restored_tokens"] == restored
    assert reuse.stats()["not_reused"] == {"rotary factors change with a prompt of this length": 1}
    # And begin anew behind a short one.
    assert apart(answer(fresh.generate, prompt(290), 2), answer(reuse.generate, prompt(290), 2)) < 1e-4


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_all_saves_answers_too(name, store):
    model, ids = tiny_models.make(name), prompt(500)
    reuse = Reuse(model, store, name=name, save="all")
    told = reuse.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, min_new_tokens=60, do_sample=False)
    following = torch.cat([told, prompt(40, seed=5)], 1)
    warm = answer(reuse.generate, following)
    assert apart(answer(model.generate, following), warm) < 1e-4
    # A layer with windows has lost by then what belongs to the end of a token chunk.
    assert reuse.stats()["restored_tokens"] == (256 if reuse.decoder.layers.forget else 512)
