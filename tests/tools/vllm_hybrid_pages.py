"""Asks vLLM 0.32's own code which block size and page it takes for a hybrid: what `transload inspect --engine vllm` has
to say. Prints, for each TP size and block size, the block size taken and the bytes of a page.

Run by hand with vLLM's Python; the numbers stand in `crates/transload/tests/inspect.rs`. Only the question is made up
(Nemotron-H 8B and an attention backend of 16-token kernel blocks): the shapes of states and the alignment are vLLM's.
"""

import contextlib
from types import SimpleNamespace

import torch
import vllm.config.vllm
import vllm.model_executor.models
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf


class NemotronH:
    @staticmethod
    def get_mamba_state_shape_from_config(config):
        return MambaStateShapeCalculator.mamba2_state_shape(
            intermediate_size=8192, tp_world_size=config.tp, n_groups=8, num_heads=128, head_dim=64,
            state_size=128, conv_kernel=4,
        )

    @staticmethod
    def get_mamba_state_dtype_from_config(_):
        return torch.bfloat16, torch.float32


class Backend:
    @staticmethod
    def customize_spec(spec):
        return spec

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [MultipleOf(16)]


class Gpu(Platform):
    @classmethod
    def _find_non_ssm_backends(cls, _):
        return [Backend]


vllm.config.vllm.set_current_vllm_config = lambda *_: contextlib.nullcontext()
vllm.model_executor.models.ModelRegistry = SimpleNamespace(resolve_model_cls=lambda *_, **__: (NemotronH, None))

for tp in (1, 2):
    for block_size in (16, 32, 128):
        cache = SimpleNamespace(
            block_size=block_size, cache_dtype="auto", mamba_cache_mode="none", mamba_page_size_padded=None,
            mamba_block_size=None, kv_cache_dtype_skip_layers=[],
        )
        model = SimpleNamespace(
            dtype=torch.bfloat16, use_mla=False, get_num_kv_heads=lambda _, tp=tp: 8 // tp,
            get_head_size=lambda: 128, architecture="NemotronHForCausalLM",
        )
        config = SimpleNamespace(cache_config=cache, model_config=model, parallel_config=None, tp=tp)
        Gpu._align_hybrid_block_size(config, Backend)
        print(tp, block_size, cache.block_size, cache.mamba_page_size_padded)
