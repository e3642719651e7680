"""Pairs of real vLLM servers on the CPU. `./test vllm` makes the environment for them and runs these tests."""

import json
import os
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "vllm"
sys.path.insert(0, str(EXAMPLES))

import tiny_models  # noqa: E402
from disaggregated import certificates, pair  # noqa: E402
from servers import Proxy, Server, complete  # noqa: E402


class Newer:
    """The later vLLM that lies beside the one of this environment, and whether this run is with it."""

    def __init__(self):
        [folder] = Path(sys.prefix).glob("vllm-*")
        path = os.environ.get("PYTHONPATH", "")
        self.version = folder.name.partition("-")[2]
        self.is_here = str(folder) in path.split(":")
        self.environment = {"PYTHONPATH": f"{folder}:{path}"}
        """Variables with which a server is of that version."""


NEWER = Newer()


def pytest_collection_modifyitems(config, items):
    """With the later vLLM only what is marked for it runs."""
    if NEWER.is_here:
        config.hook.pytest_deselected(items=[each for each in items if not each.get_closest_marker("newer")])
        items[:] = [each for each in items if each.get_closest_marker("newer")]


def pytest_sessionfinish(session, exitstatus):
    # What somebody has chosen need not be among them.
    if NEWER.is_here and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(scope="session")
def models():
    """Makes a tiny model, once for all runs."""
    folder = Path(os.environ.get("TRANSLOAD_VLLM_CACHE", "~/.cache/transload/vllm")).expanduser() / "models"
    return lambda name: tiny_models.make(name, folder / name)


class Alone:
    """What one server alone answers, and what transformers compute."""

    def __init__(self, models, folder):
        self.models, self.folder = models, folder
        self.answers: dict[str, list[int]] = {}

    def tokens(self, model: str, prompts: list[list[int]], count: int = 16, **server) -> list[list[int]]:
        """The best `count` tokens behind each prompt: one server's, where transformers agree."""
        keys = [json.dumps([model, count, prompt]) for prompt in prompts]
        missing = [prompt for key, prompt in zip(keys, prompts) if key not in self.answers]
        if missing:
            with Server(self.models(model), self.folder, f"alone-{model}", **server) as alone:
                alone.wait()
                for prompt in missing:
                    tokens = alone.complete(prompt, count)["choices"][0]["token_ids"]
                    self.answers[json.dumps([model, count, prompt])] = tokens
            # Transformers round otherwise where there is something to round.
            for prompt in missing if "dtype" not in server else ():
                assert self.answers[json.dumps([model, count, prompt])] == self.reference(model, prompt, count)
        return [self.answers[key] for key in keys]

    def reference(self, model: str, prompt: list[int], count: int) -> list[int]:
        import torch
        from transformers import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(self.models(model), dtype=torch.float32).eval()
        ids = torch.tensor([prompt])
        found = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
        return found[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def alone(models, tmp_path_factory) -> Alone:
    return Alone(models, tmp_path_factory.mktemp("alone"))


class Pair:
    """A prefill and a decode server with a proxy before them."""

    def __init__(self, model: Path, folder: Path, prefill=None, decode=None, **settings):
        prefill, decode = prefill or {}, decode or {}
        self.model, self.folder = model, folder
        self.certs = certificates(folder / "certs")
        self.prefill, self.decode = pair(model, folder, self.certs, prefill, decode, **settings)
        self.proxy = None

    def wait(self) -> "Pair":
        self.prefill.wait()
        self.decode.wait()
        self.proxy = Proxy(self.folder / "proxy.log", "--prefill", self.prefill.url, "--decode", self.decode.url)
        self.url = self.proxy.url
        return self

    def tokens(self, prompt: list[int], count: int = 16, **more) -> list[int]:
        return complete(self.url, prompt, count, **more)["choices"][0]["token_ids"]

    def settings(self, server: Server) -> dict:
        """The connector's settings of one of the two."""
        config = json.loads(server.command[server.command.index("--kv-transfer-config") + 1])
        return config["kv_connector_extra_config"]

    def loaded(self) -> float:
        """Bytes that the decode server has loaded."""
        return total(self.decode, "vllm:transload_bytes_total")

    def stop(self) -> None:
        if self.proxy is not None:
            self.proxy.stop()
        self.decode.stop()
        self.prefill.stop()


def total(server: Server, metric: str, label: str = "") -> float:
    """A metric of a server, over all labels, or over those that hold this text."""
    return sum(value for name, value in server.metrics().items() if name.startswith(metric) and label in name)


@pytest.fixture
def start(models, tmp_path):
    """Starts pairs, which end with the test; after a failed one, their logs are shown."""
    started = []

    def begin(model="llama", **options) -> Pair:
        made = Pair(models(model), tmp_path / f"pair-{len(started)}", **options)
        started.append(made)
        return made.wait()

    yield begin
    for made in started:
        made.stop()
        for server in (made.prefill, made.decode):
            print(f"--- {server.log}\n{server.tail()}")
