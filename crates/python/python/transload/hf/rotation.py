"""Turns a layer's rows for tokens that move to other positions.

RoPE rotates pairs of a key's dimensions by the position times a frequency of each pair. So the key of position p becomes that of
position q if it is rotated by q - p more: what precedes RoPE (a norm) or scales it (yarn) is the same in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Sequence

import torch

from .errors import NotMovable
from .positioned import Rows


@dataclass(frozen=True, eq=False)
class Rotation:
    """Knows the rotary dimensions of one layer's rows.

    Attributes:
        part: 0 where they are in the keys, 1 where in the values, as those of MLA.
        start: the first of them.
        frequencies: radians a position of each pair, float64; none where the layer knows no positions.
        interleaved: whether neighbours are a pair. Otherwise the first half is paired with the second.
    """

    part: int
    start: int
    frequencies: torch.Tensor
    interleaved: bool

    def __call__(self, rows: Rows, by: int) -> Rows:
        """Returns the rows of tokens that stand `by` positions further back."""
        if by == 0 or len(self.frequencies) == 0:
            return rows
        turned = [rows[0], rows[1]]
        turned[self.part] = rows[self.part].clone()
        rotary = turned[self.part][..., self.start : self.start + 2 * len(self.frequencies)]
        first, second = (rotary[..., 0::2], rotary[..., 1::2]) if self.interleaved else rotary.chunk(2, dim=-1)
        wide = torch.promote_types(rotary.dtype, torch.float32)
        cos, sin = ((self.frequencies * by).cos().to(rotary.device, wide), (self.frequencies * by).sin().to(rotary.device, wide))
        both = first * cos - second * sin, second * cos + first * sin
        first.copy_(both[0])
        second.copy_(both[1])
        return turned[0], turned[1]


def rotations(model: Any, rows: Sequence[Rows], moved: Sequence[Rows], by: int) -> list[Rotation]:
    """Finds each layer's rotation, by trying. What a model attends to stays the same where all tokens move, so that rows which
    were computed `by` positions further back, `moved`, are the rotated ones in all layers. That holds for RoPE alone.

    Raises:
        NotMovable: the rows of a layer do not turn like RoPE's.
    """
    buffers = [each.detach().to("cpu", torch.float64) for name, each in model.named_buffers() if name.endswith("inv_freq")]
    known, found = list({tuple(each.tolist()): each for each in buffers}.values()), []
    for layer, (here, there) in enumerate(zip(rows, moved)):
        errors = {each: error(each(here, by), there) for each in _candidates(here, known)}
        best = min(errors, key=errors.__getitem__)
        # Rounding in the layers below moves rows by some percent in bfloat16; a wrong frequency does more.
        if not errors[best] <= torch.finfo(here[0].dtype).eps ** 0.5:
            raise NotMovable(f"keys of layer {layer} do not turn with their position as RoPE's: off by {errors[best]:.2g}")
        found.append(best)
    return found


def error(rows: Rows, right: Rows) -> float:
    """Returns the relative error of keys or of values, whichever is larger."""
    parts = zip(rows, right)
    return max(((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300)).item() for a, b in parts)


def _candidates(rows: Rows, known: list[torch.Tensor]) -> Iterator[Rotation]:
    yield Rotation(0, 0, torch.empty(0, dtype=torch.float64), False)
    for frequencies in known:
        for part, tensor in enumerate(rows):
            rest = tensor.shape[-1] - 2 * len(frequencies)
            for start in {0, rest} if rest >= 0 else ():
                yield from (Rotation(part, start, frequencies, interleaved) for interleaved in (False, True))
