#!/usr/bin/env python3
"""Measures what the connector for vLLM takes of a step in which nothing is moved: in the scheduler, and in the worker of a rank.

It takes the wheel of Transload in an optimized build, and no vLLM: an engine stands for it, with real agents.

    site=$(mktemp -d) && pip install --no-deps --target $site transload-*.whl
    PYTHONPATH=$site:crates/python/tests python3 benches/vllm_step.py

Times are medians over steps of all that vLLM calls in one of them, between which shapes take turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vllm_stand_in.engine import Engine
from vllm_stand_in.fixtures import prompt
from vllm_stand_in.installed import installed
from vllm_stand_in.model import Attention

import transload

SHAPES = {
    "one engine": {},
    "PP 2": {"stages": [range(2), range(2, 4)]},
    "DP 2": {"parallel": {"data_parallel_size": 2, "data_parallel_index": 1, "data_parallel_rank_local": 1}},
}
CALLED = {
    "scheduler": ["build_connector_meta", "update_connector_output", "get_kv_connector_stats", "has_pending_push_work"],
    "worker": [
        "handle_preemptions", "bind_connector_metadata", "start_load_kv", "wait_for_save", "get_transfer_results",
        "get_block_ids_with_load_errors", "get_kv_connector_stats", "build_connector_worker_meta", "clear_connector_metadata",
    ],
}  # fmt: skip
"""What vLLM calls in each step."""


class Timed:
    """A half of the connector, which adds up what is called of it."""

    def __init__(self, half, names):
        self._half, self._names, self.seconds = half, names, 0.0

    def __getattr__(self, name):
        found = getattr(self._half, name)
        if name not in self._names:
            return found

        def timed(*arguments):
            begun = time.perf_counter()
            try:
                return found(*arguments)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed

    def take(self):
        taken, self.seconds = self.seconds * 1e6, 0.0
        return taken


def main():
    parser = argparse.ArgumentParser(description="Measures what the connector takes of a step without transfers.")
    parser.add_argument("--requests", type=int, default=32, help="that are decoded in each step")
    parser.add_argument("--steps", type=int, default=1000, help="2000 at most")
    args = parser.parse_args()
    debug = ", a debug build" if transload.DEBUG_BUILD else ""
    print(f"{os.cpu_count()} cores, transload {transload.__version__}{debug}; {args.requests} requests, {args.steps} steps")
    with tempfile.TemporaryDirectory() as folder, installed():
        certs = Path(folder) / "certs"
        agents = [f"--agent=decode-{rank}=serve,pull,push,renew" for rank in range(2)]
        subprocess.run([sys.executable, "-m", "transload", "certs", "init", certs, *agents], check=True, capture_output=True)
        engines, taken, groups = {}, {}, [Attention(range(4), heads=1, head_dim=8)]
        for name, shape in SHAPES.items():
            engines[name] = engine = Engine(certs, "decode", groups, blocks=64 * args.requests, role="kv_both", **shape)
            for number in range(args.requests):
                engine.add(prompt(100, number), max_tokens=10**6)
            engine.step()
            for cache in engine.caches:
                # Only calls of the connector are measured, so the engine neither fills its cache nor checks it.
                cache.write = cache.assert_seen = lambda *_: None
            engine.scheduler = Timed(engine.scheduler, CALLED["scheduler"])
            engine.workers = [Timed(worker, CALLED["worker"]) for worker in engine.workers]
        for _ in range(args.steps):
            for name, engine in engines.items():
                engine.step()
                taken.setdefault((name, "scheduler"), []).append(engine.scheduler.take())
                taken.setdefault((name, "worker"), []).append(statistics.mean(worker.take() for worker in engine.workers))
        for (name, half), times in taken.items():
            print(f"{name:12} {half:10} {statistics.median(times):6.1f} us, {statistics.quantiles(times, n=100)[98]:6.1f} us at the 99th percentile")
        for engine in engines.values():
            engine.shutdown()


if __name__ == "__main__":
    main()
