"""Checks that a model computes what its files say: each tensor is compared with them, and all else with a model made anew."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers.core_model_loading import revert_weight_conversion

from .structure import Structure, blank

SAMPLE = 256
"""The least number of elements of a tensor that are compared with its file. Merging, training and quantizing change nearly all of them."""


def is_as_made(model: Any, found: Structure) -> bool:
    """Returns whether a model has the modules, numbers, functions and buffers that its class makes for its config."""
    made = blank(model)
    if made is None or made.text != found.text or made.code != found.code or made.buffers.keys() != found.buffers.keys():
        return False
    if made.tensors.keys() != found.tensors.keys():
        return False
    kept = [*(getattr(model, "_keep_in_fp32_modules", None) or ()), *(getattr(model, "_keep_in_fp32_modules_strict", None) or ())]
    for name, each in found.tensors.items():
        is_kept = each.dtype == torch.float32 and any(re.search(pattern.replace("*", r"\w+"), name) for pattern in kept)
        if each.shape != made.tensors[name].shape or each.dtype != made.tensors[name].dtype and not is_kept:
            return False
    # Another device computes them a little otherwise.
    return all(
        each.dtype == made.buffers[name].dtype
        and each.shape == made.buffers[name].shape
        and (each.is_meta or torch.allclose(each.cpu(), made.buffers[name].cpu(), rtol=1e-5, atol=0, equal_nan=True))
        for name, each in found.buffers.items()
    )


def is_as_filed(model: Any, tensors: dict[str, torch.Tensor], files: list[Path]) -> bool:
    """Returns whether each tensor equals that of the files. Tensors that accelerate has offloaded are not compared."""
    filed: dict[str, torch.Tensor] = {}
    for file in files:
        filed |= _open(file)
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    same: set[int] = set()
    others: set[int] = set()
    # As `save_pretrained` names and cuts them, which is how they were loaded. Layer by layer, since some are put together.
    for _, group in itertools.groupby(tensors.items(), lambda each: re.sub(r"^(\D*\.\d+\.).*", r"\1", each[0])):
        part = {name: each for name, each in group if not each.is_meta}
        try:
            reverted = revert_weight_conversion(model, part)
        except Exception:  # noqa: BLE001: then their names are what they are.
            reverted = part
        of = {id(each) for each in part.values()}
        for name, each in reverted.items():
            known = next((filed[at] for at in (name, name.removeprefix(prefix), prefix + name) if at in filed), None)
            if known is None:
                others |= {id(each)} if id(each) in of else of
            elif known.shape != each.shape or not torch.equal(*(_bytes(_sample(one).to(each.dtype)) for one in (each, known))):
                return False
            else:
                same.add(id(each))
    # Tied tensors are in files once.
    return others <= same


def _open(file: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file, and reads only the elements that are used. Pickles cannot be read in parts, so they are left out."""
    if file.suffix != ".safetensors":
        return {}
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: len(flat) // SAMPLE | 1].cpu()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Equal bytes: NaN is itself, and 0 is not -0.
    return tensor.contiguous().view(torch.uint8)
