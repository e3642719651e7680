"""Tells adapters apart by a digest of what a worker has loaded, never by a name.

A name may be pointed at another adapter, and a file may be written anew. vLLM loads an adapter when a request first needs
it, evicts it when others need its place, and loads it again, from a file that may be another by then. So an adapter is
known while workers have it loaded, and only then.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger

from .weights import Unnamed

if TYPE_CHECKING:
    from vllm.config import LoRAConfig
    from vllm.lora.request import LoRARequest
    from vllm.lora.worker_manager import WorkerLoRAManager
    from vllm.v1.request import Request

logger = init_logger("vllm." + __name__)

MOST = 4096
"""This many adapters are remembered between two clearings of vLLM's caches. Those beyond have no name."""
PATIENCE = 4
"""A request waits this many steps for its adapter to be reported. One is enough where it is loaded, were vLLM not a step or two
ahead of its workers; where it is not, waiting for longer is of no use: it is loaded when the request is computed."""

Loaded = dict[int, tuple[str, str, bytes]]
"""The adapters that a worker has loaded, by vLLM's number: name, path, and digest."""


# --- in a worker -----------------------------------------------------------------------

_managers: weakref.WeakSet[WorkerLoRAManager] = weakref.WeakSet()
_digests: weakref.WeakKeyDictionary[Any, tuple[str, str, bytes]] = weakref.WeakKeyDictionary()
"""Name, path and digest of each adapter in memory that vLLM loaded in this process."""


def watch() -> None:
    """Computes a digest of each adapter when vLLM loads it in this process."""
    try:
        from vllm.lora.worker_manager import WorkerLoRAManager

        load = WorkerLoRAManager._load_adapter
    except (ImportError, AttributeError) as error:
        logger.warning("this vLLM does not tell which adapters it loads (%s): requests with adapters get no tickets", error)
        return
    if getattr(load, "is_watched", False):
        return

    @functools.wraps(load)
    def watched(manager: WorkerLoRAManager, request: LoRARequest) -> Any:
        adapter = load(manager, request)
        # Before anything is merged, packed or divided among ranks.
        try:
            manager.list_adapters, manager._adapter_manager.get_adapter  # which `loaded` needs
            _digests[adapter] = (request.lora_name, request.lora_path, digest(adapter))
            _managers.add(manager)
        except Exception as error:  # noqa: BLE001: whatever it is, the adapter is not known, and that is all.
            logger.warning("adapter %r cannot be told from others: %s", request.lora_name, error)
        return adapter

    watched.is_watched = True
    WorkerLoRAManager._load_adapter = watched


def loaded(lora_config: LoRAConfig | None) -> Loaded:
    """Returns the adapters that the worker of this configuration has loaded now: a process may have workers of several engines."""
    found = {}
    for manager in _managers:
        for number in manager.list_adapters() if manager.lora_config is lora_config else ():
            known = _digests.get(manager._adapter_manager.get_adapter(number))
            if known is not None:
                found[number] = known
    return found


def digest(adapter: Any) -> bytes:
    """Returns a digest of everything in an adapter except its number, which only this server knows.

    Raises:
        TypeError: something in it cannot be read.
    """
    found = hashlib.blake2b(digest_size=32)
    _feed(found, {name: value for name, value in vars(adapter).items() if name != "id"})
    return found.digest()


def _feed(found: hashlib._Hash, value: Any) -> None:
    if value is None or isinstance(value, (str, bytes, int, float, torch.dtype)):
        found.update(f"{type(value).__name__} {value!r} ".encode())
    elif isinstance(value, torch.Tensor):
        found.update(f"tensor {tuple(value.shape)} {value.dtype} ".encode())
        found.update(value.cpu().contiguous().view(torch.uint8).numpy())
    elif isinstance(value, dict):
        found.update(f"dict {len(value)} ".encode())
        for key in sorted(value):
            _feed(found, key)
            _feed(found, value[key])
    elif isinstance(value, (list, tuple)):
        found.update(f"list {len(value)} ".encode())
        for each in value:
            _feed(found, each)
    elif hasattr(value, "__dict__"):
        found.update(f"{type(value).__name__} ".encode())
        _feed(found, vars(value))
    else:
        raise TypeError(f"what a {type(value).__name__} in an adapter holds cannot be read")


# --- in the scheduler ------------------------------------------------------------------


@dataclass
class _Known:
    digest: bytes
    is_mixed: bool = False
    """Whether another adapter had this name and path before. vLLM's own cache does not distinguish them."""


class Adapters:
    """Knows the adapters that all workers of an engine have loaded. It is in the scheduler."""

    def __init__(self, ranks: int, *, are_replaced_unseen: bool = False) -> None:
        """`are_replaced_unseen`: whether vLLM does not report that an adapter replaces another. Then no adapter has a name."""
        self._are_replaced_unseen = are_replaced_unseen
        self._ranks: dict[int, Loaded] = dict.fromkeys(range(ranks), {})
        self._known: dict[tuple[str, str], _Known] = {}
        self._steps = 0
        self._asked: dict[str, int] = {}

    def hear(self, reports: dict[int, Loaded]) -> None:
        """Takes note of what workers have loaded."""
        self._ranks |= reports
        for name, path, found in (each for loaded in self._ranks.values() for each in loaded.values()):
            known = self._known.get((name, path))
            if known is None and len(self._known) < MOST:
                self._known[name, path] = _Known(found)
            elif known is not None and known.digest != found:
                known.digest, known.is_mixed = found, True

    def clear(self) -> None:
        """Forgets other adapters of a name and path: vLLM has cleared its caches."""
        self._known.clear()
        self.hear({})

    def replace(self, number: int) -> None:
        """Forgets an adapter that vLLM replaces, until workers report the new one."""
        self._ranks = {rank: {key: of for key, of in has.items() if key != number} for rank, has in self._ranks.items()}

    def step(self) -> None:
        self._steps += 1

    def may_still_come(self, request: Request) -> bool:
        """Returns whether workers have had no time yet to tell of the request's adapter."""
        if request.lora_request is None or self._are_replaced_unseen or self._find(request.lora_request) is not None:
            return False
        return self._steps < self._asked.setdefault(request.request_id, self._steps) + PATIENCE

    def forget(self, request_id: str) -> None:
        """Forgets a request that is over."""
        self._asked.pop(request_id, None)

    def digest(self, adapter: LoRARequest | None) -> str | None:
        """Returns a text that no other adapter has; None if the request has no adapter.

        Raises:
            Unnamed: it is not known.
        """
        if adapter is None:
            return None
        said = f"adapter {adapter.lora_name!r}"
        if self._are_replaced_unseen:
            raise Unnamed(f"{said} may have been replaced, of which this vLLM does not tell")
        if adapter.load_inplace:
            raise Unnamed(f"{said} is loaded anew in each step (load_inplace), so that it may be another in each")
        found = self._find(adapter)
        if found is None:
            raise Unnamed(f"no worker has told of {said} since it was loaded, or they do not agree")
        known = self._known.get((adapter.lora_name, adapter.lora_path))
        if known is None or known.is_mixed:
            raise Unnamed(
                f"{said} was another one when it was loaded from {adapter.lora_path!r} before, and vLLM's cache may have "
                "blocks of that: load it from another path, or clear the cache"
            )
        return found.hex()

    def is_still(self, adapter: LoRARequest | None, digest: str | None) -> bool:
        """Returns whether no worker has reported an adapter with another digest, even if the adapter is evicted by now."""
        if adapter is None:
            return True
        known = self._known.get((adapter.lora_name, adapter.lora_path))
        return known is not None and not known.is_mixed and known.digest.hex() == digest

    def _find(self, adapter: LoRARequest) -> bytes | None:
        """Returns the digest under the adapter's number, if all workers have the same one of its name and path."""
        found = {has.get(adapter.lora_int_id) for has in self._ranks.values()}
        if len(found) != 1 or (one := found.pop()) is None or one[:2] != (adapter.lora_name, adapter.lora_path):
            return None
        return one[2]
