"""Stores that fail fail nobody; threads, processes and forks share one."""

import concurrent.futures
import logging
import multiprocessing
import os
import shutil
import sys

import pytest
import tiny_models
import torch
from test_models import answer, apart, prompt
from transload import StoreError
from transload.hf import Reuse

IDS = prompt(600)


@pytest.mark.smallest
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_store_that_breaks_is_a_miss(name, store, caplog):
    model, folder = tiny_models.make(name), store.removeprefix("file://")
    cold = answer(model.generate, IDS)
    reuse = Reuse(model, store, name="m")
    answer(reuse.generate, IDS)
    # Its data is damaged: each piece is held against its hash.
    damaged = 0
    for path, _, files in os.walk(folder):
        for file in files:
            whole = os.path.join(path, file)
            if os.path.getsize(whole) > 20000:
                with open(whole, "r+b") as data:
                    data.seek(9000)
                    data.write(bytes(range(256)) * 40)
                damaged += 1
    assert damaged
    with caplog.at_level(logging.WARNING):
        assert apart(cold, answer(reuse.generate, IDS)) < 1e-4
        stats = reuse.stats()
        assert stats["restored_tokens"] == 0 and stats["failures"] == 1
        # What was computed for it was saved again.
        assert apart(cold, answer(reuse.generate, IDS)) < 1e-4
        assert reuse.stats()["restored_tokens"] == 512
        # It goes.
        shutil.rmtree(folder)
        with open(folder, "w"):
            pass
        for _ in range(3):
            assert apart(cold, answer(reuse.generate, IDS)) < 1e-4
    stats = reuse.stats()
    assert stats["failures"] > 3 and stats["restored_tokens"] == 512
    assert sum("the store fails to" in each.message for each in caplog.records) <= 3, "once of its kind"
    assert reuse.warm(IDS[0]) == 0


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_no_room_for_what_would_be_saved(name, store, monkeypatch):
    model = tiny_models.make(name)
    cold, reuse = answer(model.generate, IDS), Reuse(model, store, name="m")

    def full(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(reuse.decoder.layers, "copy", full)
    assert apart(cold, answer(reuse.generate, IDS)) < 1e-4
    assert reuse.warm(IDS[0]) == 0
    assert reuse.stats()["failures"] == 2 and reuse.stats()["saved_tokens"] == 0


def test_a_store_that_cannot_be_opened_is_said_at_once(tmp_path):
    with pytest.raises(StoreError):
        Reuse(tiny_models.make("llama"), "nosuch://there", name="m")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        Reuse(tiny_models.make("llama"), f"file://{tmp_path}/file", name="m")


@pytest.mark.parametrize("wrong", [dict(save="answer"), dict(sharing="all"), dict(codec="q3")], ids=str)
def test_arguments_that_are_no_words(store, wrong):
    with pytest.raises((ValueError, TypeError), match="save=|write any, engine or version|codec"):
        Reuse(tiny_models.make("llama"), store, name="m", **wrong)


def test_threads_share_a_model(store):
    model = tiny_models.make("gemma3")
    prompts = [torch.cat([prompt(256), prompt(200 + 10 * each, seed=each)], 1) for each in range(6)] * 2
    cold = [answer(model.generate, ids) for ids in prompts]
    reuse = Reuse(model, store, name="m", save=None)
    reuse.warm(prompt(256)[0])
    reuse.attach()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for before, after in zip(cold, pool.map(lambda ids: answer(model.generate, ids), prompts)):
            assert apart(before, after) < 1e-4
    stats = reuse.stats()
    assert stats["hits"] == 12 and stats["restored_tokens"] == 12 * 256 and stats["failures"] == 0


def restore(store, results):
    torch.set_num_threads(1)
    reuse = Reuse(tiny_models.make("llama"), store, name="m")
    tokens = reuse.generate(IDS, max_new_tokens=4, do_sample=False).tolist()
    results.put((tokens, reuse.stats()["restored_tokens"]))


def test_processes_share_a_store(store):
    model = tiny_models.make("llama")
    expected = Reuse(model, store, name="m").generate(IDS, max_new_tokens=4, do_sample=False).tolist()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    started = [context.Process(target=restore, args=(store, results)) for _ in range(2)]
    for process in started:
        process.start()
    for _ in started:
        assert results.get(timeout=240) == (expected, 512)
    for process in started:
        process.join()


FORKS = """
import os, sys, tiny_models, torch
from test_models import prompt
from transload.hf import Reuse
torch.set_num_threads(1)
model, ids = tiny_models.make("llama"), prompt(600)
reuse = Reuse(model, sys.argv[1], name="m")
expected = reuse.generate(ids, max_new_tokens=4, do_sample=False)
children = []
for number in range(2):
    if (child := os.fork()) == 0:
        told = reuse.generate(ids, max_new_tokens=4, do_sample=False)
        more = prompt(600, seed=number + 2)
        reuse.generate(more, max_new_tokens=1)
        reuse.generate(more, max_new_tokens=1)
        stats = reuse.stats()
        os._exit(0 if told.equal(expected) and stats["restored_tokens"] == 1024 and not stats["failures"] else 1)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
reuse.generate(prompt(600, seed=2), max_new_tokens=1)
assert reuse.stats()["restored_tokens"] == 512, reuse.stats()
"""


def test_forks_open_the_store_for_themselves(store):
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", FORKS, store], cwd=os.path.dirname(__file__), timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_nothing_is_saved_unless_asked(store):
    model = tiny_models.make("llama")
    reuse = Reuse(model, store, name="m", save=None)
    for _ in range(2):
        answer(reuse.generate, IDS)
    assert reuse.stats()["saved_tokens"] == 0 and reuse.stats()["misses"] == 2
    # What is saved already is not saved again.
    saver = Reuse(model, store, name="m")
    for _ in range(3):
        answer(saver.generate, IDS)
    assert saver.stats()["saved_tokens"] == 512


def test_nothing_is_encoded_twice(store):
    """Each token of a prompt passes the model once, however much was restored."""
    for name in ("llama", "gemma3"):
        model = tiny_models.make(name)
        seen = []
        model.register_forward_pre_hook(
            lambda module, args, given: seen.append(given["input_ids"].shape[1]), with_kwargs=True
        )
        # A hook may compute anything, so the model is given a name.
        reuse = Reuse(model, store, name=name, weights="of the test")
        longer = torch.cat([IDS, prompt(400, seed=6)], 1)
        for ids, computed in ((IDS, 600), (IDS, 600 - 512), (longer, 1000 - 512), (longer, 1000 - 768)):
            seen.clear()
            reuse.generate(ids, max_new_tokens=1)
            assert sum(seen) == computed, (name, seen)
