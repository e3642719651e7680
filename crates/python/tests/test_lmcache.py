"""LMCache's plugins where there is no LMCache. `tests/engines/test_lmcache.py` has them under LMCache itself."""

import select
import sys

import pytest

import transload.lmcache
from transload.lmcache import Client


def test_client_needs_no_lmcache(tmp_path):
    client = Client(uri=f"file://{tmp_path}/store")
    data, into = b"some bytes", bytearray(10)
    for submit in (
        lambda: client.submit_batch_set(["key"], [memoryview(data)]),
        lambda: client.submit_batch_get(["key"], [memoryview(into)]),
    ):
        task = submit()
        assert select.select([client.event_fd()], [], [], 60)[0]
        [(done, ok, error, _)] = client.drain_completions()
        assert (done, ok, error) == (task, True, "")
    assert into == data
    client.close()


@pytest.mark.parametrize(
    "settings, told",
    [
        ({}, "has no 'uri'"),
        ({"uri": "file:///x", "urri": "x", "a": 1}, "'a', 'urri', which transload does not know; it knows uri, "),
        ({"uri": ""}, "'uri' is a text"),
        ({"uri": "file:///x", "namespace": 1}, "'namespace' is a text"),
        ({"uri": "file:///x", "workers": 0}, "'workers' is a number above 0"),
        ({"uri": "file:///x", "workers": -1}, "'workers' is a number above 0"),
        ({"uri": "file:///x", "threads": True}, "'threads' is a number above 0"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, told):
    with pytest.raises(ValueError, match=told):
        Client(**settings)


@pytest.mark.parametrize("name", ["L2Adapter", "L2AdapterConfig", "Storage"])
def test_others_say_what_to_install(name, monkeypatch):
    # None there is what Python takes for a package that is not installed.
    for package in ("lmcache", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    for module in ("_l2", "_storage"):
        monkeypatch.delitem(sys.modules, f"transload.lmcache.{module}", raising=False)
    with pytest.raises(ImportError, match="pip install lmcache"):
        getattr(transload.lmcache, name)
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        transload.lmcache.Other
