"""Two servers answer as one does, whatever the layouts of their caches."""

import threading

import pytest
from conftest import total
from disaggregated import prompts
from servers import complete

LENGTHS = [5, 100, 900]
newer = pytest.mark.newer


def check(pair, expected, asked, together=True):
    """Asks one after the other, and then all at once: the second time most of it is cached at the decode server."""
    for prompt, tokens in zip(asked, expected):
        assert pair.tokens(prompt) == tokens, f"prompt of {len(prompt)} tokens"
    assert pair.loaded() > 0, "nothing was transferred"
    if together:
        assert ask_together(pair, asked) == expected
    assert total(pair.decode, "vllm:transload_failures_total") == 0
    assert pair.proxy.status()["requests"]["fallback"] == 0


def ask_together(pair, asked, count=16):
    answers = [None] * len(asked)

    def ask(number):
        answers[number] = pair.tokens(asked[number], count)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("blocks", [pytest.param((32, 64), marks=newer), (64, 32), (32, 32)], ids=lambda blocks: "%s-%s" % blocks)
@pytest.mark.parametrize("tp", [(1, 1), (1, 2), (2, 1)], ids=lambda tp: "tp%s-tp%s" % tp)
def test_llama(start, alone, tp, blocks, prefix_caching):
    asked = prompts(LENGTHS + [33, 64, 65, 257], seed=1)
    expected = alone.tokens("llama", asked)
    options = [] if prefix_caching else ["--no-enable-prefix-caching"]
    sides = [{"tp": ranks, "block_size": size, "options": options} for ranks, size in zip(tp, blocks)]
    check(start("llama", prefill=sides[0], decode=sides[1]), expected, asked)


@newer
def test_blocks_of_which_the_order_is_not_known(start, alone):
    """They are moved whole."""
    asked = prompts(LENGTHS + [31, 32, 33, 65], seed=1)
    side = {"block_size": 32}
    expected = alone.tokens("wide_heads", asked, **side)
    pair = start("wide_heads", prefill=side, decode=side)
    check(pair, expected, asked)
    assert "moved whole" in pair.decode.log.read_text()


@pytest.mark.parametrize(
    ("tp", "blocks"), [((1, 2), (32, 64)), pytest.param((2, 1), (64, 32), marks=newer)], ids=lambda pair: "%s-%s" % pair
)
def test_push(start, alone, tp, blocks):
    """The decode server opens its blocks, and the prefill server writes into them."""
    asked = prompts(LENGTHS + [33, 64, 65, 257], seed=1)
    expected = alone.tokens("llama", asked)
    sides = [{"tp": ranks, "block_size": size} for ranks, size in zip(tp, blocks)]
    pair = start("llama", prefill=sides[0], decode=sides[1], mode="push")
    check(pair, expected, asked)
    assert total(pair.decode, "vllm:transload_pushed_routes_total") > 0, "the decode server has pulled"


@pytest.mark.parametrize("tp", [pytest.param((1, 1), marks=newer), (1, 2), (2, 1)], ids=lambda tp: "tp%s-tp%s" % tp)
def test_falcon_h1(start, alone, tp):
    """Mamba2 with one group, whole on every rank, and attention."""
    asked = prompts(LENGTHS, seed=2)
    # vLLM ends on the CPU when it caches prefixes of Mamba2.
    side = {"options": ["--no-enable-prefix-caching"]}
    expected = alone.tokens("falcon_h1", asked, **side)
    check(start("falcon_h1", prefill=side | {"tp": tp[0]}, decode=side | {"tp": tp[1]}), expected, asked)


@pytest.mark.parametrize("tp", [(1, 1), pytest.param((1, 2), marks=newer)], ids=lambda tp: "tp%s-tp%s" % tp)
def test_gemma3(start, alone, tp):
    """Windows: of most layers only the end of a prompt is there, and is moved."""
    asked = prompts(LENGTHS + [63, 64, 65, 66, 129], seed=5)
    expected = alone.tokens("gemma3", asked)
    check(start("gemma3", prefill={"tp": tp[0]}, decode={"tp": tp[1], "block_size": 64}), expected, asked)


@pytest.mark.parametrize("tp", [(1, 1), (1, 2)], ids=lambda tp: "tp%s-tp%s" % tp)
def test_gemma3n(start, alone, tp):
    """Layers without a cache of their own, beside windows. Transformers compute them without any cache."""
    asked = prompts([5, 63, 65, 300, 900], seed=8)
    expected = alone.tokens("gemma3n", asked)
    check(start("gemma3n", prefill={"tp": tp[0]}, decode={"tp": tp[1], "block_size": 64}), expected, asked)


def test_qwen3_next(start, alone):
    """Gated delta nets, and attention. vLLM computes the former on the CPU in bfloat16 only, where answers depend on TP,
    on what else is computed in a step, and on how a prompt is divided: so the server alone takes the last token of each
    for itself, as the decode server does."""
    length = 100
    asked = prompts([length] * 4, seed=3)
    side = {"dtype": "bfloat16", "options": ["--no-enable-prefix-caching"]}
    divided = {"dtype": "bfloat16", "options": [*side["options"], "--long-prefill-token-threshold", str(length - 1)]}
    expected = alone.tokens("qwen3_next", asked, **divided)
    check(start("qwen3_next", prefill=side, decode=side), expected, asked, together=False)


def test_chunked_prefill(start, alone):
    """A prompt that is prefilled in parts is lent when the last one is computed."""
    asked = prompts([900, 300], seed=4)
    expected = alone.tokens("llama", asked)
    options = ["--max-num-batched-tokens", "128"]
    check(start("llama", prefill={"options": options}, decode={"block_size": 64}), expected, asked)


def test_several_answers(start, alone):
    """Of several answers to one prompt the first loads it."""
    asked = prompts([5, 100, 900], seed=6)
    expected = alone.tokens("llama", asked)
    pair = start("llama", decode={"block_size": 64})
    for prompt, tokens in zip(asked, expected):
        choices = complete(pair.url, prompt, n=3, temperature=1, top_k=1)["choices"]
        assert [choice["token_ids"] for choice in choices] == [tokens] * 3
    assert pair.loaded() > 0


@newer
def test_preempted(start, alone):
    """More than the decode server has blocks for: what is preempted there is computed again, not loaded."""
    asked = prompts([300] * 4, seed=7)
    expected = alone.tokens("llama", asked, 100)
    pair = start("llama", decode={"block_size": 32, "options": ["--num-gpu-blocks-override", "42"]})
    assert ask_together(pair, asked, 100) == expected
    assert total(pair.decode, "vllm:num_preemptions_total") > 0
    assert total(pair.decode, "vllm:transload_failures_total") == 0
