"""Servers that draft tokens, with others that do not: they answer as one that does not."""

import json
import os
from pathlib import Path

import pytest
import tiny_models
from conftest import total
from disaggregated import prompts
from test_pairs import check


@pytest.fixture
def drafting(models):
    """Options of a server that drafts."""
    folder = Path(os.environ.get("TRANSLOAD_VLLM_CACHE", "~/.cache/transload/vllm")).expanduser() / "models"
    # What a model drafts for itself is accepted, if it has all of its cache.
    drafters = {"draft_model": lambda: models("llama"), "eagle": lambda: tiny_models.eagle(folder / "eagle")}

    def options(method):
        speculation = {"method": method, "model": str(drafters[method]()), "num_speculative_tokens": 3}
        return ["--speculative-config", json.dumps(speculation)]

    return options


BOTH, PREFILL, DECODE = (True, True), (True, False), (False, True)
CASES = [(method, have, "pull") for method in ("draft_model", "eagle") for have in (BOTH, PREFILL, DECODE)]


@pytest.mark.parametrize(("method", "have", "mode"), [*CASES, ("draft_model", DECODE, "push")])
def test_drafts(start, alone, drafting, method, have, mode):
    """Without any on either side it is as in test_pairs."""
    asked = prompts([5, 100, 900, 64, 65], seed=61)
    expected = alone.tokens("llama", asked, 40)
    sides = [{"block_size": size, "options": drafting(method) if has else []} for size, has in zip((32, 64), have)]
    pair = start("llama", prefill=sides[0], decode=sides[1], mode=mode)
    for prompt, tokens in zip(asked, expected):
        assert pair.tokens(prompt, 40) == tokens, f"prompt of {len(prompt)} tokens"
    loads = total(pair.decode, "vllm:transload_load_seconds_count")
    assert loads >= len(asked) - 1
    found = {what: total(pair.decode, "vllm:transload_drafts_total", what) for what in ("zeroed", "skipped")}
    assert found == {"zeroed": loads * (have == DECODE), "skipped": loads * (have == PREFILL)}
    drafted, accepted = (total(pair.decode, f"vllm:spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted"))
    print(f"{method}, {have}, {mode}: {accepted:.0f} of {drafted:.0f} drafts accepted")
    assert (drafted > 0) == have[1]
    if method == "draft_model" and have == BOTH:
        assert accepted == pytest.approx(drafted, rel=0.2), "what the drafts have of the prompts is not right"
    check(pair, [tokens[:16] for tokens in expected], asked)
