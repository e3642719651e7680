"""Puts the stand-ins where `import vllm` and `import torch` find them, for as long as tests want them."""

import contextlib
import importlib
import logging
import sys
from types import ModuleType

from . import torch_numpy, vllm_names

PLACES = [
    "config",
    "distributed.kv_transfer.kv_connector.factory",
    "distributed.kv_transfer.kv_connector.v1.base",
    "distributed.kv_transfer.kv_connector.v1.metrics",
    "distributed.parallel_state",
    "engine.arg_utils",
    "lora.request",
    "lora.worker_manager",
    "model_executor.layers.mamba.mamba_utils",
    "model_executor.models.utils",
    "transformers_utils.config",
    "v1.attention.backends.cpu_attn",
    "v1.attention.backends.registry",
    "v1.engine.core",
    "v1.kv_cache_interface",
    "v1.metrics.cache_hit_source",
    "v1.request",
]


FOLLOWED = vllm_names.EngineArgs, vllm_names.EngineCore, vllm_names.EngineCoreProc, vllm_names.WorkerLoRAManager


@contextlib.contextmanager
def installed(absent=()):
    """Within it the connector can be imported, as where vLLM has not the modules `absent`; its package is what this gives."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_concerned(name)}
    sys.modules |= _modules() | dict.fromkeys(absent)
    # The connector follows calls of these.
    followed = [(each, dict(vars(each))) for each in FOLLOWED]
    # The connector has the package's records written as vLLM's are.
    ours = logging.getLogger("transload")
    logged = ours.handlers, ours.propagate, ours.level
    try:
        yield importlib.import_module("transload.vllm")
    finally:
        for name in list(sys.modules):
            if _is_concerned(name):
                del sys.modules[name]
        sys.modules |= before
        for each, methods in followed:
            for name in [name for name in vars(each) if name not in methods]:
                delattr(each, name)
            for name, method in methods.items():
                if callable(method):
                    setattr(each, name, method)
        ours.handlers, ours.propagate = logged[:2]
        ours.setLevel(logged[2])


def _is_concerned(name):
    # A torch that is installed is loaded once.
    packages = ["vllm", "transload.vllm"] if torch_numpy.torch else ["vllm", "torch", "transload.vllm"]
    return any(name == package or name.startswith(package + ".") for package in packages)


def _modules():
    modules = {"torch": torch_numpy.torch or torch_numpy, "vllm": ModuleType("vllm")}
    modules["vllm"].__version__ = vllm_names.__version__
    # vllm/logger.py and vllm/utils/network_utils.py
    logger, network = ModuleType("vllm.logger"), ModuleType("vllm.utils.network_utils")
    logger.init_logger = logging.getLogger
    network.get_ip = lambda: "192.0.2.7"
    modules |= {"vllm.logger": logger, "vllm.utils": ModuleType("vllm.utils"), network.__name__: network}
    for place in PLACES:
        parts = place.split(".")
        for length in range(1, len(parts)):
            package = ".".join(["vllm", *parts[:length]])
            modules.setdefault(package, ModuleType(package))
        modules[f"vllm.{place}"] = vllm_names
    return modules
