"""Caches whose rows stand at their positions before the model runs. It computes some of them anew.

The model is not patched: it hands each layer's new rows to `update`, which writes them at their positions and returns the rows of
all positions. With a mask that says what each token sees, that is a prefill of some of a prompt's tokens.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from .errors import NotMovable

Rows = tuple[torch.Tensor, torch.Tensor]
"""The keys and values that a layer keeps, [1, H, T, D] each."""


class Stop(Exception):
    """Ends a forward pass once it has computed the rows it was started for."""


class PositionedLayer(DynamicLayer):
    """Holds the rows of one layer at all positions of a prompt."""

    def __init__(self, rows: Rows, window: int | None) -> None:
        super().__init__()
        (self.keys, self.values), self.window, self.is_sliding = rows, window, window is not None
        self.is_initialized, self.device, self.dtype = True, self.keys.device, self.keys.dtype
        self.running, self.is_last = torch.empty(0, dtype=torch.long), False

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> Rows:
        self.keys.index_copy_(-2, self.running, keys)
        self.values.index_copy_(-2, self.running, values)
        if self.is_last:
            raise Stop
        return self.keys, self.values

    # Where all positions run no mask is given, and the model makes its own, as for a cache that is empty.
    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[-2], 0


class PositionedCache(Cache):
    """Holds the rows of one prompt.

    Args:
        rows: of each layer; they are overwritten where tokens run.
        windows: of each layer, or None where it attends to everything.
        kinds: of each layer, by which the model tells masks apart.
    """

    def __init__(self, rows: Sequence[Rows], windows: Sequence[int | None], kinds: Sequence[str]) -> None:
        super().__init__(layers=[PositionedLayer(*each) for each in zip(rows, windows)])
        self.kinds = kinds

    @property
    def rows(self) -> list[Rows]:
        return [(layer.keys, layer.values) for layer in self.layers]

    def run(self, running: torch.Tensor, dtype: torch.dtype, *, first: int = 0, layers: int | None = None) -> dict[str, Any]:
        """Returns the arguments, besides the tokens at `running`, with which the model computes their rows. `running` ascends.

        Args:
            first: the position of the prompt's first token.
            layers: the pass ends with `Stop` in the last of so many layers.
        """
        for index, layer in enumerate(self.layers, 1):
            layer.running, layer.is_last = running, index == layers
        size = self.layers[0].keys.shape[-2]
        if len(running) == size and first == 0:
            return {}
        every, masks = torch.arange(size, device=running.device), {}
        for kind, layer in zip(self.kinds, self.layers):
            if kind not in masks:
                hidden = every > running[:, None]
                if layer.window is not None:
                    hidden |= every <= running[:, None] - layer.window
                mask = torch.zeros(hidden.shape, dtype=dtype, device=running.device)
                masks[kind] = mask.masked_fill_(hidden, torch.finfo(dtype).min)[None, None]
        mask = masks if len(masks) > 1 else masks[self.kinds[0]]
        return {"position_ids": running[None] + first, "attention_mask": mask}


def shapes(cache: Cache, config: Any) -> tuple[list[int | None], list[str]]:
    """Returns the window of each layer, or None where it attends to everything, and its kind.

    Raises:
        NotMovable: a layer keeps something else than rows of all tokens that it sees.
    """
    kinds = list(getattr(config, "layer_types", None) or ["all"] * len(cache.layers))
    windows: list[int | None] = []
    for index, (layer, kind) in enumerate(zip(cache.layers, kinds)):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or kind == "chunked_attention":
            raise NotMovable(f"layer {index} is {kind}, in a {type(layer).__name__}: that is no keys and values which can move")
        windows.append(getattr(layer, "sliding_window", None))
    return windows, kinds
