"""Who finds what: weights by what they are, adapters by what they hold, and what else has to be the same."""

import shutil

import peft
import pytest
import tiny_models
import torch
from test_models import answer, apart, prompt
from transload.hf import Reuse
from transload.hf.errors import NotReused
from transformers import AutoModelForCausalLM

IDS = prompt(300)


@pytest.fixture
def folder(tmp_path):
    tiny_models.make("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(folder, **more):
    return AutoModelForCausalLM.from_pretrained(folder, **({"dtype": torch.float32} | more)).eval()


def finds(model, store, **more):
    """Whether a model finds what is saved of IDS, and answers the same with it as without."""
    cold = answer(model.generate, IDS)
    reuse = Reuse(model, store, **({"name": "m"} | more))
    warm = answer(reuse.generate, IDS)
    assert apart(cold, warm) < 1e-2
    assert reuse.stats()["failures"] == 0
    return reuse.stats()["restored_tokens"] == 256


@pytest.mark.smallest
def test_weights_are_told_apart_by_what_their_files_hold(folder, tmp_path, store):
    assert not finds(load(folder), store)
    assert finds(load(folder), store)
    shutil.copytree(folder, tmp_path / "copy")
    assert finds(load(tmp_path / "copy"), store)
    assert not finds(load(folder), store, name="other")
    assert not finds(load(folder), store, weights="r1")
    other = tiny_models.make("llama", seed=2)
    assert not finds(other, store)
    other.save_pretrained(tmp_path / "copy")
    assert not finds(load(tmp_path / "copy"), store)


def test_a_model_without_files_meets_its_equals_alone(folder, store):
    assert not finds(tiny_models.make("llama"), store)
    assert finds(tiny_models.make("llama"), store)
    # The same weights in files: they may be others the next time.
    assert not finds(load(folder), store)


def test_files_beside_those_that_are_loaded_name_nothing(folder, store):
    by_files = Reuse(load(folder), store, name="m").decoder.identity().weights
    shutil.copy(folder / "model.safetensors", folder / "model.fp16.safetensors")
    by_tensors = Reuse(load(folder), store, name="m").decoder.identity().weights
    assert by_tensors.startswith("tensors-") and not by_files.startswith("tensors-")


def test_what_is_loaded_otherwise_than_the_config_says(folder, store):
    assert not finds(load(folder), store)
    assert not finds(load(folder, rms_norm_eps=0.1), store)


@pytest.mark.parametrize(
    "other", [dict(dtype=torch.bfloat16), dict(attn_implementation="eager")], ids=["dtype", "attention"]
)
def test_kernels_and_dtypes_are_told_apart(folder, store, other):
    for more in ({}, other):
        assert not finds(load(folder, **more), store)
        assert finds(load(folder, **more), store)


def test_a_model_that_is_cast_or_computes_otherwise_between_calls(folder, store):
    model = load(folder)
    reuse = Reuse(model, store, name="m")
    restored = 0

    def saves_then_restores():
        nonlocal restored
        for _ in range(2):
            assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) < 1e-2
        restored += 256
        assert reuse.stats()["restored_tokens"] == restored and reuse.stats()["failures"] == 0

    saves_then_restores()
    model.set_attn_implementation("eager")
    saves_then_restores()
    model.to(torch.bfloat16)
    saves_then_restores()


def test_any_is_told_by_what_is_cached_alone(folder, store):
    assert not finds(load(folder), store, sharing="any")
    assert finds(load(folder, attn_implementation="eager"), store, sharing="any")
    assert not finds(load(folder, dtype=torch.bfloat16), store, sharing="any")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: there is no GPU that torch can use")
def test_another_device_is_told_apart(folder, store):
    assert not finds(load(folder), store)
    moved = load(folder)
    reuse = Reuse(moved, store, name="m")
    moved.cuda()
    for restored in (0, 256):
        reuse.generate(IDS.cuda(), max_new_tokens=2)
        assert reuse.stats()["restored_tokens"] == restored


@pytest.mark.smallest
@pytest.mark.parametrize("from_files", [True, False])
def test_a_model_that_is_trained_between_calls(folder, store, from_files):
    model = load(folder) if from_files else tiny_models.make("llama")
    reuse = Reuse(model, store, name="m")
    answer(reuse.generate, IDS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for restored in (0, 256):
        model.train()
        model(IDS, labels=IDS).loss.backward()
        optimizer.step()
        model.eval()
        for _ in range(2):
            assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) < 1e-4
        assert reuse.stats()["restored_tokens"] == restored + 256
    # One that is made now finds what was saved since, and nothing of before.
    assert finds(model, store)


def test_changes_that_no_version_counts(folder, store):
    """`merge_and_unload` leaves a plain model with other weights, of the same versions."""
    model = load(folder)
    reuse = Reuse(model, store, name="m")
    answer(reuse.generate, IDS)
    merged = peft.get_peft_model(model, lora()).merge_and_unload()
    assert merged is model
    assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) < 1e-4
    assert reuse.stats()["restored_tokens"] == 0


def test_weights_of_a_given_name_that_change(store):
    model = tiny_models.make("llama")
    reuse = Reuse(model, store, name="m", weights="step 1")
    answer(reuse.generate, IDS)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) == 0
    assert list(reuse.stats()["not_reused"].values()) == [1]
    with pytest.raises(NotReused, match="make another Reuse"):
        reuse.warm(IDS[0])
    assert not finds(model, store, weights="step 2")


@torch.no_grad()
def train(model):
    model.model.layers[1].self_attn.k_proj.weight.mul_(1.5)


@pytest.mark.parametrize("change", [train, lambda model: model.set_attn_implementation("eager")])
def test_what_changes_while_an_answer_is_computed(change, store):
    model = tiny_models.make("llama")
    reuse = Reuse(model, store, name="m", weights="of the test")

    class Changes:
        def put(self, value):
            change(model)

        def end(self):
            pass

    reuse.generate(IDS, max_new_tokens=4, streamer=Changes())
    assert reuse.stats()["saved_tokens"] == 0


def test_a_layer_that_an_adapter_replaces_is_still_the_models(store):
    model = peft.get_peft_model(tiny_models.make("llama"), lora(modules_to_save=["embed_tokens"])).eval()
    with model.disable_adapter():
        assert not finds(model, store)
        assert finds(model, store)
        with torch.no_grad():
            model.get_input_embeddings().original_module.weight.mul_(2)
        assert not finds(model, store)


def lora(**more):
    return peft.LoraConfig(**dict(target_modules=["k_proj", "v_proj"], init_lora_weights=False, r=4) | more)


@pytest.mark.smallest
def test_adapters_are_told_apart_by_what_they_hold(folder, store):
    base = load(folder)
    assert not finds(base, store)
    torch.manual_seed(1)
    model = peft.get_peft_model(load(folder), lora()).eval()
    assert not finds(model, store)
    assert finds(model, store)
    # The model itself is there, and is found without its adapter.
    with model.disable_adapter():
        assert finds(model, store)
    # Another one of the same name and shape.
    torch.manual_seed(2)
    assert not finds(peft.get_peft_model(load(folder), lora()).eval(), store)
    torch.manual_seed(1)
    same = peft.get_peft_model(load(folder), lora()).eval()
    assert finds(same, store)
    # Two of them, and scaled otherwise.
    same.add_adapter("second", lora())
    same.set_adapter("second")
    assert not finds(same, store)
    same.set_adapter("default")
    assert finds(same, store)
    for layer in same.modules():
        if hasattr(layer, "lora_A"):
            layer.scaling["default"] *= 2
    assert not finds(same, store)


def test_an_adapter_that_is_trained(folder, store):
    model = peft.get_peft_model(load(folder), lora()).eval()
    reuse = Reuse(model, store, name="m")
    answer(reuse.generate, IDS)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.mul_(3)
    for restored in (0, 256):
        assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) < 1e-4
        assert reuse.stats()["restored_tokens"] == restored


def test_adapters_of_transformers_own(folder, store):
    model = load(folder)
    reuse = Reuse(model, store, name="m")
    answer(reuse.generate, IDS)
    try:
        model.add_adapter(lora())
    except ValueError as why:
        pytest.skip(f"NOT RUN: {why}")
    for restored in (0, 256):
        assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) < 1e-4
        assert reuse.stats()["restored_tokens"] == restored
    model.disable_adapters()
    assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) < 1e-4
    assert reuse.stats()["restored_tokens"] == 512


def test_learned_prompts_run_as_always(folder, store):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = peft.get_peft_model(load(folder), config).eval()
    reuse = Reuse(model, store, name="m")
    for _ in range(2):
        assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) == 0
    assert reuse.stats()["not_reused"] == {"the model has learned a prompt of its own": 2}


@pytest.mark.parametrize("codec, off", [("q8", 0.05), ("q4", 1.0)])
def test_what_was_computed_on_a_lossy_prefix_is_never_exact(store, codec, off):
    model = tiny_models.make("llama")
    lossy = Reuse(model, store, name="m", codec=codec)
    longer = torch.cat([IDS, prompt(300, seed=4)], 1)
    cold = answer(model.generate, longer)
    lossy.generate(IDS, max_new_tokens=1)
    # It computes the rest on what it has restored, and saves that.
    warm = answer(lossy.generate, longer)
    assert lossy.stats()["restored_tokens"] == 256 and lossy.stats()["saved_tokens"] == 512
    difference = (cold.logits[0] - warm.logits[0]).abs().max().item()
    assert 0 < difference < off
    assert not finds(model, store)
    exact = Reuse(model, store, name="m")
    assert apart(cold, answer(exact.generate, longer)) < 1e-4
    assert exact.stats()["restored_tokens"] == 256, "what was just saved exactly"
