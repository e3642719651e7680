"""Who finds what: weights by what they are, adapters by what they hold, and what else has to be the same."""

import copy
import shutil
import types  # noqa: F401  a statement of `CHANGES` uses it

import peft
import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file
from test_models import answer, apart, prompt
from transload.hf import Reuse
from transload.hf.errors import NotReused
from transload.hf.weights import Weights
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

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


def of_the_test(hidden):
    return hidden * 0.5


def halved(self, hidden):
    return type(self).forward(self, hidden) / 2


class Halved(torch.nn.Linear):
    def forward(self, hidden):
        return super().forward(hidden) / 2


def merge(model):
    torch.manual_seed(5)
    return peft.get_peft_model(model, lora()).merge_and_unload().eval()


def reorder(model):
    model.model.layers = torch.nn.ModuleList(reversed(model.model.layers))
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = number


def activate(model, function):
    mlp = model.model.layers[0].mlp
    del mlp.act_fn
    mlp.act_fn = function


def another_config(model):
    other = model.model.layers[0].self_attn.config = copy.deepcopy(model.config)
    other.rope_parameters["rope_theta"] = 1.0


# Statements that have a model compute something else.
CHANGES = {
    "merged": "merge(model)",
    "data": "layers[1].self_attn.v_proj.weight.data.mul_(1.5)",
    "inference": "with torch.inference_mode(): layers[1].self_attn.v_proj.weight.mul_(1.5)",
    "reordered": "reorder(model)",
    "dropped": "layers[1].mlp = torch.nn.Identity()",
    "rotated": "model.model.rotary_emb.inv_freq.mul_(0.5)",
    "rotated data": "model.model.rotary_emb.inv_freq.data.mul_(0.5)",
    "scaled": "layers[0].self_attn.scaling *= 2",
    "strongly rotated": "model.model.rotary_emb.attention_scaling = 1.5",
    "smoothed": "model.model.norm.variance_epsilon = layers[0].input_layernorm.variance_epsilon = 0.1",
    "activated": "layers[0].mlp.act_fn = torch.nn.ReLU()",
    "functional": "activate(model, torch.relu)",
    "by a function": "activate(model, of_the_test)",
    "another config": "another_config(model)",
    "of another class": "layers[0].mlp.down_proj.__class__ = Halved",
    "cast": "layers[0].mlp.to(torch.bfloat16).to(torch.float32)",
    "cast rotation": "model.model.rotary_emb.to(torch.bfloat16)",
    "shadowed": "layers[0].mlp.forward = types.MethodType(halved, layers[0].mlp)",
}


def change(model, what):
    exec(CHANGES[what], globals() | {"model": model, "layers": model.model.layers})
    return model


@pytest.mark.smallest
@pytest.mark.parametrize("what", CHANGES)
def test_a_model_that_is_changed_before_its_reuse(what, folder, store):
    """What computes is named, not the files that it came from; and the files' name is not given to anything else."""
    assert not finds(change(load(folder), what), store)
    assert not finds(load(folder), store)
    assert finds(load(folder), store)
    assert finds(change(load(folder), what), store)
    assert Reuse(change(load(folder), what), store, name="m").decoder.identity().weights.startswith("tensors-")


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("given", [None, "of the test"])
def test_a_model_that_is_changed_between_calls(what, given, folder, store):
    model = load(folder)
    reuse = Reuse(model, store, name="m", weights=given)
    answer(reuse.generate, IDS)
    change(model, what)
    assert apart(answer(model.generate, IDS), answer(reuse.generate, IDS)) < 1e-4
    assert reuse.stats()["restored_tokens"] == 0
    assert bool(reuse.stats()["not_reused"]) == bool(given)


FACTOR = 0.5


def close_over(model):
    factor = FACTOR
    activate(model, lambda hidden: hidden * factor)


UNSEEN = {
    "a hook of model.layers.0, test_identity.<lambda>": lambda model: model.model.layers[0].register_forward_hook(lambda *all: all[2] * 0.5),
    "a hook of model.layers.0.mlp, ": lambda model: model.model.layers[0].mlp.register_forward_pre_hook(lambda _, given: (given[0] * 0.5,)),
    "model.layers.0.mlp.act_fn, .*closes over factor": close_over,
    "_packed_params": lambda model: torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, inplace=True),
}


@pytest.mark.smallest
@pytest.mark.parametrize("said", UNSEEN)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_cannot_be_seen_is_refused_by_name(said, folder, store):
    model = load(folder)
    reuse = Reuse(model, store, name="m")
    answer(reuse.generate, IDS)
    changed = UNSEEN[said](model)
    other = changed if isinstance(changed, torch.nn.Module) else model
    with pytest.raises(NotReused, match=f"{said}.*give weights a text of your own"):
        Reuse(other, f"{store}-other", name="m")
    if other is model:
        answer(reuse.generate, IDS)
        assert reuse.stats()["restored_tokens"] == 0 and len(reuse.stats()["not_reused"]) == 1
    # Who knows what it is says so.
    named = Reuse(other, store, name="m", weights="as changed by the test")
    for restored in (0, 256):
        answer(named.generate, IDS)
        assert named.stats()["restored_tokens"] == restored and not named.stats()["not_reused"]


def test_functions_of_a_model_that_are_replaced_for_all(folder, store, monkeypatch):
    assert not finds(load(folder), store)
    for where, name, function in (
        (modeling_llama.LlamaMLP, "forward", halved_mlp), (modeling_llama, "apply_rotary_pos_emb", not_rotated)
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(where, name, function)
            assert not finds(load(folder), store), name
        assert finds(load(folder), store)


def halved_mlp(self, hidden):
    return self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden)) / 2


def not_rotated(queries, keys, *_, **__):
    return queries, keys


def test_what_observes_changes_nothing(folder, store):
    """transformers' own hooks stay in a model once its hidden states were asked for; compiling keeps what is compiled."""
    model = load(folder)
    by_files = Reuse(model, store, name="m").decoder.identity().weights
    model.generate(IDS, max_new_tokens=1, output_hidden_states=True, return_dict_in_generate=True)
    assert any(each._forward_hooks for each in model.modules())
    model.forward = torch.compile(model.forward, backend="eager")
    model.config.pad_token_id = 3
    model.generation_config.max_length = 99
    assert Reuse(model, store, name="m").decoder.identity().weights[:40] == by_files[:40]


@pytest.mark.parametrize("name", [*tiny_models.CONFIGS.keys() - set(tiny_models.MAMBA_1), "gpt2", "gptj", "bloom", "yarn", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_files_say_is_named_by_them(name, dtype, tmp_path, store):
    """Also where loading puts tensors together, ties them, or makes buffers; and after the model has computed."""
    tiny_models.make(name).save_pretrained(tmp_path / "model")
    model = load(tmp_path / "model", dtype=dtype)
    weights = Weights(model, None)
    before = weights.names()
    assert not before[0].startswith("tensors-")
    model.generate(IDS, max_new_tokens=2, do_sample=False)
    assert weights.names() == before
    with torch.no_grad():
        next(each for each in model.parameters() if each.dim() > 1).data.mul_(1.25)
    assert Weights(model, None).names()[0].startswith("tensors-")


def test_weights_that_no_file_has(folder, store):
    """A head that is missing in the files is made at random when they are loaded."""
    filed = load_file(folder / "model.safetensors")
    del filed["lm_head.weight"]
    save_file(filed, folder / "model.safetensors", {"format": "pt"})
    assert Reuse(load(folder), store, name="m").decoder.identity().weights.startswith("tensors-")


def test_files_in_parts(folder):
    model = load(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert (folder / "model.safetensors.index.json").is_file()
    assert not Weights(load(folder), None).names()[0].startswith("tensors-")
    assert Weights(change(load(folder), "data"), None).names()[0].startswith("tensors-")


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
