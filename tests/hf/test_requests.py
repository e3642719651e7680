"""What `generate` can be asked for: what is right with a prefix in front, and what runs as always and is counted, with a reason."""

import peft
import pytest
import tiny_models
import torch
from test_models import answer, apart, prompt
from transload.hf import Reuse
from transformers import DynamicCache, GenerationConfig, StaticCache

LENGTH = 600


@pytest.fixture(params=["llama", "gemma3"])
def model(request):
    return tiny_models.make(request.param)


@pytest.fixture
def reuse(model, store):
    made = Reuse(model, store, name="asked")
    assert made.warm(prompt(LENGTH)[0]) == 512
    return made


@pytest.mark.smallest
def test_attached_generate_restores_and_detached_does_not(model, reuse):
    ids, own = prompt(LENGTH), model.generate
    cold = answer(model.generate, ids)
    reuse.attach()
    assert apart(cold, answer(model.generate, ids)) < 1e-4
    assert reuse.stats()["restored_tokens"] == 512
    reuse.detach()
    assert model.generate == own
    answer(model.generate, ids)
    reuse.detach()
    assert reuse.stats()["restored_tokens"] == 512


@pytest.mark.parametrize(
    "more",
    [dict(num_beams=3), dict(num_beams=4, num_return_sequences=2), dict(do_sample=True, num_return_sequences=3),
     dict(do_sample=True, num_beams=2), dict(do_sample=True, top_k=5), dict(repetition_penalty=1.3), dict(guidance_scale=1.5),
     dict(prefill_chunk_size=32)],
    ids="-".join,
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 2])
def test_ways_that_restore(model, reuse, more, rows):
    """Also in batches of equal prompts, and of what is not saved yet."""
    for ids, restored in ((prompt(LENGTH), 512), (prompt(LENGTH, seed=7), 512)):
        ids = ids.repeat(rows, 1)
        given = dict(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False) | more
        torch.manual_seed(5)
        expected = model.generate(**given)
        for _ in range(2):
            torch.manual_seed(5)
            assert torch.equal(reuse.generate(**given), expected)
    stats = reuse.stats()
    assert not stats["not_reused"] and stats["failures"] == 0
    assert stats["restored_tokens"] == 3 * 512


def masked(ids, left, right=0):
    mask = torch.ones_like(ids)
    mask[:, :left] = 0
    mask[:, ids.shape[1] - right :] = 0
    return mask


def test_what_runs_as_always(model, reuse):
    ids, draft = prompt(LENGTH), tiny_models.make("llama", seed=3)
    mask, unequal = torch.ones_like(ids), torch.cat([ids, prompt(LENGTH, seed=4)])
    embeds = model.get_input_embeddings()(ids)
    word = reuse.decoder.word
    asked = {
        "unequal prompts in a batch": [dict(input_ids=unequal, attention_mask=torch.ones_like(unequal))],
        "padding": [
            dict(input_ids=ids, attention_mask=masked(ids, 5)),
            dict(input_ids=ids.repeat(2, 1), attention_mask=masked(ids.repeat(2, 1), 0, 5)),
            dict(input_ids=torch.cat([torch.zeros_like(ids[:, :9]), ids], 1)),
        ],
        "inputs_embeds is given": [dict(inputs_embeds=embeds, attention_mask=mask)],
        f"{word} is given": [
            {"input_ids": ids, "attention_mask": mask, word: lambda: DynamicCache(config=model.config)},
            {"input_ids": ids, "attention_mask": mask, word: lambda: StaticCache(model.config, max_cache_len=700)},
        ],
        "cache_implementation is given": [
            dict(input_ids=ids, attention_mask=mask, cache_implementation="static"),
            dict(input_ids=ids, attention_mask=mask, cache_implementation="dynamic"),
            dict(input_ids=ids, attention_mask=mask, cache_implementation="quantized", cache_config={"backend": "fp8"}),
        ],
        "assistant_model is given": [dict(input_ids=ids, attention_mask=mask, assistant_model=draft)],
        "prompt_lookup_num_tokens is given": [dict(input_ids=ids, attention_mask=mask, prompt_lookup_num_tokens=3)],
        "use_cache=False": [dict(input_ids=ids, attention_mask=mask, use_cache=False)],
        "position_ids is given": [dict(input_ids=ids, attention_mask=mask, position_ids=torch.arange(LENGTH)[None])],
        "no input_ids": [dict(bos_token_id=1)],
    }
    for why, each in asked.items():
        for given in each:
            made = lambda: {name: value() if name == word else value for name, value in given.items()}  # noqa: E731
            expected = model.generate(**made(), max_new_tokens=4, do_sample=False)
            assert torch.equal(reuse.generate(**made(), max_new_tokens=4, do_sample=False), expected), why
    assert reuse.stats()["not_reused"] == {why: len(each) for why, each in asked.items()}
    assert reuse.stats()["restored_tokens"] == 0


def test_what_is_told_about_a_prompt_is_told_about_all_of_it(reuse):
    """Nobody has the hidden states, or the attention, of tokens that are restored."""
    ids = prompt(LENGTH)
    given = dict(max_new_tokens=1, return_dict_in_generate=True, output_hidden_states=True)
    told = reuse.generate(ids, attention_mask=torch.ones_like(ids), **given)
    assert told.hidden_states[0][-1].shape[1] == LENGTH
    config = GenerationConfig(output_attentions=True, max_new_tokens=1)
    reuse.generate(ids, config, attention_mask=torch.ones_like(ids))
    assert reuse.stats()["not_reused"] == {"output_hidden_states is given": 1, "output_attentions is given": 1}


def test_what_generate_hands_to_the_model_may_change_what_it_computes(store):
    """An argument is no tensor, and still is not one of `generate` itself."""
    base = tiny_models.make("llama")
    torch.manual_seed(1)
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["k_proj"], init_lora_weights=False)).eval()
    reuse, ids = Reuse(model, store, name="asked"), prompt(LENGTH)
    reuse.warm(ids[0])
    given = dict(input_ids=ids, adapter_names=["__base__"], max_new_tokens=4, do_sample=False)
    with model.disable_adapter():
        expected = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(reuse.generate(**given), expected)
    assert reuse.stats()["not_reused"] == {"adapter_names is given": 1} and reuse.stats()["restored_tokens"] == 0


def test_an_empty_prompt_is_left_to_transformers(model, reuse):
    empty = torch.zeros((1, 0), dtype=torch.long)
    errors = []
    for generate in (model.generate, reuse.generate):
        try:
            errors.append(generate(empty, max_new_tokens=2).tolist())
        except Exception as error:
            errors.append(type(error))
    assert errors[0] == errors[1]
    assert reuse.stats()["not_reused"] == {"an empty prompt": 1}
    assert reuse.warm([]) == 0


def test_a_model_that_drafts_for_another_is_left_alone(model, store):
    """Its cache is rolled back, which one that was restored could not be."""
    draft = tiny_models.make("gemma3", seed=3)
    ids = prompt(LENGTH)
    given = dict(attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    expected = model.generate(ids, assistant_model=draft, **given)
    reuse = Reuse(draft, store, name="draft")
    reuse.attach()
    assert torch.equal(model.generate(ids, assistant_model=draft, **given), expected)
    assert reuse.stats()["hits"] == reuse.stats()["misses"] == 0


def test_models_that_compute_otherwise_now(model, reuse):
    model.train()
    reuse.generate(prompt(LENGTH), max_new_tokens=1)
    assert reuse.stats()["not_reused"] == {"the model is in training mode": 1}
    with pytest.raises(ValueError, match="training mode"):
        reuse.warm(prompt(LENGTH)[0])
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        reuse.generate(prompt(LENGTH), max_new_tokens=1)
    assert reuse.stats()["not_reused"]["autocast"] == 1
    assert reuse.stats()["restored_tokens"] == 0


def test_inference_mode(store):
    with torch.inference_mode():
        model, ids = tiny_models.make("gemma3"), prompt(LENGTH)
        cold = answer(model.generate, ids)
        reuse = Reuse(model, store, name="inference")
        for _ in range(2):
            assert apart(cold, answer(reuse.generate, ids)) < 1e-4
    assert reuse.stats()["restored_tokens"] == 512


def test_verify_compares_with_one_step(reuse):
    report = reuse.verify([prompt(LENGTH)[0], prompt(300, seed=8)[0], prompt(100)[0]])
    assert (report.prompts, report.restored, report.compared) == (2, 512 + 256, 88 + 44)
    assert report.difference < 1e-4 and report.kl < 1e-9 and report.top1 == 1
    # It would notice: another prefix than the one that was computed.
    read = reuse.read

    def spoilt(*given):
        copy = read(*given)
        copy.tensors[-1][0][0].mul_(-1)
        return copy

    reuse.read = spoilt
    assert reuse.verify([prompt(LENGTH)[0]]).kl > 1e-6


@pytest.mark.smallest
def test_a_second_reuse_of_an_attached_model_is_refused(model, reuse, store):
    reuse.attach()
    for again in (reuse.attach, lambda: Reuse(model, store, name="second")):
        with pytest.raises(RuntimeError, match="detach"):
            again()
    reuse.detach()
    Reuse(model, store, name="second").attach()


@pytest.mark.smallest
def test_arguments_of_other_types(reuse, store):
    ids = prompt(LENGTH)
    assert reuse.warm(ids) == reuse.warm(ids[0]) == 512
    for wrong, said in (("text", "is a text"), (ids.repeat(2, 1), "no list of tokens"), (None, "no list of tokens")):
        with pytest.raises(TypeError, match=said):
            reuse.warm(wrong)
    with pytest.raises(TypeError, match="model is a str: load it first"):
        Reuse("llama", store, name="m")
