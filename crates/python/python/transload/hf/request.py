"""Reads the arguments of `generate`, and decides whether a saved prefix can replace the beginning of the prompt."""

from __future__ import annotations

import inspect
from typing import Any, Sequence

import torch
from transformers import GenerationConfig, GenerationMixin

from .decoder import Decoder
from .errors import NotReused

PARAMETERS = inspect.signature(GenerationMixin.generate).parameters
KNOWN = {*PARAMETERS, *vars(GenerationConfig()), "input_ids", "attention_mask", "tokenizer", "assistant_tokenizer"}
"""Arguments of `generate` itself. It hands all others to the model, which may compute something else with them."""
OTHERWISE = (
    "past_key_values cache cache_params cache_implementation assistant_model prompt_lookup_num_tokens assistant_early_exit use_mtp"
    " negative_prompt_ids custom_generate penalty_alpha dola_layers token_healing is_assistant output_attentions"
    " output_hidden_states"
).split()
"""With these arguments, `generate` uses another cache, other tokens or another algorithm, or reports about tokens that would be
restored."""


class Request:
    """Reads a call of `generate` that can begin behind restored tokens.

    Attributes:
        ids: the tokens of each row of the cache.
        copies: how many rows it has.
        beams: how many beams are searched; with more than one, rows trade places.

    Raises:
        NotReused: it has to run as always.
    """

    def __init__(self, decoder: Decoder, args: Sequence[Any], inputs: dict[str, Any]) -> None:
        given = dict(zip(PARAMETERS, (decoder.model, *args))) | inputs
        self._given, self._configs = given, (given.get("generation_config"), decoder.model.generation_config)
        if self._setting("use_cache") is False:
            raise NotReused("use_cache=False")
        for name in (*OTHERWISE, *(given.keys() - KNOWN)):
            value = self._setting(name)
            # An old default, which transformers leave out of account.
            if not (value is None or isinstance(value, (bool, int, float)) and not value or value == "hybrid"):
                raise NotReused(f"{name} is given")
        ids = given.get("inputs") if given.get("input_ids") is None else given["input_ids"]
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.is_floating_point():
            raise NotReused("no input_ids")
        if ids.numel() == 0:
            raise NotReused("an empty prompt")
        if (ids != ids[:1]).any():
            raise NotReused("unequal prompts in a batch")
        mask, pad = given.get("attention_mask"), self._setting("pad_token_id")
        if mask is None:
            # Without a mask, `generate` takes every pad token for padding.
            is_whole = pad is None or not (ids == pad).any()
        else:
            is_whole = getattr(mask, "shape", None) == ids.shape and mask.bool().all()
        if not is_whole:
            raise NotReused("padding")
        if ids.shape[1] >= decoder.longest:
            raise NotReused("rotary factors change with a prompt of this length")
        self.ids: list[int] = ids[0].tolist()
        self.beams: int = self._setting("num_beams") or 1
        self.copies = len(ids) * max(self.beams, self._setting("num_return_sequences") or 1)

    def _setting(self, name: str) -> Any:
        """Returns an argument, or what the configuration of this call or the model's says."""
        values = (self._given.get(name), *(getattr(config, name, None) for config in self._configs))
        return next((value for value in values if value is not None), None)
