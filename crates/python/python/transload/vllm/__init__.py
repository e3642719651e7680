"""vLLM's KV connector: prefill and decode servers that exchange KV cache through Transload.

vLLM loads it by name::

    --kv-transfer-config '{"kv_connector": "TransloadConnector",
      "kv_connector_module_path": "transload.vllm", "kv_role": "kv_producer",
      "kv_connector_extra_config": {"certs": "certs"}}'

The decode server is started alike, with ``"kv_role": "kv_consumer"``. `Config` has all settings.

===============  =====================================================================
module           what it is about
===============  =====================================================================
`config`         the settings, from ``kv_connector_extra_config``
`cache`          how vLLM lays its cache out, as a deployment and registered memory
`content`        what a request's blocks hold
`messages`       what the scheduler tells the workers, and the workers the scheduler
`scheduler`      which request is lent or loaded, and when: one in the scheduler
`worker`         leases and pulls of one rank's blocks: one in each worker
`stats`          figures for vLLM's log and for Prometheus
`connector`      the class that vLLM makes; it hands everything to the others
===============  =====================================================================
"""

from .config import Config, ConfigError
from .connector import TransloadConnector

__all__ = ["Config", "ConfigError", "TransloadConnector"]
