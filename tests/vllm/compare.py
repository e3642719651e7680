"""Compares Transload with vLLM's NixlConnector over TCP, and with one server alone: the same machine, model and prompts,
one after the other.

    compare.py [--rounds 20] [--tokens 100 900] [--only NAME]...

Both pairs have blocks of 32 tokens on both sides, where both are right. It prints, for each length of prompt, medians of

- the time to the first token, through the proxy;
- the two requests that are in it, asked without the proxy: that of the prefill server, and that of the decode server;
- what the same servers take where nothing is transferred: `plain`, a prompt that the prefill server computes for itself,
  and `cached`, the decode server's request asked once more, when it has all of the prompt;
- `added`, what the connector adds to those two: prefill - plain + decode - cached. The rest of what a pair takes more
  than one server is a second request, and the proxy;

and the mean seconds of a transfer that the connectors themselves have counted: Transload's from when vLLM asks for the
load until it hears of its end, NixlConnector's that of the transfer alone.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "vllm"))

from disaggregated import certificates, pair, prompts  # noqa: E402
from servers import Proxy, Server, complete, free_port  # noqa: E402
from servers import prefill as ask_prefill  # noqa: E402
from tiny_models import make  # noqa: E402
from transload import DEBUG_BUILD  # noqa: E402

WARM = 2
"""The first rounds of each length, in which the servers meet."""


@dataclasses.dataclass
class Figures:
    """Seconds of each round."""

    tokens: list[list[int]]
    first: list[float]
    """Until the first token: through the proxy, or of the one server."""
    plain: list[float] = dataclasses.field(default_factory=list)
    prefill: list[float] = dataclasses.field(default_factory=list)
    decode: list[float] = dataclasses.field(default_factory=list)
    cached: list[float] = dataclasses.field(default_factory=list)
    transfer: float = float("nan")
    """The mean of a transfer."""

    def __str__(self) -> str:
        parts = {
            "first token": self.first,
            "prefill": self.prefill,
            "plain": self.plain,
            "decode": self.decode,
            "cached": self.cached,
        }
        words = [f"{name} {statistics.median(each) * 1e3:6.1f} ms" for name, each in parts.items() if each]
        if self.prefill:
            prefill, plain, decode, cached = map(statistics.median, (self.prefill, self.plain, self.decode, self.cached))
            words.append(f"added {(prefill - plain + decode - cached) * 1e3:5.1f} ms")
            words.append(f"transfer {self.transfer * 1e3:6.2f} ms")
        return "  ".join(words)


def transload(model: Path, folder: Path):
    return pair(model, folder, certificates(folder / "certs"))


def transload_network(model: Path, folder: Path):
    return pair(model, folder, certificates(folder / "certs"), require="quic")


def nixl(model: Path, folder: Path):
    servers = []
    for core, (name, role) in enumerate((("nixl-prefill", "kv_producer"), ("nixl-decode", "kv_consumer"))):
        transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
        channel = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()), "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
        servers.append(Server(model, folder, name, core=core, transfer=transfer, environment=channel))
    return servers


PAIRS = {
    "Transload": (transload, "vllm:transload_load_seconds"),
    "Transload, QUIC": (transload_network, "vllm:transload_load_seconds"),
    "NixlConnector": (nixl, "vllm:nixl_xfer_time_seconds"),
}
"""How each pair starts, and what counts its transfers. On one host Transload goes through its staging ring
unless it is told not to."""


def transfer(decode: Server, metric: str) -> tuple[float, float]:
    """Transfers, and seconds of all of them."""
    metrics = decode.metrics()
    found = {part: 0.0 for part in ("count", "sum")}
    for name, value in metrics.items():
        for part in found:
            if name.startswith(f"{metric}_{part}"):
                found[part] += value
    return found["count"], found["sum"]


def timed(ask):
    """Seconds, and the answer."""
    begun = time.perf_counter()
    answer = ask()
    return time.perf_counter() - begun, answer


def measure_alone(model: Path, folder: Path, asked: dict[int, list[list[int]]]) -> dict[int, Figures]:
    """What each length of prompt takes one server that computes all of it."""
    with Server(model, folder, "alone") as server:
        server.wait()
        figures = {}
        for length, each in asked.items():
            rounds = [timed(lambda: complete(server.url, prompt, 1)) for prompt in each]
            tokens = [answer["choices"][0]["token_ids"] for _, answer in rounds]
            figures[length] = Figures(tokens, [seconds for seconds, _ in rounds[WARM:]])
        return figures


def measure(prefill: Server, decode: Server, metric: str, asked: dict[int, list[list[int]]]) -> dict[int, Figures]:
    """What each length of prompt takes a pair of servers."""
    with prefill, decode:
        prefill.wait()
        decode.wait()
        log = prefill.log.with_name("proxy.log")
        with Proxy(log, "--prefill", prefill.url, "--decode", decode.url) as proxy:
            return {length: measure_length(prefill, decode, proxy.url, metric, each) for length, each in asked.items()}


def measure_length(prefill: Server, decode: Server, proxy: str, metric: str, asked: list[list[int]]) -> Figures:
    figures = Figures([], [])
    for number, prompt in enumerate(asked):
        if number == WARM:
            count, seconds = transfer(decode, metric)
            figures = dataclasses.replace(figures, first=[], plain=[], prefill=[], decode=[], cached=[])
        took, answer = timed(lambda: complete(proxy, prompt, 1))
        figures.first.append(took)
        figures.tokens.append(answer["choices"][0]["token_ids"])
        # Further prompts of this length, so that neither server has them.
        half = len(prompt) // 2
        plain, other = prompt[half:] + prompt[:half], prompt[::-1]
        figures.plain.append(timed(lambda: complete(prefill.url, plain, 1))[0])
        took, params = timed(lambda: ask_prefill(prefill.url, other))
        figures.prefill.append(took)
        figures.decode.append(timed(lambda: complete(decode.url, other, 1, kv_transfer_params=params))[0])
        figures.cached.append(timed(lambda: complete(decode.url, other, 1))[0])
    after = transfer(decode, metric)
    if after[0] > count:
        figures.transfer = (after[1] - seconds) / (after[0] - count)
    return figures


ALONE = "one server alone"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[100, 900])
    arguments.add_argument("--only", choices=list(PAIRS), nargs="+", default=list(PAIRS), help="pairs; default: all")
    given = arguments.parse_args()
    if DEBUG_BUILD:
        sys.exit("this build of transload is not optimized: compare one that `pip install ./crates/python` has built")
    folder = Path(tempfile.mkdtemp(prefix="transload-compare-"))
    model = make("llama", folder / "llama")
    asked = {length: prompts([length] * (given.rounds + WARM), seed=length) for length in given.tokens}
    found = {ALONE: measure_alone(model, folder, asked)}
    for name in given.only:
        start, metric = PAIRS[name]
        logs = folder / name
        logs.mkdir()
        found[name] = measure(*start(model, logs), metric, asked)
    for length in given.tokens:
        print(f"prompts of {length} tokens, {given.rounds} rounds")
        alone = found[ALONE][length]
        for name, figures in found.items():
            each = figures[length]
            assert each.tokens == alone.tokens, f"{name} answers {each.tokens}, not {alone.tokens}"
            ratio = statistics.median(each.first) / statistics.median(alone.first)
            print(f"  {name:16}  {ratio:4.2f} of one alone:  {each}")


if __name__ == "__main__":
    main()
