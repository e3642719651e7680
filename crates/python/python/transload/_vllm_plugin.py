"""What vLLM calls in each of its processes when it starts: the entry point ``vllm.general_plugins``.

It is not in `transload.vllm`, which imports vLLM's connectors: servers that do not use Transload must not pay for that.
"""

import logging

from ._vllm_logs import hide_tickets

CONNECTOR = "TransloadConnector"


def register() -> None:
    """Makes the connector known by its name alone, also within vLLM's MultiConnector. It may be called again.

    A vLLM that has no such connectors goes on without: it may be used for something else than Transload.
    """
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        if CONNECTOR not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(CONNECTOR, "transload.vllm", CONNECTOR)
    except Exception as error:  # noqa: BLE001: vLLM would not start, whatever it is for.
        logging.getLogger("vllm." + __name__).warning("%s is not registered: %s", CONNECTOR, error)
    # API servers log requests, and need not import the connector.
    hide_tickets()
