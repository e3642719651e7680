"""A plugin of pytest's for LMCache's own tests: they get our classes where they would make theirs."""

import sys
import tempfile
from types import ModuleType

import torch  # noqa: F401  before LMCache's native module.
from lmcache import torch_dev
from lmcache.v1.distributed.l2_adapters import mock_l2_adapter

from transload.lmcache import Client, L2Adapter, L2AdapterConfig


def fresh() -> str:
    """A store of its own."""
    return f"file://{tempfile.mkdtemp()}/store"


class InPlaceOfMock(L2Adapter):
    """Takes the mock's configuration, and answers what only tests ask it."""

    def __init__(self, config):
        super().__init__(L2AdapterConfig(uri=fresh(), max_capacity_gb=config.max_size_gb))

    def debug_get_stored_object_count(self) -> int:
        return self.report_status()["stored_object_count"]

    def debug_get_locked_key_count(self) -> int:
        return self.report_status()["locked_key_count"]

    def debug_has_key(self, key) -> bool:
        return any(entry.key == key.to_encoded_object_key() for entry in self.list_l2_keys(page_size=1 << 20).entries)


class InPlaceOfExampleConfig(L2AdapterConfig):
    """Takes the settings of the example's adapter."""

    @classmethod
    def from_dict(cls, d: dict):
        config = cls(uri=fresh(), max_capacity_gb=d.get("max_size_gb", 0.5))
        config.max_size_gb = config.max_capacity_gb
        return config


class InPlaceOfExample(L2Adapter):
    def __init__(self, config, **later):
        super().__init__(InPlaceOfExampleConfig.from_dict(config) if isinstance(config, dict) else config, **later)


# The controllers' tests want a device; what stands for one on the host is one to them.
type(torch_dev).is_available = lambda self: True
mock_l2_adapter.MockL2Adapter = InPlaceOfMock
example = sys.modules["lmc_external_l2_adapter"] = ModuleType("lmc_external_l2_adapter")
example.InMemoryL2Adapter, example.InMemoryL2AdapterConfig = InPlaceOfExample, InPlaceOfExampleConfig


def pytest_collection_finish(session):
    for module in {item.module for item in session.items}:
        if hasattr(module, "MockNativeConnector"):
            module.MockNativeConnector = lambda: Client(uri=fresh())
