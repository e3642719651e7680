"""The cache of llama-cpp-python, with a stand-in of it. `tests/engines` has the tests with llama.cpp itself."""

import shutil
import sys
from types import SimpleNamespace

import llama_stand_in
import numpy
import pytest
from llama_stand_in import Llama

PROMPT = [7 * number % 251 for number in range(600)]


@pytest.fixture
def module(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, stand_in in llama_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.delitem(sys.modules, "transload.llama", raising=False)
    import transload.llama

    yield transload.llama
    monkeypatch.delitem(sys.modules, "transload.llama")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def start(module, model, tmp_path):
    """Makes a stand-in with a cache in the test's store."""

    def start(path=model, applied=None, change=None, **settings):
        llm = Llama(path, **settings)
        if change is not None:
            change(llm)
        llm.set_cache(module.Cache(llm, f"file://{tmp_path}/kv", applied=applied))
        llm.computed = 0
        return llm

    return start


def test_another_llama_computes_only_what_is_new(start, model):
    first = start()
    said = first.complete(PROMPT)
    assert said == Llama(model).complete(PROMPT)
    # The last token that was said is not in the context yet.
    for flash_attn in (False, True):
        longer = PROMPT + said[:-1] + [int(flash_attn), 2, 3]
        other = start(flash_attn=flash_attn)
        assert other.complete(longer) == Llama(model).complete(longer)
        assert other.computed == 3 + 3
        assert other.copies == 0
    assert start().cache.cache_size > 0


def test_the_longest_beginning_is_found_again_and_again_by_one_llama(start, model):
    start().complete(PROMPT)
    cache = start().cache
    with pytest.raises(AttributeError, match="make one for each"):
        Llama(model).load_state(cache[PROMPT])
    for _ in range(2):
        assert [len(cache[PROMPT[:length]].input_ids) for length in (600, 520, 512, 511)] == [600, 520, 512, 256]
    assert PROMPT in cache and [9] + PROMPT not in cache and [] not in cache
    with pytest.raises(KeyError):
        cache[[9]]


def test_what_the_context_holds_longer_is_not_restored(start):
    llm = start()
    llm.complete(PROMPT)
    llm.read_state = None
    said = llm.complete(PROMPT)
    assert llm.computed == 600 + 3 + 1 + 3 and said


def test_what_others_ask_of_states_is_as_before(start):
    llm = start()
    llm.complete(PROMPT)
    state = llm.save_state()
    assert (state.n_tokens, llm.copies) == (603, 1)
    llm.reset()
    llm.load_state(state)
    assert (llm.n_tokens, llm.copies) == (603, 2)
    llm.set_cache(None)
    llm.complete(PROMPT)
    assert llm.copies == 2


def test_scores_of_restored_tokens_are_not_known(start):
    start().complete(PROMPT)
    llm = start(logits_all=True)
    llm.load_state(llm.cache[PROMPT])
    assert numpy.isnan(llm.scores[:600]).any(axis=1).all() and not numpy.isnan(llm.scores[600:]).any()


def test_a_failing_store_is_a_miss(start, model, caplog):
    def fail(*given, **more):
        raise OSError("the disk is gone")

    llm = start()
    llm.cache._states = SimpleNamespace(find=fail, save=fail, restore=fail)
    assert llm.complete(PROMPT) == Llama(model).complete(PROMPT)
    assert caplog.text.count("the disk is gone") == 2

    start().complete(PROMPT)
    for restore, said in ((fail, "was not restored"), (lambda found: None, "lost, damaged or replaced")):
        llm = start()
        llm.cache._states = SimpleNamespace(find=llm.cache._states.find, save=fail, restore=restore)
        assert llm.complete(PROMPT) == Llama(model).complete(PROMPT)
        assert llm.computed == 600 + 3
        assert said in caplog.text


def test_an_end_that_was_replaced_costs_the_end_only(start, model, caplog):
    start().complete(PROMPT)
    llm, other = start(), start()
    restore = llm.cache._states.restore

    def replaced(found):
        if not caplog.text:
            # More ends of one beginning than have a place, and enough of them to need each place.
            for token in range(40):
                other.complete(PROMPT[:520] + [token] * 100)
        return restore(found)

    llm.cache._states = SimpleNamespace(find=llm.cache._states.find, save=llm.cache._states.save, restore=replaced)
    assert llm.complete(PROMPT) == Llama(model).complete(PROMPT)
    assert llm.computed == 600 - 520 + 3
    assert caplog.text.count("lost, damaged or replaced") == 1

    # What the context has is not given up for less.
    caplog.clear()
    llm = start()
    llm.eval(PROMPT[:540])
    llm.cache._states = SimpleNamespace(find=llm.cache._states.find, restore=lambda found: None)
    hit = llm.cache[PROMPT]
    llm.cache._states.find = lambda tokens: SimpleNamespace(tokens=520)
    llm.load_state(hit)
    assert llm.n_tokens == 540 and "was not restored" not in caplog.text


def test_a_state_that_llama_does_not_take_is_a_miss(start, model, caplog):
    start().complete(PROMPT)
    llm = start()
    llm.takes = False
    assert llm.complete(PROMPT) == Llama(model).complete(PROMPT)
    assert llm.computed == 600 + 3
    assert "llama.cpp does not take it" in caplog.text


def test_whole_states_are_found_in_front_of_one_more_token(start):
    def recurrent(llm):
        llm._is_recurrent = True

    for change in (recurrent, lambda llm: setattr(llm, "window", 64), lambda llm: setattr(llm, "rope", 8)):
        llm = start(change=change)
        llm.eval(PROMPT)
        llm.cache[PROMPT] = None
        assert PROMPT not in llm.cache
        assert PROMPT[:512] not in llm.cache
        assert len(llm.cache[PROMPT + [3]].input_ids) == 600
        # Values lie otherwise in it.
        assert PROMPT + [3] not in start(change=change, flash_attn=True).cache


@pytest.mark.parametrize(
    "other",
    [
        *({name: 2} for name in "type_k type_v rope_freq_base rope_freq_scale yarn_ext_factor".split()),
        *({name: 2} for name in "attention_type rope_scaling_type yarn_attn_factor yarn_orig_ctx".split()),
        {"kv_overrides": {"llama.rope.freq_base": 2.0}},
    ],
    ids=str,
)
def test_another_setting_is_a_miss(start, other):
    start().complete(PROMPT)
    assert PROMPT not in start(**other).cache


def test_another_llama_cpp_is_a_miss(start, monkeypatch, tmp_path):
    start().complete(PROMPT)
    top = sys.modules["llama_cpp"]
    library = shutil.copy(llama_stand_in.__file__, tmp_path / "libllama.so")
    with monkeypatch.context() as patch:
        patch.setattr(top.llama_cpp._lib, "_name", str(library))
        assert PROMPT in start().cache
        library.write_bytes(b"another")
        assert PROMPT not in start().cache
    with monkeypatch.context() as patch:
        patch.setattr(top, "__version__", "0.3.37")
        assert PROMPT not in start().cache
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    assert PROMPT not in start().cache


def test_another_model_is_a_miss_in_each_of_its_parts(start, model, tmp_path):
    start().complete(PROMPT)
    assert PROMPT in start(shutil.copy(model, tmp_path / "copy.gguf")).cache
    model.write_bytes(b"GGUF2")
    assert PROMPT not in start().cache
    parts = [tmp_path / f"big-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    for part in parts:
        part.write_bytes(part.name.encode())
    start(parts[0]).complete(PROMPT)
    assert PROMPT in start(parts[0]).cache
    parts[2].write_bytes(b"another")
    assert PROMPT not in start(parts[0]).cache
    parts[2].unlink()
    with pytest.raises(OSError):
        start(parts[0])


def test_adapters_and_control_vectors_count(start, tmp_path):
    calm, wild = tmp_path / "calm.gguf", tmp_path / "wild.gguf"
    calm.write_bytes(b"calm")
    wild.write_bytes(b"wild")
    same = {"lora": (calm, 0.5), "applied": {wild: (0.8, 1, 20)}}
    start(**same).complete(PROMPT)
    assert PROMPT in start(**same).cache
    assert PROMPT in start(applied={calm: 0.5, wild: (0.8, 1, 20)}).cache
    others = {"lora": (calm, 0.25)}, {"applied": {wild: (0.8, 2, 20)}}, {"lora": (wild, 0.5), "applied": {calm: (0.8, 1, 20)}}
    for other in ({}, {"lora": (calm, 0.5)}, *(same | other for other in others)):
        assert PROMPT not in start(**other).cache


def test_long_contexts_may_have_other_rope_factors(start):
    def long_rope(llm):
        llm.metadata["llama.rope.scaling.original_context_length"] = "4096"

    start(change=long_rope).complete(PROMPT)
    assert PROMPT in start(change=long_rope, n_ctx=4096).cache
    assert PROMPT not in start(change=long_rope, n_ctx=4097).cache


def test_what_tokens_do_not_name_is_refused(start, module, caplog):
    images = SimpleNamespace(clip_model_path="mmproj.gguf")
    for wrong, change in (
        ("takes images", lambda llm: setattr(llm, "chat_handler", images)),
        ("embedding=True", lambda llm: setattr(llm.context_params, "embeddings", True)),
        ("encoder", lambda llm: setattr(llm, "encoder", True)),
        ("swa_full=False", lambda llm: llm.__dict__.update(window=64) or setattr(llm.context_params, "swa_full", False)),
    ):
        with pytest.raises(ValueError, match=wrong):
            start(change=change)
    llm = start()
    llm.chat_handler = images
    llm.complete(PROMPT)
    assert PROMPT not in start().cache
    assert caplog.text.count("takes images") == 2


def test_what_cannot_be_taken_off_is_not_saved(start, caplog):
    llm = start(change=lambda llm: setattr(llm, "_is_recurrent", True))
    llm.eval(PROMPT)
    llm.n_tokens = 500
    llm.cache[PROMPT] = None
    assert "a state of 500 tokens was not saved: llama.cpp cannot take off the tokens behind them" in caplog.text
    assert PROMPT[:500] + [3] not in llm.cache
    llm.n_tokens = 600
    llm.cache[PROMPT] = None
    assert PROMPT + [3] in llm.cache


def test_a_shifted_context_is_saved_after_a_reset(start, module, tmp_path, caplog):
    llm = start()
    llm.eval(PROMPT[:300])
    llm._ctx.kv_cache_seq_shift(0, 200, -1, -100)
    # Another cache knows it, too.
    llm.set_cache(module.Cache(llm, f"file://{tmp_path}/kv"))
    llm.cache[PROMPT] = None
    assert "positions of the context were shifted" in caplog.text
    assert PROMPT not in llm.cache
    llm.reset()
    llm.complete(PROMPT)
    assert PROMPT in start().cache
