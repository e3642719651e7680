"""What tells apart what a model computes with: its weights, by their files or by what its tensors hold, and its adapters."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import Any

import torch

from .. import _weights
from .errors import NotReused

STANDARD = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)|model\.safetensors\.index\.json")
"""Files that `from_pretrained` loads from a folder, and all of them. Others are for those who say which."""
LOADED = ("dtype", *_weights.VOLATILE)
"""Fields of a config that loading a model sets. The dtype is that of what is cached, too."""
WRAPPED = re.compile(r"(^|\.)(base_layer|original_module)\.")
"""Tensors of what PEFT wraps, by their names."""
SAMPLE = 64
"""Bytes of a tensor that are looked at each time. Adapters are merged through `.data`, which no version counts."""


class Weights:
    """The name of what one model computes with."""

    def __init__(self, model: Any, given: str | None) -> None:
        self._model, self._given, self._lock = model, given, threading.Lock()
        self._seen: Any = None
        self._name = ""
        self._adapters: tuple[Any, str | None] = (None, None)

    def names(self) -> tuple[str, str | None]:
        """The weights' name, and a digest of the active adapters. A model that has changed in place since it was loaded is
        named by its tensors, all of which are read then.

        Raises:
            NotReused: it cannot be named, or has changed, and its name was given.
        """
        with self._lock:
            base, adapters, said = _tensors(self._model)
            seen = _look(base)
            if seen != self._seen:
                name = None
                if self._seen is None:
                    name = self._given or _by_files(self._model, base)
                elif self._given:
                    raise NotReused("the weights have changed since they were given a name: make another Reuse")
                self._name = name or f"tensors-{_digest(base, str(self._model.config.to_dict()))}"
                self._seen = seen
            if said and (now := (_look(adapters), said)) != self._adapters[0]:
                self._adapters = now, _digest(adapters, said)
            return self._name, self._adapters[1] if said else None


def _by_files(model: Any, base: dict[str, torch.Tensor]) -> str | None:
    """The name that every engine has for a model's files, if they are all that was loaded and nothing has changed since."""
    folder = Path(model.config._name_or_path)
    files = _weights.weight_files(folder) if folder.is_dir() else []
    formats = {"bin" in file.suffix for file in files if STANDARD.fullmatch(file.name)} if files else set()
    if len(formats) != 1 or not all(STANDARD.fullmatch(file.name) for file in files):
        return None
    # Loading makes new parameters; who changes one counts its version up.
    if any(not each.is_inference() and each._version for each in base.values() if isinstance(each, torch.nn.Parameter)):
        return None
    loaded, filed = (
        {key: value for key, value in config.to_dict().items() if key not in LOADED}
        for config in (model.config, type(model.config).from_pretrained(folder))
    )
    overrides = {key: value for key, value in loaded.items() if key not in filed or filed[key] != value}
    quantization = (filed.get("quantization_config") or {}).get("quant_method")
    far = [False] * repr(filed).count("'longrope'")
    return f"{_weights.content(folder, files)}-{_weights.settings(overrides, quantization, far)}"


def _tensors(model: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], str]:
    """A model's own tensors, those of its active adapters, and how these are applied."""
    every, adapters, others, said = _own(model), {}, set(), []
    for path, layer in model.named_modules():
        if not hasattr(layer, "merged_adapters"):
            continue
        # A wrapped layer is the model's own, also where its adapter is a copy of all of it.
        beside = {name: each for name, each in _own(layer).items() if not WRAPPED.search(name)}
        others.update(map(id, beside.values()))
        active = [] if layer.disable_adapters else list(layer.active_adapters)
        for adapter in active:
            adapters |= {f"{path}.{name}": each for name, each in beside.items() if f".{adapter}." in f".{name}."}
            how = layer.scaling.get(adapter) if isinstance(getattr(layer, "scaling", None), dict) else None
            said.append(f"{path} {type(layer).__name__} {adapter} {how} {model.peft_config[adapter].to_dict()}")
        said += [f"{path} merged {adapter}" for adapter in layer.merged_adapters]
    return {name: each for name, each in every.items() if id(each) not in others}, adapters, "\n".join(said)


def _own(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    # Not what is made anew with each model, and changes with the prompt: rotary factors.
    return {name: each for name, each in module.state_dict(keep_vars=True).items() if isinstance(each, torch.Tensor)}


def _look(tensors: dict[str, torch.Tensor]) -> tuple[Any, ...]:
    """What shows that a tensor was changed or replaced: its version, and a sample of its bytes."""
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
