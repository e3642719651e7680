"""The same prefix, saved by one engine and restored by the other: a real vLLM server and transformers, on one store."""

import sys
import time
from pathlib import Path

import pytest
import torch
from test_models import answer, apart, prompt
from transload.hf import Reuse
from transformers import AutoModelForCausalLM

EXAMPLES = Path(__file__).parents[2] / "examples" / "vllm"
COUNT = 16


def vllm_python() -> str:
    """The interpreter of vLLM's environment, which ours looks into: vLLM takes its own version of transformers."""
    import vllm

    return str(Path(vllm.__file__).parents[4] / "bin" / "python")


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_what_one_engine_has_saved_the_other_restores(name, tmp_path, store, monkeypatch):
    sys.path.insert(0, str(EXAMPLES))
    servers = pytest.importorskip("servers")
    import tiny_models as own

    monkeypatch.delitem(sys.modules, "tiny_models")
    monkeypatch.setattr(sys, "executable", vllm_python())
    folder = tmp_path / "model"
    made = own.make(name, head_dim=32)
    made.generation_config.eos_token_id = None
    made.save_pretrained(folder)
    own.tokenizer().save_pretrained(folder)
    transfer = servers.connector("kv_both", None, store=store, store_model="both", store_engine="any", store_wait_seconds=30)
    server = servers.Server(folder, tmp_path, "vllm", transfer=transfer)

    def counted(what):
        metrics = server.metrics()
        return sum(value for key, value in metrics.items() if key.startswith("vllm:transload_store_tokens_total") and what in key)

    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        reuse = Reuse(model, store, name="both", sharing="any")
        server.wait()
        # What vLLM has saved.
        ids = prompt(700)
        told = server.complete(ids[0].tolist(), COUNT)["choices"][0]["token_ids"]
        end = time.monotonic() + 60
        while counted('what="saved"') < 512 and time.monotonic() < end:
            # What was published is counted in a step, and there is none without a request.
            server.complete([5, 6, 7], 1)
            time.sleep(0.2)
        cold, warm = answer(model.generate, ids, COUNT), answer(reuse.generate, ids, COUNT)
        assert reuse.stats()["restored_tokens"] == 512 and reuse.stats()["saved_tokens"] == 0
        assert apart(cold, warm) < 1e-4
        assert warm.sequences[0, 700:].tolist() == told
        # And the reverse.
        ids = prompt(600, seed=8)
        cold = answer(reuse.generate, ids, COUNT)
        assert reuse.stats()["saved_tokens"] == 512
        told = server.complete(ids[0].tolist(), COUNT)["choices"][0]["token_ids"]
        assert counted('what="loaded"') == 512
        assert cold.sequences[0, 600:].tolist() == told
    except BaseException:
        print(server.tail(60))
        raise
    finally:
        server.stop()
