"""A prompt cache for llama-cpp-python that outlives the process::

    from llama_cpp import Llama
    from transload.llama import Cache

    llm = Llama("model.gguf", n_ctx=8192)
    llm.set_cache(Cache(llm, "file:///var/kv"))

After each completion what the context holds is saved; before each one the longest saved beginning of its prompt is
restored, if it is longer than what the context still has.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import re
import sys
import weakref
from pathlib import Path
from typing import Any, Mapping, Sequence

import llama_cpp
import numpy as np
from llama_cpp import Llama, llama_cache

from ._digests import Digests
from ._transload import LlamaFound, LlamaStates

_log = logging.getLogger(__name__)

_HEADER = 32
"""The number of tokens at the end of a prompt in which the mark of the answer's beginning is searched. `<|im_start|>assistant` and what
templates put after it have fewer than 10."""

_SETTINGS = (
    "type_k type_v attention_type rope_scaling_type rope_freq_base rope_freq_scale yarn_ext_factor"
    " yarn_attn_factor yarn_beta_fast yarn_beta_slow yarn_orig_ctx"
).split()
"""The settings of a context that decide the numbers in its cache."""


class Cache(llama_cache.BaseLlamaCache):
    """Keeps the states of one `Llama` in a store. Other `Llama`s, also of other processes, find them if they compute the
    same: the same build of llama.cpp, model files, adapters, types of the cache and rope settings.

    What goes wrong with a store is logged, and is a miss; a completion never fails of it.

    Args:
        llm: the `Llama` whose cache it will be, and of no other.
        uri: the store's URI, as for `transload.Archive`. Its own settings say how large it may grow.
        applied: files that were applied to the context by hand, and how: `{"calm.gguf": 0.8}`. These are control vectors, and
            adapters other than `lora_path`. Make another `Cache` when they change.

    Raises:
        ValueError: its states cannot be told apart by tokens: `llm` has a chat handler that takes images, makes
            embeddings, has an encoder, or has sliding windows and `swa_full=False`.
        OSError: a model file, or llama.cpp's library, cannot be read.
        StoreError: the store cannot be opened.
        ArchiveError: the state of its context is of a version that is not known.
    """

    def __init__(
        self, llm: Llama, uri: str, *, applied: Mapping[str | os.PathLike[str], Any] | None = None
    ) -> None:
        _refuse(llm)
        self._llm = weakref.ref(llm)
        self._whole = _is_whole(llm)
        name = llm.metadata.get("general.name") or "llama.cpp"
        sample = None if self._whole else _sample(llm)
        weights = _identity(llm, {} if applied is None else applied)
        self._states = LlamaStates(uri, name, weights, sample, engine_version=llama_cpp.__version__)
        # The prompt that is about to be computed, up to where its chat will come back, and the state there.
        self._prompt: list[int] = []
        self._mark = 0
        self._halfway: tuple[list[int], Any] | None = None
        _take_over(llm)

    @property
    def cache_size(self) -> int:
        """Returns the bytes that the whole store takes up, or 0 where it cannot tell."""
        usage = self._states.usage()
        return usage["bytes"] if usage else 0

    def __getitem__(self, key: Sequence[int]) -> Hit:
        hit = self._find(key)
        if hit is None:
            raise KeyError("no beginning of these tokens is saved")
        llm = self._llm()
        if llm is not None and (llm._is_recurrent or llm._is_hybrid):
            # llama-cpp-python prefers what the context has, and computes all anew when that cannot be cut.
            if Llama.longest_token_prefix(llm._input_ids, key) < llm.n_tokens:
                llm.reset()
        return hit

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find(key) is not None

    def __setitem__(self, key: Sequence[int], value: object) -> None:
        """Saves what the context holds now: of a completion's tokens the last is often not in it yet."""
        llm = self._llm()
        if llm is None or llm.n_tokens == 0:
            return
        try:
            _refuse(llm)
            if llm._shifted:
                self._halfway = None
                raise ValueError("positions of the context were shifted")
            self._save_halfway()
            self._states.save(llm.input_ids[: llm.n_tokens].tolist(), _state(llm), prompt=self._mark)
        except Exception as error:
            _log.warning("a state of %d tokens was not saved: %s", llm.n_tokens, error)

    def _save_halfway(self) -> None:
        """Saves the state at the mark of the last prompt, if one waits."""
        if self._halfway is not None:
            (tokens, state), self._halfway = self._halfway, None
            self._states.save(tokens, state)

    def _compute(self, llm: Llama, tokens: Sequence[int]) -> None:
        """Has a `Llama` compute tokens. Where these are the rest of a prompt, and states can only be kept whole, it stops at
        the last place that the next turn of a chat is sure to have in common: a template may leave out what a model
        thought, or open a thought at the end of the prompt, but not the mark behind which the answer begins."""
        prompt, self._prompt, self._mark = self._prompt, [], 0 if self._prompt else self._mark
        if self._whole and prompt and not llm._shifted and llm.input_ids[: llm.n_tokens].tolist() + list(tokens) == prompt:
            end = len(prompt)
            vocabulary = llama_cpp.llama_model_get_vocab(llm.model)
            marks = range(end - 1, max(end - _HEADER, 1) - 1, -1)
            mark = next((at for at in marks if llama_cpp.llama_vocab_is_control(vocabulary, prompt[at])), end - 1)
            self._mark = mark + 1
            if (first := self._mark - llm.n_tokens) > 0:
                type(llm).eval(llm, tokens[:first])
                try:
                    self._halfway = prompt[: self._mark], _state(llm)
                except Exception as error:
                    _log.warning("a state of %d tokens is not saved: %s", llm.n_tokens, error)
                tokens = tokens[first:]
                if not tokens:
                    return
        type(llm).eval(llm, tokens)

    def _find(self, key: Sequence[int]) -> Hit | None:
        # Behind a whole state llama.cpp has to compute a token: it cannot take one off.
        tokens = list(key)[: -1 if self._whole else None]
        self._prompt = list(key)
        try:
            # Nobody waited for the last answer's end.
            self._save_halfway()
            if (llm := self._llm()) is not None:
                _refuse(llm)
            found = self._states.find(tokens)
        except Exception as error:
            _log.warning("no saved state was looked for: %s", error)
            return None
        return found and Hit(self, tokens[: found.tokens], found)

    def _load(self, llm: Llama, hit: Hit) -> None:
        found = hit.found
        try:
            state = self._states.restore(found)
            if state is None:
                _log.warning("of a state of %d tokens a part was lost, damaged or replaced", found.tokens)
                # Another chat that begins alike may have replaced the end, and the beginning is still there.
                found = self._states.find(hit.input_ids.tolist())
                if found is None or found.tokens <= Llama.longest_token_prefix(hit.input_ids, llm._input_ids):
                    return
                state = self._states.restore(found)
                if state is None:
                    return
            start = ctypes.cast(ctypes.c_char_p(state), ctypes.POINTER(ctypes.c_uint8))
            if llama_cpp.llama_state_seq_set_data(llm.ctx, start, len(state), 0) != len(state):
                llm.reset()
                raise ValueError("llama.cpp does not take it")
        except Exception as error:
            _log.warning("a state of %d tokens was not restored: %s", hit.found.tokens, error)
            return
        llm.n_tokens = found.tokens
        llm.input_ids[: llm.n_tokens] = hit.input_ids[: llm.n_tokens]
        llm._requires_eval, llm._shifted = True, False
        if llm._logits_all:
            # They are not saved, and those of other tokens must not pass for them: one NaN makes a row's logprobs NaN.
            llm.scores[: llm.n_tokens, 0] = np.nan


class Hit:
    """A saved beginning of a prompt, which `Llama.load_state` restores."""

    def __init__(self, cache: Cache, tokens: list[int], found: LlamaFound) -> None:
        self.cache, self.found = cache, found
        self.input_ids = np.array(tokens, np.intc)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name}: a transload.llama.Cache serves the Llama it was made for, make one for each")


def _take_over(llm: Llama) -> None:
    """Replaces methods of a `Llama`, for a cache that takes its own copies of the context:

    - A hit is restored without scores, of which llama-cpp-python would write n_batch x n_vocab.
    - A completion makes no copy of the context.
    - A prompt is computed in two parts where a state is kept in its midst.
    - A shift is noted, since rows that were computed behind other tokens look like any.

    All other calls are answered as before."""
    of = weakref.ref(llm)

    def save_state() -> Any:
        llm, caller = of(), sys._getframe(1).f_code.co_name
        if caller == "_create_completion" and isinstance(llm.cache, Cache):
            return None
        return type(llm).save_state(llm)

    def load_state(state: Any) -> None:
        state.cache._load(of(), state) if isinstance(state, Hit) else type(of()).load_state(of(), state)

    def evaluate(tokens: Sequence[int]) -> None:
        llm = of()
        llm.cache._compute(llm, tokens) if isinstance(llm.cache, Cache) else type(llm).eval(llm, tokens)

    def reset() -> None:
        of()._shifted = False
        type(of()).reset(of())

    def shift(*given: int) -> None:
        of()._shifted = True
        type(of()._ctx).kv_cache_seq_shift(of()._ctx, *given)

    llm.save_state, llm.load_state, llm.eval, llm.reset = save_state, load_state, evaluate, reset
    llm._ctx.kv_cache_seq_shift = shift
    llm._shifted = getattr(llm, "_shifted", False)


def _refuse(llm: Llama) -> None:
    if getattr(llm.chat_handler, "clip_model_path", None) is not None:
        raise ValueError(f"{type(llm.chat_handler).__name__} takes images, which a prompt's tokens do not name")
    if llm.context_params.embeddings:
        raise ValueError("a Llama with embedding=True completes no prompts")
    if llama_cpp.llama_model_has_encoder(llm.model):
        raise ValueError("what an encoder computes is not in the state of a sequence")
    if llama_cpp.llama_model_n_swa(llm.model) and not llm.context_params.swa_full:
        raise ValueError("with swa_full=False a prompt's beginning is used again whose windows are gone")


def _is_whole(llm: Llama) -> bool:
    """Returns whether states of the model stand at one position, or have positions of more than one dimension."""
    plain = (llama_cpp.LLAMA_ROPE_TYPE_NONE, llama_cpp.LLAMA_ROPE_TYPE_NORM, llama_cpp.LLAMA_ROPE_TYPE_NEOX)
    rows = llama_cpp.llama_model_rope_type(llm.model) in plain and not llama_cpp.llama_model_n_swa(llm.model)
    return llm._is_recurrent or llm._is_hybrid or not rows


def _sample(llm: Llama) -> Any:
    """Returns a state of one token at least, and nothing in the context that was not there."""
    if llm.n_tokens > 0:
        return _state(llm)
    llm.eval([max(llm.token_bos(), 0)])
    sample = _state(llm)
    llm.reset()
    return sample


def _state(llm: Llama) -> Any:
    # Cells that `llm` has given up, which `eval` would remove first, too.
    if not llm._ctx.kv_cache_seq_rm(-1, llm.n_tokens, -1):
        raise ValueError("llama.cpp cannot take off the tokens behind them")
    state = np.empty(llama_cpp.llama_state_seq_get_size(llm.ctx, 0), np.uint8)
    start = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    if llama_cpp.llama_state_seq_get_data(llm.ctx, start, len(state), 0) != len(state):
        raise ValueError("llama.cpp does not give it")
    return state


def _identity(llm: Llama, applied: Mapping[str | os.PathLike[str], Any]) -> str:
    """Returns a digest of everything that decides the numbers in the cache, except the tokens."""
    digests = Digests()

    def digest(path: str | os.PathLike[str]) -> str:
        return digests.of(Path(path), lambda: False).hex()

    settings = {name: getattr(llm.context_params, name) for name in _SETTINGS}
    # Quantized rows are rotated, or not.
    settings["rotation"] = os.environ.get("LLAMA_ATTN_ROT_DISABLE")
    if _is_whole(llm):
        # Rows are turned as a context wants them; whole states are restored as they were saved.
        settings["flash_attn_type"] = llm.context_params.flash_attn_type
    arch = llm.metadata.get("general.architecture")
    if (short := llm.metadata.get(f"{arch}.rope.scaling.original_context_length")) is not None:
        # Such models have other rope factors for long contexts.
        settings["long"] = llm.n_ctx() > int(short)
    adapters = [*applied.items(), *([(llm.lora_path, llm.lora_scale)] if llm.lora_path else [])]
    said = [
        [llama_cpp.__version__, digest(llama_cpp.llama_cpp._lib._name)],
        [digest(path) for path in _files(llm.model_path)],
        sorted((digest(path), repr(how)) for path, how in adapters),
        sorted((llm.kv_overrides or {}).items()),
        settings,
    ]
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=20).hexdigest()


def _files(model: str) -> list[str]:
    """Returns a model's file, or all parts of a split one. llama.cpp gets only the first."""
    parts = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", model, re.DOTALL)
    if parts is None:
        return [model]
    return [f"{parts[1]}-{part:05}-of-{parts[2]}.gguf" for part in range(1, int(parts[2]) + 1)]
