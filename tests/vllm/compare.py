"""Transload beside vLLM's NixlConnector over TCP: the same machine, model and prompts, one pair after the other.

    compare.py [--rounds 20] [--tokens 100 900]

Both pairs have blocks of 32 tokens on both sides, where both are right. It prints, for each length of prompt, the time
to the first token (prefill, transfer and decode, through the proxy) and the seconds of the transfer that the connectors
themselves have counted: Transload's from when vLLM asks for the load until it hears of its end, NixlConnector's that of
the transfer alone.
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
from proxy import serve  # noqa: E402
from servers import Server, complete, free_port  # noqa: E402
from tiny_models import make  # noqa: E402
from transload import DEBUG_BUILD  # noqa: E402

WARM = 2
"""The first rounds of each length, in which the servers meet."""


@dataclasses.dataclass
class Figures:
    tokens: list[list[int]]
    first: list[float]
    """Seconds until the first token, of each round."""
    transfer: float
    """Seconds of a transfer, in the mean of `count`."""
    count: int


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
"""What is compared with the last one: how it starts, and what counts its transfers. On one host Transload goes through
its staging ring unless it is told not to."""


def transfer(decode: Server, metric: str) -> tuple[float, float]:
    """Transfers, and seconds of all of them."""
    metrics = decode.metrics()
    found = {part: 0.0 for part in ("count", "sum")}
    for name, value in metrics.items():
        for part in found:
            if name.startswith(f"{metric}_{part}"):
                found[part] += value
    return found["count"], found["sum"]


def measure(prefill: Server, decode: Server, metric: str, asked: dict[int, list[list[int]]]) -> dict[int, Figures]:
    """What each length of prompt takes."""
    figures = {}
    try:
        prefill.wait()
        decode.wait()
        url = f"http://127.0.0.1:{serve(prefill.url, decode.url).server_port}"
        for length, each in asked.items():
            first, tokens = [], []
            for number, prompt in enumerate(each):
                if number == WARM:
                    count, seconds = transfer(decode, metric)
                begun = time.perf_counter()
                tokens.append(complete(url, prompt, 1)["choices"][0]["token_ids"])
                first.append(time.perf_counter() - begun)
            after = transfer(decode, metric)
            count, seconds = after[0] - count, after[1] - seconds
            figures[length] = Figures(tokens, first[WARM:], seconds / count if count else float("nan"), round(count))
    finally:
        decode.stop()
        prefill.stop()
    return figures


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[100, 900])
    given = arguments.parse_args()
    if DEBUG_BUILD:
        sys.exit("this build of transload is not optimized: compare one that `pip install ./crates/python` has built")
    folder = Path(tempfile.mkdtemp(prefix="transload-compare-"))
    model = make("llama", folder / "llama")
    asked = {length: prompts([length] * (given.rounds + WARM), seed=length) for length in given.tokens}
    found = {}
    for name, (start, metric) in PAIRS.items():
        logs = folder / name
        logs.mkdir()
        found[name] = measure(*start(model, logs), metric, asked)
    for length in given.tokens:
        print(f"prompts of {length} tokens, {given.rounds} rounds")
        base = found["NixlConnector"][length]
        for name in PAIRS:
            each = found[name][length]
            assert each.tokens == base.tokens, f"{name} answers {each.tokens}, not {base.tokens}"
            first = statistics.median(each.first)
            print(
                f"  {name:15}  first token {first * 1e3:7.1f} ms (longest {max(each.first) * 1e3:7.1f}),"
                f" ratio {first / statistics.median(base.first):.2f}"
                f"  transfer {each.transfer * 1e3:7.2f} ms (mean of {each.count}), ratio {each.transfer / base.transfer:.2f}"
            )


if __name__ == "__main__":
    main()
