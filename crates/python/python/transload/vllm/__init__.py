"""vLLM's KV connector: prefill and decode servers that exchange KV cache through Transload.

vLLM loads it by name::

    --kv-transfer-config '{"kv_connector": "TransloadConnector", "kv_role": "kv_producer",
      "kv_connector_extra_config": {"certs": "certs"}}'

The decode server is started alike, with ``"kv_role": "kv_consumer"``. With ``"store": "file:///var/kv"``, prefixes are
saved and loaded too, or only that if there are no ``certs``. `Config` has all settings.

===================  =====================================================================
module               what it is about
===================  =====================================================================
`config`             the settings, from ``kv_connector_extra_config``
`cache`              how vLLM lays its cache out, as a deployment and registered memory
`content`            what a request's blocks hold: its prompt, and what computes it
`messages`           what the scheduler tells the workers, and the workers the scheduler
`scheduler`          which request is lent or loaded, and when: one in the scheduler
`worker`             leases and pulls of one rank's blocks: one in each worker
`saved_scheduler`    which prefixes are loaded from the store and saved to it
`saved_worker`       loads and saves of one rank's blocks
`saved`              what both have of the store: the archive, and threads that wait for it
`events`             what routers are told of the store
`tier`               a store behind vLLM's own OffloadingConnector
`misfits`            prefill servers whose blocks can never be loaded here
`drafts`             which layers draft tokens
`windows`            whether a request still has the blocks of its windows
`weights`            what tells the weights of a model apart from all others
`adapters`           what tells adapters apart
`engine_calls`       calls of vLLM's engine that connectors are not told of
`versions`           the versions of vLLM that tests run with
`stats`              figures for vLLM's log and for Prometheus
`startup`            what is refused when vLLM starts, before it loads the model or after
`connector`          the class that vLLM makes; it hands everything to the others
===================  =====================================================================
"""

from . import versions

versions.check()
try:
    from .config import Config, ConfigError
    from .connector import TransloadConnector
except ImportError as error:
    raise versions.lacking(error) from error

__all__ = ["Config", "ConfigError", "TransloadConnector"]
