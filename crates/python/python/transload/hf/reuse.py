"""Restores the saved beginning of a prompt into a model's cache before `generate` computes the rest, and saves it behind."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
from typing import Any, Iterator, Literal, Sequence

import torch
import transformers
from transformers import DynamicCache

from .. import Archive, Found, Prompt
from .decoder import Decoder, Identity
from .errors import NotReused, UnsupportedCache
from .layers import CHUNK, Copy
from .report import Report, compare
from .request import Request

_log = logging.getLogger(__name__)


class Reuse:
    """Keeps the prefixes of one model in a store. Other models that compute the same find them, also in other processes.

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
        NotReused: its weights cannot be named.
        ValueError: it has an encoder, is split over processes, or has positions that tokens do not tell; or an argument is another
            word.
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
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model is a {type(model).__name__}: load it first, as with AutoModelForCausalLM.from_pretrained")
        if isinstance(getattr(model.__dict__.get("generate"), "__self__", None), Reuse):
            raise RuntimeError("a Reuse is attached to this model: detach() that one first")
        if save not in ("prompt", "all", None):
            raise ValueError(f"save={save!r}: it is 'prompt', 'all' or None")
        self.model, self.codec, self.save = model, codec, save
        self._store, self._name, self._sharing = store, name, sharing
        self.decoder = Decoder(model, weights)
        self._lock = threading.Lock()
        self._opened: tuple[Any, Archive] | None = None
        words = ("restored_tokens", "saved_tokens", "hits", "misses", "failures")
        self._counts, self._not_reused = collections.Counter(dict.fromkeys(words, 0)), collections.Counter[str]()
        self._logged: set[Any] = set()
        self._archive(self.decoder.read_identity())

    # --- for models ------------------------------------------------------------------

    def generate(self, *args: Any, **inputs: Any) -> Any:
        """Calls the model's own `generate`, after restoring the saved prefix."""
        decoder = self.decoder
        try:
            request, by = Request(decoder, args, inputs), decoder.identity()
        except (NotReused, UnsupportedCache) as why:
            self._count(str(why), of=self._not_reused)
            return decoder.generate(*args, **inputs)
        ids, forget = request.ids, decoder.layers.forget
        cache, restored = self.restore(ids, by, request.copies)
        self._count("hits" if restored else "misses")
        self._count("restored_tokens", restored)
        copy, end = None, (len(ids) - 1) // CHUNK * CHUNK
        if self.save and forget and end > restored:
            # By the end of the prompt some layers have lost what belongs to this place.
            decoder.forward(ids[restored:end], cache, request.copies)
            copy = self._copy_of(cache, 0, end)
        output = decoder.generate(*args, **inputs, behind=cache)
        if self.save and not forget:
            if self.save == "all" and request.beams == 1:
                ids = getattr(output, "sequences", output)[0].tolist()
            end = min(len(ids), cache.get_seq_length(), decoder.longest) // CHUNK * CHUNK
            if end > restored + 1:
                copy = self._copy_of(cache, -(-restored // CHUNK) * CHUNK, end)
        self._put(ids, copy, by)
        return output

    def attach(self) -> None:
        """Replaces `model.generate` with `generate` of this object.

        Raises:
            RuntimeError: a `Reuse` is attached to it already.
        """
        if isinstance(getattr(self.model.__dict__.get("generate"), "__self__", None), Reuse):
            raise RuntimeError("a Reuse is attached to this model: detach() that one first")
        self.model.generate = self.generate

    def detach(self) -> None:
        """Gives `model.generate` back."""
        if self.model.__dict__.get("generate") == self.generate:
            del self.model.generate

    def warm(self, ids: Sequence[int]) -> int:
        """Saves the beginning of a prompt, all whole token chunks of it, and computes what is not saved yet. Returns how many of
        its tokens are saved now.

        Raises:
            NotReused: the model computes otherwise now than when it answers, or its weights cannot be named.
        """
        ids = _tokens(ids)[: self.decoder.longest - 1]
        by, layers = self.decoder.identity(), self.decoder.layers
        ids = ids[: len(ids) // CHUNK * CHUNK]
        found = self.find(ids, by, len(ids))
        if not ids or found and found.tokens == len(ids):
            return len(ids)
        # One more token, so that all before it may be restored.
        cache, restored = self.restore([*ids, 0], by)
        if restored == len(ids):
            return restored
        self.decoder.forward(ids[restored:], cache)
        copy = self._copy_of(cache, 0 if layers.forget else restored, len(ids))
        return len(ids) if self._put(ids, copy, by) else restored

    def verify(self, prompts: Sequence[Sequence[int]]) -> Report:
        """Compares the results after restored tokens with those of whole prompts in one step. It saves prefixes that are not saved yet."""

        def reused() -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
            forward = self.decoder.forward
            for ids in map(list, prompts):
                self.warm(ids)
                cache, tokens = self.restore(ids, self.decoder.identity())
                if tokens:
                    behind = forward(ids[tokens:], cache, logits_to_keep=0)
                    yield tokens, behind, forward(ids, self.decoder.cache(), logits_to_keep=0)[tokens:]

        return compare(reused())

    def stats(self) -> dict[str, Any]:
        """Returns counts since it was made: `restored_tokens`, `saved_tokens`, `hits`, `misses`, `failures` of the store, and in
        `not_reused` how often `generate` ran as always, by the reason. With a store of tiers, `tiers` is what `Archive.tiers`
        says."""
        with self._lock:
            is_open = self._opened is not None and self._opened[0][0] == os.getpid()
            tiers = self._opened[1].tiers() if is_open else []
            return {**self._counts, "not_reused": dict(self._not_reused)} | ({"tiers": tiers} if tiers else {})

    # --- prefixes and caches ---------------------------------------------------------

    def find(self, ids: Sequence[int], by: Identity, most: int) -> Found | None:
        """Returns the longest saved prefix of a prompt that `by` has computed, of at most this many tokens; None if there is none."""
        with self._passed_over("find"):
            # A prompt below one token chunk has nothing saved: no look-up is made.
            found = self._archive(by).find(Prompt(ids, adapter=by.adapters)).shorten(most) if most >= CHUNK else None
            return found if found and found.tokens else None

    def read(self, found: Found, by: Identity) -> Copy | None:
        """Reads the saved rows of a prefix. Returns None if they cannot be read any more."""
        with self._passed_over("restore"):
            copy = self.decoder.layers.copy(found.tokens)
            self._archive(by).restore(found, copy.deployment, 0, copy.memories, copy.tables)
            return copy

    def restore(self, ids: Sequence[int], by: Identity, batch: int = 1) -> tuple[DynamicCache, int]:
        """Returns a cache with the longest saved prefix of a prompt in each row, but for its last token, and the prefix's
        length."""
        layers = self.decoder.layers
        # Where no layer forgets, the last row of a copy can be left out.
        found = self.find(ids, by, len(ids) - layers.forget)
        copy = found and self.read(found, by)
        tokens = min(copy.end, len(ids) - 1) if copy else 0
        cache = self.decoder.cache(tokens)
        if copy:
            layers.fill(cache, copy, batch, tokens)
        return cache, tokens

    def _copy_of(self, cache: DynamicCache, start: int, end: int) -> Copy | None:
        """Returns a copy of a part of a cache, while the cache itself stays in use. Returns None if there is no memory for it."""
        with self._passed_over("save"):
            copy = self.decoder.layers.copy(end, start)
            self.decoder.layers.gather(cache, copy)
            return copy

    def _put(self, ids: Sequence[int], copy: Copy | None, by: Identity) -> bool:
        """Saves a copy, if the model is still what has computed it."""
        with self._passed_over("save"):
            if copy is None or self.decoder.identity() != by:
                return False
            archive, prompt = self._archive(by), Prompt(ids[: copy.end], adapter=by.adapters)
            if missing := archive.missing(prompt, state=copy.end if self.decoder.layers.have_states else None):
                part = archive.save(missing, copy.deployment, 0, copy.memories, copy.tables)
                self._count("saved_tokens", CHUNK * archive.publish(missing, [part]))
            return True
        return False

    def _archive(self, by: Identity) -> Archive:
        """Returns the archive of what `by` computes, opened in this process: a fork shares no connections and no threads."""
        key = (os.getpid(), by._replace(adapters=None))
        with self._lock:
            if self._opened is None or self._opened[0] != key:
                archive = Archive(
                    self._store,
                    self._name,
                    by.weights,
                    self.decoder.layers.copy(CHUNK).deployment,
                    engine=f"transformers/{by.attention}/{by.device.type}",
                    engine_version=transformers.__version__,
                    sharing=self._sharing,
                    codec=self.codec,
                )
                self._opened = key, archive
            return self._opened[1]

    @contextlib.contextmanager
    def _passed_over(self, what: str) -> Iterator[None]:
        """Counts any failure, and logs it once for each kind. Answers do not depend on it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._count("failures")
            if (kind := (what, type(error))) not in self._logged:
                self._logged.add(kind)
                _log.warning("the store fails to %s: %s; more of this kind is counted, not logged", what, error)

    def _count(self, word: str, number: int = 1, of: collections.Counter[str] | None = None) -> None:
        with self._lock:
            (self._counts if of is None else of)[word] += number


def _tokens(ids: Any) -> list[int]:
    """Returns the tokens of one prompt, `[N]` or `[1, N]`."""
    if isinstance(ids, str):
        raise TypeError("ids is a text: give its tokens, as tokenizer(text).input_ids has them")
    if isinstance(ids, torch.Tensor) and ids.dim() == 2 and len(ids) == 1:
        ids = ids[0]
    try:
        return [int(each) for each in ids]
    except (TypeError, ValueError) as why:
        raise TypeError(f"ids is a {type(ids).__name__} that is no list of tokens: give those of one prompt") from why
