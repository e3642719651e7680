"""Asks vLLM 0.32's own `get_kv_cache_spec` what layers of GLM-5.3-Flash and dots3.note cache. Prints, for each sort of
layer, the bytes of a block, the tokens of one and the window.

Run by hand with vLLM's Python; the numbers stand in the tests of `crates/layout/tests/catalog`. Layers are made without
their weights: what their methods read is set, from the defaults of the config classes.
"""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

# Kernels, which no machine without a GPU has and no layer asks when it says what it caches.
KERNELS = (
    "vllm_flash_attn", "vllm_flash_attn.flash_attn_interface", "v1.attention.backends.fa_utils", "third_party.deep_gemm"
)
for module in KERNELS:
    sys.modules[f"vllm.{module}"] = MagicMock()

import torch
from transformers import Glm5NextTextConfig
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache
from vllm.models.dots3_note.nvidia.model import Dots3NotePaddedMLAAttention
from vllm.models.glm5next.common.attention import Glm5NextIndexerCache, Glm5NextTailCache
from vllm.models.glm5next.common.model import Glm5NextForCausalLM

CACHE = SimpleNamespace(block_size=1024, mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto")


def vllm_config(text):
    return SimpleNamespace(
        cache_config=CACHE, model_config=SimpleNamespace(dtype=torch.bfloat16, hf_text_config=text), num_speculative_tokens=0,
        parallel_config=SimpleNamespace(tensor_parallel_size=1), speculative_config=None,
    )


def tell(name, text, kind, **fields):
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    for field, value in (fields | {"cache_config": CACHE}).items():
        setattr(layer, field, value)
    spec = layer.get_kv_cache_spec(vllm_config(text))
    window = getattr(spec, "sliding_window", None)
    print(f"{name}: {type(spec).__name__}, {spec.page_size_bytes} B for {spec.block_size} tokens, window {window}")


def latents(name, text, kind, size, **fields):
    tell(
        name, text, kind, head_size=size, kv_cache_dtype="auto", non_causal_multi_token_decode=False, indexer=None,
        **({"sliding_window": None} | fields),
    )


glm = Glm5NextTextConfig()
width = glm.index_head_dim
print("glm5_next states", Glm5NextForCausalLM.get_mamba_state_shape_from_config(vllm_config(glm)),
      Glm5NextForCausalLM.get_mamba_state_dtype_from_config(vllm_config(glm)))
latents("glm5_next latents", glm, MLAAttention, glm.kv_lora_rank + glm.qk_rope_head_dim)
keys = {"dtype": torch.uint8, "head_dim": width + width // 128 * 4}
tell("glm5_next index keys", glm, Glm5NextIndexerCache, _index_kpool=glm.index_kpool, **keys)
tell("glm5_next last keys", glm, Glm5NextTailCache, _index_kpool=glm.index_kpool, dtype=torch.bfloat16, head_dim=width)

# vLLM's class of dots3.note has no defaults; these are those of transformers 5.24.0's.
rows, window, width = 1024 + 64, 512, 128
latents("dots3_note full", None, Dots3NotePaddedMLAAttention, 512 + 64, physical_head_size=rows)
latents("dots3_note window", None, MLAAttention, rows, sliding_window=window)
tell("dots3_note index keys", None, DeepseekV32IndexerCache, dtype=torch.uint8, head_dim=width + width // 128 * 4)
