"""Transload beside vLLM's NixlConnector over TCP: the same machine, model and prompts, in turns.

    compare.py [--rounds 20] [--tokens 100 900]

Both pairs have blocks of 32 tokens on both sides, where both are right. It prints, for each length of prompt, the time
to the first token (prefill, transfer and decode, through the proxy) and the seconds of the transfer that the connectors
themselves have counted.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "vllm"))

from disaggregated import certificates, pair  # noqa: E402
from proxy import serve  # noqa: E402
from servers import Server, complete, free_port  # noqa: E402
from tiny_models import VOCABULARY, make  # noqa: E402


def nixl(model: Path, folder: Path):
    servers = []
    for core, (name, role) in enumerate((("nixl-prefill", "kv_producer"), ("nixl-decode", "kv_consumer"))):
        transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
        channel = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()), "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
        servers.append(Server(model, folder, name, core=core, transfer=transfer, environment=channel))
    return servers


SECONDS = {"Transload": "vllm:transload_load_seconds", "NixlConnector": "vllm:nixl_xfer_time_seconds"}


def transfer(decode: Server, name: str) -> tuple[float, float]:
    """Transfers, and seconds of all of them."""
    metrics = decode.metrics()
    found = {part: 0.0 for part in ("count", "sum")}
    for metric, value in metrics.items():
        for part in found:
            if metric.startswith(f"{SECONDS[name]}_{part}"):
                found[part] += value
    return found["count"], found["sum"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[100, 900])
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="transload-compare-"))
    model = make("llama", folder / "llama")
    sides = {"Transload": pair(model, folder, certificates(folder / "certs")), "NixlConnector": nixl(model, folder)}
    try:
        urls = {}
        for name, (prefill, decode) in sides.items():
            prefill.wait()
            decode.wait()
            urls[name] = f"http://127.0.0.1:{serve(prefill.url, decode.url).server_port}"
        chosen = random.Random(0)
        for length in given.tokens:
            first, before, answers = {name: [] for name in sides}, {}, {}
            for number in range(given.rounds + 2):
                if number == 2:  # The first ones meet.
                    before = {name: transfer(decode, name) for name, (_, decode) in sides.items()}
                prompt = [chosen.randrange(1, VOCABULARY) for _ in range(length)]
                for name in chosen.sample(list(sides), len(sides)):
                    begun = time.perf_counter()
                    answers[name] = complete(urls[name], prompt, 1)["choices"][0]["token_ids"]
                    if number >= 2:
                        first[name].append(time.perf_counter() - begun)
                assert len(set(map(tuple, answers.values()))) == 1, f"they differ: {answers}"
            print(f"prompts of {length} tokens, {given.rounds} rounds", flush=True)
            figures = []
            for name, (_, decode) in sides.items():
                count, seconds = (now - then for now, then in zip(transfer(decode, name), before[name]))
                middle, longest = statistics.median(first[name]), max(first[name])
                each = seconds / count if count else float("nan")
                figures.append((middle, each))
                print(
                    f"  {name:13}  first token {middle * 1e3:7.1f} ms (longest {longest * 1e3:7.1f})"
                    f"  transfer {each * 1e3:6.2f} ms, mean of {count:.0f}"
                )
            ours, theirs = figures
            print(f"  ratio          first token {ours[0] / theirs[0]:7.2f}{'':22}  transfer {ours[1] / theirs[1]:6.2f}", flush=True)
    finally:
        for servers in sides.values():
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
