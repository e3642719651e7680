"""What vLLM calls in each of its processes when it starts: the entry point ``vllm.general_plugins``.

It is not in `transload.vllm`, which imports vLLM's connectors: servers that do not use Transload must not pay for that.
"""

CONNECTOR = "TransloadConnector"


def register() -> None:
    """Makes the connector known by its name alone, also within vLLM's MultiConnector. It may be called again."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, "transload.vllm", CONNECTOR)
