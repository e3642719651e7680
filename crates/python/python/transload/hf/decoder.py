"""Wraps a model for reuse: its cache, its current identity, and forward passes on top of a cache."""

from __future__ import annotations

import inspect
import sys
from typing import Any, NamedTuple, Sequence

import torch
from torch.nn.modules.dropout import _DropoutNd as Dropout
from transformers import Cache, DynamicCache

from .errors import NotReused, UnsupportedCache
from .layers import Layers
from .weights import Weights

PROBE = 48
"""The number of tokens that are computed in two steps and in one. It exceeds the length of any convolution."""
STRAY = 1e-3
"""Logits of two steps may be so far from those of one in float32, relative to their length; of shorter floats as much more as
they round, for at least half of the tokens: a token that rounding leads to another expert is further off."""


class Identity(NamedTuple):
    """Identifies everything that a cached row depends on, except tokens."""

    weights: str
    adapters: str | None
    device: torch.device
    dtype: torch.dtype
    attention: str


class _StatesCache(DynamicCache):
    """A cache that holds only states, which do not count tokens. So `generate` must be told their number."""

    tokens = 0
    is_compileable = False

    @property
    def is_linear(self) -> list[bool]:
        return [False] * len(self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.tokens


class Decoder:
    """A model of transformers, or of PEFT around one.

    Attributes:
        longest: prompts have to be shorter, or their keys depend on how long they are.
        word: the argument by which the model takes a cache.
        layers: what its cache holds.
    """

    def __init__(self, model: Any, weights: str | None) -> None:
        if model.config.is_encoder_decoder:
            raise ValueError("what an encoder computes is not in the cache of a prompt")
        if (getattr(model, "tp_size", None) or 1) > 1:
            raise ValueError("a model that is split over processes caches a part of each layer in each")
        self.model, self._weights, self._own_generate = model, Weights(model, weights), model.generate
        self.config = model.config.get_text_config(decoder=True)
        self.longest = _longest(self.config)
        self._takes = inspect.signature(getattr(model, "get_base_model", lambda: model)().forward).parameters
        word = next((word for word in ("cache", "past_key_values") if word in self._takes), None)
        if word is None:
            # Mamba 2 of transformers 5.19 takes states that its `generate` does not know how many tokens of a prompt are in.
            raise UnsupportedCache("this model takes a cache of its own: newer transformers may have one for all")
        self.word = word
        self._kind: Any = None
        self.read_identity()

    def identity(self) -> Identity:
        """Returns the identity of the model as it is now. After a move or cast, the layers are read again.

        Raises:
            NotReused: the model computes otherwise than its weights alone say, or its weights cannot be named.
            UnsupportedCache: it keeps another cache than before, which is not known here.
        """
        if self.model.training:
            raise NotReused("the model is in training mode")
        if any(isinstance(each, Dropout) and each.training and each.p for each in self.model.modules()):
            raise NotReused("a part of the model that drops out at random is in training mode")
        if torch.is_autocast_enabled(self.model.device.type):
            raise NotReused("autocast")
        if getattr(getattr(self.model, "active_peft_config", None), "is_prompt_learning", False):
            raise NotReused("the model has learned a prompt of its own")
        return self.read_identity()

    def read_identity(self) -> Identity:
        """Returns the identity of the weights, adapters and kernels, as they are used now."""
        kind = (self.model.device, self.model.dtype, self.config._attn_implementation)
        if kind != self._kind:
            self._read_layers()
            self._kind = kind
        return Identity(*self._weights.names(), *kind)

    def generate(self, *args: Any, behind: Cache | None = None, **inputs: Any) -> Any:
        """Calls the model's own `generate`, also where another one is attached."""
        return self._own_generate(*args, **inputs, **({} if behind is None else {self.word: behind}))

    def cache(self, tokens: int = 0) -> DynamicCache:
        """Returns an empty cache for this many tokens."""
        cache = (_StatesCache if self.layers.are_states else DynamicCache)(config=self.config)
        cache.tokens = tokens
        return cache

    @torch.no_grad()
    def forward(
        self, ids: Sequence[int], cache: Cache, batch: int = 1, logits_to_keep: int = 1, **inputs: Any
    ) -> torch.Tensor:
        """Computes tokens behind those in a cache. Returns the logits `[T, V]` of its first row, for the last tokens or for all
        (0)."""
        fewer = {"logits_to_keep": logits_to_keep} if "logits_to_keep" in self._takes else {}
        tokens = torch.tensor([list(ids)] * batch, device=self.model.device)
        logits = self.model(input_ids=tokens, use_cache=True, **{self.word: cache}, **fewer, **inputs).logits[0]
        if isinstance(cache, _StatesCache):
            cache.tokens += len(ids)
        return logits

    def _read_layers(self) -> None:
        cache = DynamicCache(config=self.config)
        self.forward([0], cache)
        self.layers = Layers(cache, getattr(self.config, "layer_types", None))
        if self.layers.have_states:
            # A state that is left out shows in the first tokens behind it, in all of them.
            half, cache = PROBE // 2, self.cache()
            ids = torch.linspace(1, self.config.vocab_size - 1, PROBE).long().tolist()
            whole = self.forward(ids, self.cache(), logits_to_keep=0)[half:]
            self.forward(ids[:half], cache)
            apart = (whole - self.forward(ids[half:], cache, logits_to_keep=0)).float().norm(dim=-1)
            most = STRAY * max(1.0, torch.finfo(self.model.dtype).eps / 2**-20)
            if (apart / whole.float().norm(dim=-1)).median() > min(most, 0.3):
                raise UnsupportedCache("behind a cache this model does not compute what it computes without")


def _longest(config: Any) -> int:
    ropes = getattr(config, "rope_parameters", None) or {}
    longest = sys.maxsize
    # Those of all layers, or of each kind of them.
    for rope in filter(lambda each: isinstance(each, dict), (ropes, *ropes.values())):
        if "mrope_section" in rope:
            raise ValueError("M-RoPE: positions of images and the like are not told by tokens")
        if rope.get("rope_type") in ("dynamic", "longrope"):
            original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
            longest = min(longest, original)
    return longest
