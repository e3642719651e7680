"""Reads what a model computes with besides its parameters: modules in order, their numbers, functions, buffers, hooks and code."""

from __future__ import annotations

import copy
import enum
import functools
import hashlib
import importlib.util
import os
import re
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

OWN = frozenset(vars(torch.nn.Module())) | {"_is_hf_initialized", "_hf_hook", "_old_forward", "gradient_checkpointing"}
"""Attributes of any module that do not change what it computes; and where accelerate has put its tensors."""
OF_MODELS = frozenset(
    "name_or_path padding_idx warnings_issued generation_config generate all_tied_weights_keys hf_device_map device_map hf_quantizer"
    " is_quantized quantization_method is_parallelizable model_parallel is_gradient_checkpointing peft_config".split()
)
"""Attributes of whole models of transformers that do not change what they compute."""
OF_CONFIGS = frozenset(
    "name_or_path transformers_version dtype architectures bos_token_id eos_token_id pad_token_id sep_token_id use_cache"
    " return_dict output_hidden_states output_attentions id2label label2id problem_type torchscript tie_word_embeddings".split()
)
"""Fields of a config that change no token once the model is loaded."""
MOVING = ("inv_freq", "max_seq_len_cached")
"""Buffers that dynamic NTK and LongRoPE set anew with each prompt; `original_inv_freq` stays."""
VERSIONED = tuple(
    f"{folder}{os.sep}"
    for spec in map(importlib.util.find_spec, ("torch", "transformers", "accelerate", "safetensors", "peft"))
    for folder in (spec and spec.submodule_search_locations) or ()
)
"""Folders of code that has a version: it is named by that of transformers, and no program patches it in place."""
STANDARD = sysconfig.get_path("stdlib") + os.sep
HELPFUL = ("transformers.", "accelerate.", "peft.")
"""Hooks of these packages observe, or move tensors between devices, and compute nothing else."""


class Structure:
    """Describes a model without its adapters, as it is now.

    Attributes:
        text: the modules in their order, with their classes, numbers and functions.
        tensors: parameters and buffers that a file may have.
        buffers: tensors that no file has, such as rotary frequencies.
        code: files of code beside that of torch and transformers, each with a digest.
        unseen: what computes and can be compared with nothing.
        wrappers: layers of PEFT, with the path of what they wrap.
    """

    def __init__(self, model: Any) -> None:
        self.text: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        self.code: dict[str, str] = {}
        self.unseen: list[str] = []
        self.wrappers: list[tuple[str, torch.nn.Module]] = []
        self._configs: dict[int, str] = {}
        self._classes: dict[type, str] = {}
        self._read(getattr(model, "get_base_model", lambda: model)(), "")
        self._read_hooks(model)

    def _read(self, module: torch.nn.Module, path: str) -> None:
        inner = unwrapped(module)
        if inner is not None:
            self.wrappers.append((path, module))
            return self._read(inner, path)
        own, dot = vars(module), f"{path}." if path else ""
        rope = str(own.get("rope_type"))
        moving = MOVING if "dynamic" in rope or "longrope" in rope else ()
        passed = OF_MODELS if isinstance(module, PreTrainedModel) else ()
        if type(module) is torch.nn.Embedding:
            passed = ("padding_idx",)  # It has no gradient, and is a row as others.
        said = [path, self._class(type(module))]
        for name, value in own.items():
            if name in OWN or name in passed or passed is OF_MODELS and name.startswith("_") or _moves(name, moving):
                continue
            if name == "forward" and _is_its_own(module, value):
                continue
            if isinstance(value, torch.Tensor):
                self.buffers[dot + name] = value
            else:
                said.append(f"{name}={self.value(value, dot + name)}")
        self.text.append(" ".join(said))
        for name, each in own["_parameters"].items():
            if each is not None:
                self.tensors[dot + name] = each
        for name, each in own["_buffers"].items():
            if each is not None and not _moves(name, moving):
                (self.buffers if name in module._non_persistent_buffers_set else self.tensors)[dot + name] = each
        for name, each in own["_modules"].items():
            if each is not None:
                self._read(each, dot + name)

    def _read_hooks(self, model: torch.nn.Module) -> None:
        of_all = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
        every = [("all modules", each) for each in of_all if each]
        for path, module in model.named_modules():
            own = vars(module)
            every += [(path, each) for each in (own["_forward_hooks"], own["_forward_pre_hooks"]) if each]
        for path, hooks in every:
            for hook in hooks.values():
                if not (getattr(hook, "__module__", None) or "").startswith(HELPFUL):
                    self._miss(f"a hook of {path or 'the model'}, {_name(hook)}", hook)

    def _miss(self, what: str, value: Any = None) -> str:
        # Whoever gave the weights a name wants to know when it is another one.
        self.unseen.append(what)
        self.text.append(f"unseen {what} {id(value)}")
        return what

    def _class(self, of: type) -> str:
        if of not in self._classes:
            self._classes[of] = f"{of.__module__}.{of.__qualname__}"
            self._see(of.__module__, self._classes[of])
            owner = next(each for each in of.__mro__ if "forward" in vars(each))
            forward = vars(owner)["forward"]
            while isinstance(forward, types.FunctionType):
                self._see_function(forward, owner.__module__, f"{owner.__qualname__}.forward")
                forward = getattr(forward, "__wrapped__", None)
            if of.__module__.split(".")[0] != "torch":
                for name, each in list(vars(sys.modules.get(of.__module__, types)).items()):
                    if isinstance(each, types.FunctionType):
                        self._see_function(each, of.__module__, name)
        return self._classes[of]

    def _see_function(self, function: types.FunctionType, of: str, name: str) -> None:
        """Notes a function of a module that came from elsewhere: it may stand in the place of another one."""
        file = function.__code__.co_filename
        if file != getattr(sys.modules.get(of), "__file__", None):
            self._see(function.__module__, f"{of}.{name} is {_name(function)}", file)

    def _see(self, module: str | None, what: str, file: str | None = None) -> None:
        file = file or getattr(sys.modules.get(module or ""), "__file__", None) or ""
        if _has_version(file) or module == "builtins":
            return
        digest = _file_digest(file)
        if digest is None:
            self._miss(f"{what}, whose code is in no file")
        else:
            self.code[what] = digest

    def value(self, value: Any, where: str) -> str:
        """Describes an attribute of a module in words that are the same in every process."""
        if id(value) in self._configs:
            return self._configs[id(value)]
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, enum.Enum, torch.dtype)):
            return repr(value)
        if isinstance(value, torch.device):
            return "device"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.value(each, where) for each in value)}]"
        if isinstance(value, (set, frozenset)):
            return f"{{{', '.join(sorted(self.value(each, where) for each in value))}}}"
        if isinstance(value, dict):
            pairs = (f"{self.value(key, where)}: {self.value(each, where)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, torch.Tensor):
            self.buffers[f"{where}[{len(self.buffers)}]"] = value
            return "tensor"
        if isinstance(value, PreTrainedConfig):
            return self._config(value, where)
        if isinstance(value, functools.partial):
            return f"partial({self.value([value.func, value.args, value.keywords], where)})"
        if isinstance(value, types.MethodType):
            return f"{self.value(value.__func__, where)} of {type(value.__self__).__qualname__}"
        if isinstance(value, types.FunctionType):
            return self._function(value, where)
        if isinstance(value, torch.ScriptObject):
            return self._miss(f"{where}, a {type(value).__qualname__}", value)
        return _name(value)

    def _config(self, config: PreTrainedConfig, where: str) -> str:
        # Said before its fields are: one may lead back.
        name = self._configs[id(config)] = f"config {len(self._configs)}"
        fields = {key: each for key, each in vars(config).items() if key not in OF_CONFIGS and not key.startswith("_")}
        self.text.append(f"{name} {self.value(dict(sorted(fields.items())), where)}")
        return name

    def _function(self, function: types.FunctionType, where: str) -> str:
        code = function.__code__
        if any(name != "__class__" for name in code.co_freevars):
            return self._miss(f"{where}, {_name(function)}, which closes over {', '.join(code.co_freevars)}", function)
        self._see(function.__module__, _name(function), code.co_filename)
        defaults = self.value([function.__defaults__, function.__kwdefaults__], where)
        return f"{_name(function)}:{code.co_firstlineno} {defaults}"


def unwrapped(module: torch.nn.Module) -> torch.nn.Module | None:
    """Returns the module that a layer of PEFT wraps."""
    # Not by `hasattr`, which is slow where a module has none, and thousands have none.
    if "merged_adapters" not in vars(module) and not hasattr(type(module), "merged_adapters"):
        return None
    inside = module._modules
    return inside.get("base_layer", inside.get("original_module"))


def blank(model: Any) -> Structure | None:
    """Returns the structure that a model of this class and config has when it is made. Only its buffers hold numbers."""
    base = getattr(model, "get_base_model", lambda: model)()
    try:
        with torch.random.fork_rng(devices=[]), _Empty():
            made = type(base)._from_config(copy.deepcopy(base.config), dtype=base.dtype).eval()
        models = [each for each in made.modules() if isinstance(each, PreTrainedModel)]
        owners = {module: owner for owner in models for module in owner.modules()}
        for module, owner in owners.items():
            if module._non_persistent_buffers_set:
                owner._init_weights(module)  # As loading does it, in float32.
    except Exception:  # noqa: BLE001: whatever a model's own code cannot do leaves its files without a say.
        return None
    return Structure(made)


class _Empty(TorchFunctionMode):
    """Makes uninitialized tensors take no memory and no time. Parameters begin as such, computed tensors do not. It applies to this thread
    only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            kwargs = kwargs | {"device": "meta"}
        elif re.search("[^_]_$", func.__name__) and args and getattr(args[0], "is_meta", False):
            return args[0]
        return func(*args, **kwargs)


def _moves(name: str, moving: tuple[str, ...]) -> bool:
    return name.endswith(moving) and "original" not in name


def _is_its_own(module: torch.nn.Module, forward: Any) -> bool:
    """Returns whether a `forward` that stands in a module leads to that of its class: compiled, or with accelerate around it."""
    for _ in range(8):
        if getattr(forward, "__func__", None) is type(module).forward and forward.__self__ is module:
            return True
        if isinstance(forward, functools.partial) and "_hf_hook" in vars(module):
            forward = vars(module).get("_old_forward")
        else:
            forward = getattr(forward, "_torchdynamo_orig_callable", None)
    return False


def _has_version(file: str) -> bool:
    return file.startswith(VERSIONED) or file.startswith((STANDARD, "<frozen ")) and "-packages" not in file


def _name(value: Any) -> str:
    of = value if hasattr(value, "__qualname__") else type(value)
    return f"{of.__module__}.{of.__qualname__}"


def _file_digest(file: str) -> str | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return _digest_of(file, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=256)
def _digest_of(file: str, _changed: int, _size: int) -> str:
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
