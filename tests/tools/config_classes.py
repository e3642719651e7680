#!/usr/bin/env python3
"""Asks the config classes of `transformers` what the layers of models cache, and writes down what they say.

    pip install transformers==5.24.0        # no torch is needed
    python tests/tools/config_classes.py             # writes crates/layout/tests/catalog/classes.json
    python tests/tools/config_classes.py --check     # says whether it would write what is there already

The answers are a fixture: crates/layout/tests/catalog/classes.rs holds the model catalog against them, layer
by layer, and runs wherever the tests run. This tool does not: it needs a package index. It is run, and what
it writes is committed, when a family is added or `transformers` is followed to another release.

It also writes crates/layout/src/catalog/keys.txt: the keys of the classes that the catalog may leave unread, since
its answer was compared with that of the class.

Four sorts of configs are asked about: the published ones in crates/layout/tests/catalog/configs, an empty one
of each family, variations of the keys that matter, drawn from a seed, and those of models with images or speech
that have one of the families inside. What is written down are
attributes of the config *object*, after its class has filled in, renamed and derived what it will; which
layer has which cache is what `transformers.cache_utils` makes of that object.

An answer maps layers to texts. A layer is listed under each of its caches:

    attention 8x128         8 key-value heads of 128; 8x192+128 where values have another width
    ... window 4096         of the last 4096 tokens, the newest included; `... chunk 8192` alike
    latent 576              an MLA latent with its rotated part; `of 4` where it stands for 4 tokens
    index 128               keys of a sparse attention's indexer
    mamba2 heads 128 dim 64 groups 8 state 128 conv 3
    mamba1 channels 8192 state 16 conv 3
    delta keys 16x128 values 32x128 conv 3
    linear 64x128           heads of the state of lightning attention
    conv channels 2048 conv 2
"""

import argparse
import ast
import hashlib
import importlib
import inspect
import json
import pathlib
import random
import re
import sys

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VERSION = "5.24.0"
SEED = 20_261_121
VARIATIONS = 9
ROOT = pathlib.Path(__file__).resolve().parents[2]
CATALOG = ROOT / "crates/layout/tests/catalog"
FIXTURE = CATALOG / "classes.json"
SOURCES = ROOT / "crates/layout/src/catalog"
KEYS = SOURCES / "keys.txt"

# --- what a config object says -----------------------------------------------------------


def cache_layer_types():
    """The function by which `transformers` sizes its own caches; importing its module needs torch."""
    path = pathlib.Path(transformers.__file__).parent / "cache_utils.py"
    wanted = "get_layer_types_and_kwargs"
    parts = [part for part in ast.parse(path.read_text()).body if getattr(part, "name", "") == wanted]
    names = {"PreTrainedConfig": object}
    exec(compile(ast.Module(parts, []), str(path), "exec"), names)
    return names[wanted]


LAYER_TYPES = cache_layer_types()

MLA = ("deepseek_v2", "deepseek_v3", "axk1", "glm4_moe_lite", "mistral4", "longcat_flash", "deepseek_v32", "glm_moe_dsa", "kimi_linear", "bailing_hybrid",
       "hy_v4", "hy_v4_vl_text", "glm5_next_text", "dots3_note_text")


def heads_and_width(family, layer):
    """Key-value heads and their width, as the attention module of the family reads them off its config."""
    heads = getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads
    width = getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads
    if family == "dbrx":
        heads = layer.attn_config.kv_n_heads
    elif family == "gpt_bigcode":
        heads = 1 if layer.multi_query else layer.num_attention_heads
    elif family == "falcon":
        grouped = layer.new_decoder_architecture or not layer.multi_query
        heads = layer.num_kv_heads if grouped else 1
    return heads, width


def attention(family, layer, kind, kwargs):
    """Keys and values, or what a family has in their place."""
    heads, width = heads_and_width(family, layer)
    if family in MLA:
        return [f"latent {layer.kv_lora_rank + layer.qk_rope_head_dim}"]
    if family == "mimo_v2_flash":
        # `MiMoV2FlashAttention`: twice the heads in windowed layers.
        heads = heads * 2 if kind == "sliding_attention" else heads
        text = f"attention {heads}x{width}+{layer.v_head_dim}"
    else:
        text = f"attention {heads}x{width}"
    reach = kwargs.get("sliding_window")
    if kind == "sliding_attention" and reach is not None:
        text += f" window {reach}"
    if kind == "chunked_attention" and reach is not None:
        text += f" chunk {reach}"
    return [text]


def mamba2(heads, dim, groups, state, kernel):
    return [f"mamba2 heads {heads} dim {dim} groups {groups} state {state} conv {kernel - 1}"]


def mamba1(channels, state, kernel):
    return [f"mamba1 channels {channels} state {state} conv {kernel - 1}"]


def recurrent(family, c):
    """The state of a layer without attention."""
    if family in ("bamba", "falcon_h1", "granitemoehybrid"):
        return mamba2(c.mamba_n_heads, c.mamba_d_head, c.mamba_n_groups, c.mamba_d_state, c.mamba_d_conv)
    if family == "zamba2":
        return mamba2(c.n_mamba_heads, c.mamba_headdim, c.mamba_ngroups, c.mamba_d_state, c.mamba_d_conv)
    if family == "nemotron_h":
        return mamba2(c.mamba_num_heads, c.mamba_head_dim, c.n_groups, c.ssm_state_size, c.conv_kernel)
    if family == "mamba2":
        return mamba2(c.num_heads, c.head_dim, c.n_groups, c.state_size, c.conv_kernel)
    if family in ("mamba", "falcon_mamba"):
        return mamba1(c.intermediate_size, c.state_size, c.conv_kernel)
    if family == "jamba":
        return mamba1(c.mamba_expand * c.hidden_size, c.mamba_d_state, c.mamba_d_conv)
    if family in ("lfm2", "lfm2_moe"):
        return [f"conv channels {c.hidden_size} conv {c.conv_L_cache - 1}"]
    if family == "minimax":
        return [f"linear {c.num_attention_heads}x{c.head_dim or c.hidden_size // c.num_attention_heads}"]
    if family in ("kimi_linear", "bailing_hybrid", "glm5_next_text"):
        size = f"{c.linear_num_heads}x{c.linear_head_dim}"
        return [f"delta keys {size} values {size} conv {c.linear_conv_kernel_dim - 1}"]
    keys = f"{c.linear_num_key_heads}x{c.linear_key_head_dim}"
    values = f"{c.linear_num_value_heads}x{c.linear_value_head_dim}"
    return [f"delta keys {keys} values {values} conv {c.linear_conv_kernel_dim - 1}"]


def deepseek_v4(c, kind):
    """A window of rows in every layer, and what stands for several tokens beside it."""
    caches = [f"latent {c.head_dim} window {c.sliding_window}"]
    if kind in ("compressed_sparse_attention", "heavily_compressed_attention"):
        caches.append(f"latent {c.head_dim} of {c.compress_rates[kind]}")
    if kind == "compressed_sparse_attention":
        caches.append(f"index {c.index_head_dim} of {c.compress_rates[kind]}")
    return caches


def dots3_note(config, layer, kind):
    """Latents, those of all tokens in rows as long as those of a window: vLLM has one size of pages."""
    windowed = config.per_layer_config["sliding_attention"]
    row = windowed.kv_lora_rank + windowed.qk_rope_head_dim
    if row < layer.kv_lora_rank + layer.qk_rope_head_dim:
        raise ValueError("vLLM refuses this")
    if kind == "sliding_attention":
        return [f"latent {row} window {layer.sliding_window}"]
    return [f"latent {row}", f"index {layer.index_head_dim}"]


def caches(family, config):
    """What each layer caches."""
    if family in ("mamba", "falcon_mamba", "mamba2"):
        return [recurrent(family, config)] * config.num_hidden_layers
    kinds, kwargs = LAYER_TYPES(config)
    layers = []
    for i, (kind, extra) in enumerate(zip(kinds, kwargs, strict=True)):
        layer = config.per_layer_config[i]
        if kind == "dummy":
            layers.append([])
        elif family == "deepseek_v4":
            layers.append(deepseek_v4(layer, kind))
        elif family == "dots3_note_text":
            layers.append(dots3_note(config, layer, kind))
        elif kind in ("linear_attention", "conv", "mamba"):
            layers.append(recurrent(family, layer))
        elif kind == "hybrid":
            layers.append(recurrent(family, layer) + attention(family, layer, "full_attention", {}))
        elif kind == "minimax_m3_sparse":
            layers.append(attention(family, layer, kind, {}) + [f"index {layer.index_head_dim}"])
        elif kind == "indexed_attention":
            chooses = config.indexer_types[i] == "full" if family in ("glm_moe_dsa", "hy_v4", "hy_v4_vl_text") else True
            index = [f"index {layer.index_head_dim}"] if chooses else []
            if family == "glm5_next_text":
                # One for a stretch of tokens, and in every layer, as vLLM has it.
                index = [f"index {layer.index_head_dim} of {layer.index_kpool}"]
            layers.append(attention(family, layer, kind, extra) + index)
        elif kind in ("full_attention", "sliding_attention", "chunked_attention"):
            layers.append(attention(family, layer, kind, extra))
        else:
            raise ValueError(f"{family}: what is {kind}?")
    if family == "longcat_flash":
        # Its class counts attention blocks, two of which are in a layer.
        layers = [one + other for one, other in zip(layers[::2], layers[1::2], strict=True)]
    return layers


def answer(config):
    """The same, as caches with the layers that have them: `{"attention 8x128": "0-31"}`."""
    text = config.get_text_config(decoder=True)
    listed = {}
    for i, layer in enumerate(caches(text.model_type, text)):
        for cache in layer:
            listed.setdefault(cache, []).append(i)
    return {cache: ranges(ids) for cache, ids in listed.items()}


def ranges(ids):
    """`0-3,5`; a layer that has two of a cache is listed twice."""
    runs = []
    for i in ids:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


# --- which configs are asked about -------------------------------------------------------

# Classes of text models that are only found inside of their wrappers.
INNER = {
    "qwen2_5_omni_text": ("qwen2_5_omni", "Qwen2_5OmniTextConfig"),
    "dots3_note_text": ("dots3_note", "Dots3NoteTextConfig"),
    "glm5_next_text": ("glm5_next", "Glm5NextTextConfig"),
    "hy_v4_vl_text": ("hy_v4_vl", "HYV4VLTextConfig"),
    "minimax_m3_vl_text": ("minimax_m3_vl", "MiniMaxM3VLTextConfig"),
    "muse_glimmer_text": ("muse_glimmer", "MuseGlimmerTextConfig"),
    "qwen3_omni_moe_text": ("qwen3_omni_moe", "Qwen3OmniMoeTextConfig"),
}


# Of other kinds than decoders of text, or without a text model of their own to describe.
NO_WRAPPERS = ("blip-2", "colpali", "colqwen2", "gemma4_unified_assistant", "gpt-sw3", "instructblip", "instructblipvideo")


def wrappers():
    """Models with a text model of a known family inside, whose text part is in `text_config`."""
    for model_type in sorted(CONFIG_MAPPING.keys()):
        try:
            config = CONFIG_MAPPING[model_type]()
            text = config.get_text_config(decoder=True)
        except Exception:
            continue
        inside = text.model_type in FAMILIES and text.model_type != model_type
        if inside and model_type not in NO_WRAPPERS:
            yield model_type, getattr(config, "text_config", None) is text


def class_of(model_type):
    """The config class; `None` for models that bring their own."""
    if model_type in INNER:
        package, name = INNER[model_type]
        return getattr(importlib.import_module(f"transformers.models.{package}.configuration_{package}"), name)
    try:
        return CONFIG_MAPPING[model_type]
    except KeyError:
        return None


def read(config):
    """The config object that its class makes of it."""
    config = json.loads(json.dumps(config))
    return class_of(config.pop("model_type")).from_dict(config)


def ask(config):
    """What its class makes of a config: an answer, or `None` where it refuses."""
    try:
        return answer(read(config))
    except Exception as error:
        if isinstance(error, (SyntaxError, NameError)):
            raise
        return None


FAMILIES = """
llama apertus arcee bitnet cohere diffllama ernie4_5 ernie4_5_moe flex_olmo gemma glm glm4 glm4_moe glm4v_moe_text
glm4v_text glm_ocr_text granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax
internlm3 iquestcoder jais2 minimax_m2 nanochat nemotron olmo olmo2 olmoe phi qwen3_omni_moe_text qwen3_vl_moe_text
qwen3_vl_text seed_oss solar_open stablelm biogpt gpt_neox opt persimmon ministral mistral ministral3 mixtral phi3
phimoe starcoder2 qwen2 qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text qwen3 dots1 qwen2_moe qwen3_moe smollm3 gemma2
gpt_oss vaultgemma olmo3 kolibri1 cwm granite_swa granitemoe_swa cohere2 exaone4 exaone_moe afmoe cohere2_moe laguna
mellum mimo_v2_flash step3p5 gemma3_text gemma3n_text gemma4_text gemma4_unified_text llama4_text dbrx falcon gpt2 gptj
gpt_bigcode deepseek_v2 deepseek_v3 axk1 glm4_moe_lite mistral4 longcat_flash deepseek_v32 glm_moe_dsa deepseek_v4 bamba
falcon_h1 qwen3_next qwen3_5_text qwen3_5_moe_text olmo_hybrid granitemoehybrid jamba kimi_linear lfm2 lfm2_moe mamba
falcon_mamba mamba2 minimax nemotron_h zamba2 bailing_hybrid minimax_m3_vl_text
hy_v4 hy_v4_vl_text muse_glimmer_text glm5_next_text dots3_note_text muse_glimmer_assistant
""".split()

# Keys that vary, and their values; a key is given where the draw is not `ABSENT`.
ABSENT = "absent"
EVERYWHERE = {
    "num_key_value_heads": (ABSENT, None, 2, 4),
    "head_dim": (ABSENT, ABSENT, None, 16, 48),
}
WINDOWS = {
    "sliding_window": (ABSENT, ABSENT, None, 64, 77),
    "use_sliding_window": (ABSENT, True, False),
    "max_window_layers": (ABSENT, 0, 3, 100),
}
MAMBA = {
    "mamba_expand": (ABSENT, 1, 2),
    "mamba_n_heads": (4, 8),
    "mamba_d_head": (ABSENT, "auto"),
    "mamba_n_groups": (ABSENT, 1, 2),
    "mamba_d_state": (ABSENT, 16, 64),
    "mamba_d_conv": (ABSENT, 3),
}
DELTA = {
    "linear_num_key_heads": (ABSENT, 2, 4),
    "linear_num_value_heads": (ABSENT, 8),
    "linear_key_head_dim": (ABSENT, 32),
    "linear_value_head_dim": (ABSENT, 64),
    "linear_conv_kernel_dim": (ABSENT, 3),
    "full_attention_interval": (ABSENT, 2, 3),
}
LATENT = {"kv_lora_rank": (ABSENT, 256), "qk_rope_head_dim": (ABSENT, 32)}
GEMMA4 = {
    "num_kv_shared_layers": (ABSENT, 0, 1, 2),
    "use_bidirectional_attention": (ABSENT, ABSENT, "all", "vision"),
    "global_head_dim": (ABSENT, 64),
    "num_global_key_value_heads": (ABSENT, None, 1),
    "attention_k_eq_v": (ABSENT, True, False),
}
GPT2 = {"n_embd": (256,), "n_head": (8, 4), "multi_query": (ABSENT, True, False)}
OWN = {
    "dbrx": {"d_model": (256,), "n_heads": (8,), "attn_config": (ABSENT, {"kv_n_heads": 2}, {"clip_qkv": 8})},
    "falcon": {
        "num_kv_heads": (ABSENT, None, 2),
        "multi_query": (ABSENT, True, False),
        "new_decoder_architecture": (ABSENT, True, False),
        "n_embed": (ABSENT, 512),
    },
    "gpt2": GPT2,
    "gptj": GPT2,
    "gpt_bigcode": GPT2,
    "cohere2": {"sliding_window_pattern": (ABSENT, 2, 3)},
    "exaone4": {"sliding_window_pattern": (ABSENT, 2, 3)},
    "exaone_moe": {"sliding_window_pattern": (ABSENT, 2, 3)},
    "gemma3_text": {"sliding_window_pattern": (ABSENT, 2, 3), "use_bidirectional_attention": (ABSENT, True, False)},
    "gemma3n_text": {"num_kv_shared_layers": (ABSENT, 0, 1, 2)},
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "afmoe": {"global_attn_every_n_layers": (ABSENT, 2, 3)},
    "cohere2_moe": {
        "first_k_dense_replace": (ABSENT, 1, 2),
        "prefix_dense_sliding_window_pattern": (ABSENT, 1, 2),
        "sliding_window_pattern": (ABSENT, 2, 3),
    },
    "smollm3": {"no_rope_layer_interval": (ABSENT, 1, 3), "no_rope_layers": (ABSENT, ABSENT, [0, 1])},
    "llama4_text": {
        "no_rope_layer_interval": (ABSENT, 1, 3),
        "no_rope_layers": (ABSENT, [], [0, 1]),
        "attention_chunk_size": (ABSENT, None, 128),
    },
    "mimo_v2_flash": {"sliding_window_size": (ABSENT, ABSENT, 64), "v_head_dim": (ABSENT, 32)},
    "step3p5": {
        "num_attention_groups": (ABSENT, 2),
        "num_nextn_predict_layers": (ABSENT, 2),
        "attention_other_setting": (ABSENT, {"num_attention_heads": 16}),
    },
    "longcat_flash": {"num_layers": (1, 3, 5)},
    "deepseek_v32": {"index_head_dim": (ABSENT, 128, 256)},
    "glm_moe_dsa": {
        "index_head_dim": (ABSENT, 128, 256),
        "index_topk_freq": (ABSENT, 0, 2, 3),
        "index_skip_topk_offset": (ABSENT, ABSENT, 0, 3),
        "index_topk_pattern": (ABSENT, ABSENT, ABSENT, "FSS"),
        "indexer_types": (ABSENT, ABSENT, ABSENT, ["full", "shared"]),
    },
    "hy_v4": {"indexer_types": (ABSENT, ["full", "shared"]), "qk_rope_head_dim": (ABSENT, 64)},
    "deepseek_v4": {"compress_ratios": (ABSENT, [0, 4, 128], [128, 4], [4])},
    "bamba": {**MAMBA, "attn_layer_indices": (ABSENT, [], [0], [0, 2])},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": (ABSENT, None, 512)},
    "granitemoehybrid": MAMBA,
    "zamba2": {
        "n_mamba_heads": (ABSENT, 4),
        "mamba_ngroups": (ABSENT, 2),
        "mamba_d_state": (ABSENT, 32),
        "mamba_expand": (ABSENT, 4),
        "mamba_d_conv": (ABSENT, 3),
        "attention_head_dim": (ABSENT, ABSENT, 24),
        "layers_block_type": (["mamba", "hybrid"], ["mamba", "mamba", "hybrid"], ["linear_attention", "hybrid"]),
    },
    "nemotron_h": {
        "hybrid_override_pattern": (ABSENT, "M-*E", "ME*", "M"),
        "layers_block_type": (ABSENT, ABSENT, ["mamba", "moe", "attention"], ["full_attention", "linear_attention", "mlp"]),
        "mamba_num_heads": (ABSENT, 16),
        "mamba_head_dim": (ABSENT, 32),
        "ssm_state_size": (ABSENT, 64),
        "n_groups": (ABSENT, 2),
        "mamba_n_groups": (ABSENT, ABSENT, 4),
        "conv_kernel": (ABSENT, 3),
        "mamba_d_conv": (ABSENT, ABSENT, 2),
    },
    "jamba": {
        "attn_layer_period": (ABSENT, 2, 3),
        "attn_layer_offset": (0, 1),
        "mamba_d_state": (ABSENT, 32),
        "mamba_d_conv": (ABSENT, 3),
        "mamba_expand": (ABSENT, 3),
    },
    "mamba2": {"expand": (1, 2), "num_heads": (4, 8), "n_groups": (ABSENT, 2, 1), "state_size": (ABSENT, 64)},
    "mamba": {"expand": (ABSENT, 3), "state_size": (ABSENT, 8), "conv_kernel": (ABSENT, 3), "intermediate_size": (ABSENT, 640)},
    "falcon_mamba": {"expand": (ABSENT, 16), "state_size": (ABSENT, 8), "intermediate_size": (ABSENT, 640)},
    "lfm2": {"full_attn_idxs": (ABSENT, [], [0], [0, 2]), "conv_L_cache": (ABSENT, 4)},
    "lfm2_moe": {"conv_L_cache": (ABSENT, 4), "layer_types": (["conv", "conv", "full_attention"],)},
    "qwen3_next": DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA,
    "olmo_hybrid": {key: values for key, values in DELTA.items() if key != "full_attention_interval"},
    "bailing_hybrid": {
        "head_dim": (ABSENT, 16, 64),
        "short_conv_kernel_size": (ABSENT, 3),
        "layer_group_size": (ABSENT, 2, 3),
    },
    "minimax_m3_vl_text": {
        "index_head_dim": (ABSENT, 64),
        "sparse_attention_config": (
            ABSENT, {"sparse_index_dim": 32, "sparse_attention_freq": [0, 0, 1, 1]}, {"sparse_attention_freq": [1, 0, 1, 1]}
        ),
    },
    "dots3_note_text": {
        "num_key_value_heads": (None, 8),
        "head_dim": (ABSENT,),
        "sliding_window": (ABSENT, None, 77),
        "sliding_window_size": (ABSENT, 64),
        "use_sliding_window": (ABSENT, ABSENT, True),
        "swa_kv_lora_rank": (ABSENT, 576, 768),
        "swa_head_dim": (ABSENT, 320),
        "swa_qk_nope_head_dim": (ABSENT, 128),
    },
    "glm5_next_text": {
        "num_key_value_heads": (None, 8),
        "index_kpool": (ABSENT, 2, 32),
        "qk_rope_head_dim": (ABSENT, 0),
        "linear_num_heads": (ABSENT, 16),
        "linear_conv_kernel_dim": (ABSENT, 3),
        "linear_attn_config": (ABSENT, {"head_dim": 64}, {"num_heads": 4, "short_conv_kernel_size": 5}),
    },
    "kimi_linear": {
        "linear_num_heads": (ABSENT, 16),
        "linear_attn_config": (ABSENT, {"head_dim": 64}, {"num_heads": 4, "short_conv_kernel_size": 3}),
    },
}

# Words for the layers of a family that `layer_types` may have.
LISTS = {
    ("full_attention", "chunked_attention"): ("llama4_text",),
    ("full_attention", "linear_attention"): (
        "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear", "minimax", "granitemoehybrid"
    ),
    ("attention", "mamba"): ("granitemoehybrid",),
    ("full_attention", "indexed_attention", "sliding_attention"): ("dots3_note_text",),
    ("full_attention", "indexed_attention", "linear_attention"): ("glm5_next_text",),
    ("full_attention", "conv"): ("lfm2",),
    ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"): ("deepseek_v4",),
}


def fields(config_class):
    names = set()
    for base in config_class.__mro__[:-1]:
        names |= set(getattr(base, "__annotations__", {}))
    return names


def cycled(values, layers):
    return (values * layers)[:layers]


def variation(family, draw):
    """A small config of a family with some keys that its class knows, or that files of it have."""
    known = fields(class_of(family))
    layers = draw.randint(3, 12)
    config = {"model_type": family, "num_hidden_layers": layers, "hidden_size": 256, "num_attention_heads": 8}
    if family == "longcat_flash":
        del config["num_hidden_layers"]
    if family in ("gpt2", "gptj", "gpt_bigcode", "dbrx"):
        config = {"model_type": family, "n_layers" if family == "dbrx" else "n_layer": layers}
    if family == "mamba2":
        config |= {"head_dim": 0}
    keys = dict(EVERYWHERE) if family not in ("mamba", "falcon_mamba", "mamba2", "dbrx") else {}
    keys |= WINDOWS
    keys = {key: values for key, values in keys.items() if key in known}
    if family == "deepseek_v4":
        del keys["head_dim"], keys["num_key_value_heads"]
    keys |= LATENT if family in MLA else {}
    keys |= OWN.get(family, {})
    for key, values in keys.items():
        value = draw.choice(values)
        if value == ABSENT:
            continue
        if isinstance(value, list) and value and key not in ("attn_layer_indices", "full_attn_idxs"):
            value = cycled(value, layers)
        if key == "sparse_attention_config":
            value = {**value, "sparse_attention_freq": cycled(value["sparse_attention_freq"], layers)}
        if key == "index_topk_pattern":
            value = cycled(value, layers)
        config[key] = value
    lists = [words for words, families in LISTS.items() if family in families]
    if family not in sum(LISTS.values(), ()) and {"layer_types", "sliding_window"} <= known:
        lists = [("full_attention", "sliding_attention")]
    if lists and "layer_types" not in config and draw.random() < 0.4:
        words = draw.choice(lists)
        config["layer_types"] = [draw.choice(words) for _ in range(layers)]
    if family == "kimi_linear" and draw.random() < 0.5:
        full = [i for i in range(1, layers + 1) if draw.random() < 0.3]
        rest = [i for i in range(1, layers + 1) if i not in full]
        sizes = config.get("linear_attn_config", {})
        config["linear_attn_config"] = {**sizes, "full_attn_layers": full, "kda_layers": rest}
    if family == "dots3_note_text" and config.get("sliding_window"):
        # Where both are there vLLM reads this one, and the class the other.
        config.pop("sliding_window_size", None)
    if family == "mamba2":
        config["head_dim"] = config["expand"] * 256 // config["num_heads"]
        config["n_groups"] = config.get("n_groups", 1)
    if family == "nemotron_h" and ("layers_block_type" in config or "hybrid_override_pattern" not in config):
        config.pop("num_hidden_layers")
    if family == "nemotron_h" and "hybrid_override_pattern" in config:
        config["hybrid_override_pattern"] = cycled(config["hybrid_override_pattern"], layers)
    if family in PER_LAYER and draw.random() < 0.4:
        heads, window = {"num_key_value_heads": 1, "head_dim": 80}, {"sliding_window": draw.choice((33, 20))}
        without = ("llama4_text", "nemotron_h", "qwen3_next")
        windowless = family in without or config.get("sliding_window", window) is None
        kinds = [heads] if windowless else [heads, window, heads | window]
        config["per_layer_config"] = {str(i): draw.choice(kinds) for i in draw.sample(range(min(layers, 3)), 2)}
    return config


# Some of those that have every key which `variation` gives to single layers.
PER_LAYER = (
    "nemotron_h", "qwen3_next", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "ministral", "mistral", "qwen3", "cohere2", "olmo3"
)


def cases():
    """Every config that is asked about, with a name, and what its class says."""
    asked, strangers, refused = [], [], 0
    for path in sorted((CATALOG / "configs").glob("*.json")):
        config = json.loads(path.read_text())
        if class_of(config["model_type"]) is None:
            strangers.append(path.stem)
            continue
        said = ask(config)
        if said is None:
            raise SystemExit(f"{path.name}: its class refuses it")
        config = read(config)
        dtype = config.get_text_config(decoder=True).dtype or config.dtype
        asked.append({"file": path.stem, "dtype": dtype and str(dtype).removeprefix("torch."), "caches": said})
    for family in FAMILIES:
        config = {"model_type": family}
        said = ask(config)
        if said is not None:
            asked.append({"config": config, "caches": said})
        # Each family draws for itself, so that a new one leaves the others as they are.
        draw, seen = random.Random(f"{SEED} {family}"), set()
        for _ in range(8 * VARIATIONS):
            config = variation(family, draw)
            text = json.dumps(config, sort_keys=True)
            if len(seen) == VARIATIONS or text in seen:
                continue
            said = ask(config)
            if said is None:
                refused += 1
                continue
            seen.add(text)
            asked.append({"config": config, "caches": said})
    small = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2}
    for wrapper, told in wrappers():
        for config in [{"model_type": wrapper}] + [{"model_type": wrapper, "text_config": small}] * told:
            said = ask(config)
            if said is not None:
                asked.append({"config": config, "caches": said})
    print(f"{len(asked)} configs; {refused} variations that a class refuses were passed over", file=sys.stderr)
    return asked, strangers


# --- which keys need not be read ---------------------------------------------------------

# Keys of published configs that few classes have: where a config comes from, weights, drafts, and how it is trained
# or run.
PUBLISHED = """
_attn_implementation _attn_implementation_autoset _commit_hash _experts_implementation _flash_attn_2_enabled
_moe_implementation _name_or_path architectures attn_implementation attn_pdrop auto_map aux_loss_alpha
aux_loss_coef base_model_ep_plan base_model_pp_plan base_model_tp_plan beta_fast compression_config dtype embd_pdrop
ep_size force_download fp32_residual generation_config hidden_dropout language model_max_length model_type
moe_aux_loss_coeff moe_router_dtype mup_enabled n_ctx num_mtp_layers num_mtp_modules num_nextn_predict_layers
output_router_logits output_token_counts parallelization_style
pretraining_tp quantization quantization_config quantize residual_dropout resid_pdrop rope_interleave rope_scaling
rope_theta rope_type rotary_dim rotary_pct scoring_func seq_aux seq_length sliding_window_size_in_blocks
special_tokens summary_activation task_specific_params sparse_disable_index_value sparse_init_block sparse_score_type tf_legacy_loss tokenizer_class topk_method torch_dtype
torchscript transformers_version transformers.js_config unsloth_fixed unsloth_version use_bfloat16 use_cache
use_flash_attn use_mrope use_qk_norm vision_end_token_id vision_start_token_id vision_token_id vocab_size
""".split()


# Families whose classes are not in `transformers`, and those whose keys they have.
ALIKE = {
    "gemma4_assistant_text": "gemma4_text",
    "kimi_k2": "deepseek_v3",
    "mimo_v2": "mimo_v2_flash",
    "minimax_m1": "minimax",
    "minimax_m3_text": "minimax_m3_vl_text",
    "minimax_text_01": "minimax",
}


# Keys that a class does not speak of, or puts together, and vLLM 0.32 reads of its configs.
VLLM = {
    "dots3_note_text": """
        apply_mla_qkv_lora_rescale attention_gate_type indexer_rope_interleave swa_attention_gate_type swa_head_dim
        swa_kv_lora_rank swa_num_attention_heads swa_num_key_value_heads swa_q_lora_rank swa_qk_nope_head_dim
        swa_qk_rope_head_dim swa_v_head_dim
    """,
    "glm5_next_text": "indexer_rope_interleave mhc mla_use_nope",
}


def keys_of(config_class):
    """Every key that a class takes: its fields, their other names, and what else its source speaks of."""
    names = set(fields(config_class))
    for base in config_class.__mro__[:-1]:
        names |= set(getattr(base, "attribute_map", None) or {}) | set((getattr(base, "attribute_map", None) or {}).values())
        if base.__module__.startswith("transformers.models."):
            names |= set(re.findall(r'"([a-zA-Z]\w*)"', inspect.getsource(base)))
    return {name for name in names if not name.startswith("_")}


def harmless_keys():
    """What `unread.rs` says of it."""
    of_family = {family: keys_of(class_of(family)) for family in FAMILIES}
    for path in sorted((CATALOG / "configs").glob("*.json")):
        config = json.loads(path.read_text())
        if class_of(config["model_type"]) is not None:
            family = read(config).get_text_config(decoder=True).model_type
            of_family[family] |= set(re.findall(r'"(\w+)":', json.dumps(config)))
    for family, keys in VLLM.items():
        of_family[family] |= set(keys.split())
    of_family |= {family: of_family[alike] for family, alike in ALIKE.items()}
    everywhere = set(PUBLISHED) | set().union(*of_family.values())
    for model_type in CONFIG_MAPPING.keys():
        kind = CONFIG_MAPPING[model_type]
        inner = getattr(kind, "sub_configs", None) or getattr(kind, "sub_configs_defaults", None)
        if inner and "text_config" in inner:
            everywhere |= fields(kind) | set(inner)
    # What the catalog reads of some family is about caches.
    asked = set()
    for path in SOURCES.glob("*.rs"):
        asked |= set(re.findall(r'"([a-zA-Z][a-zA-Z0-9_]*)"', path.read_text()))
    about_caches = asked - set(PUBLISHED)
    lines = {"*": everywhere - about_caches}
    lines |= {family: keys & about_caches for family, keys in of_family.items()}
    return "".join(f"{name}: {' '.join(sorted(keys))}\n" for name, keys in lines.items() if keys)


def fixture():
    transformers.logging.set_verbosity(50)
    asked, strangers = cases()
    head = {
        "made by": "python tests/tools/config_classes.py",
        "sha256 of that": hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest(),
        "transformers": transformers.__version__,
        "without a class": strangers,
    }
    text = json.dumps(head)[:-1] + ', "cases": [\n'
    return text + ",\n".join(json.dumps(case, separators=(",", ":")) for case in asked) + "\n]}\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="write nothing; fail if it would differ")
    check = arguments.parse_args().check
    if transformers.__version__ != VERSION:
        raise SystemExit(f"this is transformers {transformers.__version__}, and the fixture is of {VERSION}")
    for path, text in ((KEYS, harmless_keys()), (FIXTURE, fixture())):
        if not check:
            path.write_text(text)
        elif path.read_text() != text:
            raise SystemExit(f"{path.relative_to(ROOT)} is not what this tool writes")


if __name__ == "__main__":
    main()
