"""Another process: computes some tokens, 100 at a time, and saves what the context holds after each."""

import json
import sys

from llama_cpp import Llama

from transload.llama import Cache

model, store, tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
llm = Llama(model, n_ctx=2048, n_batch=128, n_threads=1, n_threads_batch=1, verbose=False)
llm.set_cache(Cache(llm, store))
for start in range(0, len(tokens), 100):
    llm.eval(tokens[start : start + 100])
    print("saving", llm.n_tokens, flush=True)
    llm.cache[tokens[: llm.n_tokens]] = None
    print("saved", llm.n_tokens, flush=True)
