"""The prompt cache of llama-cpp-python, with llama.cpp itself and models of random weights."""

import gc
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import numpy as np
import pytest
import tiny_models
from llama_cpp import Llama

from transload.llama import Cache

F32, F16, Q8_0 = llama_cpp.GGML_TYPE_F32, llama_cpp.GGML_TYPE_F16, llama_cpp.GGML_TYPE_Q8_0
GUIDE = Path(__file__).parents[2] / "docs" / "src" / "guide" / "llama.md"
SUFFIX = [77, 88, 99]
PROMPT = [random.Random(1).randrange(3, tiny_models.VOCABULARY) for _ in range(600)]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    makers = (tiny_models.llama, tiny_models.gemma2, tiny_models.mamba)
    return SimpleNamespace(**{make.__name__: make(folder / f"{make.__name__}.gguf") for make in makers})


@pytest.fixture(autouse=True)
def own_digests(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def start(model, store=None, applied=None, **settings):
    """A `Llama` that computes the same each time, with a cache in `store`."""
    settings = {"n_ctx": 2048, "n_batch": 128, "n_threads": 1, "n_threads_batch": 1} | settings
    llm = Llama(str(model), verbose=False, **settings)
    if store is not None:
        llm.set_cache(Cache(llm, store, applied=applied))
    return llm


def computed(llm, tokens=PROMPT):
    """`llm`, after it has computed these tokens and saved them."""
    llm.eval(tokens)
    llm.cache[tokens] = llm.save_state()
    return llm


def restored(llm, tokens):
    """How many tokens of the prompt it finds and restores."""
    llm.load_state(llm.cache[tokens])
    return llm.n_tokens


def next_logits(llm, tokens=SUFFIX):
    llm.eval(tokens)
    rows = len(tokens) if llm._logits_all else 1
    return np.ctypeslib.as_array(llm._ctx.get_logits(), shape=(rows, llm.n_vocab()))[-1].copy()


def complete(llm, prompt, **settings):
    return llm.create_completion(prompt, **{"max_tokens": 8, "temperature": 0} | settings)


# --- the same numbers ------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"type_k": F16, "type_v": F16},
        {"type_k": F32, "type_v": F32},
        {"type_k": Q8_0},
        {"type_k": F16, "type_v": F16, "flash_attn": True},
        {"type_k": F32, "type_v": F16, "flash_attn": True},
        {"type_k": Q8_0, "type_v": Q8_0, "flash_attn": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [1, 255, 256, 600])
def test_next_logits_are_bit_equal(models, store, settings, length):
    first = computed(start(models.llama, store, **settings), PROMPT[:length])
    other = start(models.llama, store, **settings)
    assert restored(other, PROMPT[:length] + SUFFIX) == length
    assert np.array_equal(next_logits(first), next_logits(other))


@pytest.mark.parametrize("settings", [{"type_k": F16}, {"type_k": F32, "type_v": F32}, {"type_k": Q8_0}], ids=str)
def test_flash_attention_is_crossed(models, tmp_path, settings):
    """What was saved with values transposed is restored without, saved so, and restored with them transposed again."""
    one, two = f"file://{tmp_path}/one", f"file://{tmp_path}/two"
    first = computed(start(models.llama, one, **settings))
    flash = start(models.llama, one, flash_attn=True, **settings)
    assert restored(flash, PROMPT) == len(PROMPT)
    flash.set_cache(Cache(flash, two))
    flash.cache[PROMPT] = None
    last = start(models.llama, two, **settings)
    assert restored(last, PROMPT) == len(PROMPT)
    expected = next_logits(first)
    assert np.array_equal(expected, next_logits(last))
    assert np.allclose(expected, next_logits(flash), atol=0.05)


@pytest.mark.parametrize("settings", [{}, {"flash_attn": True}], ids=str)
@pytest.mark.parametrize("name", ["gemma2", "mamba"])
def test_whole_states(models, store, name, settings):
    first = computed(start(getattr(models, name), store, **settings))
    other = start(getattr(models, name), store, **settings)
    assert PROMPT not in other.cache and PROMPT[:500] not in other.cache
    assert restored(other, PROMPT + SUFFIX) == len(PROMPT)
    assert np.array_equal(next_logits(first), next_logits(other))


@pytest.mark.smallest
def test_another_process(models, store):
    done = subprocess.run(process(models.llama, store), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    other = start(models.llama, store)
    assert restored(other, PROMPT + SUFFIX) == len(PROMPT)
    assert np.array_equal(next_logits(other), by_hundreds(models.llama, len(PROMPT)))


@pytest.mark.parametrize("seed", range(6))
def test_killed_while_it_saves(models, store, seed):
    command = [*process(models.llama, store), "for ever"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            if line == "2\n":
                break
        time.sleep(random.Random(seed).uniform(0, 0.1))
        running.send_signal(signal.SIGKILL)
        last = [2, *map(int, running.stdout)][-1]
    assert running.returncode == -signal.SIGKILL
    whole = by_hundreds(models.llama, len(PROMPT))
    for number in (0, last - 1):
        other = start(models.llama, store, applied={models.llama: number})
        assert restored(other, PROMPT + SUFFIX) == len(PROMPT)
        assert np.array_equal(next_logits(other), whole)
    # Of the last there is all, a beginning, or nothing.
    other = start(models.llama, store, applied={models.llama: last})
    if PROMPT in other.cache:
        tokens = restored(other, PROMPT + SUFFIX)
        assert np.array_equal(next_logits(other), by_hundreds(models.llama, tokens))
    # The store goes on.
    other.reset()
    computed(other)
    assert restored(start(models.llama, store, applied={models.llama: last}), PROMPT) == len(PROMPT)


def process(model, store):
    return [sys.executable, str(Path(__file__).with_name("llama_process.py")), str(model), store, json.dumps(PROMPT)]


def by_hundreds(model, tokens):
    """The logits behind so many tokens, of a context that has computed as the other process does."""
    llm = start(model)
    for first in range(0, len(PROMPT), 100):
        llm.eval(PROMPT[first : first + 100])
    llm.n_tokens = tokens
    return next_logits(llm)


# --- completions -----------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("name", ["llama", "gemma2", "mamba"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_goes_on_in_another_llama(models, store, name, stream):
    def say(llm, prompt):
        said = complete(llm, prompt, stream=stream)
        return "".join(part["choices"][0]["text"] for part in (said if stream else [said]))

    first, alone = start(getattr(models, name), store), start(getattr(models, name))
    assert say(first, PROMPT) == say(alone, PROMPT)
    longer = first.input_ids[: first.n_tokens].tolist() + SUFFIX
    assert np.array_equal(alone.input_ids[: alone.n_tokens], first.input_ids[: first.n_tokens])

    second = start(getattr(models, name), store)
    loaded, load = [], second.load_state
    second.load_state = lambda state: loaded.append(len(state.input_ids)) or load(state)
    assert say(second, longer) == say(alone, longer)
    assert loaded == [len(longer) - len(SUFFIX)]


@pytest.mark.smallest
@pytest.mark.parametrize(
    "same, header, kept, common",
    [
        (False, [2], [2], 1),
        (False, [2, 70], [2, 70], 1),
        (False, [2, 70, 71], [2, 70], 1),
        (True, [2, 70, 71], [2, 70], 1),
        (False, [70, 71], [70, 71], 2),
    ],
    ids=["a mark", "a mark and a role", "an open thought", "an open thought, in one process", "no mark"],
)
@pytest.mark.parametrize("name", ["gemma2", "mamba"])
def test_a_chat_goes_on_without_its_thoughts(models, store, name, same, header, kept, common, monkeypatch):
    """Prompts end with a header, of which the next turn has what is kept, and the answer without what was thought before."""
    computed, evaluate = [], Llama.eval

    def counted(llm, tokens):
        # Those of the prompt, and not of the answer.
        computed.extend(range(llm.n_tokens, min(llm.n_tokens + len(tokens), len(turn + header))))
        evaluate(llm, tokens)

    monkeypatch.setattr(Llama, "eval", counted)
    model = getattr(models, name)
    # Answers of letters: llama-cpp-python waits for the end of one that has several bytes, and these models may never come to it.
    letters = {"logit_bias": dict.fromkeys(range(131, 259), -1000)}
    llm, alone = start(model, store, n_ctx=512), start(model, n_ctx=512)
    turn = PROMPT[:80]
    for number in range(2):
        complete(llm, turn + header, **letters)
        there = len(turn) + common
        turn = turn + kept + [80 + number] * 7 + SUFFIX
        llm = llm if same else start(model, store, n_ctx=512)
        computed.clear()
        said = complete(llm, turn + header, **letters)["choices"][0]["text"]
        # The same context may have more.
        assert computed[0] == there or same and computed[0] > there
        assert said == complete(alone, turn + header, **letters)["choices"][0]["text"]


@pytest.mark.smallest
@pytest.mark.parametrize("name", ["gemma2", "mamba"])
def test_a_prompt_that_is_asked_again_keeps_its_state(models, store, name):
    """The end of an answer does not replace the state at its prompt's mark, also where that was restored and not computed."""
    prompt, letters = PROMPT[:80] + [2, 70], {"logit_bias": dict.fromkeys(range(131, 259), -1000)}
    for _ in range(3):
        complete(start(getattr(models, name), store, n_ctx=512), prompt, **letters)
        llm = start(getattr(models, name), store, n_ctx=512)
        assert restored(llm, prompt[:-1] + [90] + SUFFIX) == 81


def test_a_turn_saves_its_own_tokens(tmp_path, store):
    """Of a model whose cells have 8 KiB, beside which manifests are small."""
    model = tiny_models.llama(tmp_path / "wide.gguf", layers=8, width=256, heads=4, kv_heads=4)
    cell = 8 * 2 * 256 * 2
    llm = computed(start(model, store))
    before = llm.cache.cache_size
    llm.eval(PROMPT[:400])
    llm.cache[[]] = None
    assert llm.cache.cache_size - before <= 1.1 * 400 * cell + 255 * cell
    before = llm.cache.cache_size
    llm.cache[[]] = None
    assert llm.cache.cache_size == before


def test_only_completions_save_without_a_copy(models, store):
    llm = start(models.llama, store)
    complete(llm, PROMPT)
    state = llm.save_state()
    assert state.n_tokens == llm.n_tokens and len(state.llama_state) == state.llama_state_size > 0
    expected = next_logits(llm)
    llm.reset()
    llm.load_state(state)
    assert np.array_equal(next_logits(llm), expected)


def test_logprobs_of_restored_tokens_are_not_known(models, store):
    text = " ".join(f"t{number}" for number in range(50))
    llm = start(models.llama, store, logits_all=True)
    saved = len(computed(llm, llm.tokenize(text.encode())).cache[llm.tokenize(text.encode())].input_ids)
    llm = start(models.llama, store, logits_all=True)
    said = complete(llm, text + " t7 t8 t9", logprobs=1, echo=True)["choices"][0]["logprobs"]["token_logprobs"]
    known = np.isfinite(np.array(said[1:], float))
    assert not known[: saved - 2].any() and known[saved:].all()


def test_a_llama_goes_when_it_is_deleted(models, store):
    gc.disable()
    try:
        llm = start(models.llama, store)
        complete(llm, PROMPT[:10])
        there = weakref.ref(llm)
        del llm
        assert there() is None
    finally:
        gc.enable()


# --- what computes otherwise -----------------------------------------------------------


@pytest.fixture
def found(models, store, tmp_path):
    """Whether a `Llama` finds what another one of `models.llama` has saved."""
    computed(start(models.llama, store), PROMPT[:300])
    return lambda model=models.llama, **settings: PROMPT[:300] in start(model, store, **settings).cache


def test_the_same_is_found(found, models, tmp_path):
    assert found()
    assert found(shutil.copy(models.llama, tmp_path / "moved.gguf"))
    assert found(n_ctx=1024, n_batch=64, flash_attn=True, logits_all=True)


def test_adapters_count_by_content_and_scale(store, models, tmp_path):
    calm = tiny_models.adapter(tmp_path / "calm.gguf")
    wild = tiny_models.adapter(tmp_path / "wild.gguf", seed=1)
    computed(start(models.llama, store, lora_path=str(calm), lora_scale=0.5))
    found = lambda **settings: PROMPT in start(models.llama, store, **settings).cache  # noqa: E731
    assert found(lora_path=str(shutil.copy(calm, tmp_path / "same.gguf")), lora_scale=0.5)
    assert not found()
    assert not found(lora_path=str(calm), lora_scale=1.0)
    assert not found(lora_path=str(wild), lora_scale=0.5)
    assert not found(lora_path=str(calm), lora_scale=0.5, applied={wild: 0.5})
    assert not found(applied={wild: 0.5})


@pytest.mark.smallest
def test_the_guide(models, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(models.llama, "model.gguf")
    tiny_models.adapter(tmp_path / "calm.gguf")
    names = {}
    for example in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.S):
        exec(example.replace("file:///var/kv", store), names)
    assert names["answer"]["choices"][0]["finish_reason"] == "length"
    llm = start(models.llama, store, n_ctx=4096)
    assert llm.tokenize(b"A store keeps KV cache when") in llm.cache


# --- what is refused, and what fails ---------------------------------------------------


def test_windows_without_all_cells_are_refused(models, store):
    with pytest.raises(ValueError, match="swa_full=False"):
        start(models.gemma2, store, swa_full=False)
    # Without windows it makes no difference.
    assert computed(start(models.llama, store, swa_full=False)) and PROMPT in start(models.llama, store).cache


def test_a_recurrent_state_stands_at_one_position(models, store, caplog):
    llm = start(models.mamba, store)
    llm.eval(PROMPT)
    llm.n_tokens = 500
    llm.cache[PROMPT] = None
    assert "llama.cpp cannot take off" in caplog.text
    assert PROMPT not in start(models.mamba, store).cache


@pytest.mark.parametrize("by", [-100, 1])
def test_a_shifted_context_is_not_saved(models, store, caplog, by):
    """With -100, positions are in a row again, of rows that were computed behind the tokens that are gone."""
    llm = start(models.llama, store)
    llm.eval(PROMPT)
    llm._ctx.kv_cache_seq_rm(0, 100, 200)
    llm._ctx.kv_cache_seq_shift(0, 200, -1, by)
    llm.n_tokens += by
    left = PROMPT[:100] + PROMPT[200:]
    llm.input_ids[: len(left)] = left
    llm.cache[left] = None
    assert "were shifted" in caplog.text
    assert left not in start(models.llama, store).cache
    llm.reset()
    computed(llm, left)
    assert restored(start(models.llama, store), left) == len(left)
