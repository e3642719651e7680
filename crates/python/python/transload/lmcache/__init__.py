"""LMCache's plugins on our stores: `Client` and `L2Adapter` for its server, `Storage` for the engine in one process.

`docs/src/guide/lmcache.md` has a configuration for each. Only `Client` can be had without LMCache.
"""

import json
import logging

from .. import ObjectQueue

__all__ = ["Client", "L2Adapter", "L2AdapterConfig", "Storage"]

log = logging.getLogger("transload.lmcache")

_HOMES = {"L2Adapter": "_l2", "L2AdapterConfig": "_l2", "Storage": "_storage"}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("lmcache", "torch"):
            raise
        raise ImportError(f"transload.lmcache.{name} needs LMCache ({error}): pip install lmcache") from error


def Client(**settings) -> ObjectQueue:
    """Makes a client for LMCache's `native_plugin`, out of its `adapter_params`: `uri`, `namespace`, `workers`, `threads`."""
    known = read_settings(settings, "adapter_params", namespace="lmcache.Client", workers=4)
    return ObjectQueue(known["uri"], known["namespace"], workers=known["workers"], threads=known["threads"])


def read_settings(given: dict, where: str, **defaults) -> dict:
    """Checks what somebody has configured: all that is not a default, nor the one required key `uri`, is refused by name."""
    defaults = {"threads": None, **defaults}
    if unknown := sorted(set(given) - set(defaults) - {"uri"}):
        names = ", ".join(["uri", *sorted(defaults)])
        raise ValueError(f"{where} has {', '.join(map(repr, unknown))}, which transload does not know; it knows {names}")
    for name, value in given.items():
        numbers = {"threads": int, "workers": int, "max_capacity_gb": (int, float)}
        if not isinstance(value, numbers.get(name, str)) or isinstance(value, bool) or not value:
            raise ValueError(f"{where}: {name!r} is a {'number above 0' if name in numbers else 'text'}")
        if name in numbers and value < 0:
            raise ValueError(f"{where}: {name!r} is a number above 0")
    if "uri" not in given:
        raise ValueError(f"{where} has no 'uri', the store, such as file:///var/cache/kv")
    return {**defaults, **given}


def describe(each, **more: str | None) -> bytes:
    """What is to be known of one of LMCache's objects to read its bytes, as an object's meta."""
    metadata = each.metadata
    shapes = [list(shape) for shape in metadata.shapes or [metadata.shape]]
    dtypes = [str(dtype).removeprefix("torch.") for dtype in metadata.dtypes or [metadata.dtype]]
    return json.dumps({"shapes": shapes, "dtypes": dtypes, **more}).encode()
