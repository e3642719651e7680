"""Names what a model computes with: its weights, by their files or by what its tensors hold, and its adapters."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import Any

import torch

from .. import _weights
from .errors import NotReused
from .files import is_as_filed, is_as_made
from .structure import Structure

STANDARD = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)|model\.safetensors\.index\.json")
"""Files that `from_pretrained` loads from a folder, all of them. Others are loaded where the caller says which."""
LOADED = ("dtype", *_weights.VOLATILE)
"""Fields of a config that are set when a model is loaded. The dtype is also that of the cache."""
WRAPPED = re.compile(r"(^|\.)(base_layer|original_module)\.")
"""Matches the names of tensors that PEFT wraps."""
SAMPLE = 64
"""The number of bytes of a tensor that are compared each time. Adapters are merged through `.data`, which does not change a tensor's
version."""


class Weights:
    """Knows the name of what one model computes with."""

    def __init__(self, model: Any, given: str | None) -> None:
        self._model, self._given, self._lock = model, given, threading.Lock()
        self._seen: Any = None
        self._name = ""
        self._adapters: tuple[Any, str | None] = (None, None)

    def names(self) -> tuple[str, str | None]:
        """Returns the weights' name, and a digest of the active adapters. A model that computes otherwise than its files say is
        named by its tensors, all of which are read then.

        Raises:
            NotReused: it cannot be named, or has changed, and its name was given.
        """
        with self._lock:
            found = Structure(self._model)
            adapters, said = _adapters(found)
            seen = (_look(found.tensors | found.buffers), found.text, found.code)
            if seen != self._seen:
                if self._given and self._seen is not None:
                    raise NotReused("the weights have changed since they were given a name: make another Reuse")
                if found.unseen and not self._given:
                    raise NotReused(f"{found.unseen[0]}: what it computes cannot be seen: give weights a text of your own")
                # Once they have changed in place, somebody may change them back and forth: files say nothing of that.
                name = self._given or (_by_files(self._model, found) if self._seen is None else None)
                self._name = name or f"tensors-{_digest(found.tensors | found.buffers, repr((found.text, found.code)))}"
                self._seen = seen
            if said and (now := (_look(adapters), said)) != self._adapters[0]:
                self._adapters = now, _digest(adapters, said)
            return self._name, self._adapters[1] if said else None


def _by_files(model: Any, found: Structure) -> str | None:
    """Returns the name that every engine gives a model's files, if the model was loaded from these alone and computes what they say."""
    folder = Path(model.config._name_or_path)
    files = _weights.weight_files(folder) if folder.is_dir() else []
    formats = {"bin" in file.suffix for file in files if STANDARD.fullmatch(file.name)} if files else set()
    if len(formats) != 1 or not all(STANDARD.fullmatch(file.name) for file in files):
        return None
    # Loading makes new parameters; who changes one counts its version up.
    if any(not each.is_inference() and each._version for each in found.tensors.values() if isinstance(each, torch.nn.Parameter)):
        return None
    base = getattr(model, "get_base_model", lambda: model)()
    if not is_as_made(base, found) or not is_as_filed(base, found.tensors, files):
        return None
    loaded, filed = (
        {key: value for key, value in config.to_dict().items() if key not in LOADED}
        for config in (model.config, type(model.config).from_pretrained(folder))
    )
    overrides = {key: value for key, value in loaded.items() if key not in filed or filed[key] != value}
    quantization = (filed.get("quantization_config") or {}).get("quant_method")
    far = [False] * repr(filed).count("'longrope'")
    name = f"{_weights.content(folder, files)}-{_weights.settings(overrides, quantization, far)}"
    return f"{name}-{_digest({}, repr(sorted(found.code.items())))}" if found.code else name


def _adapters(found: Structure) -> tuple[dict[str, torch.Tensor], str]:
    """Returns the tensors of a model's active adapters, and how they are applied."""
    adapters, said = {}, []
    for path, layer in found.wrappers:
        beside = {name: each for name, each in layer.state_dict(keep_vars=True).items() if not WRAPPED.search(name)}
        numbers = {name: value for name, value in vars(layer).items() if isinstance(value, (bool, int, float, str))}
        for adapter in [] if layer.disable_adapters else list(layer.active_adapters):
            adapters |= {f"{path}.{name}": each for name, each in beside.items() if f".{adapter}." in f".{name}."}
            # Not what belongs to others, which may come and go.
            of = {name: each[adapter] for name, each in vars(layer).items() if isinstance(each, dict) and adapter in each}
            how = found.value({name: each for name, each in (numbers | of).items() if name[0] != "_"}, path)
            said.append(f"{path} {type(layer).__name__} {adapter} {how}")
        said += [f"{path} merged {adapter}" for adapter in layer.merged_adapters]
    return adapters, "\n".join(said)


def _look(tensors: dict[str, torch.Tensor]) -> tuple[Any, ...]:
    """Returns a tensor's version and a sample of its bytes, which show whether it was changed or replaced."""
    samples: dict[torch.device, list[torch.Tensor]] = {}
    for each in tensors.values():
        if not each.is_meta and each.numel():
            flat = _bytes(each)
            # An odd step, so that each byte of an element is among them.
            samples.setdefault(each.device, []).append(flat[:: len(flat) // SAMPLE | 1])
    versions = tuple((name, 0 if each.is_inference() else each._version) for name, each in tensors.items())
    return versions, [torch.cat(each).cpu().numpy().tobytes() for each in samples.values()]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.detach().reshape(-1).view(torch.uint8)
    except (NotImplementedError, RuntimeError, TypeError) as why:
        raise NotReused(f"what a {type(tensor).__name__} holds cannot be read: {why}") from why


def _digest(tensors: dict[str, torch.Tensor], said: str) -> str:
    digest = hashlib.blake2b(said.encode(), digest_size=20)
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise NotReused(f"{name} is not in memory: give weights a text of your own")
        digest.update(f"\n{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(_bytes(tensor).cpu().numpy())
    return digest.hexdigest()
