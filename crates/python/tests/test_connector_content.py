"""vLLM's connector: blocks are only taken for what they are, whatever weights and adapters are called."""

import os
import pickle
import shutil
import threading
import time
from pathlib import Path

import pytest
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import FOR_DECODE, end_alike, fetch, load, move, prefilled, prompt

TOKENS = prompt(300)


@pytest.fixture(autouse=True)
def disk(monkeypatch, tmp_path):
    """What is in the folders of adapters; digests of weights are not kept from test to test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(vllm, "adapters_on_disk", {})
    return vllm.adapters_on_disk


def without_ticket(engine, tokens=TOKENS, **more):
    """A prefill server answers, and has no ticket for the request."""
    request = engine.add(tokens, dict(FOR_DECODE), **more)
    engine.run(lambda: request.request_id in engine.answers)
    assert engine.answers[request.request_id] is None
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED


def computing(engine, **more):
    """A request whose prompt is being computed for another server."""
    request = engine.add(TOKENS, dict(FOR_DECODE), **more)
    engine.run(lambda: request.num_computed_tokens >= 128)
    return request


def loading(prefill, decode):
    """A request at the decode server whose load has begun."""
    request = decode.add(TOKENS, prefilled(prefill, TOKENS))
    decode.step()
    assert request.status is vllm.RequestStatus.WAITING_FOR_REMOTE_KVS
    return request


def not_loaded(engine, params, tokens=TOKENS, kind="unnamed", **more):
    """A decode server computes a request itself, and counts why. Where it cannot say what the request is, it does not begin
    to load: a load that fails may end the request."""
    engine.figures.reset()
    request, _ = load(engine, tokens, params, **more)
    assert (request.request_id in engine.failed) == (kind != "unnamed")
    engine.run()
    failures = engine.figures.data["failures"]
    assert failures == {kind: engine.tp}
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED


def lora(name, path, number=7, **more):
    return vllm.LoRARequest(name, number, path, **more)


# --- adapters --------------------------------------------------------------------------


@pytest.mark.parametrize("is_same", [True, False])
def test_adapters_are_told_apart_by_what_they_hold(two_engines, disk, is_same):
    """Also in the midst of a rolling update, when two servers call different adapters by one name and path."""
    prefill, decode = two_engines({"tp": 2}, {})
    disk["/tuned"] = disk["/copy"] = b"old"
    params = prefilled(prefill, TOKENS, adapter=lora("tuned", "/tuned"))
    disk["/tuned"] = b"new"
    if is_same:
        fetch(decode, TOKENS, params, adapter=lora("other", "/copy", 2))
        end_alike(prefill)
    else:
        not_loaded(decode, params, adapter=lora("tuned", "/tuned"), kind="content")
    end_alike(decode)


def test_an_adapter_that_is_not_loaded(two_engines, caplog):
    """It is loaded when the request is computed; until then nobody can say what it is."""
    # A load that fails would end the request, before its adapter is loaded, and each one after it.
    prefill, decode = two_engines({}, {"policy": "fail"})
    prefill.core.add_lora = lambda _: None
    without_ticket(prefill, adapter="a")
    assert "gets no ticket, nor do others like it: no worker has told of adapter 'a'" in caplog.text
    params = prefilled(prefill, TOKENS, adapter="a")
    decode.core.add_lora = lambda _: None
    not_loaded(decode, params, adapter="a")
    # Now it is.
    params = prefilled(prefill, TOKENS, adapter="a")
    fetch(decode, TOKENS, params, adapter="a")


def test_an_adapter_that_was_evicted(two_engines):
    prefill, _ = two_engines({"max_loras": 1})
    prefilled(prefill, TOKENS, adapter="a")
    prefilled(prefill, TOKENS, adapter="b")
    assert list(prefill.lora[0].models) == [prefill_number("b")]
    prefill.core.add_lora = lambda _: None
    without_ticket(prefill, adapter="a")
    prefilled(prefill, TOKENS, adapter="a")


def prefill_number(adapter):
    from vllm_stand_in.request import Request

    return Request([], adapter=adapter).lora_request.lora_int_id


def test_an_adapter_that_is_loaded_anew_from_its_path(two_engines, disk):
    """vLLM's own cache has blocks of the one before."""
    prefill, decode = two_engines({"prefix_caching": True, "max_loras": 2, "extra": {"reset_keeps_weights": True}})
    disk["/tuned"] = b"old"
    move(prefill, decode, TOKENS, adapter=lora("tuned", "/tuned", 1))
    disk["/tuned"] = b"new"
    without_ticket(prefill, adapter=lora("tuned", "/tuned", 2))
    # From another path it is another adapter to everybody.
    disk["/tuned-2"] = b"new"
    move(prefill, decode, TOKENS, adapter=lora("tuned", "/tuned-2", 3))
    # And it is the only one of its path once the cache is cleared.
    assert prefill.reset()
    prefilled(prefill, TOKENS, adapter=lora("tuned", "/tuned", 2))


def test_an_adapter_that_is_replaced_in_place(two_engines, disk):
    prefill, _ = two_engines()
    prefilled(prefill, TOKENS, adapter=lora("tuned", "/tuned"))
    disk["/tuned"] = b"new"
    prefill.core.add_lora(lora("tuned", "/tuned", load_inplace=True))
    # Before any step: workers have not told of it.
    without_ticket(prefill, adapter=lora("tuned", "/tuned"))
    without_ticket(prefill, adapter=lora("tuned", "/tuned", load_inplace=True))


def test_an_adapter_that_is_replaced_while_a_prompt_is_computed(two_engines, disk):
    prefill, _ = two_engines({"budget": 64})
    request = computing(prefill, adapter=lora("tuned", "/tuned"))
    disk["/tuned"] = b"new"
    prefill.core.add_lora(lora("tuned", "/tuned", load_inplace=True))
    prefill.run()
    assert prefill.answers[request.request_id] is None
    end_alike(prefill)


@pytest.fixture
def evicts(monkeypatch):
    """Has a server load its adapters anew in each step, as where others have taken their places meanwhile."""

    def always(engine):
        for manager in engine.lora:
            add = manager.add_adapter
            monkeypatch.setattr(manager, "add_adapter", lambda request, m=manager, add=add: (m.models.clear(), add(request)))

    return always


def test_an_adapter_that_is_loaded_anew_for_the_step(two_engines, disk, evicts, caplog):
    """The step was planned with the one before, which a decode server still has."""
    prefill, decode = two_engines({"tp": 2}, {})
    disk["/tuned"] = b"old"
    adapter = lora("tuned", "/tuned")
    move(prefill, decode, prompt(64), adapter=adapter)
    evicts(prefill)
    move(prefill, decode, prompt(64, seed=1), adapter=adapter)
    disk["/tuned"] = b"new"
    params = prefilled(prefill, TOKENS, adapter=adapter)
    assert "are not lent: its adapter was loaded anew, and is another one" in caplog.text
    not_loaded(decode, params, kind="unknown", adapter=adapter)
    end_alike(prefill, decode)


def test_an_adapter_that_is_loaded_anew_for_the_step_is_not_saved(engine, disk, evicts, tmp_path):
    disk["/tuned"] = b"old"
    adapter = lora("tuned", "/tuned")
    first = engine("prefill", extra=store(tmp_path))
    assert saved(first, TOKENS, adapter=adapter) == 256
    evicts(first)
    assert saved(first, prompt(300, seed=1), adapter=adapter) == 256
    disk["/tuned"] = b"new"
    assert saved(first, prompt(300, seed=2), adapter=adapter) == 0
    end_alike(first)


def test_requests_that_are_nobody_elses(engine):
    """A request without a ticket, and without a store, does not wait to hear of its adapter."""
    server = engine("prefill")
    server.core.add_lora = lambda _: None
    request = server.add(TOKENS, adapter="a", max_tokens=4)
    server.step()
    assert request.num_computed_tokens == len(TOKENS)


def test_a_request_without_a_name_counts_once(engine, tmp_path):
    """However often vLLM looks whether there is room for it."""
    server = engine("prefill", extra=store(tmp_path), blocks=16)
    server.core.add_lora = lambda _: None
    large = server.add(prompt(400, seed=1), max_tokens=20)
    server.step()
    request = server.add(TOKENS, adapter="a")
    server.run(lambda: large.finished)
    server.run()
    assert request.finished and server.figures.data["store_failures"] == {"name": 1}


def test_what_cannot_be_digested(two_engines, monkeypatch, caplog):
    from transload.vllm import adapters

    prefill, _ = two_engines()
    loaded = vllm.LoRAModel.__init__

    def odd(self, *arguments):
        loaded(self, *arguments)
        self.odd = object()

    monkeypatch.setattr(vllm.LoRAModel, "__init__", odd)
    without_ticket(prefill, adapter=lora("odd", "/odd"))
    assert "adapter 'odd' cannot be told from others: what a object in an adapter holds cannot be read" in caplog.text
    with pytest.raises(TypeError):
        adapters.digest(vllm.LoRAModel(1, b""))


def test_the_number_of_an_adapter_says_nothing(connector):
    from transload.vllm.adapters import digest

    assert digest(vllm.LoRAModel(1, b"a")) == digest(vllm.LoRAModel(2, b"a")) != digest(vllm.LoRAModel(1, b"b"))


def store(tmp_path, **more):
    return {"store": f"file://{tmp_path}/store", "store_weights": "x", **more}


def saved(engine, tokens, **more):
    """A prompt is computed, and what of it may be saved is: how many tokens."""
    engine.figures.reset()
    engine.add(tokens, **more)
    engine.run()
    engine.run(lambda: not engine.scheduler._scheduler.saved.is_saving)
    return engine.figures.data["store_tokens"].get("saved", 0)


def loaded(engine, tokens, **more):
    """How many tokens of a prompt come from the store."""
    request = engine.add(tokens, **more)
    engine.run()
    start, end, _ = engine.loads.get(request.request_id, (0, 0, None))
    return end - start


def test_adapters_of_one_name_in_a_store(engine, disk, tmp_path):
    disk["/tuned"] = b"old"
    first = engine("prefill", extra=store(tmp_path))
    assert saved(first, TOKENS, adapter=lora("tuned", "/tuned")) == 256
    same = engine("decode", extra=store(tmp_path))
    assert loaded(same, TOKENS, adapter=lora("other", "/tuned")) == 256
    disk["/tuned"] = b"new"
    other = engine("decode", extra=store(tmp_path))
    assert loaded(other, TOKENS, adapter=lora("tuned", "/tuned")) == 0


# --- versions of vLLM ------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "found"), [("version", (256, 0)), ("engine", (256, 256)), ("any", (256, 256))])
def test_what_another_version_has_computed(engine, monkeypatch, tmp_path, setting, found):
    import vllm as installed

    extra = store(tmp_path, store_engine=setting)
    assert saved(engine("prefill", extra=extra), TOKENS) == 256
    for version, tokens in zip(("0.32.9", "0.33.0"), found):
        monkeypatch.setattr(installed, "__version__", version)
        assert loaded(engine("decode", extra=extra), TOKENS) == tokens, version


# --- images ----------------------------------------------------------------------------


def test_images_that_clients_name(engine, tmp_path):
    """Without a tenant's salt nothing behind the first of them is shared; with one, all is, as for trusted clients."""
    tokens, images = prompt(800), [("mine", 600, 20), ("other", 700, 20)]
    first, second = (engine(agent, extra=store(tmp_path)) for agent in ("prefill", "decode"))
    assert saved(first, tokens, images=images) == 512
    assert loaded(second, tokens, images=images) == 512
    assert saved(first, tokens, images=images, salt="tenant") == 768
    assert loaded(second, tokens, images=images, salt="tenant") == 768
    assert loaded(second, tokens, images=[("mine", 100, 20)], salt="tenant") == 0
    trusting = [engine(agent, extra=store(tmp_path, store_trusts_media_identifiers=True)) for agent in ("prefill", "decode")]
    assert saved(trusting[0], tokens, images=images) == 256
    assert loaded(trusting[1], tokens, images=images) == 768
    # What they are called stays in the key, whoever is trusted.
    assert loaded(trusting[1], tokens, images=[("another", 600, 20), ("other", 700, 20)]) == 512
    # What was saved beyond is nothing to those who do not trust.
    assert loaded(engine("decode", extra=store(tmp_path)), tokens, images=images) == 512


def test_an_image_at_the_beginning(engine, tmp_path):
    first = engine("prefill", extra=store(tmp_path))
    assert saved(first, TOKENS, images=[("a", 0, 20)]) == 0
    assert saved(first, TOKENS, images=[("a", 255, 20)]) == 0


# --- weights ---------------------------------------------------------------------------


@pytest.fixture
def held(connector, monkeypatch):
    """Digests of files that are not known until a test lets them be."""
    from transload import _digests as digests

    read, gate = digests.file_digest, threading.Event()

    def later(path, *, stop):
        while not gate.wait(0.01):
            if stop():
                return None
        return read(path, stop=stop)

    monkeypatch.setattr(digests, "file_digest", later)
    yield gate
    gate.set()


@pytest.fixture
def weights(tmp_path):
    """Makes a folder with a model."""

    def make(name, content=b"weights"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
        return tmp_path / name

    return make


def until(is_so):
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def known(engine):
    until(lambda: engine.scheduler._scheduler._weights._files._name is not None)


def test_weights_that_are_being_read(two_engines, held, weights, tmp_path, caplog):
    """There is no ticket and no store until they are known, and every request is answered."""
    folder, extra = weights("model"), {"model": "", "store": f"file://{tmp_path}/store"}
    prefill, decode = two_engines({"model": folder, "extra": extra}, {"model": folder, "extra": {"model": ""}})
    without_ticket(prefill)
    assert saved(prefill, TOKENS) == 0
    assert "gets no ticket, nor do others like it: the weight files are being read" in caplog.text
    held.set()
    known(prefill)
    params = prefilled(prefill, TOKENS)
    known(decode)
    fetch(decode, TOKENS, params)
    assert saved(prefill, TOKENS) == 256 or loaded(prefill, TOKENS) == 256


def test_a_ticket_before_weights_are_known(two_engines, held, weights):
    folder = weights("model")
    prefill, decode = two_engines({"extra": {"model": "x"}}, {"model": folder, "extra": {"model": ""}})
    params = prefilled(prefill, TOKENS)
    not_loaded(decode, params)
    end_alike(prefill, decode)


def same_size_and_time(file):
    before = file.stat()
    file.write_bytes(b"others "[: before.st_size])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGED = {
    "content": lambda folder: same_size_and_time(folder / "model.safetensors"),
    "another file in its place": lambda folder: shutil.copy2(folder / "model.safetensors", folder / "new").replace(folder / "model.safetensors"),
    "a file more": lambda folder: (folder / "other.safetensors").write_bytes(b"x"),
    "a file less": lambda folder: (folder / "second.safetensors").unlink(),
    "another folder": lambda folder: (folder.rename(folder.with_name("old")), shutil.copytree(folder.with_name("old"), folder)),
    "the config": lambda folder: (folder / "config.json").write_text('{"a": 1}'),
    "nothing": lambda folder: None,
    "what is no weights": lambda folder: (folder / "README.md").write_text("x"),
}  # fmt: skip


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("what", CHANGED)
def test_files_that_change_before_the_connector_is_made(connector, weights, server_certs, outer, what):
    """vLLM may have loaded what was there before: it is looked at when vLLM has made its configuration."""
    from transload._vllm_plugin import register
    from transload.vllm.weights import Unnamed, Weights

    folder = Path(weights("model"))
    (folder / "second.safetensors").write_bytes(b"second")
    register()
    config = vllm.vllm_config(extra={"certs": str(server_certs)}, model=folder, tp=2)
    if outer:
        given = vars(config.kv_transfer_config)
        config.kv_transfer_config = vllm.KVTransferConfig("MultiConnector", "kv_both", {"connectors": [dict(given)]})
    # The second time it finds what the first has left.
    for _ in range(2):
        config = vllm.EngineArgs(config).create_engine_config()
    config.kv_transfer_config = pickle.loads(pickle.dumps(config.kv_transfer_config))
    if outer:
        [given] = config.kv_transfer_config.kv_connector_extra_config["connectors"]
        config.kv_transfer_config = vllm.KVTransferConfig(**given)
    connector.Config.read(config)
    CHANGED[what](folder)
    asked = Weights(config, is_asked=True)
    until(lambda: asked._files._name is not None or not asked._files._why.startswith("the weight files are being"))
    if what in ("nothing", "what is no weights"):
        assert asked.name(None)
    else:
        with pytest.raises(Unnamed, match="changed, added or removed since this server started.*: start it again, or give"):
            asked.name(None)


def test_reading_ends_with_the_server(engine, held, weights):
    others = set(threading.enumerate())
    server = engine("prefill", model=weights("model"), extra={"model": ""})
    [reading] = [thread for thread in set(threading.enumerate()) - others if thread.name == "transload-weights"]
    server.scheduler.shutdown()
    reading.join(10)
    assert not reading.is_alive()


@pytest.mark.parametrize("load_format", ["dummy", "tensorizer", "runai_streamer"])
def test_weights_that_are_not_in_the_files(connector, weights, load_format):
    from transload.vllm.weights import Unnamed, Weights

    config = vllm.vllm_config(model=weights("model"))
    config.load_config.load_format = load_format
    found = Weights(config, is_asked=True)
    with pytest.raises(Unnamed, match=f"--load-format {load_format} takes weights from elsewhere"):
        found.name(None)
    assert found.name("given") == "given"


# --- weights that change in place ------------------------------------------------------


def resting(prefill, decode, params=None):
    without_ticket(prefill)
    assert loaded(prefill, TOKENS) == 0
    if params is not None:
        not_loaded(decode, params)


def test_a_reset(two_engines, caplog):
    """Everything of before is void on both sides, and all rests until somebody says what the weights are."""
    prefill, decode = two_engines({"tp": 2}, {})
    params = prefilled(prefill, TOKENS)
    # Blocks are lent, so that vLLM cannot clear its own cache; but the leases are taken back.
    assert not prefill.reset()
    prefill.run()
    assert prefill.manager.free_blocks == prefill.all_blocks
    assert prefill.figures.data["leases"] == {"cancelled": 2}
    assert not prefill.reset() and not decode.reset()
    lines = [record for record in caplog.records if "the store rest until they are named" in record.getMessage()]
    assert len(lines) == 2, "one for each server"
    resting(prefill, decode, params)

    prefill.core.set_weight_version("step 2")
    not_loaded(decode, prefilled(prefill, TOKENS))
    decode.core.set_weight_version("step 2")
    move(prefill, decode, TOKENS)


def test_tickets_of_before_are_refused_by_their_owner(two_engines):
    prefill, decode = two_engines()
    params = prefilled(prefill, TOKENS)
    prefill.reset()
    # Workers hear of it with the next step, and there are steps as long as something is lent.
    prefill.run()
    not_loaded(decode, params, kind="cancelled")


def test_tickets_of_before_are_refused_where_they_wait(two_engines):
    prefill, decode = two_engines({}, {"tp": 2, "policy": "fail", "extra": {"reset_keeps_weights": True}})
    params = prefilled(prefill, TOKENS)
    request = decode.add(TOKENS, dict(params))
    decode.reset()
    decode.run()
    # It is computed here, also where a load that fails ends its request.
    assert request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED and request.request_id not in decode.loads
    assert decode.figures.data["failures"] == {"unnamed": 2}, "on each rank"
    end_alike(prefill, decode)


def test_what_was_loaded_is_stale_too(two_engines):
    """vLLM's own cache keeps what was loaded, where nothing was computed yet."""
    prefill, decode = two_engines({}, {"prefix_caching": True})
    loading(prefill, decode)
    decode.core.collective_rpc("load_weights")
    decode.core.set_weight_version("step 2")
    assert decode.scheduler._scheduler._weights._pending == "step 2"
    decode.run()
    end_alike(prefill, decode)


def test_a_load_that_is_under_way(two_engines):
    """What it brings, or has brought already, is not used."""
    prefill, decode = two_engines({}, {"extra": {"reset_keeps_weights": True}})
    request = loading(prefill, decode)
    worker = decode.workers[0]._worker
    until(lambda: all(loading.transfer.ended.done() for loading in worker._loads.values()))
    decode.reset()
    decode.run(lambda: request.request_id in decode.received)
    assert request.request_id in decode.failed
    end_alike(prefill, decode)
    assert not worker._stopped


def test_names_differ(two_engines):
    prefill, decode = two_engines()
    for engine, name in (prefill, "step 1"), (decode, "step 2"):
        engine.reset()
        engine.core.set_weight_version(name)
    not_loaded(decode, prefilled(prefill, TOKENS), kind="content")


@pytest.mark.parametrize("what", ["a reset that keeps weights", "a call that leaves them"])
def test_weights_that_stay(two_engines, what):
    prefill, decode = two_engines(extra={"reset_keeps_weights": True})
    if what == "a call that leaves them":
        prefill.core.collective_rpc("get_model_inspection")
    else:
        assert prefill.reset() and decode.reset()
    move(prefill, decode, TOKENS)


def test_no_reset_tells_the_same_twice(two_engines):
    """The identity of unnamed weights is nobody else's, and no earlier one of this server."""
    prefill, _ = two_engines()
    epochs = set()
    for _ in range(3):
        epochs.add(prefill.scheduler._scheduler._weights.epoch)
        prefill.reset()
    assert len(epochs) == 3 and all(len(epoch) == 16 for epoch in epochs)


@pytest.mark.parametrize("method", ["start_weight_update", "reload_weights", "of_a_worker_extension", "apply_model", print])
def test_weights_that_change_without_a_reset(two_engines, method):
    """vLLM's cache holds what the old ones have computed, whatever the new ones are called."""
    prefill, decode = two_engines(prefix_caching=True)
    move(prefill, decode, TOKENS)
    prefill.core.collective_rpc(method)
    resting(prefill, decode)
    prefill.core.set_weight_version("step 2")
    resting(prefill, decode)
    assert prefill.reset(), "the name that was given counts now"
    decode.reset()
    decode.core.set_weight_version("step 2")
    move(prefill, decode, TOKENS)


@pytest.mark.parametrize("name", ["step 2", ""])
def test_another_name_is_a_change_and_none_names_nothing(two_engines, name):
    prefill, _ = two_engines()
    if name:
        prefilled(prefill, TOKENS)
    else:
        prefill.reset()
    prefill.core.set_weight_version(name)
    without_ticket(prefill, prompt(100, seed=1))


def test_a_prefill_that_goes_on_meanwhile(two_engines):
    prefill, decode = two_engines({"budget": 64})
    request = computing(prefill)
    prefill.reset()
    prefill.run()
    assert prefill.answers[request.request_id] is None
    end_alike(prefill)


def test_saves_and_what_is_saved(engine, tmp_path):
    """A save that is under way is dropped; what was saved is of the weights of before."""
    server = engine("prefill", extra=store(tmp_path))
    request = server.add(TOKENS)
    server.run(lambda: request.status is vllm.RequestStatus.FINISHED_LENGTH_CAPPED)
    assert server.scheduler._scheduler.saved._saving
    server.reset()
    server.run()
    assert not server.scheduler._scheduler.saved._saving and server.manager.free_blocks == server.all_blocks
    assert loaded(engine("decode", extra=store(tmp_path)), TOKENS) == 0

    server.reset()
    server.core.set_weight_version("step 2")
    assert saved(server, TOKENS) == 256
    assert loaded(engine("decode", extra=store(tmp_path)), TOKENS) == 0
    assert loaded(engine("decode", extra=store(tmp_path, store_weights="step 2")), TOKENS) == 256


def test_a_look_that_is_under_way(engine, tmp_path):
    assert saved(engine("prefill", extra=store(tmp_path)), TOKENS) == 256
    server = engine("decode", extra=store(tmp_path))
    saved_tier, gate = server.scheduler._scheduler.saved, threading.Event()
    find = saved_tier._find
    saved_tier._find = lambda *arguments: gate.wait(10) and find(*arguments)
    request = server.add(TOKENS)
    server.step()
    server.reset()
    gate.set()
    server.run()
    assert request.request_id not in server.loads and not server.scheduler._scheduler.saved._looks
