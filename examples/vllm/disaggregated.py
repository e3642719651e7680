"""Shows that two servers answer as one does: a tiny model, one server alone, then a prefill and a decode server that
lay their caches out differently, with `transload proxy` before them.

    python disaggregated.py [--prefill-block-size 32] [--decode-block-size 64] [--prefill-tp 1] [--decode-tp 1]
                            [--model llama] [--mode pull]

It takes an environment with vLLM and transload, and no GPU.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from servers import Proxy, Server, complete, connector, free_port
from tiny_models import MODELS, VOCABULARY, make


def prompts(lengths, seed=0):
    """Random prompts of these lengths, in tokens."""
    chosen = random.Random(seed)
    return [[chosen.randrange(1, VOCABULARY) for _ in range(length)] for length in lengths]


def certificates(folder: Path) -> Path:
    """Certificates of a cluster: one for prefill and one for decode servers, whatever their ranks."""
    command = [sys.executable, "-m", "transload", "certs", "init", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def pair(model: Path, folder: Path, certs: Path, prefill=None, decode=None, **settings):
    """A prefill and a decode server, started; each with options of `Server`."""
    sides = {"prefill": ("kv_producer", prefill or {}), "decode": ("kv_consumer", decode or {})}
    servers, cores = [], 0
    for name, (role, options) in sides.items():
        transfer = connector(role, certs, port=free_port(), **settings)
        servers.append(Server(model, folder, name, core=cores, transfer=transfer, **options))
        cores += options.get("tp", 1)
    return servers


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Of qwen3_next not even one server gives the same answers when it divides prompts differently: it takes bfloat16.
    arguments.add_argument("--model", choices=sorted(MODELS.keys() - {"qwen3_next"}), default="llama")
    arguments.add_argument("--folder", type=Path, help="for the model, logs and certificates; default: a new one")
    for side, block_size in (("prefill", 32), ("decode", 64)):
        arguments.add_argument(f"--{side}-block-size", type=int, default=block_size)
        arguments.add_argument(f"--{side}-tp", type=int, default=1)
    arguments.add_argument("--mode", choices=["pull", "push"], default="pull", help="who moves the blocks")
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="transload-vllm-"))
    model = make(given.model, folder / given.model)
    asked = prompts([5, 100, 900])

    # vLLM on the CPU cannot cache prefixes of Mamba2.
    options = ["--no-enable-prefix-caching"] if given.model == "falcon_h1" else []
    with Server(model, folder, "alone", options=options) as alone:
        print(f"one server alone (log: {alone.log})")
        alone.wait()
        expected = [alone.complete(prompt)["choices"][0]["token_ids"] for prompt in asked]

    certs = certificates(folder / "certs")
    sides = {
        side: {
            "tp": getattr(given, f"{side}_tp"),
            "block_size": getattr(given, f"{side}_block_size"),
            "options": options,
        }
        for side in ("prefill", "decode")
    }
    prefill, decode = pair(model, folder, certs, **sides, mode=given.mode)
    with prefill, decode:
        for server in (prefill, decode):
            tp, blocks = sides[server.name]["tp"], sides[server.name]["block_size"]
            print(f"{server.name}: TP {tp}, blocks of {blocks} tokens (log: {server.log})")
            server.wait()
        same = 0
        with Proxy(folder / "proxy.log", "--prefill", prefill.url, "--decode", decode.url) as proxy:
            for prompt, tokens in zip(asked, expected):
                found = complete(proxy.url, prompt)["choices"][0]["token_ids"]
                same += found == tokens
                verdict = "the same" if found == tokens else f"WRONG, expected {tokens}"
                print(f"prompt of {len(prompt):3} tokens: {found[:8]}... {verdict}")
        moved = sum(value for name, value in decode.metrics().items() if "transload_bytes_total" in name)
        print(f"{same} of {len(asked)} answers are those of one server; {moved / 1e6:.1f} MB moved")
    return 0 if same == len(asked) and moved > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
