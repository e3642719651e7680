"""Follows calls of vLLM's engine that connectors are not told of: weights that change in place or are named, adapters that are
replaced, and steps that vLLM makes only because of a connector, so that it may rest.

These are calls of vLLM's engine, which is in the process of its scheduler and holds the connector. So they are followed
there.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from .scheduler import Scheduler

LEAVE_WEIGHTS = {
    "check_health",
    "checkpoint_prepare",
    "compute_weight_checksums",
    "get_compilation_match_table",
    "get_encoder_timing_stats",
    "get_kv_cache_spec",
    "get_model_inspection",
    "get_supported_tasks",
    "init_weight_transfer_engine",
    "list_loras",
    "pin_lora",
    "profile",
    "release_late_interaction_query_cache",
    "remove_lora",
    "reset_encoder_cache",
    "reset_mm_cache",
    "save_sharded_state",
    "save_tensorized_model",
    "shutdown_weight_transfer_engine",
    "supports_draft_weight_updates",
    "synchronize_device",
    "update_max_model_len",
}
"""Methods of vLLM's workers that leave the weights as they are. Any other that is called on all workers, be it a function
(`LLM.apply_model`) or a method of a ``--worker-extension-cls``, may change them."""


REST_SECONDS = 0.1
"""An engine that only holds blocks for others waits this long for a call of a client before it steps again; without a pause
its steps would take most of a core. Blocks that nobody needs any more are freed so much later, at most."""


def follow() -> None:
    """Has every engine of this process tell its connector what it is called for, and rest where it only holds blocks. It may
    be called again."""
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
        if not isinstance(method, str) or method not in LEAVE_WEIGHTS:
            for half in _halves(engine):
                half.change_weights()
        return run(engine, method, *arguments, **more)

    core.collective_rpc = followed
    take = module.EngineCoreProc._process_input_queue

    @functools.wraps(take)
    def rested(engine: Any) -> None:
        calls = engine.input_queue
        if calls.empty() and _only_holds_blocks(engine):
            with calls.not_empty:
                # Whatever a client calls ends it at once.
                calls.not_empty.wait_for(calls._qsize, REST_SECONDS)
            # A step comes first: calls such as a reset have to find blocks free that were given back meanwhile.
            return
        take(engine)

    module.EngineCoreProc._process_input_queue = rested


def _only_holds_blocks(engine: Any) -> bool:
    """Returns whether all that an engine has to do is to hold blocks of requests that have ended, because this package's connectors
    want it to, and these have nothing to tell their workers.

    It is false beside connectors of others, which may need steps, and where batches are queued, as with asynchronous
    scheduling.
    """
    scheduler = engine.scheduler
    if engine.engines_running or engine.batch_queue or scheduler.get_ec_connector() is not None:
        return False
    # A scheduler of ``--scheduler-cls`` may be without the latter.
    if scheduler.has_unfinished_requests() or getattr(scheduler, "finished_req_ids", True):
        return False
    held = scheduler.get_kv_connector()
    halves = _halves(engine)
    return (
        len(halves) == len(getattr(held, "sub_connectors", [held]))
        and scheduler.has_requests()
        and all(half.may_rest for half in halves)
    )


def _after(core: type, name: str, tell: Callable[[Scheduler, Any], None]) -> None:
    """Has `tell` called after each call of a method that went well."""
    method = getattr(core, name)

    @functools.wraps(method)
    def followed(engine: Any, argument: Any) -> Any:
        answer = method(engine, argument)
        for half in _halves(engine):
            tell(half, argument)
        return answer

    setattr(core, name, followed)


def _halves(engine: Any) -> list[Scheduler]:
    """Returns the scheduler's halves of this package's connectors that an engine has, also within vLLM's MultiConnector."""
    from .connector import TransloadConnector

    # It calls workers before it has one.
    held = engine.scheduler.get_kv_connector() if hasattr(engine, "scheduler") else None
    connectors = getattr(held, "sub_connectors", [held])
    return [each.in_scheduler for each in connectors if isinstance(each, TransloadConnector)]
