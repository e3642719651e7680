"""Measures how far reused results are from computed ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Iterable

import torch


@dataclass(frozen=True)
class Report:
    """Holds the results of `verify`, over all tokens after the reused ones."""

    prompts: int
    """Prompts of which something was reused."""
    restored: int
    """Tokens that were reused."""
    compared: int
    """Tokens behind those, which were compared."""
    difference: float
    """Largest difference of a logit from that of the whole prompt in one step; NaN where nothing was compared."""
    kl: float
    """Mean divergence of the next token's distribution, in nats."""
    top1: float
    """Share of tokens whose best next token is the same."""


def compare(prompts: Iterable[tuple[int, torch.Tensor, torch.Tensor]]) -> Report:
    """Compares logits, `[T, V]`. Each prompt is the number of its reused tokens, and the logits behind them as reused and as
    computed."""
    restored, differences, divergences, same = [], [], [], []
    for tokens, reused, computed in prompts:
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
