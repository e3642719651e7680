"""The entry point ``vllm.general_plugins``, which vLLM calls in each of its processes when it starts.

It is not in `transload.vllm`, which imports vLLM's connectors: servers that do not use Transload must not pay for that.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
from typing import TYPE_CHECKING, Any, Iterator

from ._vllm_logs import hide_tickets

if TYPE_CHECKING:
    from vllm.config import VllmConfig

CONNECTOR = "TransloadConnector"


def register() -> None:
    """Makes the connector known by its name alone, also within vLLM's MultiConnector, and has configurations with it checked
    when vLLM makes them. It may be called again.

    A vLLM that has no such connectors goes on without: it may be used for something else than Transload.
    """
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        if CONNECTOR not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(CONNECTOR, "transload.vllm", CONNECTOR)
    except Exception as error:  # noqa: BLE001: vLLM would not start, whatever it is for.
        logging.getLogger("vllm." + __name__).warning("%s is not registered: %s", CONNECTOR, error)
    try:
        _check_configurations()
    except AttributeError as error:
        logging.getLogger("vllm." + __name__).warning("what cannot work is refused after the model is loaded, not before: %s", error)
    # API servers log requests, and need not import the connector.
    hide_tickets()


def _check_configurations() -> None:
    """Has each configuration checked that is made of options in this process. vLLM itself asks connectors nothing that depends on
    their configuration before it has loaded the model."""
    # Engines and workers are given one that is made, and do not import this.
    module = sys.modules.get("vllm.engine.arg_utils")
    if module is None or getattr(module.EngineArgs.create_engine_config, "is_checked", False):
        return
    create = module.EngineArgs.create_engine_config

    @functools.wraps(create)
    def checked(*arguments: Any, **more: Any) -> VllmConfig:
        vllm_config = create(*arguments, **more)
        for ours in _with_connector(vllm_config):
            from .vllm.startup import check_early

            check_early(ours, vllm_config.kv_transfer_config)
        for tier in _tiers(vllm_config):
            from .vllm import tier as of_tiers

            of_tiers.check_early(vllm_config, tier)
        return vllm_config

    checked.is_checked = True
    module.EngineArgs.create_engine_config = checked


def _with_connector(vllm_config: VllmConfig) -> Iterator[VllmConfig]:
    """Returns the configuration of each of this package's connectors in one, as MultiConnector makes them of those within it."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None:
        return
    if transfer.kv_connector == CONNECTOR:
        yield vllm_config
    elif transfer.kv_connector == "MultiConnector":
        for given in (transfer.kv_connector_extra_config or {}).get("connectors") or ():
            if given.get("kv_connector") == CONNECTOR:
                inner = copy.copy(vllm_config)
                inner.kv_transfer_config = type(transfer)(**given)
                # What is left there has to be there when MultiConnector makes it again.
                given["kv_connector_extra_config"] = inner.kv_transfer_config.kv_connector_extra_config
                yield inner


def _tiers(vllm_config: VllmConfig) -> Iterator[dict[str, Any]]:
    """Returns the settings of each of this package's tiers, which vLLM's OffloadingConnector makes, also within MultiConnector."""
    transfer = vllm_config.kv_transfer_config
    extra = getattr(transfer, "kv_connector_extra_config", None) or {}
    within = extra.get("connectors") or () if extra and transfer.kv_connector == "MultiConnector" else ()
    for given in (extra, *(each.get("kv_connector_extra_config") or {} for each in within)):
        tiers = given.get("secondary_tiers")
        yield from (
            each
            for each in (tiers if isinstance(tiers, list) else ())
            if isinstance(each, dict) and each.get("module_path") == "transload.vllm.tier"
        )
