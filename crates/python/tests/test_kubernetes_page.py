"""The manifests of the book's page on Kubernetes: they are YAML, belong together, and their settings are the connector's."""

import json
import re
from pathlib import Path

import pytest
from vllm_stand_in import vllm_names as vllm

yaml = pytest.importorskip("yaml", reason="NOT RUN: PyYAML is not installed")

PAGE = Path(__file__).parents[3] / "docs/src/guide/kubernetes.md"
FILES = {"ca.pem", "ticket.key"}


@pytest.fixture(scope="module")
def objects():
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = [each for block in blocks for each in yaml.safe_load_all(block)]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def servers(objects):
    return [each for (kind, _), each in objects.items() if kind in ("Deployment", "StatefulSet")]


def test_there_is_what_the_page_is_about(objects):
    kinds = {kind for kind, _ in objects}
    assert kinds >= {"Deployment", "StatefulSet", "HorizontalPodAutoscaler", "Issuer", "Certificate", "NetworkPolicy"}
    assert all(each["apiVersion"] for each in objects.values())


def settings_of(server):
    """What vLLM is given, after Kubernetes has put the pod's own values into it."""
    pod = server["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][-1] == "--kv-transfer-config"
    own = {"POD_NAME": f"{server['metadata']['name']}-7d9f7c5b8-abcde", "POD_IP": "10.1.2.3"}
    assert {each["name"] for each in container["env"]} == own.keys()
    [text] = container["args"]
    return pod, container, json.loads(re.sub(r"\$\((\w+)\)", lambda name: own[name[1]], text))


def test_settings_are_the_connectors(connector, objects):
    for server in servers(objects):
        _, container, given = settings_of(server)
        extra = given["kv_connector_extra_config"]
        config = connector.Config.read(vllm.vllm_config(given["kv_role"], extra))
        assert (config.host, config.agent) == ("10.1.2.3", server["metadata"]["name"])
        assert given["kv_load_failure_policy"] == "recompute" if config.agent == "decode" else True
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert config.port == ports["transload"] and len(config.instance) <= 58


def test_mounted_files_are_those_that_are_read(objects):
    for server in servers(objects):
        pod, container, given = settings_of(server)
        extra = given["kv_connector_extra_config"]
        [mount] = [each for each in container["volumeMounts"] if each["name"] == "certs"]
        assert mount["mountPath"] == extra["certs"] and "subPath" not in mount
        [volume] = [each["projected"] for each in pod["volumes"] if each["name"] == "certs"]
        assert volume["defaultMode"] == 0o440
        items = [each["secret"] for each in volume["sources"]]
        paths = {item["path"] for secret in items for item in secret.get("items", ())} | {"ticket.key"}
        assert paths == FILES | {f"{extra['agent']}.pem", f"{extra['agent']}.key"}
        assert objects["Certificate", items[0]["name"]]["spec"]["secretName"] == items[0]["name"]


def test_network_policy_lets_in_what_servers_listen_on(objects):
    allowed = objects["NetworkPolicy", "transload"]["spec"]["ingress"][0]["ports"]
    allowed = [range(each["port"], each["endPort"] + 1) for each in allowed]
    for server in servers(objects):
        extra = settings_of(server)[2]["kv_connector_extra_config"]
        for port in (extra["port"], *extra["lane_ports"]):
            assert any(port in ports for ports in allowed), port
