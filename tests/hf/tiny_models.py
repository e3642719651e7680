"""Small models of transformers with random weights, one for each way in which layers cache."""

import torch
import transformers
from transformers import AutoModelForCausalLM

VOCABULARY = 320
SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1)
GDN = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)
WINDOWS = ["sliding_attention", "full_attention"]
CONFIGS = {
    "llama": ("Llama", {}),
    "qwen3": ("Qwen3", {}),
    "gemma3": ("Gemma3Text", dict(layer_types=WINDOWS, sliding_window=64)),
    "gemma3_wide": ("Gemma3Text", dict(layer_types=WINDOWS, sliding_window=400)),
    "gemma3n": ("Gemma3nText", dict(
        num_hidden_layers=4, layer_types=WINDOWS * 2, sliding_window=64, num_kv_shared_layers=2, intermediate_size=[96] * 4,
        vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=16, laurel_rank=8, altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * 4,
    )),
    "gpt_oss": ("GptOss", dict(layer_types=WINDOWS, sliding_window=128, num_local_experts=4, num_experts_per_tok=2)),
    "deepseek": ("DeepseekV3", dict(
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, moe_intermediate_size=32,
        q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4,
    )),
    "llama4": ("Llama4Text", dict(
        layer_types=["chunked_attention", "full_attention"], attention_chunk_size=100, no_rope_layers=[1, 0],
        num_local_experts=2, num_experts_per_tok=1, intermediate_size_mlp=96, interleave_moe_layer_step=2,
    )),
    "mamba": ("Mamba", dict(state_size=16, expand=2, conv_kernel=4, time_step_rank=8)),
    "falcon_mamba": ("FalconMamba", dict(state_size=16, expand=2, conv_kernel=4, time_step_rank=8)),
    "jamba": ("Jamba", dict(
        num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, num_experts=2, num_experts_per_tok=1, mamba_d_state=16,
        mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=8, use_mamba_kernels=False,
    )),
    "mamba2": ("Mamba2", dict(num_heads=8, head_dim=16, state_size=16, expand=2, n_groups=1, chunk_size=64, conv_kernel=4)),
    "qwen3_next": ("Qwen3Next", dict(layer_types=["linear_attention", "full_attention"], **GDN, **EXPERTS)),
    "lfm2": ("Lfm2", dict(layer_types=["conv", "full_attention"], conv_L_cache=3)),
    "falcon_h1": ("FalconH1", dict(mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_chunk_size=64)),
}  # fmt: skip

MAMBA_1 = ["mamba", "falcon_mamba", "jamba"]
ROPE = dict(rope_theta=10000.0)
POSITIONS = {
    "partial": ("Glm", dict(rope_parameters=ROPE | dict(rope_type="default", partial_rotary_factor=0.5))),
    "yarn": ("Llama", dict(rope_parameters=ROPE | dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024))),
    "dynamic": ("Llama", dict(rope_parameters=ROPE | dict(rope_type="dynamic", factor=4.0), max_position_embeddings=200)),
    "cohere2": ("Cohere2", dict(layer_types=["sliding_attention", "full_attention"], sliding_window=100)),
    "mistral": ("Mistral", dict(sliding_window=64)),
    "gpt2": ("GPT2", dict(n_embd=64, n_layer=2, n_head=4)),
    "bloom": ("Bloom", dict(n_layer=2, n_head=4)),
    "gptj": ("GPTJ", dict(n_embd=64, n_layer=2, n_head=4, rotary_dim=8)),
    "mrope": ("Llama", dict(rope_parameters=ROPE | dict(rope_type="default", mrope_section=[2, 3, 3]))),
}
"""One for each way in which layers know positions."""
ALL = CONFIGS | POSITIONS


def make(name, seed=0, dtype=torch.float32, **fields):
    """A model of this name, to compute with."""
    kind, own = ALL[name]
    config = getattr(transformers, f"{kind}Config")(**SMALL | own | fields)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Random weights are small: whatever is in a cache would hardly count.
            if "A_log" in name:
                parameter.fill_(-5)  # And a state would soon be forgotten.
            elif parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(4)
    return model.eval()


def tokenizer():
    """A tokenizer with a token for each letter."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(code) for code in range(32, 127)]
    words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *letters])}
    words |= {f"<{number}>": number for number in range(len(words), VOCABULARY)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    template = "{% for each in messages %}{{ each.content }}{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", chat_template=template
    )
