"""vLLM's connector with a store: what one engine saved, another loads, and nothing waits for a store that fails."""

import shutil
import threading

import numpy
import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import FOR_DECODE, assert_loaded, end_alike, fetch, load, prefilled, prompt, refuse
from vllm_stand_in.model import Attention, Numbers, mamba2


@pytest.fixture
def stored(tmp_path):
    """The settings of a server with the test's store."""
    return {"store": f"file://{tmp_path}/store", "store_weights": "1"}


@pytest.fixture
def alone(engine, stored):
    """Starts engines that have a store, and no certificates."""

    def start(name, groups=None, **shape):
        return engine(name, groups, certs=None, blocks=256, extra=stored | shape.pop("extra", {}), **shape)

    return start


def figures(engine, what):
    return engine.figures.data[f"store_{what}"]


def answer(engine, tokens, **more):
    """Computes a request, until its blocks are free again."""
    request = engine.add(tokens, max_tokens=2, **more)
    engine.run()
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED
    return request


def save(engine, tokens, count, **more):
    """The same, until so many of its tokens are there for others."""
    before = figures(engine, "tokens").get("saved", 0)
    answer(engine, tokens, **more)
    engine.run(lambda: figures(engine, "tokens").get("saved", 0) == before + count)


def assert_found(engine, tokens, count, **more):
    """Loads a request, so many tokens of it, and computes the rest; all bytes are as if computed here."""
    request, before = load(engine, tokens, {}, max_tokens=2, **more)
    assert engine.source is vllm.CacheHitSource.DISK
    assert engine.loads[request.request_id][1] == count
    assert_loaded(engine, request, before)
    end_alike(engine)
    assert not figures(engine, "failures")


@pytest.mark.parametrize("second", [{"block_size": 64}, {"tp": 2, "block_size": 16}, {"tp": 4, "order": "BLSHC"}])
@pytest.mark.parametrize("first", [{"block_size": 32}, {"tp": 2, "block_size": 48, "backend": "CPU_ATTN"}])
def test_another_loaded_to(alone, first, second):
    tokens = prompt(900)
    saver, loader = alone("saver", **first), alone("loader", **second)
    save(saver, tokens, 768)
    assert_found(loader, tokens, 768)
    assert "compare" not in figures(loader, "calls"), "all of it was found"
    # What both have in common, and never the last token.
    assert_found(loader, tokens[:600] + prompt(300, 1), 512)
    assert_found(loader, tokens[:512], 256)
    assert figures(loader, "tokens")["loaded"] == 768 + 512 + 256
    end_alike(saver, loader)


def test_a_second_save_writes_nothing(alone):
    tokens = prompt(600)
    engine = alone("saver")
    save(engine, tokens, 512)
    calls = dict(figures(engine, "calls"))
    answer(engine, tokens)
    end_alike(engine)
    assert figures(engine, "calls")["save"] == calls["save"]


def test_what_is_cached_here_is_not_loaded(alone):
    tokens = prompt(900)
    save(alone("saver"), tokens, 768)
    engine = alone("loader", prefix_caching=True)
    answer(engine, tokens[:520])
    request, before = load(engine, tokens, {})
    start, end, _ = engine.loads[request.request_id]
    assert (start, end) == (512, 768)
    one_token = 4 * 4 * 2 * 32 * 4
    assert figures(engine, "bytes")["loaded"] == (512 + 256) * one_token
    assert_loaded(engine, request, before)
    end_alike(engine)


def test_other_content_is_not_loaded(alone):
    tokens = prompt(600)
    save(alone("saver"), tokens, 512, salt="a")
    for salt, weights in (("b", "1"), ("a", "2")):
        engine = alone("loader", extra={"store_weights": weights})
        answer(engine, tokens, salt=salt)
        assert "loaded" not in figures(engine, "tokens")


def test_a_consumer_saves_nothing(alone):
    engine = alone("decode")
    answer(engine, prompt(600))
    assert "save" not in figures(engine, "calls") and "compare" not in figures(engine, "calls")


def test_lent_and_saved(engine, stored):
    """Blocks that a decode server fetches while they are saved are freed when both are over."""
    prefill, decode = engine("prefill", tp=2, extra=stored), engine("decode", block_size=64, extra=stored)
    tokens = prompt(600)
    params = prefilled(prefill, tokens)
    prefill.run(lambda: figures(prefill, "tokens").get("saved"))
    assert prefill.manager.free_blocks < prefill.all_blocks, "the lease is not over"
    request, before = load(decode, tokens, params)
    assert decode.source is vllm.CacheHitSource.P2P
    assert_loaded(decode, request, before)
    end_alike(prefill, decode)
    # What was prefilled for somebody else is there for everybody.
    assert_found(decode, tokens, 512)


@pytest.fixture
def held(connector, monkeypatch):
    """Has a part of a job of the workers wait, as a store that does not answer would, until the test ends or says so."""
    import transload.vllm.saved_worker as saved_worker

    goes_on = threading.Event()

    def hold(what):
        work = getattr(saved_worker.SavedWorker, what)
        monkeypatch.setattr(saved_worker.SavedWorker, what, lambda *all: goes_on.wait() and work(*all))
        return goes_on

    yield hold
    goes_on.set()


def test_lent_for_less_time_than_it_is_copied(engine, held, stored):
    goes_on = held("_stage")
    prefill, decode = engine("prefill", extra=stored), engine("decode")
    request, _ = load(decode, prompt(600), prefilled(prefill, prompt(600)))
    prefill.run(lambda: prefill.figures.data["leases"])
    for _ in range(3):
        prefill.step()
    assert prefill.manager.free_blocks < prefill.all_blocks
    goes_on.set()
    end_alike(prefill, decode)


def test_a_ticket_that_is_given_up_is_not_saved(engine, stored):
    """vLLM counts its tokens as computed from the moment that their load begins."""
    prefill, decode = engine("prefill"), engine("decode", role="kv_both", extra=stored)
    request = decode.add(prompt(600), prefilled(prefill, prompt(600)))
    decode.run(lambda: request.status is vllm.RequestStatus.WAITING_FOR_REMOTE_KVS)
    decode.abort(request)
    end_alike(prefill, decode)
    assert "compare" not in figures(decode, "calls")


def test_loaded_and_lent(engine, alone, stored):
    """A prefill server begins with what is saved."""
    tokens = prompt(600)
    save(alone("saver"), tokens, 512)
    prefill, decode = engine("prefill", extra=stored), engine("decode", block_size=64, tp=2)
    params = prefilled(prefill, tokens)
    assert figures(prefill, "tokens") == {"loaded": 512}
    fetch(decode, tokens, params)
    end_alike(prefill, decode)


def test_tiers_are_counted(alone, tmp_path):
    memory, uri = f"memory://{tmp_path.name}", f"file://{tmp_path}/store"
    engine, tokens = alone("saver", extra={"store": f"tier://1GiB={memory},{uri}"}), prompt(600)
    save(engine, tokens, 512)
    load(engine, tokens, {}, max_tokens=2)
    engine.run()
    hits, read = figures(engine, "tier_hits"), figures(engine, "tier_bytes")
    # Chunks come from memory; manifests, which other processes may replace, from the folder.
    assert set(hits) == {memory, uri} and read[memory] > 100 * read[uri]
    before = dict(hits)
    engine.step()
    assert figures(engine, "tier_hits") == before
    end_alike(engine)


# --- codecs ----------------------------------------------------------------------------


def wrong_bytes(engine, request, count):
    """In how many tensors of the request's first tokens something is not what would have been computed."""
    tokens, positions = numpy.array(request.all_token_ids), numpy.arange(count)
    places = [
        place
        for cache in engine.caches
        for group, table in zip(engine.groups, engine.manager.get_block_ids(request.request_id))
        for place in cache._places(group, table, tokens, positions)
    ]
    return sum((view[where] != content).any() for view, where, content in places)


def loaded_to(engine, request):
    return engine.loads[request.request_id][1]


def assert_not_found(engine, tokens):
    """Nothing of a request is loaded."""
    before = figures(engine, "tokens").get("loaded", 0)
    answer(engine, tokens)
    assert figures(engine, "tokens").get("loaded", 0) == before


@pytest.mark.parametrize("codec", ["q8", "q4"])
def test_what_was_loaded_with_a_codec_is_never_saved_as_exact(alone, codec):
    groups, tokens = [Numbers(range(4))], prompt(900)
    saver, loader = (alone(name, groups, tp=tp, extra={"codec": codec}) for name, tp in (("saver", 1), ("loader", 2)))
    # Consumers save nothing that others here could find.
    exact = alone("decode", groups)
    other = alone("decode", groups, extra={"codec": {"q4": "q8", "q8": "q4"}[codec]})
    save(saver, tokens, 768)
    assert_not_found(exact, tokens)
    assert_not_found(other, tokens)
    # It goes on, and what it computes on that is saved.
    longer = tokens[:800] + prompt(400, 1)
    request, _ = load(loader, longer, {}, max_tokens=2)
    assert loaded_to(loader, request) == 768
    assert wrong_bytes(loader, request, 768) == 2 * 4
    loader.run(lambda: figures(loader, "tokens").get("saved"))
    assert figures(loader, "tokens") == {"loaded": 768, "saved": 256}
    end_alike(saver, loader)
    for engine in exact, other:
        assert_not_found(engine, longer)
    request, _ = load(saver, longer, {}, max_tokens=2)
    assert loaded_to(saver, request) == 1024
    end_alike(saver)


def test_what_was_loaded_with_a_codec_is_not_lent(engine, alone, caplog, stored):
    """Its ticket would say that it is exact: the decode server computes it."""
    groups, tokens, other = [Numbers(range(4))], prompt(600), prompt(600, 1)
    codec = {"codec": "q4"}
    save(alone("saver", groups, extra=codec), tokens, 512)
    prefill, decode = engine("prefill", groups, extra=stored | codec), engine("decode", groups, block_size=64)
    for _ in range(2):
        request = prefill.add(tokens, dict(FOR_DECODE))
        prefill.run()
        assert prefill.answers[request.request_id] is None
        assert loaded_to(prefill, request) == 512
    assert caplog.text.count("gets no ticket, nor do others like it: what of it is in the store is there with codec q4") == 1
    # One that is computed is lent.
    fetch(decode, other, prefilled(prefill, other))
    end_alike(prefill, decode)
    assert not prefill.scheduler._scheduler._inexact


def test_what_is_loaded_again_with_a_codec_is_not_lent(engine, alone, stored):
    """A request may be preempted, and loaded anew, before vLLM tells of the preemption."""
    groups, tokens = [Numbers(range(4))], prompt(900)
    save(alone("saver", groups, extra={"codec": "q4"}), tokens, 768)
    prefill = engine("prefill", groups, extra=stored | {"codec": "q4"}, budget=64)
    request = prefill.add(tokens, dict(FOR_DECODE))
    prefill.run(lambda: request.num_computed_tokens > 768)
    prefill.preempt(request)
    prefill.run()
    assert figures(prefill, "tokens") == {"loaded": 2 * 768}
    assert prefill.answers[request.request_id] is None
    end_alike(prefill)
    assert not prefill.scheduler._scheduler._inexact


def test_what_came_from_another_in_a_codec_is_saved_with_that_alone(engine, alone, stored):
    groups, tokens = [Numbers(range(4))], prompt(600)
    prefill = engine("prefill", groups, extra={"wire_codec": "q8"})
    decode = engine("decode", groups, tp=2, block_size=64, extra=stored | {"wire_codec": "q8", "codec": "q8"}, role="kv_both")
    request, _ = load(decode, tokens, prefilled(prefill, tokens), max_tokens=2)
    assert loaded_to(decode, request) == 600
    assert wrong_bytes(decode, request, 600) == 2 * 4
    decode.run(lambda: figures(decode, "tokens").get("saved"))
    end_alike(prefill, decode)
    assert_not_found(alone("exact", groups), tokens)
    request, _ = load(alone("same", groups, extra={"codec": "q8"}), tokens, {}, max_tokens=2)


def test_a_server_that_sends_in_no_codec_is_asked_for_none(engine):
    groups, tokens = [Numbers(range(4))], prompt(300)
    prefill, decode = engine("prefill", groups), engine("decode", groups, extra={"wire_codec": "q8"})
    refuse(decode, tokens, prefilled(prefill, tokens), "request")
    end_alike(prefill, decode)


def test_recurrent_state(alone):
    """Saved where the prompt ends with a token chunk and nothing was computed behind it."""
    tokens, groups = prompt(512), [Attention(range(2, 4)), mamba2(range(2))]
    saver, loader = (alone(name, groups, model_groups=1, tp=tp) for name, tp in (("saver", 1), ("loader", 2)))
    answer(saver, tokens)
    assert "compare" not in figures(saver, "calls")
    saver.add(tokens, max_tokens=1)
    saver.run(lambda: figures(saver, "tokens").get("saved"))
    assert_found(loader, tokens + prompt(100, 1), 512)


# A block is given back as a whole, so that the first one is still there shortly behind.
@pytest.mark.parametrize(("more", "length", "is_there"), [({"window": 300}, 515, True), ({"window": 300}, 600, False), ({"chunk": 500}, 1023, False)])
def test_a_prefix_is_saved_if_its_window_is_there(alone, more, length, is_there):
    groups, tokens = [Attention(range(0, 6, 2)), Attention(range(1, 6, 2), **more)], prompt(length)
    saver = alone("saver", groups)
    if is_there:
        save(saver, tokens, 512)
        assert_found(alone("loader", groups, tp=2, block_size=64), tokens, 512)
    else:
        answer(saver, tokens)
        assert "compare" not in figures(saver, "calls")
    end_alike(saver)


def test_damaged_pieces_are_computed(alone, tmp_path):
    tokens = prompt(600)
    save(alone("saver"), tokens, 512)
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.stat().st_size > 4096:
            path.write_bytes(bytes(path.stat().st_size))
    engine = alone("loader", tp=2)
    answer(engine, tokens)
    assert figures(engine, "failures")["load"] == 2, "once for each rank"
    assert "loaded" not in figures(engine, "tokens")
    end_alike(engine)


def test_a_store_that_cannot_be_opened_or_goes(alone, tmp_path):
    (tmp_path / "file").write_text("no folder")
    engine = alone("saver", extra={"store": f"file://{tmp_path}/file/store"})
    answer(engine, prompt(600))
    assert figures(engine, "failures") == {"find": 1}, "it is left alone for a while"
    end_alike(engine)
    engine = alone("saver")
    save(engine, prompt(600), 512)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("no folder")
    answer(engine, prompt(600, 1))
    engine.run(lambda: figures(engine, "failures"))
    end_alike(engine)


@pytest.mark.parametrize("end", ["too late", "aborted"])
def test_a_store_that_does_not_answer(alone, monkeypatch, end):
    import transload.vllm.saved as saved

    goes_on = threading.Event()
    monkeypatch.setattr(saved.Shelf, "archive", lambda *_: goes_on.wait() and None)
    engine = alone("saver", extra={"store_wait_seconds": 0.05 if end == "too late" else 60})
    if end == "too late":
        answer(engine, prompt(600))
        assert figures(engine, "failures") == {"find": 1}
    else:
        request = engine.add(prompt(600))
        engine.step()
        assert not engine.running
        engine.abort(request)
    end_alike(engine)
    goes_on.set()


@pytest.mark.parametrize("name", ["saver", "prefill"])
def test_aborted_while_it_is_loaded(alone, engine, name, held, stored):
    """Its blocks are free at once, and nothing comes into them when the store answers."""
    tokens = prompt(600)
    save(alone("saver"), tokens, 512)
    goes_on = held("_load")
    prefill = engine("prefill", tp=2, extra=stored)
    request = prefill.add(tokens, dict(FOR_DECODE) if name == "prefill" else {})
    prefill.run(lambda: request.status is vllm.RequestStatus.WAITING_FOR_REMOTE_KVS)
    prefill.abort(request)
    end_alike(prefill)
    assert_untouched(prefill, goes_on)
    assert "compare" not in figures(prefill, "calls")


def assert_untouched(engine, goes_on):
    """Jobs that were given up return, and have not changed a byte."""
    before = [cache.bytes() for cache in engine.caches]
    goes_on.set()
    for worker in engine.workers:
        worker._worker.saved._loader._threads.shutdown(wait=True)
    for cache, old in zip(engine.caches, before):
        assert all((new == was).all() for new, was in zip(cache.bytes(), old))


def test_a_load_that_does_not_end(alone, held):
    """Its request is computed, and so are others, which do not wait for it again."""
    tokens = prompt(600)
    save(alone("saver"), tokens, 512)
    engine = alone("loader", extra={"store_timeout_seconds": 0.2})
    goes_on = held("_load")
    for count in (1, 2, 3):
        answer(engine, tokens)
        assert figures(engine, "failures") == {"load": count}
        assert engine.manager.free_blocks == engine.all_blocks
    # The third had no thread, and did not wait for one.
    loader = engine.workers[0]._worker.saved._loader
    assert len(loader._stuck) == 2 and not loader._threads._work_queue.qsize()
    assert "loaded" not in figures(engine, "tokens")
    assert_untouched(engine, goes_on)


def test_a_save_that_does_not_end(alone, held):
    """Blocks do not wait for it, and what does has a bound."""
    one_prompt = 512 * 4 * 4 * 2 * 32 * 4
    engine = alone("saver", extra={"store_timeout_seconds": 3, "store_staging_gib": 1.5 * one_prompt / 2**30})
    goes_on = held("_save")
    staging = engine.workers[0]._worker.saved._staging
    for seed in range(2):
        request = engine.add(prompt(600, seed))
        engine.run(lambda: request.finished and engine.manager.free_blocks == engine.all_blocks)
        assert staging.used == one_prompt
    assert figures(engine, "failures")["stage"] == 1, "there is no room for it"
    # Where there is no request, vLLM steps on until it is given up.
    engine.run()
    assert figures(engine, "failures") == {"stage": 1, "save": 1}
    # Its thread waits still.
    assert staging.used == one_prompt
    goes_on.set()
    engine.workers[0]._worker.saved._saver._threads.shutdown(wait=True)
    assert staging.used == 0
    assert "saved" not in figures(engine, "tokens")
    end_alike(engine)


def test_a_save_that_has_begun_when_weights_change_is_not_published(alone, held):
    engine, goes_on = alone("saver"), held("_save")
    request = engine.add(prompt(600))
    engine.run(lambda: request.finished and engine.workers[0]._worker.saved._saves)
    engine.reset()
    goes_on.set()
    end_alike(engine)
    assert "saved" not in figures(engine, "tokens")


def test_a_copy_that_does_not_begin(alone, held):
    engine = alone("saver", extra={"store_timeout_seconds": 0.2})
    held("_stage")
    for seed in range(3):
        answer(engine, prompt(600, seed))
    end_alike(engine)
    assert figures(engine, "failures") == {"stage": 3}


def test_preempted(alone):
    """A request that comes again is loaded again, and saved once."""
    tokens = prompt(600)
    save(alone("saver"), tokens, 512)
    engine = alone("loader")
    request = engine.add(tokens, max_tokens=5)
    engine.run(lambda: request.status is vllm.RequestStatus.RUNNING)
    engine.preempt(request)
    engine.run()
    assert figures(engine, "tokens")["loaded"] == 2 * 512
    end_alike(engine)


def test_aborted(alone):
    """Before its prompt is computed nothing is saved, behind it all is."""
    engine = alone("saver", budget=300)
    request = engine.add(prompt(600), max_tokens=50)
    engine.run(lambda: request.num_computed_tokens >= 300)
    engine.abort(request)
    end_alike(engine)
    assert "compare" not in figures(engine, "calls")
    request = engine.add(prompt(600), max_tokens=50)
    engine.run(lambda: request.num_computed_tokens > 600)
    engine.abort(request)
    engine.run(lambda: figures(engine, "tokens").get("saved") == 512)
    end_alike(engine)


def test_a_prompt_that_is_for_two_servers(alone):
    """Without certificates it is a request like others."""
    engine = alone("saver")
    request = engine.add(prompt(100), {"do_remote_prefill": True, "transload_ticket": "x"})
    engine.run()
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED


def test_the_same_prompt_at_the_same_time(alone):
    """One request holds its blocks for the save, and not two."""
    engine = alone("saver")
    for request in [engine.add(prompt(600)) for _ in range(2)]:
        engine.run(lambda: request.finished)
    engine.run(lambda: figures(engine, "tokens").get("saved"))
    end_alike(engine)
    assert figures(engine, "calls")["save"] == figures(engine, "calls")["compare"] == 1


def test_blocks_held_until_they_are_copied(alone, held):
    """A quarter of the cache, and then requests that end are not saved."""
    goes_on = held("_stage")
    engine = alone("saver")
    for seed in range(6):
        request = engine.add(prompt(600, seed))
        engine.run(lambda: request.finished)
    for _ in range(3):
        engine.step()
    # 19 blocks each, of 256.
    assert engine.all_blocks - engine.manager.free_blocks == 3 * 19
    assert figures(engine, "failures") == {"keep up": 3}
    goes_on.set()
    end_alike(engine)


# --- events ----------------------------------------------------------------------------


def test_routers_are_told_of_what_was_published(alone, connector, monkeypatch, tmp_path):
    """Of what this server has published, once, behind what was found saved; and of nothing that failed or is void."""
    import sys
    from types import ModuleType

    fake = ModuleType("transload.vllm.events")

    class Events(list):
        def __init__(self, vllm_config, kv_cache_config):
            super().__init__()

        def of(self, request, start, end):
            return [(start, end)]

        tell = list.extend

        def take(self):
            taken = self[:]
            self.clear()
            return taken

    fake.Events = Events
    monkeypatch.setitem(sys.modules, "transload.vllm.events", fake)
    monkeypatch.setattr(sys.modules["transload.vllm.config"], "is_told", lambda config: True)
    engine, tokens = alone("saver", extra={"kv_events": True}), prompt(900)
    save(engine, tokens[:600], 512)
    assert engine.scheduler.take_events() == [(0, 512)]
    save(engine, tokens, 256)
    assert engine.scheduler.take_events() == [(512, 768)] and engine.scheduler.take_events() == []
    answer(engine, tokens)
    end_alike(engine)
    assert engine.scheduler.take_events() == [], "all of it was saved before"
    assert list(alone("silent").scheduler.take_events()) == []
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("")
    answer(engine, prompt(600, 5))
    end_alike(engine)
    assert figures(engine, "failures") and engine.scheduler.take_events() == []
