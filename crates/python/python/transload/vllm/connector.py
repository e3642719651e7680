"""Hands vLLM's calls of a connector to the halves in its scheduler and in its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.config import get_current_vllm_config_or_none
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:
    # Before 0.32, which does not ask where tokens came from.
    CacheHitSource = None  # type: ignore[assignment, misc]

from .._vllm_logs import hide_tickets, log_as_vllm_does
from . import engine_calls, startup
from .messages import Report, Step
from .scheduler import Scheduler
from .stats import PromMetrics, Stats
from .windows import has_windows
from .worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

# Where the connector is loaded by its module's path, in place of the entry point that does it in all of vLLM's processes.
hide_tickets()


class TransloadConnector(KVConnectorBase_V1, SupportsHMA):
    """Moves KV cache between vLLM servers that lay it out differently.

    Raises:
        ConfigError: a setting is wrong, or vLLM is set up in a way that this connector does not handle.
    """

    _cache_hit_source = CacheHitSource and CacheHitSource.P2P

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        log_as_vllm_does()
        config = startup.check(vllm_config, _real(vllm_config, role))
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(vllm_config, kv_cache_config, config, engine_calls.follow())
        else:
            self._worker = Worker(vllm_config, kv_cache_config, config)

    # --- in the scheduler ------------------------------------------------------------

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Says that layers may have different prefixes cached here: recurrent state is loaded whole in any case, a window is
        not."""
        return not has_windows(self._kv_cache_config)

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self.in_scheduler.bind_manager(kv_cache_manager)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        self.in_scheduler.meet_workers(metadata)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self._kv_cache_config.transfer_group_ids

    def on_new_request(self, request: Request) -> None:
        self.in_scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.in_scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self.in_scheduler.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        saved = self.in_scheduler.saved
        if num_external_tokens and saved is not None and saved.is_loading(request.request_id):
            return {CacheHitSource.DISK: num_external_tokens}
        return super().get_external_cache_hit_sources(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self.in_scheduler.build_step(scheduler_output)

    def has_pending_push_work(self) -> bool:
        """Returns whether vLLM must keep stepping without requests, since saves are still to be published."""
        saved = self.in_scheduler.saved
        return saved is not None and saved.is_saving

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.in_scheduler.hear(connector_output)

    def take_events(self) -> Iterable[KVCacheEvent]:
        saved = self.in_scheduler.saved
        return () if saved is None else saved.take_events()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.in_scheduler.finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.in_scheduler.finished(request, block_ids)

    def reset_cache(self) -> bool:
        return self.in_scheduler.reset_cache()

    # --- in a worker -----------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._in_worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        self._in_worker.unregister()

    def restore_kv_caches(self) -> None:
        self._in_worker.restore()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._in_worker.address()

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        # Not in `start_load_kv`, which comes after the computation of the step.
        self._in_worker.begin_step(self._step)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        self._in_worker.end_step(self._step)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self._in_worker.results(self._step)

    def get_kv_connector_stats(self) -> Stats | None:
        if self._worker is not None:
            return self._worker.take_stats()
        stats = self.in_scheduler.take_stats()
        return None if stats.is_empty() else stats

    def build_connector_worker_meta(self) -> Report | None:
        return self._in_worker.report()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()
        else:
            self.in_scheduler.shutdown()

    # --- figures ---------------------------------------------------------------------

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats() if data is None else Stats(data)

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # --- which half this is ----------------------------------------------------------

    @property
    def in_scheduler(self) -> Scheduler:
        """Returns the half that is in vLLM's scheduler."""
        assert self._scheduler is not None, "this is the half of a worker"
        return self._scheduler

    @property
    def _in_worker(self) -> Worker:
        assert self._worker is not None, "this is the half of the scheduler"
        return self._worker

    @property
    def _step(self) -> Step:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        return step


def _real(vllm_config: VllmConfig, role: KVConnectorRole) -> KVTransferConfig:
    """Returns the configuration that counts: connectors within MultiConnector are given one of their own, and workers are made
    within the real one."""
    ours = vllm_config.kv_transfer_config
    outer = get_current_vllm_config_or_none() if role is KVConnectorRole.WORKER else None
    return ours if outer is None else outer.kv_transfer_config
