"""Servers that announce themselves at a real etcd."""

import base64
import json
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import transload


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    """An etcd: its address, and what is below a prefix of it."""
    for command in "etcd", "etcdctl":
        if shutil.which(command) is None:
            why = f"NOT RUN: {command} is not there; install etcd-server and etcd-client"
            print(why, file=sys.stderr)
            pytest.skip(why)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        address, peer = (f"127.0.0.1:{each.getsockname()[1]}" for each in (one, two))
    folder = tmp_path_factory.mktemp("etcd")
    urls = [f"--listen-client-urls=http://{address}", f"--advertise-client-urls=http://{address}"]
    urls += [f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}"]
    urls += [f"--initial-cluster=default=http://{peer}"]
    process = subprocess.Popen(["etcd", f"--data-dir={folder}", *urls], stderr=subprocess.DEVNULL)

    def found(prefix):
        command = ["etcdctl", f"--endpoints={address}", "get", "--prefix", prefix, "--write-out=json"]
        done = subprocess.run(command, capture_output=True, text=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"})
        if done.returncode:
            return None
        return sorted(base64.b64decode(each["key"]).decode() for each in json.loads(done.stdout).get("kvs", []))

    try:
        soon(lambda: found("/") is not None)
        yield SimpleNamespace(address=address, found=found)
    finally:
        process.kill()
        process.wait()


def soon(is_so):
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < 60, "not in time"
        time.sleep(0.05)


def test_a_server_is_found_until_its_end(etcd):
    announcement = transload.Announcement(f"etcd://{etcd.address}/one", "decode", "http://10.0.2.1:8200")
    assert etcd.found("one") == []
    announcement.begin()
    announcement.begin()
    soon(lambda: etcd.found("one") == ["one/decode/10.0.2.1:8200"])
    announcement.end()
    assert etcd.found("one") == []
    announcement.end()
    announcement.begin()
    soon(lambda: len(etcd.found("one")) == 1)
    del announcement
    soon(lambda: etcd.found("one") == [])


def test_an_etcd_that_is_away_holds_nobody_up():
    announcement = transload.Announcement("etcd://127.0.0.1:1/one", "prefill", "http://p:8100")
    announcement.begin()
    announcement.end()


@pytest.mark.parametrize(
    ("etcd", "role", "url", "message"),
    [
        ("http://:secret@e", "decode", "http://d:1", "^etcd is wrong: "),
        ("etcd://e:2379/t", "both", "http://d:1", "^role is wrong: give prefill or decode$"),
        ("etcd://e:2379/t", "decode", "d.example", "^url is wrong: "),
    ],
)
def test_what_is_no_announcement(etcd, role, url, message):
    with pytest.raises(ValueError, match=message) as raised:
        transload.Announcement(etcd, role, url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("kv_role", "roles"), [("kv_producer", ["prefill"]), ("kv_consumer", ["decode"]), ("kv_both", ["decode", "prefill"])]
)
def test_vllm_announces_itself(engine, etcd, kv_role, roles):
    extra = {"announce": f"etcd://{etcd.address}/{kv_role}", "announce_url": "http://10.0.1.1:8000"}
    agent = "decode" if kv_role == "kv_consumer" else "prefill"
    server = engine(agent, extra=extra, role=kv_role)
    soon(lambda: etcd.found(f"{kv_role}") == [f"{kv_role}/{role}/10.0.1.1:8000" for role in roles])
    server.scheduler.shutdown()
    assert etcd.found(f"{kv_role}") == []
