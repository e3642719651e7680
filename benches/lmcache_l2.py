#!/usr/bin/env python3
"""Runs `lmcache bench l2` with our two adapters beside LMCache's own `fs` and `fs_native`, which do not flush.

It takes LMCache and the wheel of Transload, and no GPU:

    site=$(mktemp -d) && pip install --no-deps --target $site transload-*.whl
    PYTHONPATH=$site $(tests/engines/environment)/bin/python benches/lmcache_l2.py --folder /var/tmp/lmcache

Times are medians of rounds that take turns, each with a folder of its own and no warm-up: a second round's bytes would be
those of the first, which our stores keep once. What is loaded has just been written, and is compared.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
from pathlib import Path

os.environ.update(LMCACHE_LOG_LEVEL="ERROR", LMCACHE_TRACK_USAGE="false", LMCACHE_DISABLE_BANNER="1", OMP_NUM_THREADS="1")

from lmcache.cli.main import main as lmcache  # noqa: E402

import transload  # noqa: E402


def adapters(folder):
    ours = {"module_path": "transload.lmcache", "adapter_params": {"uri": f"file://{folder}"}}
    return {
        "L2Adapter": {"type": "plugin", "class_name": "L2Adapter", **ours},
        "Client": {"type": "native_plugin", "class_name": "Client", **ours},
        "fs": {"type": "fs", "base_path": str(folder)},
        "fs_native": {"type": "fs_native", "base_path": str(folder)},
    }


def milliseconds(name, folder, keys, kib, *more):
    """What each operation takes, if all was there and right."""
    spec = adapters(folder)[name]
    report = folder.with_suffix(".json")
    fixed = ["--rounds=1", "--warmup-rounds=0", "--lookup-max-hit-rate=1", "--format=json", f"--output={report}"]
    asked = ["bench", "l2", "--l2-adapter", json.dumps(spec), f"--num-keys={keys}", f"--data-size-kb={kib}", *fixed, *more]
    with contextlib.redirect_stdout(io.StringIO()) as told:
        try:
            lmcache(asked)
        except SystemExit as end:
            assert not end.code, told.getvalue()
    measured = {}
    for figures in json.loads(report.read_text())["metrics"].values():
        if "operation" in figures:
            assert figures["total_success"] == keys, told.getvalue()
            measured[figures["operation"].lower()] = figures["duration_p50_ms"]
    return measured


def main():
    parser = argparse.ArgumentParser(description="Runs LMCache's benchmark with our adapters and its own.")
    parser.add_argument("--folder", type=Path, required=True, help="a new one, removed at the end")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    print(f"{os.cpu_count()} cores, transload {transload.__version__}{', a debug build' if transload.DEBUG_BUILD else ''}")
    for keys, kib in ((32, 256), (16, 4096)):
        taken = {}
        # Once without counting it, so that all is imported.
        for number in range(args.rounds + 1):
            for name in adapters(""):
                folder = args.folder.absolute() / f"{name}-{keys}-{number}"
                folder.mkdir(parents=True)
                figures = milliseconds(name, folder, keys, kib, "--no-skip-verify")
                figures["store again"] = milliseconds(name, folder, keys, kib, "--only=store")["store"]
                for operation, took in figures.items() if number else ():
                    taken.setdefault(operation, {}).setdefault(name, []).append(took)
                # So that the disk does not fill.
                shutil.rmtree(folder)

        medians = {operation: {name: statistics.median(each) for name, each in by.items()} for operation, by in taken.items()}
        print(f"\n{keys} x {kib} KiB, ms")
        print(f"{'':14}" + "".join(f"{name:>12}" for name in adapters("")))
        for operation, by in medians.items():
            print(f"{operation:14}" + "".join(f"{took:12.2f}" for took in by.values()))
        for name in ("L2Adapter", "Client"):
            store, load = medians["store"], medians["load"]
            print(
                f"{name}: load {load['fs_native'] / load[name]:.2f} times as fast as fs_native; store "
                f"{store['fs_native'] / store[name]:.2f} times as fast as fs_native, {store['fs'] / store[name]:.2f} as fs; "
                f"store again {store[name] / medians['store again'][name]:.1f} times as fast as store"
            )
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
