"""Starts vLLM servers on the CPU and a proxy before them, and asks them."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ALONE = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
}


class Server:
    """A vLLM server of this Python environment, in a process of its own."""

    def __init__(self, model: Path, folder: Path, name: str, *, tp=1, block_size=32, dtype="float32", core=0, transfer=None, options=(), environment=None):
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.port = name, free_port()
        self.log = folder / f"{name}.log"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        command += ["--host", "127.0.0.1", "--port", self.port, "--dtype", dtype, "--seed", 0]
        command += ["--max-model-len", 1024, "--max-num-seqs", 8, "--enforce-eager"]
        command += ["--tensor-parallel-size", tp, "--block-size", block_size, *options]
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        # Each rank computes on a core of its own, as far as there are some.
        cores = sorted(os.sched_getaffinity(0))
        bind = "|".join(str(cores[(core + rank) % len(cores)]) for rank in range(tp))
        caches = {
            variable: str(folder / "cache" / part)
            for variable, part in (
                ("HF_HOME", "huggingface"),
                ("VLLM_CACHE_ROOT", "vllm"),
                ("VLLM_CONFIG_ROOT", "vllm-config"),
                ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
            )
        }
        self.command = list(map(str, command))
        self._environment = os.environ | ALONE | caches | {"VLLM_CPU_OMP_THREADS_BIND": bind} | (environment or {})
        self.start()

    def start(self) -> "Server":
        """Starts it, again if it has ended."""
        with self.log.open("a") as output:
            # A group of its own, to be ended with all that it starts, but no session: Linux shares processors out among
            # sessions, and vLLM's polling ranks then keep a server that shares their core waiting for seconds.
            self.process = subprocess.Popen(
                self.command, env=self._environment, stdout=output, stderr=output, preexec_fn=os.setpgrp
            )
        return self

    def wait(self, seconds: float = 600) -> "Server":
        """Waits until it answers."""
        end = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return self
            except OSError:
                if time.monotonic() > end:
                    raise TimeoutError(f"{self.name} does not answer after {seconds} s:\n{self.tail()}") from None
                time.sleep(0.5)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def complete(self, prompt, tokens: int = 16, **more) -> dict:
        """Asks for a completion of token ids; see `complete`."""
        return complete(self.url, prompt, tokens, **more)

    def metrics(self) -> dict[str, float]:
        """The server's metrics, by name and labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        parts = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in parts}

    def tail(self, lines: int = 25) -> str:
        """What its log says of errors, and the end of it."""
        log = self.log.read_text(errors="replace").splitlines()
        errors = [line for line in log[:-lines] if "ERROR" in line and "Traceback" not in line]
        return "\n".join([*errors[-lines:], "...", *log[-lines:]])

    def stop(self) -> None:
        """Ends it, and the processes it has started."""
        self._end(15, 20)
        self._end(9, 20)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._end(9, 20)

    def _end(self, signal: int, seconds: float) -> None:
        if self.process.poll() is None or signal == 9:
            try:
                # And the processes of its engine and ranks.
                os.killpg(self.process.pid, signal)
            except ProcessLookupError:
                return
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.stop()


class Proxy:
    """`transload proxy`, or another of its commands that serve, in a process of its own."""

    def __init__(self, log: Path, *arguments, command="proxy"):
        self.port, self.log = free_port(), log
        admin = f"127.0.0.1:{free_port()}"
        listen = ("--listen", f"127.0.0.1:{self.port}") if command == "proxy" else ("--port", self.port)
        whole = [sys.executable, "-m", "transload", command, *listen, "--admin", admin, *arguments]
        with log.open("a") as output:
            self.process = subprocess.Popen(list(map(str, whole)), stdout=output, stderr=output)
        self.url, self.admin = f"http://127.0.0.1:{self.port}", f"http://{admin}"
        self._wait()

    def _wait(self, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"the proxy ended with {self.process.returncode}:\n{self.log.read_text()}")
            try:
                urllib.request.urlopen(f"{self.admin}/readyz", timeout=5).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise TimeoutError(f"the proxy is not ready after {seconds} s:\n{self.log.read_text()}") from None
                time.sleep(0.1)

    def status(self) -> dict:
        """The document of ``/status``."""
        with urllib.request.urlopen(f"{self.admin}/status", timeout=30) as answer:
            return json.load(answer)

    def stop(self) -> None:
        """Ends it; what is under way may end before."""
        self.process.terminate()
        self.process.wait(60)

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_) -> None:
        self.stop()


def connector(role: str, certs: Path | None, policy: str = "fail", **settings) -> dict:
    """The ``--kv-transfer-config`` of a server with Transload; `policy` is what to do where a load fails."""
    return {
        "kv_load_failure_policy": policy,
        "kv_connector": "TransloadConnector",
        "kv_role": role,
        "kv_connector_extra_config": ({"certs": str(certs)} if certs else {}) | settings,
    }


def complete(url: str, prompt, tokens: int = 16, **more) -> dict:
    """Asks a server, or the proxy, for `tokens` tokens, the best one each time. The answer is that of
    ``/v1/completions``, with ``token_ids`` in each choice.

    Raises:
        urllib.error.HTTPError: with the server's words in it.
    """
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "return_token_ids": True, **more}
    with post(f"{url}/v1/completions", body) as answer:
        return json.load(answer)


def prefill(url: str, prompt, **more) -> dict:
    """Has a prefill server compute a prompt. The answer is what the decode server needs to know, as a proxy hands it on."""
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "kv_transfer_params": asked, **more}
    with post(f"{url}/v1/completions", body) as answer:
        return json.load(answer)["kv_transfer_params"]


def post(url: str, body: dict, timeout: float = 300, headers: dict | None = None):
    """Posts JSON."""
    headers = {"Content-Type": "application/json"} | (headers or {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        return urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.msg = f"{error.msg}: {error.read().decode(errors='replace')}"
        raise


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
