"""Reuses passages approximately, for retrieval: they are saved once, and stand behind each other in any order::

    from transload.hf import Reuse
    from transload.hf.blend import Blend

    blend = Blend(Reuse(model, "file:///var/kv", name="demo"), max_kl=0.1)
    blend.verify(samples)  # passages and questions of the kind that will come
    answer = blend.generate_passages(passages, question, max_new_tokens=64)

A passage is a prompt of its own. Behind others its keys are rotated to their new positions, and a share of its tokens is computed
again, so that they see what stands in front. The rest does not: **what comes out is not what the model says**, but near it.
`Blend.verify` measures how near, and where that is not near enough, all is computed.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Iterable, Literal, Sequence

import torch
from transformers import DynamicCache

from .errors import NotMovable, NotReused, UnsupportedCache
from .layers import CHUNK
from .positioned import PositionedCache, Rows, Stop, shapes
from .report import Report, compare
from .request import Request
from .reuse import Reuse
from .rotation import rotations

_log = logging.getLogger(__name__)

Select = Literal["first", "deviation"]
MOVED = 200
"""The probe of a model moves so far at most: all but the slowest of its rotary dimensions have turned visibly there."""


@dataclass(frozen=True)
class Blended:
    """The result of `Blend.generate_passages`."""

    sequences: Any
    """The prompt and the answer, as the model's own `generate` returns them."""
    approximate: bool
    """Whether there were rows that the model would have computed differently."""
    share: float
    """The share of the passages' tokens that were computed for this prompt. 1.0: all."""
    why: str | None = None
    """The reason for which all were computed, if that was not asked for."""


class Blend:
    """Generates behind saved passages that have not seen each other.

    Args:
        reuse: the model, and the store of the passages.
        max_kl: nats that `verify` may have measured at most. Above, all is computed.

    Raises:
        NotMovable: what the model keeps of tokens cannot be moved to other positions.
    """

    def __init__(self, reuse: Reuse, *, max_kl: float) -> None:
        if not max_kl >= 0:
            raise ValueError(f"max_kl={max_kl}: it is nats, at least 0")
        self._reuse, self._decoder, self._max_kl = reuse, reuse.decoder, max_kl
        config = reuse.decoder.config
        self._measured: dict[Any, Report] = {}
        # Where frequencies follow a prompt's length, the model has more positions, but other ones.
        self._longest = min(reuse.decoder.longest, getattr(config, "max_position_embeddings", sys.maxsize))
        self._windows, self._kinds = shapes(DynamicCache(config=config), config)
        if not any(name.endswith("inv_freq") for name, _ in reuse.model.named_buffers()):
            raise NotMovable("the model has no RoPE, or none that can be read off its modules")
        if config._attn_implementation not in ("eager", "sdpa"):
            raise NotMovable(f"attn_implementation={config._attn_implementation!r} takes no masks: eager and sdpa do")
        probe = torch.linspace(0, config.vocab_size - 1, 18).long()[1:-1].tolist()
        reuse.decoder.forward(probe, cache := reuse.decoder.cache())
        rows = [(layer.keys, layer.values) for layer in cache.layers]
        moved = PositionedCache([(keys.clone(), values.clone()) for keys, values in rows], self._windows, self._kinds)
        by = min(MOVED, self._longest - len(probe))
        try:
            self._run(moved, probe, torch.arange(len(probe)), first=by)
        except Exception as error:
            raise NotMovable(f"the model takes no positions, or no masks, beside tokens: {error}") from error
        self._rotations = rotations(reuse.model, rows, moved.rows, by)

    def generate_passages(
        self,
        passages: Sequence[Sequence[int]],
        question: Sequence[int],
        recompute: float = 0.15,
        select: Select = "deviation",
        **generate: Any,
    ) -> Blended:
        """Generates behind passages and a question, all of them tokens.

        Args:
            recompute: share of the passages' tokens that is computed again. 1.0: all, which is the model's own `generate`.
            select: which: those whose keys behind the first layer have the largest `deviation`, or the `first` of each passage.
            generate: for the model's `generate`.
        """
        prompt = Prompt(passages, question)
        _check(recompute, select)
        ids = torch.tensor([prompt.ids], device=self._decoder.model.device)
        given = generate | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        is_lossy = self._reuse.codec != "exact"
        try:
            request, key = Request(self._decoder, (), given), self._key(recompute, select)
            if recompute < 1:
                self._gate(prompt, key)
        except (NotReused, UnsupportedCache) as why:
            _log.warning("passages are not blended: %s", why)
            return Blended(self._reuse.generate(**given), is_lossy, 1.0, str(why))
        if recompute == 1:
            return Blended(self._reuse.generate(**given), is_lossy, 1.0)
        # The last token is left to `generate`.
        blended, chosen, _ = self._blended(prompt, len(prompt.ids) - 1, recompute, select)
        cache = self._decoder.cache()
        for index, rows in enumerate(blended.rows):
            cache.update(*(each.repeat_interleave(request.copies, 0) for each in rows), index)
        # Not through `reuse`, so that nothing of it is saved.
        sequences = self._decoder.generate(**given, behind=cache)
        begin, end = prompt.starts[1], prompt.starts[-1]
        return Blended(sequences, is_lossy or len(chosen) < end - begin, len(chosen) / end)

    def verify(
        self,
        samples: Iterable[tuple[Sequence[Sequence[int]], Sequence[int]]],
        recompute: float = 0.15,
        select: Select = "deviation",
    ) -> Report:
        """Compares blends of passages and questions, each as for `generate_passages`, with whole prompts in one step. From then
        on passages are blended with this `recompute` and `select`, if the divergence is at most `max_kl`. An answer that stands
        behind a question counts as well.

        Raises:
            ValueError: there are no samples, or one cannot be blended.
            NotReused: the model computes otherwise now than when it answers, or its weights cannot be named.
        """
        _check(recompute, select)
        key, prompts = self._key(recompute, select), [Prompt(*sample) for sample in samples]
        if not prompts:
            raise ValueError("there are no samples")
        for prompt in prompts:
            self._check_length(prompt)

        def pair(prompt: Prompt) -> tuple[int, torch.Tensor, torch.Tensor]:
            blended, count = self.logits(prompt, recompute, select), len(prompt.question)
            exact = self._decoder.forward(prompt.ids, self._decoder.cache(), logits_to_keep=count)
            return prompt.starts[-1], blended, exact[-count:]

        found = self._measured[key] = compare(map(pair, prompts))
        return found

    def logits(self, prompt: Prompt, recompute: float, select: Select) -> torch.Tensor:
        """Returns the logits of the question's tokens, `[T, V]`."""
        return self._blended(prompt, len(prompt.ids), recompute, select)[2]

    # --- what is refused -------------------------------------------------------------

    def _key(self, recompute: float, select: Select) -> Any:
        """Returns the key of a measurement: the model that computes, and the way in which it was blended."""
        return self._decoder.identity(), recompute, select

    def _gate(self, prompt: Prompt, key: Any) -> None:
        measured, (_, recompute, select) = self._measured.get(key), key
        if measured is None:
            raise NotReused(f"verify has not measured this model with recompute={recompute}, select={select!r}")
        if not measured.kl <= self._max_kl:
            raise NotReused(f"verify has measured {measured.kl:.3g} nats, and max_kl is {self._max_kl}")
        self._check_length(prompt)

    def _check_length(self, prompt: Prompt) -> None:
        longest, window = max(map(len, prompt.passages)), min((each for each in self._windows if each), default=sys.maxsize)
        if longest >= window:
            raise NotReused(f"a passage of {longest} tokens has lost rows in layers with a window of {window}")
        if len(prompt.ids) > self._longest:
            raise NotReused(f"the model's positions are the same for {self._longest} tokens, and these are {len(prompt.ids)}")

    # --- how it is done --------------------------------------------------------------

    def _blended(
        self, prompt: Prompt, length: int, recompute: float, select: Select
    ) -> tuple[PositionedCache, torch.Tensor, torch.Tensor]:
        """Returns the rows of a prompt's first `length` tokens, those that were computed for it, and the question's logits."""
        joined, end = self._joined(prompt, length), prompt.starts[-1]
        chosen = torch.arange(end) if recompute == 1 else self._chosen(joined, prompt, recompute, select)
        running = torch.cat([chosen, torch.arange(end, length)])
        return joined, chosen, self._run(joined, prompt.ids, running, keep=length - end)

    def _joined(self, prompt: Prompt, length: int) -> PositionedCache:
        """Returns the passages' rows behind each other, with room up to `length`."""
        encoded, room = [self._encoded(passage) for passage in prompt.passages], (0, 0, 0, length - prompt.starts[-1])
        layers = []
        for layer, rotate in enumerate(self._rotations):
            moved = (rotate(rows[layer], start) for rows, start in zip(encoded, prompt.starts))
            layers.append(tuple(torch.nn.functional.pad(torch.cat(parts, dim=2), room) for parts in zip(*moved)))
        return PositionedCache(layers, self._windows, self._kinds)

    def _encoded(self, passage: list[int]) -> list[Rows]:
        """Returns the rows of a passage as a prompt of its own, and saves what can be saved of it."""
        by, end = self._decoder.identity(), len(passage) // CHUNK * CHUNK
        cache, restored = self._reuse.restore([*passage, 0], by)
        if restored < end and self._reuse.save and self._reuse.warm(passage) > restored:
            cache, restored = self._reuse.restore([*passage, 0], by)
        if restored < len(passage):
            self._decoder.forward(passage[restored:], cache)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _chosen(self, cache: PositionedCache, prompt: Prompt, share: float, select: Select) -> torch.Tensor:
        """Returns the tokens to compute again. None of the first passage: its rows are right where they are."""
        begin, end = prompt.starts[1], prompt.starts[-1]
        behind, count = torch.arange(begin, end), min(round(share * end), end - begin)
        if count in (0, len(behind)):
            return behind[:count]
        if select == "first":
            upto = [round(count * (start - begin) / (end - begin)) for start in prompt.starts[1:]]
            return torch.cat([torch.arange(start, start + b - a) for start, (a, b) in zip(prompt.starts[1:], pairwise(upto))])
        # The first layer's rows follow from the tokens alone, so the second's are the first that differ.
        second = min(2, len(cache.layers))
        before = cache.layers[second - 1].keys[..., begin:end, :].double()
        self._run(cache, prompt.ids, behind, layers=second)
        apart = cache.layers[second - 1].keys[..., begin:end, :].double() - before
        return behind[apart.square().sum(dim=(0, 1, 3)).cpu().topk(count).indices.sort().values]

    def _run(
        self, cache: PositionedCache, ids: list[int], running: torch.Tensor, *, keep: int = 1, **how: Any
    ) -> torch.Tensor:
        """Computes some tokens' rows in a cache, and gives the logits of the last `keep` of them."""
        if len(running) == 0:
            return torch.empty(0)
        model = self._decoder.model
        given = cache.run(running.to(model.device), model.dtype, **how)
        try:
            logits = self._decoder.forward([ids[at] for at in running.tolist()], cache, logits_to_keep=max(keep, 1), **given)
            return logits[-keep:]
        except Stop:
            return torch.empty(0)


class Prompt:
    """Holds passages and a question, and where they begin: `starts` also has the end of the last passage."""

    def __init__(self, passages: Sequence[Sequence[int]], question: Sequence[int]) -> None:
        self.passages, self.question = [list(map(int, each)) for each in passages], list(map(int, question))
        if not self.passages or not all(self.passages) or not self.question:
            raise ValueError("there has to be a passage, a question, and a token in each of them")
        self.starts = [0, *accumulate(map(len, self.passages))]
        self.ids = [token for each in (*self.passages, self.question) for token in each]


def _check(recompute: float, select: str) -> None:
    if not 0 <= recompute <= 1:
        raise ValueError(f"recompute={recompute}: it is a share of the passages' tokens, 0 to 1")
    if select not in ("first", "deviation"):
        raise ValueError(f"select={select!r}: it is 'first' or 'deviation'")
