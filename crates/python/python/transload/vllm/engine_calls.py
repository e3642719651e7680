"""Follows calls of vLLM's engine that connectors do not get: weights that change in place or get a name, adapters that are replaced, and
steps that vLLM makes only because of a connector, so that it may rest.

These are calls of vLLM's engine, which is in the process of its scheduler and holds the connector. So they are followed
there. None is an interface that vLLM promises. Where a version has not one of them, or calls it with something else, what depends on it
is done without, on the safe side.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Callable

from vllm.logger import init_logger

if TYPE_CHECKING:
    from .scheduler import Scheduler
    from .tier import TransloadTier

logger = init_logger("vllm." + __name__)

WITHOUT = {
    "collective_rpc": "does not tell when weights may change in place: unless reset_keeps_weights says that they never do, there are no "
    "tickets, and nothing is saved or loaded",
    "set_weight_version": "does not tell what weights are called after they have changed in place: tickets and the store then rest until "
    "it is started again",
    "add_lora": "does not tell when an adapter is replaced: requests with adapters get no tickets, and are not saved or loaded",
    "sleep": "does not tell when it falls asleep: with --enable-sleep-mode that fails, unless reset_keeps_weights says that weights never "
    "change",
    "_process_input_queue": "cannot rest while it only holds blocks for others: it takes a core meanwhile, and pauses late",
}
"""The followed methods of vLLM's engine, and the consequence for a server whose vLLM lacks one."""

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


TIERS: weakref.WeakSet[TransloadTier] = weakref.WeakSet()
"""The tiers of this process, which are notified when weights may change in place."""


REST_SECONDS = 0.1
"""How long an engine that only holds blocks for others waits for a client before it steps again. Without a pause, its steps would use most
of a core. Blocks that are no longer needed are freed this much later, at most."""


def follow() -> set[str]:
    """Makes every engine of this process notify its connector of calls, and rest while it only holds blocks. It may be called again.
    Returns the methods of `WITHOUT` that this vLLM lacks."""
    # Whoever makes the scheduler's half has it imported.
    module = sys.modules.get("vllm.v1.engine.core")
    core, process = (getattr(module, name, None) for name in ("EngineCore", "EngineCoreProc"))
    missing = set(WITHOUT)
    for owner, name, parameter, wrap in (
        (core, "collective_rpc", "method", _followed_by_change),
        (core, "set_weight_version", "weight_version", _after(lambda half, version: half.name_weights(version))),
        (core, "add_lora", "lora_request", _after(lambda half, request: half.add_adapter(request))),
        (core, "sleep", "level", _announced),
        (process, "_process_input_queue", None, _rested),
    ):
        method = getattr(owner, name, None)
        if not inspect.isfunction(method) or [*inspect.signature(method).parameters, None][1] != parameter:
            continue
        missing.remove(name)
        if not getattr(method, "is_followed_by_transload", False):
            followed = functools.wraps(method)(wrap(method))
            followed.is_followed_by_transload = True  # type: ignore[attr-defined]
            setattr(owner, name, followed)
    for name in missing:
        logger.warning("this vLLM %s", WITHOUT[name])
    return missing


def _followed_by_change(run: Callable[..., Any]) -> Callable[..., Any]:
    def followed(engine: Any, method: Any, *arguments: Any, **more: Any) -> Any:
        if not isinstance(method, str) or method not in LEAVE_WEIGHTS:
            for half in (*_halves(engine), *TIERS):
                half.change_weights()
        return run(engine, method, *arguments, **more)

    return followed


def _announced(sleep: Callable[..., Any]) -> Callable[..., Any]:
    def announced(engine: Any, level: int = 1, *arguments: Any, **more: Any) -> Any:
        # At level 0 it only pauses.
        halves = _halves(engine) if level else []

        def end(_: Any = None) -> None:
            for half in halves:
                half.end_falling_asleep()

        for half in halves:
            half.fall_asleep(keeps_weights=level == 1)
        answer = None
        try:
            answer = sleep(engine, level, *arguments, **more)
        finally:
            # It sleeps, or will not; unless it waits for requests first.
            if isinstance(answer, Future):
                answer.add_done_callback(end)
            else:
                end()
        return answer

    return announced


def _after(tell: Callable[[Scheduler, Any], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Calls `tell` with a method's first argument after each successful call."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)

        def followed(*arguments: Any, **more: Any) -> Any:
            answer = method(*arguments, **more)
            engine, argument, *_ = signature.bind(*arguments, **more).arguments.values()
            for half in _halves(engine):
                tell(half, argument)
            return answer

        return followed

    return wrap


def _rested(take: Callable[..., Any]) -> Callable[..., Any]:
    may_rest = True

    def rested(engine: Any) -> None:
        nonlocal may_rest
        halves = _halves(engine)
        for half in halves:
            half.hold(_goes_on(engine))
        try:
            calls = engine.input_queue
            if may_rest and calls.empty() and _only_holds_blocks(engine):
                for half in halves:
                    half.wakes(calls.not_empty)
                with calls.not_empty:
                    # Whatever a client calls, or another server asks for, ends it at once.
                    calls.not_empty.wait_for(lambda: calls._qsize() or not all(half.may_rest for half in halves), REST_SECONDS)
                # A step comes first: calls such as a reset have to find blocks free that were given back meanwhile.
                return
        except AttributeError as error:
            may_rest = False
            logger.warning("this vLLM %s (%s)", WITHOUT["_process_input_queue"], error)
        take(engine)

    return rested


def _goes_on(engine: Any) -> bool:
    """Returns whether an engine is neither paused nor about to end, as far as this version tells."""
    state, is_running = getattr(engine.scheduler, "pause_state", None), getattr(engine, "is_running", None)
    return getattr(state, "name", "UNPAUSED") == "UNPAUSED" and (is_running is None or is_running())


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


def _halves(engine: Any) -> list[Scheduler]:
    """Returns the scheduler's halves of this package's connectors that an engine has, also within vLLM's MultiConnector."""
    from .connector import TransloadConnector

    # It calls workers before it has one.
    held = engine.scheduler.get_kv_connector() if hasattr(engine, "scheduler") else None
    connectors = getattr(held, "sub_connectors", [held])
    return [each.in_scheduler for each in connectors if isinstance(each, TransloadConnector)]
