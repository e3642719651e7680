"""Another process: computes some tokens, 100 at a time, and saves what the context holds after each. With `for ever` it then
saves the whole again and again, each time under the name of another model, until it is killed."""

import itertools
import json
import sys

from llama_cpp import Llama

from transload.llama import Cache

model, store, tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
llm = Llama(model, n_ctx=2048, n_batch=128, n_threads=1, n_threads_batch=1, verbose=False)
llm.set_cache(Cache(llm, store))
for start in range(0, len(tokens), 100):
    llm.eval(tokens[start : start + 100])
    llm.cache[tokens[: llm.n_tokens]] = None
for number in itertools.count() if sys.argv[4:] == ["for ever"] else ():
    llm.set_cache(Cache(llm, store, applied={model: number}))
    print(number, flush=True)
    llm.cache[tokens] = None
