"""The class that vLLM makes."""

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
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .._vllm_logs import hide_tickets, log_as_vllm_does
from . import engine_calls
from .config import Config, ConfigError
from .messages import Report, Step
from .scheduler import Scheduler
from .stats import PromMetrics, Stats
from .windows import has_windows
from .worker import Worker

if TYPE_CHECKING:
    import torch
    from vllm.config import KVTransferConfig, VllmConfig
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

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        log_as_vllm_does()
        config = Config.read(vllm_config)
        refuse_what_is_not_handled(vllm_config, kv_cache_config, config)
        if config.store is not None:
            recompute_what_is_not_loaded(vllm_config, role)
        if not config.is_exact:
            refuse_what_would_share_it(vllm_config, role, "codec", config.codec, "the store")
        if config.wire_codec != "exact" and vllm_config.kv_transfer_config.is_kv_consumer:
            refuse_what_would_share_it(vllm_config, role, "wire_codec", config.wire_codec, "other servers")
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(vllm_config, kv_cache_config, config)
            engine_calls.follow()
        else:
            self._worker = Worker(vllm_config, kv_cache_config, config)

    # --- in the scheduler ------------------------------------------------------------

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Recurrent state is loaded whole, however much of the rest is cached here; a window is not."""
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
        """Whether vLLM is to go on stepping where it has no request: what is saved is published after that."""
        saved = self.in_scheduler.saved
        return saved is not None and saved.is_saving

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.in_scheduler.hear(connector_output)

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
        saved = self.in_scheduler.saved
        stats = None if saved is None else saved.take_stats()
        return None if stats is None or stats.is_empty() else stats

    def build_connector_worker_meta(self) -> Report | None:
        return self._in_worker.report()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()
        else:
            self.in_scheduler.shutdown()

    # --- before vLLM makes either ----------------------------------------------------

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: KVTransferConfig) -> bool:
        """vLLM 0.33 asks. Sleep may map the cache anew, of which agents that have it registered know nothing."""
        return False

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
        """The half that is in vLLM's scheduler."""
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


def recompute_what_is_not_loaded(vllm_config: VllmConfig, role: KVConnectorRole) -> None:
    """Has vLLM compute what a store fails to load: that can always be done, so it is no reason to fail a request.

    Raises:
        ConfigError: another connector holds this one, and its settings, which are what counts, say otherwise.
    """
    vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
    real = _real(vllm_config, role)
    if real.kv_load_failure_policy != "recompute":
        raise ConfigError(
            f"kv_load_failure_policy is {real.kv_load_failure_policy!r} beside {real.kv_connector}'s connectors, so that "
            "a store that fails would fail requests: with kv_connector_extra_config.store, give "
            '"kv_load_failure_policy": "recompute" there'
        )


def refuse_what_would_share_it(vllm_config: VllmConfig, role: KVConnectorRole, name: str, codec: str, where: str) -> None:
    """Refuses what would give blocks that are not exact to others as if they were.

    Raises:
        ConfigError: vLLM's own prefix cache would, or another connector.
    """
    because = f"kv_connector_extra_config.{name} is {codec!r}, so that what is loaded from {where} is not exact, and"
    if vllm_config.cache_config.enable_prefix_caching:
        raise ConfigError(
            f"{because} vLLM's own prefix cache would give it to other requests as if it were: start the server with "
            f"--no-enable-prefix-caching, or leave {name} out"
        )
    real = _real(vllm_config, role)
    if real.kv_connector != vllm_config.kv_transfer_config.kv_connector:
        raise ConfigError(f"{because} other connectors of {real.kv_connector} would take it for that: leave {name} out")


def _real(vllm_config: VllmConfig, role: KVConnectorRole) -> KVTransferConfig:
    """The configuration that counts: connectors within MultiConnector are given one of their own, and workers are made within
    the real one."""
    ours = vllm_config.kv_transfer_config
    outer = get_current_vllm_config_or_none() if role is KVConnectorRole.WORKER else None
    return ours if outer is None else outer.kv_transfer_config


def refuse_what_is_not_handled(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: Config) -> None:
    """Says by name what this connector would get wrong.

    Raises:
        ConfigError: it names the option, and what it has to be.
    """
    parallel = vllm_config.parallel_config
    for option, size in (
        ("pipeline-parallel-size", parallel.pipeline_parallel_size),
        ("decode-context-parallel-size", parallel.decode_context_parallel_size),
        ("prefill-context-parallel-size", parallel.prefill_context_parallel_size),
        ("data-parallel-size", parallel.data_parallel_size),
    ):
        if size > 1:
            raise ConfigError(f"--{option} is {size}: TransloadConnector supports 1 so far")
    device = vllm_config.device_config.device_type
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"vLLM computes on {device!r}: TransloadConnector moves caches in memory of the host and of NVIDIA GPUs"
        )
    if vllm_config.model_config.enable_sleep_mode:
        # Sleep unmaps the cache, of which the agents that have it registered know nothing.
        raise ConfigError(
            "--enable-sleep-mode takes the cache's memory away while it is registered: leave it out "
            "(--enable-cumem-allocator may stay)"
        )
    if config.store is not None and not vllm_config.model_config.is_prefix_caching_supported:
        raise ConfigError(
            "vLLM does not reuse prefixes of this model, so that kv_connector_extra_config.store may not either: "
            "leave it out"
        )
    # Whatever its role, a server loads from a store.
    loads = vllm_config.kv_transfer_config.is_kv_consumer or config.store is not None
    if loads and has_windows(kv_cache_config) and vllm_config.cache_config.enable_prefix_caching:
        # A window begins within a block. What is before it is not loaded, but vLLM would cache the block as a whole.
        raise ConfigError(
            "some layers see a window of the tokens before theirs: a server that loads such blocks has to be started "
            "with --no-enable-prefix-caching so far"
        )
