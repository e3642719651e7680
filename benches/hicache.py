#!/usr/bin/env python3
"""Measures HiCache's storage over a file store, beside a copy in memory and a read of plain files in the same run.

It takes SGLang and the wheel of Transload, and no GPU:

    site=$(mktemp -d) && pip install --no-deps --target $site transload-*.whl
    PYTHONPATH=$site $(tests/engines/environment)/bin/python benches/hicache.py --folder /var/tmp/hicache

Speeds are medians of rounds that take turns; pages are those of Llama 3.1 8B in bf16. The store's files are warm: they have
just been written, and are in the page cache.
"""

import argparse
import os
import shutil
import statistics
import time
import uuid
from pathlib import Path

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

import transload
from transload.sglang import Storage


def host_pool(layout, layers, page, pages):
    """Pages for what is saved, and as many for what is read."""
    device = MHATokenToKVPool(page, page, torch.bfloat16, 8, 128, layers, "cpu", False)
    info = device.get_device_pool_infos()[0].buffer_info
    more = dict(device_capacity_tokens=page, start_layer=0, end_layer=layers, host_token_capacity=2 * pages * page)
    pool = MHATokenToKVPoolHost(info, 1.0, 0, page, layout, pin_memory=False, **more)
    pool.kv_buffer.view(torch.int16).random_(-30000, 30000)
    return pool


def attach(folder, pool):
    ranks = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1)
    more = dict(is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=pool.layout == "page_first")
    settings = dict(uri=f"file://{folder.absolute()}", interface_v1=1)
    storage = Storage(HiCacheStorageConfig(**ranks, **more, model_name="bench", extra_config=settings))
    storage.register_mem_pool_host(pool)
    return storage


def seconds(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main():
    parser = argparse.ArgumentParser(description="Measures HiCache's storage over a file store.")
    parser.add_argument("--folder", type=Path, required=True, help="a new one, removed at the end")
    parser.add_argument("--layout", default="page_first_direct")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--page", type=int, default=64, help="tokens")
    parser.add_argument("--pages", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    pool = host_pool(args.layout, args.layers, args.page, args.pages)
    tokens = args.page * args.pages
    source, target = torch.arange(tokens), torch.arange(tokens, 2 * tokens)
    size = pool.size_per_token * args.page
    args.folder.mkdir(parents=True)
    files = [args.folder / f"plain-{number}" for number in range(args.pages)]
    bytes_ = torch.randint(0, 256, (size,), dtype=torch.uint8)
    room, other = memoryview(bytearray(size)), torch.empty(size * args.pages, dtype=torch.uint8)
    plain = bytes_.repeat(args.pages)
    for file in files:
        file.write_bytes(bytes_.numpy().tobytes())

    def read_files():
        for file in files:
            with open(file, "rb", buffering=0) as opened:
                assert opened.readinto(room) == size

    # Once without a clock, so that memory has its pages.
    figures = {}
    for number in range(args.rounds + 1):
        storage = attach(args.folder / "store", pool)
        keys = [uuid.uuid4().hex * 2 for _ in range(args.pages)]
        steps = {
            "save": lambda: storage.batch_set_v1(keys, source),
            "save again": lambda: storage.batch_set_v1(keys, source),
            "look up": lambda: [storage.batch_exists(keys) == args.pages],
            "load": lambda: storage.batch_get_v1(keys, target),
            "copy in memory": lambda: other.copy_(plain),
            "read plain files": read_files,
        }
        for name, work in steps.items():
            took, done = seconds(work)
            assert name in ("copy in memory", "read plain files") or all(done), name
            if number:
                figures.setdefault(name, []).append(took)
        # Bit by bit, since some are no numbers.
        first, copied = (pool.get_data_page(index).view(torch.int16) for index in (0, tokens))
        assert torch.equal(first, copied)
        # So that the next round writes, and the disk does not fill.
        shutil.rmtree(args.folder / "store")

    total = size * args.pages
    print(f"{args.pages} pages of {args.page} tokens, {size / (1 << 20):.1f} MiB each, {args.layout}")
    print(f"{os.cpu_count()} cores, transload {transload.__version__}{', a debug build' if transload.DEBUG_BUILD else ''}")
    for name, took in figures.items():
        median = statistics.median(took)
        speed = "" if name in ("save again", "look up") else f"{total / median / 1e9:9.2f} GB/s"
        print(f"{name:18} {1e3 * median:9.2f} ms {speed}")
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
