"""Measures what reuse costs and saves with a real model: times to the first token, as shares of a prefill in the same turns.

    site=$PWD/target/hf          # of ./test hf, or any folder with the package in it
    PYTHONPATH=$site $(tests/hf/environment)/bin/python tests/hf/figures.py --model FOLDER [--gguf FILE] [--kvboost FOLDER]

`--kvboost` is a folder with the package kvboost 0.9.0 in it, to compare with: it keeps chunks in memory, for one process.
"""

import argparse
import statistics
import sys
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import transload
from transload.hf import Reuse


class First:
    """A streamer that notes when the first token is there."""

    clock = staticmethod(time.perf_counter)

    def __init__(self):
        self.tokens, self.begun = 0, self.clock()

    def put(self, value):
        self.tokens += 1
        if self.tokens == 2:  # The prompt comes first.
            self.seconds = self.clock() - self.begun

    def end(self):
        pass


def first_token(generate, ids):
    streamer = First()
    generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False, streamer=streamer)
    return streamer.seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--gguf")
    parser.add_argument("--kvboost")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="count the time of processors: for machines that others use, too")
    parser.add_argument("--store", help="a file store in a new folder if it is not given")
    given = parser.parse_args()
    if given.cpu:
        First.clock = staticmethod(time.process_time)
    model = AutoModelForCausalLM.from_pretrained(given.model, gguf_file=given.gguf, dtype=getattr(torch, given.dtype)).eval()
    if transload._transload.DEBUG_BUILD:
        print("the package is a debug build: restoring takes several times as long")
    random = torch.Generator().manual_seed(1)

    def prompt(tokens):
        return torch.randint(100, model.config.vocab_size - 100, (1, tokens), generator=random)

    store = given.store or f"file://{tempfile.mkdtemp(prefix='transload-hf-')}/kv"
    reuse = Reuse(model, store, name="figures")
    first_token(model.generate, prompt(300))
    engine = None
    if given.kvboost:
        sys.path.append(given.kvboost)
        from kvboost.engine import InferenceEngine

        tokenizer = AutoTokenizer.from_pretrained(given.model, gguf_file=given.gguf)
        engine = InferenceEngine(model, tokenizer, max_cache_bytes=1 << 32, device="cpu")
        engine._encode = lambda ids: ids  # Tokens, not text.
    for restored in (256, 1024):
        cold, warm, nothing, theirs = [], [], [], []
        for turn in range(given.turns):
            ids = prompt(restored + 1)
            # In another order each turn: who comes first pays for what the other finds warm.
            for measure in ("cold", "nothing") if turn % 2 else ("nothing", "cold"):
                if measure == "cold":
                    cold.append(first_token(model.generate, ids))
                else:
                    nothing.append(first_token(reuse.generate, ids))
            warm.append(first_token(reuse.generate, ids))
            if engine is not None:
                asked = ids[0].tolist()
                try:
                    engine.generate(asked, max_new_tokens=1)
                    begun = First.clock()
                    engine.generate(asked, max_new_tokens=1)
                    theirs.append(First.clock() - begun)
                except Exception as error:
                    print(f"kvboost does not run here: {type(error).__name__}: {error}")
                    engine = None
        assert reuse.stats()["failures"] == 0
        prefill = statistics.median(cold)
        print(f"prefill of {restored + 1} tokens: {prefill:.3f} s, median of {given.turns} turns; of that:")
        for what, times in (("restored", warm), ("nothing saved", nothing), ("kvboost, in memory", theirs)):
            if times:
                each = sorted(one / before for one, before in zip(times, cold))
                print(f"  {what:20} {statistics.median(times) / prefill:6.3f}   (of each turn {each[0]:.3f} to {each[-1]:.3f})")
    print(reuse.verify([prompt(900)[0] for _ in range(2)]))


if __name__ == "__main__":
    main()
