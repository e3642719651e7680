"""Restores the saved beginning of a prompt into a model's cache before `generate` computes the rest, and saves it behind."""

from __future__ import annotations

import collections
import inspect
import logging
import math
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Literal, Sequence

import torch
import transformers
from transformers import Cache, DynamicCache

from .. import Archive, Found, Prompt
from .layers import CHUNK, Copy, Layers, UnsupportedCache
from .weights import Unnamed, Weights

_log = logging.getLogger(__name__)

OTHERWISE = (
    "inputs_embeds past_key_values cache cache_params cache_implementation assistant_model prompt_lookup_num_tokens"
    " assistant_early_exit use_mtp custom_generate penalty_alpha dola_layers token_healing adapter_names is_assistant"
).split()
"""Arguments and settings of `generate` with which it takes another cache, other tokens, or another way."""
STRAY = 0.3
"""How far, of their length, logits of two steps may be from those of one: more than rounding makes, where it turns to another
expert too, and less than a state that is left out."""


class _StatesCache(DynamicCache):
    """A cache of states alone, which count no tokens: `generate` has to be told how many are in it."""

    tokens = 0
    is_compileable = False

    @property
    def is_linear(self) -> list[bool]:
        return [False] * len(self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.tokens


@dataclass(frozen=True)
class Report:
    """What `Reuse.verify` has found, over all tokens behind what was restored."""

    prompts: int
    """Prompts of which something was restored."""
    restored: int
    """Tokens that were."""
    compared: int
    """Tokens behind them."""
    difference: float
    """Largest difference of a logit from that of the whole prompt in one step; NaN where nothing was compared."""
    kl: float
    """Mean divergence of the next token's distribution, in nats."""
    top1: float
    """Share of tokens whose best next token is the same."""


class Reuse:
    """The saved prefixes of one model in a store. Others that compute the same find them, also in other processes.

    What goes wrong with a store is counted, logged once of its kind, and a miss; `generate` never fails of it.

    Args:
        model: a decoder of transformers, or of PEFT around one.
        store: the store's URI, as for `transload.Archive`.
        name: the model's name.
        weights: what tells its weights apart from others of that name. None: a digest of the files of the folder that they were
            loaded from, the same that vLLM's connector takes; or of all its tensors where there are none, or where they have
            changed.
        codec: how rows are stored, as for `transload.Archive`.
        save: what is saved when `generate` has ended: the `prompt`, `all` that was computed, or nothing.
        sharing: what of the engine another one has to have in common: `any` (nothing: also what vLLM has saved), `engine`
            (transformers, the attention implementation and the kind of device) or `version` (also the minor version).

    Raises:
        UnsupportedCache: the model keeps a cache that is not known here.
        ValueError: the model has an encoder, or is split over processes; or an argument is another word.
    """

    def __init__(
        self,
        model: Any,
        store: str,
        *,
        name: str,
        weights: str | None = None,
        codec: str = "exact",
        save: Literal["prompt", "all"] | None = "prompt",
        sharing: Literal["any", "engine", "version"] = "version",
    ) -> None:
        if save not in ("prompt", "all", None):
            raise ValueError(f"save={save!r}: it is 'prompt', 'all' or None")
        if model.config.is_encoder_decoder:
            raise ValueError("what an encoder computes is not in the cache of a prompt")
        if (getattr(model, "tp_size", None) or 1) > 1:
            raise ValueError("a model that is split over processes caches a part of each layer in each")
        self.model, self._store, self._name, self._codec = model, store, name, codec
        self._save, self._sharing, self._weights = save, sharing, Weights(model, weights)
        self._config = model.config.get_text_config(decoder=True)
        self._longest = _longest(self._config)
        self._takes = inspect.signature(getattr(model, "get_base_model", lambda: model)().forward).parameters
        word = next((word for word in ("cache", "past_key_values") if word in self._takes), None)
        if word is None:
            # Mamba 2 of transformers 5.19 takes states that its `generate` does not know how many tokens of a prompt are in.
            raise UnsupportedCache("this model takes a cache of its own: newer transformers may have one for all")
        self._word = word
        self._generate = model.generate
        self._lock = threading.Lock()
        self._archives: dict[Any, Archive] = {}
        self._counts: collections.Counter[Any] = collections.Counter()
        self._kind: Any = None
        self._archive(self.computed_by()[0])

    # --- for models ------------------------------------------------------------------

    def generate(self, *args: Any, **inputs: Any) -> Any:
        """The model's own `generate`, with what is saved in front."""
        given = dict(zip(inspect.signature(transformers.GenerationMixin.generate).parameters, (self, *args))) | inputs
        ids, copies, why = self._prompt(given)
        if why is None:
            try:
                by = self.computed_by()
            except (Unnamed, UnsupportedCache) as unknown:
                why = str(unknown)
        if why is not None:
            self._count(("not_reused", why))
            return self._generate(*args, **inputs)
        cache, restored = self.restore(ids, by, copies)
        self._count("hits" if restored else "misses")
        self._count("restored_tokens", restored)
        kept, end = None, (len(ids) - 1) // CHUNK * CHUNK
        if self._save and self.layers.forget and end > restored:
            self.forward(ids[restored:end], cache, copies)
            self.layers.gather(cache, kept := self.layers.copy(end))
        output = self._generate(*args, **inputs, **{self._word: cache})
        if kept is not None:
            self._put(ids, kept, by)
        elif self._save and not self.layers.forget:
            if self._save == "all" and (self._setting(given, "num_beams") or 1) == 1:
                ids = getattr(output, "sequences", output)[0].tolist()
            end = min(len(ids), cache.get_seq_length(), self._longest) // CHUNK * CHUNK
            if end > restored + 1:
                self._put(ids, self.layers.copy(end, -(-restored // CHUNK) * CHUNK), by, cache)
        return output

    def attach(self) -> None:
        """Has `model.generate` itself do it."""
        self.model.generate = self.generate

    def detach(self) -> None:
        """Gives `model.generate` back."""
        if self.model.__dict__.get("generate") == self.generate:
            del self.model.generate

    def warm(self, ids: Sequence[int]) -> int:
        """Saves the beginning of a prompt, all whole token chunks of it, and computes what is not saved yet. How many of its tokens
        are saved now.

        Raises:
            Unnamed: the weights have changed since they were given a name.
            ValueError: the model computes otherwise now than when it answers.
        """
        if why := self._other_way({}):
            raise ValueError(why)
        ids, by = [int(each) for each in ids][: self._longest - 1], self.computed_by()
        ids = ids[: len(ids) // CHUNK * CHUNK]
        found = self.find(ids, by, len(ids))
        if not ids or found and found.tokens == len(ids):
            return len(ids)
        # One more token, so that all before it may be restored.
        cache, restored = self.restore([*ids, 0], by)
        if restored < len(ids):
            self.forward(ids[restored:], cache)
            copy = self.layers.copy(len(ids), 0 if self.layers.forget else restored)
            return len(ids) if self._put(ids, copy, by, cache) else restored
        return restored

    def verify(self, prompts: Sequence[Sequence[int]]) -> Report:
        """Compares what is computed behind restored tokens with whole prompts in one step. It saves what is not saved yet."""
        return compare(self._reused(prompts))

    def _reused(self, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        for ids in prompts:
            self.warm(ids)
            cache, tokens = self.restore(ids := list(ids), self.computed_by())
            if tokens:
                reused = self.forward(ids[tokens:], cache, logits_to_keep=0)
                yield tokens, reused, self.forward(ids, self._cache(0), logits_to_keep=0)[tokens:]

    def stats(self) -> dict[str, Any]:
        """Counts since it was made: `restored_tokens`, `saved_tokens`, `hits`, `misses`, `failures` of the store, and `not_reused`:
        of what ran as always, why."""
        words = ("restored_tokens", "saved_tokens", "hits", "misses", "failures")
        with self._lock:
            always = {word[1]: count for word, count in self._counts.items() if word[0] == "not_reused"}
            return {word: self._counts[word] for word in words} | {"not_reused": always}

    # --- prefixes and caches ---------------------------------------------------------

    def computed_by(self) -> tuple[str, str | None]:
        """What computes now: the weights' name, and a digest of the adapters. A model that was moved or cast is read anew.

        Raises:
            Unnamed: nothing tells the weights apart from others.
        """
        kind = (self.model.device, self.model.dtype, self._config._attn_implementation)
        if kind != self._kind:
            self._read_layers()
            self._kind = kind
        return self._weights.names()

    def find(self, ids: Sequence[int], by: tuple[str, str | None], most: int) -> Found | None:
        """The longest saved prefix of a prompt that `by` has computed, of at most so many tokens; None where there is none."""
        try:
            # Nothing shorter is saved, so nothing is looked for.
            found = self._archive(by[0]).find(Prompt(ids, adapter=by[1])).shorten(most) if most >= CHUNK else None
            return found if found and found.tokens else None
        except Exception as error:  # noqa: BLE001: whatever it is, nothing is found, and that is all.
            return self._fail("find", error)

    def read(self, found: Found, by: tuple[str, str | None]) -> Copy | None:
        """What is saved of a prefix; None where it cannot be read any more."""
        try:
            copy = self.layers.copy(found.tokens)
            self._archive(by[0]).restore(found, copy.deployment, 0, copy.memories, copy.tables)
            return copy
        except Exception as error:  # noqa: BLE001: whatever it is, nothing is restored, and that is all.
            return self._fail("restore", error)

    def restore(self, ids: Sequence[int], by: tuple[str, str | None], batch: int = 1) -> tuple[DynamicCache, int]:
        """A cache with the longest saved prefix of a prompt in each row, but for its last token, and how many tokens it has."""
        # Where no layer forgets, the last row of a copy can be left out.
        found = self.find(ids, by, len(ids) - self.layers.forget)
        copy = found and self.read(found, by)
        tokens = min(copy.end, len(ids) - 1) if copy else 0
        cache = self._cache(tokens)
        if copy:
            self.layers.fill(cache, copy, batch, tokens)
        return cache, tokens

    @torch.no_grad()
    def forward(
        self, ids: Sequence[int], cache: Cache, batch: int = 1, logits_to_keep: int = 1, **inputs: Any
    ) -> torch.Tensor:
        """Computes tokens behind those in a cache. The logits `[T, V]` of its first row, of the last tokens or of all (0)."""
        fewer = {"logits_to_keep": logits_to_keep} if "logits_to_keep" in self._takes else {}
        tokens = torch.tensor([list(ids)] * batch, device=self.model.device)
        logits = self.model(input_ids=tokens, use_cache=True, **{self._word: cache}, **fewer, **inputs).logits[0]
        if isinstance(cache, _StatesCache):
            cache.tokens += len(ids)
        return logits

    def _read_layers(self) -> None:
        cache = DynamicCache(config=self._config)
        self.forward([0], cache)
        self.layers = Layers(cache, getattr(self._config, "layer_types", None))
        if any(group.is_recurrent for group in self.layers.groups):
            # Mamba 1 of transformers 5.24 computes several tokens behind a state as if there were none.
            ids, cache = range(1, 9), self._cache(0)
            whole, _ = self.forward(ids, self._cache(0)), self.forward(ids[:4], cache)
            if (whole[-1] - self.forward(ids[4:], cache)[-1]).norm() > STRAY * whole[-1].norm():
                raise UnsupportedCache("behind a cache this model does not compute what it computes without")

    def _cache(self, tokens: int) -> DynamicCache:
        cache = (_StatesCache if self.layers.are_states else DynamicCache)(config=self._config)
        cache.tokens = tokens
        return cache

    def _put(self, ids: Sequence[int], copy: Copy, by: tuple[str, str | None], cache: DynamicCache | None = None) -> bool:
        """Saves a copy, which is made of a `cache` now or was before, if the model is still what has computed it."""
        try:
            if self.computed_by() != by:
                return False
            if cache is not None:
                self.layers.gather(cache, copy)
            archive, prompt = self._archive(by[0]), Prompt(ids[: copy.end], adapter=by[1])
            state = copy.end if any(group.is_recurrent for group in self.layers.groups) else None
            if missing := archive.missing(prompt, state=state):
                part = archive.save(missing, copy.deployment, 0, copy.memories, copy.tables)
                self._count("saved_tokens", CHUNK * archive.publish(missing, [part]))
            return True
        except Exception as error:  # noqa: BLE001: whatever it is, nothing is saved, and that is all.
            self._fail("save", error)
            return False

    def _archive(self, weights: str) -> Archive:
        """The archive of these weights in this process: a fork shares no connections and no threads."""
        with self._lock:
            key = (os.getpid(), weights, self._kind)
            archive = self._archives.get(key)
            if archive is None:
                device, _, attention = self._kind
                archive = Archive(
                    self._store,
                    self._name,
                    weights,
                    self.layers.copy(CHUNK).deployment,
                    engine=f"transformers/{attention}/{device.type}",
                    engine_version=transformers.__version__,
                    sharing=self._sharing,
                    codec=self._codec,
                )
                self._archives = {key: archive}
            return archive

    def _fail(self, what: str, error: Exception) -> None:
        self._count("failures")
        if self._count(("logged", what, type(error))) == 1:
            _log.warning("the store fails to %s: %s; more of this kind is counted, not logged", what, error)

    def _count(self, word: Any, number: int = 1) -> int:
        with self._lock:
            self._counts[word] += number
            return self._counts[word]

    # --- what generate was given -----------------------------------------------------

    def _setting(self, given: dict[str, Any], name: str) -> Any:
        """An argument of `generate`, or what its configuration or the model's says."""
        configs = (given.get("generation_config"), self.model.generation_config)
        every = (given.get(name), *(getattr(config, name, None) for config in configs))
        return next((value for value in every if value is not None), None)

    def _prompt(self, given: dict[str, Any]) -> tuple[list[int], int, str | None]:
        """The tokens of each row of the cache, how many rows it has, and why it cannot be told, if it cannot."""
        ids = given.get("inputs") if given.get("input_ids") is None else given["input_ids"]
        why = self._other_way(given)
        if why is None and (not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.is_floating_point()):
            why = "no input_ids"
        if why is not None:
            return [], 0, why
        mask, pad = given.get("attention_mask"), self._setting(given, "pad_token_id")
        if ids.numel() == 0:
            why = "an empty prompt"
        elif (ids != ids[:1]).any():
            why = "unequal prompts in a batch"
        elif mask is not None and (mask.shape != ids.shape or not mask.bool().all()):
            why = "padding"
        elif mask is None and pad is not None and (ids == pad).any():
            # It is taken for padding.
            why = "padding"
        elif ids.shape[1] >= self._longest:
            why = "rotary factors change with a prompt of this length"
        rows = max(self._setting(given, "num_beams") or 1, self._setting(given, "num_return_sequences") or 1)
        return ids[0].tolist() if why is None else [], len(ids) * rows, why

    def _other_way(self, given: dict[str, Any]) -> str | None:
        if self.model.training:
            return "the model is in training mode"
        if torch.is_autocast_enabled(self.model.device.type):
            return "autocast"
        if getattr(getattr(self.model, "active_peft_config", None), "is_prompt_learning", False):
            return "the model has learned a prompt of its own"
        if self._setting(given, "use_cache") is False:
            return "use_cache=False"
        for name in OTHERWISE:
            value = self._setting(given, name)
            # An old default, which transformers leave out of account.
            if not (value is None or isinstance(value, (bool, int, float)) and not value or value == "hybrid"):
                return f"{name} is given"
        known = ("inputs", "input_ids", "attention_mask")
        return next((f"{name} is given" for name, value in given.items() if name not in known and torch.is_tensor(value)), None)


def _longest(config: Any) -> int:
    """The longest prompt whose keys do not depend on how long it is.

    Raises:
        ValueError: positions are of more than one dimension, and tokens do not tell them.
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    longest = sys.maxsize
    for rope in [ropes] if "rope_type" in ropes else [each for each in ropes.values() if isinstance(each, dict)]:
        if "mrope_section" in rope:
            raise ValueError("M-RoPE: positions of images and the like are not told by tokens")
        if rope.get("rope_type") in ("dynamic", "longrope"):
            original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
            longest = min(longest, original)
    return longest


def compare(found: Iterable[tuple[int, torch.Tensor, torch.Tensor]]) -> Report:
    """A report on prompts: how many tokens were reused of each, and the logits behind them, as reused and as computed."""
    restored, differences, divergences, same = [], [], [], []
    for tokens, reused, computed in found:
        restored.append(tokens)
        differences.append((reused - computed).abs().max())
        new, old = reused.double().log_softmax(-1), computed.double().log_softmax(-1)
        divergences.append((old.exp() * (old - new)).sum(-1))
        same.append(new.argmax(-1) == old.argmax(-1))
    if not restored:
        return Report(0, 0, 0, math.nan, math.nan, math.nan)
    every = torch.cat(same)
    kl, difference = torch.cat(divergences).mean().item(), torch.stack(differences).max().item()
    return Report(len(restored), sum(restored), len(every), difference, kl, every.double().mean().item())
