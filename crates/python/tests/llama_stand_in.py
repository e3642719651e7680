"""The few names of llama-cpp-python that `transload.llama` uses. A cell's row says which tokens it was computed from, so that a
context with another token's row, or a row in another place, answers with other tokens."""

import ctypes
import hashlib
import struct
import types
from types import SimpleNamespace

import numpy

ROW = 8


def modules():
    """What `import llama_cpp` is to find, by name."""
    top, cache = types.ModuleType("llama_cpp"), types.ModuleType("llama_cpp.llama_cache")
    cache.BaseLlamaCache = type("BaseLlamaCache", (), {})
    top.__version__, top.Llama, top.llama_cache = "0.3.36", Llama, cache
    top.llama_cpp = SimpleNamespace(_lib=SimpleNamespace(_name=__file__))
    top.LLAMA_ROPE_TYPE_NONE, top.LLAMA_ROPE_TYPE_NORM, top.LLAMA_ROPE_TYPE_NEOX = -1, 0, 2
    top.llama_model_rope_type = lambda model: model.rope
    top.llama_model_n_swa = lambda model: model.window
    top.llama_model_has_encoder = lambda model: model.encoder
    top.llama_state_seq_get_size = lambda ctx, sequence: len(ctx.state())
    top.llama_state_seq_get_data = Llama.write_state
    top.llama_state_seq_set_data = Llama.read_state
    return {"llama_cpp": top, "llama_cpp.llama_cache": cache}


def common(a, b):
    return next((at for at, (one, other) in enumerate(zip(a, b)) if one != other), min(len(a), len(b)))


class Llama:
    """A model whose next token is a digest of all before it, by way of the rows in its context."""

    rope, window, encoder = 0, 0, False

    def __init__(self, path, *, flash_attn=False, logits_all=False, n_ctx=2048, kv_overrides=None, lora=None, **settings):
        self.model_path, self.kv_overrides, self.chat_handler = str(path), kv_overrides, None
        self.lora_path, self.lora_scale = lora or (None, 1.0)
        self.metadata = {"general.name": "stand-in", "general.architecture": "llama"}
        names = (
            "type_k type_v swa_full attention_type rope_scaling_type rope_freq_base rope_freq_scale yarn_ext_factor"
            " yarn_attn_factor yarn_beta_fast yarn_beta_slow yarn_orig_ctx embeddings"
        )
        settings = {"swa_full": True} | settings
        self.context_params = SimpleNamespace(**dict.fromkeys(names.split(), 0) | settings, flash_attn_type=int(flash_attn))
        self._logits_all, self._is_recurrent, self._is_hybrid = logits_all, False, False
        self.ctx = self.model = self._ctx = self
        self._n_ctx, self.n_tokens, self._requires_eval, self.cache = n_ctx, 0, True, None
        self.input_ids, self.scores = numpy.zeros(n_ctx, numpy.intc), numpy.zeros((n_ctx, 4), numpy.single)
        self.rows, self.computed, self.copies, self.takes = [], 0, 0, True

    def n_ctx(self):
        return self._n_ctx

    def token_bos(self):
        return 1

    def set_cache(self, cache):
        self.cache = cache

    def reset(self):
        self.n_tokens, self._requires_eval = 0, True

    @property
    def _input_ids(self):
        return self.input_ids[: self.n_tokens]

    longest_token_prefix = staticmethod(common)

    def kv_cache_seq_rm(self, sequence, first, last):
        if first < len(self.rows) and self._is_recurrent:
            return False
        del self.rows[first:]
        return True

    def kv_cache_seq_shift(self, sequence, first, last, by):
        """Rows look the same at another position."""

    def eval(self, tokens):
        self.kv_cache_seq_rm(-1, self.n_tokens, -1)
        for token in tokens:
            before = self.rows[-1] if self.rows else b""
            self.rows.append(hashlib.blake2b(before + struct.pack("<I", token), digest_size=ROW).digest())
            self.input_ids[self.n_tokens] = token
            self.n_tokens += 1
            self.computed += 1
        self._requires_eval = False

    def next_token(self):
        return hashlib.blake2b(b"".join(self.rows), digest_size=1).digest()[0]

    def save_state(self):
        self.copies += 1
        return SimpleNamespace(n_tokens=self.n_tokens, rows=list(self.rows), input_ids=self.input_ids.copy())

    def load_state(self, state):
        self.copies += 1
        self.n_tokens, self.rows, self.input_ids = state.n_tokens, list(state.rows), state.input_ids.copy()

    def complete(self, prompt, tokens=4):
        return list(self._create_completion(prompt, tokens))

    def _create_completion(self, prompt, tokens):
        if self.cache:
            try:
                item = self.cache[prompt]
                if common(item.input_ids, prompt) > common(self._input_ids, prompt):
                    self.load_state(item)
            except KeyError:
                pass
        self.n_tokens = min(common(self._input_ids, prompt), len(prompt) - 1)
        self.eval(prompt[self.n_tokens :])
        said = [self.next_token()]
        yield said[-1]
        while len(said) < tokens:
            self.eval(said[-1:])
            said.append(self.next_token())
            yield said[-1]
        if self.cache:
            self.cache[prompt + said] = self.save_state()

    def state(self):
        head = struct.pack("<4I", 0xAF143CD8, 0, 1, len(self.rows))
        cells = b"".join(struct.pack("<3I", position, 1, 0) for position in range(len(self.rows)))
        transposed = not self.context_params.flash_attn_type
        numbers = numpy.frombuffer(b"".join(self.rows), "<u2").reshape(-1, ROW // 2)
        values = numbers.T if transposed else numbers
        row = struct.pack("<III", 1, 2, ROW // 2) if transposed else struct.pack("<IQ", 1, ROW)
        keys = struct.pack("<IQ", 1, ROW) + numbers.tobytes()
        return head + cells + struct.pack("<2I", transposed, 1) + keys + row + values.tobytes()

    def write_state(self, start, length, sequence):
        state = self.state()
        ctypes.memmove(start, state, length)
        return len(state)

    def read_state(self, start, length, sequence):
        state = ctypes.string_at(start, length)
        [cells] = struct.unpack_from("<I", state, 12)
        rows = state[16 + 12 * cells + 8 + 12 :]
        self.rows = [rows[at : at + ROW] for at in range(0, ROW * cells, ROW)]
        assert state == self.state()
        if not self.takes:
            self.rows = []
        return length if self.takes else 0
