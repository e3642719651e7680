"""What transload.llama.Cache costs and saves::

    python tests/engines/llama_figures.py [--model FILE.gguf] [--store URI] [--rounds 5]

It needs llama-cpp-python and a release build of transload. Without a model it makes one with random weights, of 140 million
parameters and 16 KiB a cell. The store should be empty.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import tiny_models
import transload
from llama_cpp import Llama

from transload.llama import Cache


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", type=Path)
    arguments.add_argument("--store")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    if transload.DEBUG_BUILD:
        print("this is a debug build of transload: its figures say nothing")
    with tempfile.TemporaryDirectory() as folder:
        wide = {"layers": 16, "width": 1024, "heads": 16, "kv_heads": 4}
        model = given.model or tiny_models.llama(Path(folder, "model.gguf"), **wide)
        measure(model, given.store or f"file://{folder}/store", given.rounds)


def measure(model: Path, store: str, rounds: int) -> None:
    def start(cached=True):
        llm = Llama(str(model), n_ctx=4096, verbose=False)
        if cached:
            llm.set_cache(Cache(llm, store))
        return llm

    def first_token(llm, prompt):
        began = time.perf_counter()
        next(llm.create_completion(prompt, max_tokens=1, temperature=0, stream=True))
        return time.perf_counter() - began

    llm = start()
    drawn = random.Random(time.time_ns())
    draw = lambda count: [drawn.randrange(3, llm.n_vocab()) for _ in range(count)]  # noqa: E731

    misses = []
    for _ in range(101):
        prompt, began = draw(2048), time.perf_counter()
        assert prompt not in llm.cache
        misses.append(time.perf_counter() - began)
    print(f"a miss of 2,048 tokens: {statistics.median(misses) * 1e3:.2f} ms (reach: 2)")

    prefill, restored, written = [], [], []
    for _ in range(rounds):
        prompt = draw(2048)
        llm.reset()
        llm.eval(prompt)
        before = llm.cache.cache_size
        llm.cache[prompt] = None
        cell = (llm.cache.cache_size - before) / len(prompt)
        llm.eval(draw(1024))
        before = llm.cache.cache_size
        llm.cache[[]] = None
        written.append((llm.cache.cache_size - before) / (1024 * cell))
        question = prompt + draw(4)
        prefill.append(first_token(start(cached=False), question))
        restored.append(first_token(start(), question))
    share = statistics.median(restored) / statistics.median(prefill)
    print(f"turn 2 writes {statistics.median(written):.3f} of its new tokens' bytes (reach: 1.1)")
    print(
        f"first token of 2,048 restored ones: {statistics.median(restored) * 1e3:.1f} ms, of computed ones"
        f" {statistics.median(prefill) * 1e3:.1f} ms: {share:.3f} (reach: 0.15)"
    )


if __name__ == "__main__":
    main()
