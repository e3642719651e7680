"""Small models with random weights, as GGUF files that llama.cpp loads."""

import struct

import numpy as np

ALIGNMENT = 32
VOCABULARY = 320


def write(path, fields, tensors):
    """Writes a GGUF file of version 3: `fields` are its metadata, `tensors` arrays of float32."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields))
    for key, value in fields.items():
        head += _text(key) + _value(value)
    at, data = 0, []
    for name, array in tensors.items():
        shape = array.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, at)
        data.append(_padded(array.astype("<f4").tobytes()))
        at += len(data[-1])
    path.write_bytes(b"".join([_padded(head), *data]))
    return path


def llama(path, seed=0, *, layers=2, width=128, heads=4, kv_heads=2):
    """A llama with grouped-query attention."""
    return _model(path, "llama", _attention(seed, layers, width, heads, kv_heads), layers, width, {
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": width // heads,
        "llama.feed_forward_length": 2 * width,
    })


def gemma2(path, seed=0):
    """A model each second layer of which has a window of 64 tokens."""
    layers, width, heads, kv_heads = 2, 64, 4, 2
    tensors = _attention(seed, layers, width, heads, kv_heads)
    del tensors["output.weight"]
    for layer in range(layers):
        tensors[f"blk.{layer}.post_attention_norm.weight"] = np.ones(width)
        tensors[f"blk.{layer}.post_ffw_norm.weight"] = np.ones(width)
    return _model(path, "gemma2", tensors, layers, width, {
        "gemma2.attention.head_count": heads,
        "gemma2.attention.head_count_kv": kv_heads,
        "gemma2.attention.layer_norm_rms_epsilon": 1e-5,
        "gemma2.attention.key_length": width // heads,
        "gemma2.attention.value_length": width // heads,
        "gemma2.attention.sliding_window": 64,
        "gemma2.attn_logit_softcapping": 50.0,
        "gemma2.final_logit_softcapping": 30.0,
        "gemma2.rope.dimension_count": width // heads,
        "gemma2.feed_forward_length": 2 * width,
    })


def mamba(path, seed=0):
    """A recurrent model."""
    layers, width, inner, state, taps, rank = 2, 64, 128, 16, 4, 8
    random = _random(seed)
    tensors = {"token_embd.weight": random(VOCABULARY, width, scale=1), "output_norm.weight": np.ones(width)}
    for layer in range(layers):
        tensors |= {f"blk.{layer}.{name}": array for name, array in {
            "attn_norm.weight": np.ones(width),
            "ssm_in.weight": random(2 * inner, width),
            "ssm_conv1d.weight": random(inner, taps),
            "ssm_conv1d.bias": random(inner),
            "ssm_x.weight": random(rank + 2 * state, inner),
            "ssm_dt.weight": random(inner, rank),
            "ssm_dt.bias": random(inner),
            "ssm_a": -0.1 - np.abs(random(inner, state, scale=1)),
            "ssm_d": np.ones(inner),
            "ssm_out.weight": random(width, inner),
        }.items()}
    return _model(path, "mamba", tensors, layers, width, {
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.feed_forward_length": 0,
        "mamba.ssm.conv_kernel": taps,
        "mamba.ssm.inner_size": inner,
        "mamba.ssm.state_size": state,
        "mamba.ssm.time_step_rank": rank,
    })


def adapter(path, seed=0, *, width=128, rank=4):
    """A LoRA adapter of the first layer of `llama`."""
    random = _random(seed)
    fields = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
    }
    return write(path, fields, {
        "blk.0.attn_q.weight.lora_a": random(rank, width),
        "blk.0.attn_q.weight.lora_b": random(width, rank),
    })


def _attention(seed, layers, width, heads, kv_heads):
    random, kv_width = _random(seed), width // heads * kv_heads
    tensors = {
        "token_embd.weight": random(VOCABULARY, width, scale=1),
        "output_norm.weight": np.ones(width),
        "output.weight": random(VOCABULARY, width),
    }
    for layer in range(layers):
        tensors |= {f"blk.{layer}.{name}.weight": array for name, array in {
            "attn_norm": np.ones(width),
            "attn_q": random(width, width),
            "attn_k": random(kv_width, width),
            "attn_v": random(kv_width, width),
            "attn_output": random(width, width),
            "ffn_norm": np.ones(width),
            "ffn_gate": random(2 * width, width),
            "ffn_up": random(2 * width, width),
            "ffn_down": random(width, 2 * width),
        }.items()}
    return tensors


def _model(path, arch, tensors, layers, width, fields):
    fields = {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        f"{arch}.context_length": 8192,
        f"{arch}.embedding_length": width,
        f"{arch}.block_count": layers,
        f"{arch}.vocab_size": VOCABULARY,
    } | fields | _tokenizer()
    return write(path, fields, tensors)


def _tokenizer():
    words = [f"\u2581t{number}" for number in range(VOCABULARY - 259)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words],
        "tokenizer.ggml.scores": [0.0] * 3 + [-100.0] * 256 + [-float(number) for number in range(len(words))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _random(seed):
    generator = np.random.default_rng(seed)
    return lambda *shape, scale=None: generator.standard_normal(shape) * (scale or shape[-1] ** -0.5)


def _padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


def _text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    match value:
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
