"""Connects LMCache to our stores: `Client` and `L2Adapter` for its server, `Storage` for the engine in one process.

`docs/src/guide/lmcache.md` has a configuration for each. Only `Client` can be had without LMCache.
"""

import json
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import BoundedSemaphore

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
    tell_what_is_not_seen(settings)
    return ObjectQueue(known["uri"], known["namespace"], workers=known["workers"], threads=known["threads"])


def tell_what_is_not_seen(given: dict) -> None:
    """Warns of a namespace that is left to its default: LMCache's server sees no model that could name one."""
    if "namespace" not in given:
        log.warning(
            "keys say nothing of weights, adapters and quantization, and LMCache's server sees none: give adapter_params a 'namespace' "
            "that is another for each, or what others have computed under the same name is taken for a model's"
        )


def read_settings(given: dict, where: str, **defaults) -> dict:
    """Checks the configured settings. Anything that is neither a default nor the required key `uri` is refused by name."""
    defaults = {"threads": None, **defaults}
    if unknown := sorted(set(given) - set(defaults) - {"uri"}):
        names = ", ".join(["uri", *sorted(defaults)])
        raise ValueError(f"{where} has {', '.join(map(repr, unknown))}, which transload does not know; it knows {names}")
    if "uri" not in given:
        raise ValueError(f"{where} has no 'uri', the store, such as file:///var/cache/kv")
    numbers = {"threads": (int, 64), "workers": (int, 64), "max_capacity_gb": ((int, float), 1 << 30)}
    for name, value in given.items():
        kind, most = numbers.get(name, (str, None))
        if not isinstance(value, kind) or isinstance(value, bool) or not value:
            raise ValueError(f"{where}: {name!r} is a {'text' if kind is str else 'number above 0'}")
        if most is not None and not 0 < value <= most:
            raise ValueError(f"{where}: {name!r} is a number above 0, and at most {most}")
    return {**defaults, **given}


class Threads(ThreadPoolExecutor):
    """Runs calls that wait for a store. `submit` raises RuntimeError when they are shut down, and while 4,096 calls wait."""

    def __init__(self, kind: str, workers: int):
        super().__init__(workers, f"transload-{kind}")
        self._room = BoundedSemaphore(4096)

    def submit(self, call, /, *arguments) -> Future:
        if not self._room.acquire(blocking=False):
            raise RuntimeError("the store is slower than LMCache: 4096 calls wait for it")
        try:
            future = super().submit(call, *arguments)
        except RuntimeError:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future


def describe(each, **more: str | None) -> bytes:
    """Returns the meta of one of LMCache's objects: what one has to know to read its bytes."""
    metadata = each.metadata
    shapes, dtypes = metadata.shapes or [metadata.shape], metadata.dtypes or [metadata.dtype]
    return _described(tuple(shapes), tuple(dtypes), *more.items())


@lru_cache
def _described(shapes: tuple, dtypes: tuple, *more: tuple) -> bytes:
    # The objects of an engine have one layout, or a few.
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return json.dumps({"shapes": list(map(list, shapes)), "dtypes": names, **dict(more)}).encode()
