"""Asks vLLM 0.32's own code which block size and page it takes for a hybrid: what `transload inspect --engine vllm` has
to say. Prints, for each TP size and block size, the block size taken and the bytes of a page.

Run by hand with vLLM's Python; the numbers stand in `crates/transload/tests/command/inspect.rs` and, of GLM-5.3-Flash, in
`crates/layout/tests/catalog/recurrent/delta.rs`. Only the question is made up (Nemotron-H 8B with an attention backend of
16-token kernel blocks, and the defaults of GLM-5.3-Flash's class): the shapes of states and the alignment are vLLM's.
"""

import contextlib
from types import SimpleNamespace

import torch
import vllm.config.vllm
import vllm.model_executor.models
from transformers import Glm5NextTextConfig
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.models.glm5next.common.model import Glm5NextForCausalLM
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.mla import indexer
from vllm.v1.attention.backends.mla.flashmla_sparse import FlashMLASparseBackend


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

    @staticmethod
    def supports_block_size(size):
        return size % 16 == 0


class Gpu(Platform):
    backends = [Backend]

    @classmethod
    def _find_non_ssm_backends(cls, _):
        return cls.backends


vllm.config.vllm.set_current_vllm_config = lambda *_: contextlib.nullcontext()


def ask(model_class, backends, tp, block_size, **model):
    """The block size that vLLM takes, and the bytes of a page; `block_size` is 0 where the user names none."""
    Gpu.backends = backends
    vllm.model_executor.models.ModelRegistry = SimpleNamespace(resolve_model_cls=lambda *_, **__: (model_class, None))
    cache = SimpleNamespace(
        block_size=block_size, cache_dtype="auto", mamba_cache_mode="none", mamba_page_size_padded=None,
        mamba_block_size=None, mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto", kv_cache_dtype_skip_layers=[],
        user_specified_block_size=bool(block_size),
    )
    config = SimpleNamespace(
        cache_config=cache, model_config=SimpleNamespace(dtype=torch.bfloat16, is_hybrid=True, **model), tp=tp,
        parallel_config=SimpleNamespace(tensor_parallel_size=tp), speculative_config=None, num_speculative_tokens=0,
    )
    indexer.get_current_vllm_config = lambda: config
    Gpu.update_block_size_for_backend(config)
    return cache.block_size, cache.mamba_page_size_padded


for tp in (1, 2):
    for block_size in (16, 32, 128):
        page = ask(
            NemotronH, [Backend], tp, block_size, use_mla=False, get_num_kv_heads=lambda _, tp=tp: 8 // tp,
            get_head_size=lambda: 128, architecture="NemotronHForCausalLM",
        )
        print("Nemotron-H", tp, block_size, *page)

glm = Glm5NextTextConfig()
backends = [FlashMLASparseBackend, indexer.Glm5NextIndexerBackend, indexer.KpoolTailBackend]
for tp in (1, 2, 8):
    for block_size in (0, 128, 1024):
        page = ask(
            Glm5NextForCausalLM, backends, tp, block_size, use_mla=True, get_num_kv_heads=lambda _: 1,
            get_head_size=lambda: glm.kv_lora_rank + glm.qk_rope_head_dim, hf_text_config=glm,
            architecture="Glm5NextForCausalLM",
        )
        print("GLM-5.3-Flash", tp, block_size, *page)
