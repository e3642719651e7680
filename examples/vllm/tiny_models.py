"""Makes tiny models with random weights, for trying disaggregation on a CPU and offline.

    python tiny_models.py llama FOLDER
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

VOCABULARY = 1024

# With the usual range of 0.02 the logits of random weights are so flat that rounding decides which token is best.
WEIGHTS = 0.2

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
    "initializer_range": WEIGHTS,
}
"""What all of them have in common."""


def llama():
    from transformers import LlamaConfig

    return LlamaConfig(
        **SMALL,
        num_hidden_layers=4,
        num_key_value_heads=4,
    )


def wide_heads():
    """Heads of a size for which the CPU's attention orders blocks in a way of its own."""
    from transformers import LlamaConfig

    return LlamaConfig(**SMALL, head_dim=80, num_hidden_layers=2, num_key_value_heads=4)


def falcon_h1():
    """Mamba2 with one group, and attention, in every layer."""
    from transformers import FalconH1Config

    return FalconH1Config(
        **SMALL,
        num_hidden_layers=2,
        num_key_value_heads=4,
        head_dim=32,
        mamba_d_ssm=512,
        mamba_n_heads=16,
        mamba_d_head=32,
        mamba_n_groups=1,
        mamba_d_state=32,
        mamba_d_conv=4,
        mamba_chunk_size=256,
    )


def qwen3_next():
    """Three gated delta nets to one attention."""
    from transformers import Qwen3NextConfig

    return Qwen3NextConfig(
        **SMALL,
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        decoder_sparse_step=1,
    )


def gemma3():
    """Three layers that see a window of 64 tokens to one that sees all."""
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(
        **SMALL,
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=64,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
    )


def gemma3n():
    """The last two layers have no cache: each takes that of the last layer before them that sees as much as it does."""
    from transformers import Gemma3nTextConfig

    return Gemma3nTextConfig(
        **SMALL,
        num_hidden_layers=6,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=64,
        layer_types=["sliding_attention"] * 3 + ["full_attention", "sliding_attention", "full_attention"],
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=32,
        laurel_rank=8,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * 6,
        eos_token_id=None,
        bos_token_id=None,
    )


MODELS = {"llama": llama, "wide_heads": wide_heads, "falcon_h1": falcon_h1, "qwen3_next": qwen3_next, "gemma3": gemma3, "gemma3n": gemma3n}


def make(name: str, folder: Path) -> Path:
    """The model `name` in `folder`, made if it is not there; the same weights each time."""
    if (folder / "config.json").exists():
        return folder
    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[name](), dtype=torch.float32)
    if name == "gemma3n":
        # What comes in goes out again, by the same weights: the best token would always be the last one.
        model.model.embed_tokens.weight.data *= 0.05
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    words = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(folder)
    return folder


def adapter(name: str, folder: Path) -> Path:
    """A LoRA adapter of the tiny Llama: other keys, other values, as its name decides."""
    if (folder / "adapter_config.json").exists():
        return folder
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config, rank = llama(), 8
    chosen = torch.Generator().manual_seed(int.from_bytes(name.encode(), "little") % 2**63)
    head = config.hidden_size // config.num_attention_heads
    outputs = {"q_proj": config.hidden_size, "k_proj": head * config.num_key_value_heads}
    outputs["v_proj"] = outputs["k_proj"]
    weights = {}
    for layer in range(config.num_hidden_layers):
        for part, size in outputs.items():
            where = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{where}.lora_A.weight"] = torch.randn(rank, config.hidden_size, generator=chosen) * WEIGHTS
            weights[f"{where}.lora_B.weight"] = torch.randn(size, rank, generator=chosen) * WEIGHTS
    save_file(weights, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(outputs), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def eagle(folder: Path) -> Path:
    """A layer that drafts for the tiny Llama out of its last hidden state and the next token, as EAGLE does."""
    if (folder / "config.json").exists():
        return folder
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = llama()
    config.num_hidden_layers, config.architectures = 1, ["LlamaForCausalLM"]
    torch.manual_seed(1)
    weights = AutoModelForCausalLM.from_config(config, dtype=torch.float32).model.state_dict()
    # The first layer has no norm before it, and what is not here is the model's.
    weights = {name: weight for name, weight in weights.items() if name.startswith("layers.") and "input_layernorm" not in name}
    weights["fc.weight"] = torch.randn(config.hidden_size, 2 * config.hidden_size) * WEIGHTS
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", choices=MODELS)
    arguments.add_argument("folder", type=Path)
    given = arguments.parse_args()
    print(make(given.model, given.folder))
