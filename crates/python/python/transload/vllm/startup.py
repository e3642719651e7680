"""Refuses unsupported settings, certificates and ways of setting vLLM up, by name and when vLLM starts.

vLLM makes connectors after it has loaded the model. What its configuration says is checked as soon as there is one, in the
process that makes it (`transload._vllm_plugin`), and again by each half of the connector, whoever has made the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from .config import BEFORE, Config, ConfigError, ranks_of
from .weights import before_loading

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig


def check_early(vllm_config: VllmConfig, real: KVTransferConfig) -> None:
    """Checks a configuration before vLLM loads the model, so that a server with a wrong one ends at once.

    It also records the state of the model's files in the configuration: only now is it certain that these are what vLLM will load.

    Raises:
        ConfigError: it names the option, setting or certificate, and what it has to be.
    """
    config, parallel = check(vllm_config, real), vllm_config.parallel_config
    config.announcements(vllm_config.kv_transfer_config.kv_role)
    # Elsewhere ranks may be on other hosts, which have certificates of their own.
    if parallel.nnodes == 1 and parallel.distributed_executor_backend in ("uni", "mp"):
        for rank in range(ranks_of(parallel)):
            config.identity(rank)
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    extra[BEFORE] = before_loading(vllm_config.model_config)


def check(vllm_config: VllmConfig, real: KVTransferConfig) -> Config:
    """Returns the settings of this server. `real` is the configuration that counts if another connector contains this one.

    Raises:
        ConfigError: it names the option or setting, and what it has to be.
    """
    config = Config.read(vllm_config)
    _refuse_what_is_not_handled(vllm_config, config)
    config = config.of_engine(vllm_config.parallel_config)
    for name in ("store", "pull_from"):
        if getattr(config, name):
            _recompute_what_is_not_loaded(vllm_config, real, name)
    if not config.is_exact:
        _refuse_what_would_share_it(vllm_config, real, "codec", config.codec, "the store")
    if config.wire_codec != "exact" and vllm_config.kv_transfer_config.is_kv_consumer:
        _refuse_what_would_share_it(vllm_config, real, "wire_codec", config.wire_codec, "other servers")
    return config


def _refuse_what_is_not_handled(vllm_config: VllmConfig, config: Config) -> None:
    """Refuses what this connector would get wrong."""
    parallel = vllm_config.parallel_config
    if (size := parallel.prefill_context_parallel_size) > 1:
        raise ConfigError(f"--prefill-context-parallel-size is {size}: TransloadConnector supports 1 so far")
    if (size := parallel.decode_context_parallel_size) > 1 and config.store is not None:
        raise ConfigError(
            f"--decode-context-parallel-size is {size}, so that no rank has whole token chunks for a store: leave "
            "kv_connector_extra_config.store out"
        )
    if parallel.enable_elastic_ep:
        raise ConfigError("--enable-elastic-ep adds and removes engines while they hold blocks: TransloadConnector does not support that")
    device = vllm_config.device_config.device_type
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"vLLM computes on {device!r}: TransloadConnector moves caches in memory of the host and of NVIDIA GPUs"
        )
    if vllm_config.model_config.enable_sleep_mode and not hasattr(KVConnectorBase_V1, "restore_kv_caches"):
        # Sleep unmaps the cache, of which the agents that have it registered would know nothing.
        raise ConfigError(
            "--enable-sleep-mode takes the cache's memory away, and this version of vLLM does not tell connectors when (0.33 does): "
            "leave it out (--enable-cumem-allocator may stay)"
        )
    for name in ("store", "pull_from", "held_share"):
        if getattr(config, name) and not vllm_config.model_config.is_prefix_caching_supported:
            raise ConfigError(
                f"vLLM does not reuse prefixes of this model, so that kv_connector_extra_config.{name} may not either: leave it out"
            )


def _recompute_what_is_not_loaded(vllm_config: VllmConfig, real: KVTransferConfig, name: str) -> None:
    """Makes vLLM compute what a store or another server fails to give. This is always possible, so no request fails for it. If another connector
    contains this one, its settings count."""
    vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
    if real.kv_load_failure_policy != "recompute":
        raise ConfigError(
            f"kv_load_failure_policy is {real.kv_load_failure_policy!r} beside {real.kv_connector}'s connectors, so that "
            f"what fails there would fail requests: with kv_connector_extra_config.{name}, give "
            '"kv_load_failure_policy": "recompute" there'
        )


def _refuse_what_would_share_it(vllm_config: VllmConfig, real: KVTransferConfig, name: str, codec: str, where: str) -> None:
    """Refuses setups that would present inexact blocks as exact to others: vLLM's own prefix cache, or another connector."""
    because = f"kv_connector_extra_config.{name} is {codec!r}, so that what is loaded from {where} is not exact, and"
    if vllm_config.cache_config.enable_prefix_caching:
        raise ConfigError(
            f"{because} vLLM's own prefix cache would give it to other requests as if it were: start the server with "
            f"--no-enable-prefix-caching, or leave {name} out"
        )
    if real.kv_connector != vllm_config.kv_transfer_config.kv_connector:
        raise ConfigError(f"{because} other connectors of {real.kv_connector} would take it for that: leave {name} out")
