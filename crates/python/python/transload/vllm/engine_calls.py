"""What connectors are not told of: that weights change in place, or are named, or that an adapter is replaced.

These are calls of vLLM's engine, which is in the process of its scheduler and holds the connector. So they are followed
there.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from .scheduler import Scheduler

CHANGE_WEIGHTS = {
    "start_weight_update",
    "start_draft_weight_update",
    "update_weights",
    "finish_weight_update",
    "reload_weights",
    "reset_weights",
}
"""Methods of vLLM's workers that put other weights in the place of those that were loaded, or say that this is done."""


def follow() -> None:
    """Has every engine of this process tell its connector. It may be called again."""
    # Whoever makes the scheduler's half has it imported.
    module = sys.modules.get("vllm.v1.engine.core")
    if module is None or getattr(module.EngineCore, "is_followed_by_transload", False):
        return
    core = module.EngineCore
    core.is_followed_by_transload = True
    _after(core, "set_weight_version", lambda half, version: half.name_weights(version))
    _after(core, "add_lora", lambda half, request: half.add_adapter(request))
    run = core.collective_rpc

    @functools.wraps(run)
    def followed(engine: Any, method: Any, *arguments: Any, **more: Any) -> Any:
        if method in CHANGE_WEIGHTS:
            for half in _halves(engine):
                half.change_weights()
        return run(engine, method, *arguments, **more)

    core.collective_rpc = followed


def _after(core: type, name: str, tell: Callable[[Scheduler, Any], None]) -> None:
    """Has something told of each call of a method that went well."""
    method = getattr(core, name)

    @functools.wraps(method)
    def followed(engine: Any, argument: Any) -> Any:
        answer = method(engine, argument)
        for half in _halves(engine):
            tell(half, argument)
        return answer

    setattr(core, name, followed)


def _halves(engine: Any) -> list[Scheduler]:
    """The scheduler's halves of this package's connectors that an engine has, also within vLLM's MultiConnector."""
    from .connector import TransloadConnector

    held = engine.scheduler.get_kv_connector()
    connectors = getattr(held, "sub_connectors", [held])
    return [each.in_scheduler for each in connectors if isinstance(each, TransloadConnector)]
