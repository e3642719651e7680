"""The tier behind vLLM's OffloadingConnector, under vLLM's own manager of tiers. vLLM has no worker for it on the CPU, so no server runs it."""

import dataclasses
import itertools
import pickle
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import transload
import vllm.v1.engine.core as core
from transload import StoreError, _vllm_plugin
from transload.vllm import tier as tiers
from transload.vllm.config import ConfigError
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

pytestmark = [pytest.mark.newer, pytest.mark.smallest]
KEYS = [make_offload_key(bytes([number]) * 32, 0) for number in range(12)]
TYPE = {"type": "TransloadTier", "module_path": "transload.vllm.tier"}
numbers = itertools.count()


def vllm_config(**more):
    model = SimpleNamespace(model="/nowhere", hf_config_path=None, max_model_len=1024, dtype="float32", revision=None)
    cache = SimpleNamespace(
        prefix_caching_hash_algo="sha256", cache_dtype="auto", mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto",
        kv_cache_dtype_skip_layers=[],
    )  # fmt: skip
    config = SimpleNamespace(
        model_config=model, cache_config=cache, load_config=SimpleNamespace(load_format="dummy"), speculative_config=None, lora_config=None,
        attention_config=SimpleNamespace(backend=None, backend_per_kind={}), use_v2_model_runner=False, kv_events_config=None,
        parallel_config=SimpleNamespace(cp_kv_cache_interleave_size=1),
    )  # fmt: skip
    for path, value in more.items():
        *parents, name = path.split("__")
        owner = config
        for each in parents:
            owner = getattr(owner, each)
        setattr(owner, name, value)
    return config


def offloading(given, **more):
    parallel = {"rank": 0, "world_size": 1, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "data_parallel_index": 0,
                "data_parallel_size": 1, "data_parallel_rank_local": None, "is_parallelism_agnostic": False}  # fmt: skip
    parallel |= {name: more.pop(name) for name in parallel.keys() & more.keys()}
    cache = {"tokens_per_hash": 16, "blocks_per_chunk": 1}
    cache |= {name: more.pop(name) for name in cache.keys() & more.keys()}
    fields = {
        "groups": (OffloadingGroupConfig(16, ("layers.0", "layers.1"), 0),), "worker_kv_bytes_per_block": 8192, "enable_kv_cache_events": True,
        "extra_config": {"cpu_bytes_to_use": 8192 * 16, "secondary_tiers": [given]}, "engine_id": f"test-{next(numbers)}",
        "model": OffloadingModelConfig("/models/tiny", more.pop("dtype", "float32")),
    }  # fmt: skip
    return OffloadingConfig(**fields | more, cache=OffloadingCacheConfig(**cache), parallel=OffloadingParallelConfig(**parallel))


class Tiered:
    """vLLM's manager of tiers with one of ours."""

    def __init__(self, store, config=None, offloaded=None, **given):
        entry = TYPE | {"store": store, "weights": "1"} | given
        tiers.check_early(config or vllm_config(), entry)
        self.manager = TieringOffloadingSpec(offloading(entry, **(offloaded or {}))).get_manager()
        [self.tier] = self.manager.secondary_tiers
        self.rows = np.asarray(self.manager.primary_tier.get_kv_memoryview())
        self._failures = {}

    @property
    def failures(self):
        """How many there were, by what the store was called for."""
        if stats := self.manager.get_stats():
            for (call,), count in stats.data["data"].get(tiers.FAILURES, {}).items():
                self._failures[call] = self._failures.get(call, 0) + count
        return self._failures

    def request(self):
        context = ReqContext(f"request-{next(numbers)}")
        self.manager.on_new_request(context)
        return context

    def step(self):
        self.manager.on_schedule_end(ScheduleEndContext([], []))

    def run(self, until=None):
        """Steps until nothing is under way, or for as long as `until` says."""
        until, end = until or (lambda: not self.manager._jobs), time.monotonic() + 60
        while not until():
            assert time.monotonic() < end
            self.step()
            time.sleep(0.001)

    def save(self, keys=KEYS, fill=None, wait=True):
        """Offloads chunks, each of bytes of its own."""
        context = self.request()
        output = self.manager.prepare_store(keys, context)
        for key, row in zip(output.keys_to_store, output.store_spec.chunk_ids):
            self.rows[row] = content(key) if fill is None else fill
        self.manager.complete_store(output.keys_to_store, context)
        if wait:
            self.run()
        self.manager.on_request_finished(context)
        return [int(row) for row in output.store_spec.chunk_ids]

    def find(self, keys=KEYS):
        """Which chunks are there in the end, each with the bytes that were saved."""
        context, answers = self.request(), {}

        def has_all():
            for key in set(keys) - answers.keys():
                answer = self.manager.lookup(key, context)
                if answer in (LookupResult.HIT, LookupResult.MISS):
                    answers[key] = answer is LookupResult.HIT
            return len(answers) == len(keys)

        self.run(has_all)
        found = [key for key in keys if answers[key]]
        if found:
            rows = self.manager.prepare_load(found, context).chunk_ids
            for key, row in zip(found, rows):
                assert (self.rows[row] == content(key)).all()
            self.manager.complete_load(found, context)
        self.manager.on_request_finished(context)
        return found

    def stop(self):
        del self.rows
        self.manager.shutdown()


def content(key):
    return np.frombuffer((key * 8192)[:8192], np.int8)


@pytest.fixture
def tiered(tmp_path):
    made = []

    def begin(store=f"file://{tmp_path}/store", **more):
        made.append(Tiered(store, **more))
        return made[-1]

    yield begin
    for each in made:
        each.stop()


@pytest.fixture
def stalled(monkeypatch):
    """Has a method of all stores wait until it is let go on."""
    goes_on = threading.Event()

    def stall(method):
        class Stalled:
            def __init__(self, *given, **more):
                self.objects = transload.Objects(*given, **more)

            def __getattr__(self, name):
                work = getattr(self.objects, name)
                return (lambda *all: goes_on.wait() and work(*all)) if name == method else work

        monkeypatch.setattr(tiers, "Objects", Stalled)
        return goes_on

    yield stall
    goes_on.set()


@pytest.mark.parametrize("slice_", [1, 3 * 8192, 1 << 20], ids=["a chunk at once", "three", "all"])
@pytest.mark.parametrize("store", ["file://{}/store", "memory://{}"])
def test_what_one_server_offloads_another_loads(tiered, tmp_path, monkeypatch, store, slice_):
    monkeypatch.setattr(tiers, "SLICE", slice_)
    store = store.format(tmp_path)
    saver, loader = tiered(store), tiered(store)
    assert loader.find() == []
    saver.save()
    assert loader.find() == KEYS and loader.find(KEYS[:3]) == KEYS[:3]
    assert tiered(store).find([KEYS[0], make_offload_key(b"\xff" * 32, 0), make_offload_key(b"\x01" * 32, 1)]) == KEYS[:1]
    assert saver.failures == loader.failures == {}


UNLIKE = {
    "weights": {"weights": "2"},
    "type of elements": {"offloaded": {"dtype": "fp8_e5m2"}},
    "block size": {"offloaded": {"groups": (OffloadingGroupConfig(32, ("layers.0", "layers.1"), 0),)}},
    "layers": {"offloaded": {"groups": (OffloadingGroupConfig(16, ("layers.0", "layers.2"), 0),)}},
    "tokens of a hash": {"offloaded": {"tokens_per_hash": 8}},
    "half the bytes": {"offloaded": {"worker_kv_bytes_per_block": 4096}},
    "TP": {"offloaded": {"tp_size": 2, "world_size": 2, "worker_kv_bytes_per_block": 4096}},
    "PP": {"offloaded": {"pp_size": 2, "world_size": 2, "worker_kv_bytes_per_block": 4096}},
    "order": {"offloaded": {"kv_cache_layout": "HND"}},
    "hash": {"config": {"cache_config__prefix_caching_hash_algo": "sha256_cbor"}},
    "states": {"config": {"cache_config__mamba_ssm_cache_dtype": "float16"}},
    "dtype of the model": {"config": {"model_config__dtype": "bfloat16"}},
    "attention": {"config": {"attention_config__backend": "TRITON_ATTN"}},
    "stripes": {"config": {"parallel_config__cp_kv_cache_interleave_size": 16}},
    "drafts": {"config": {"speculative_config": SimpleNamespace(method="eagle", model="/eagle", revision=None)}},
}


@pytest.mark.parametrize("what", UNLIKE)
def test_unlike_servers_share_nothing(tiered, what):
    other = dict(UNLIKE[what])
    if "config" in other:
        other["config"] = vllm_config(**other["config"])
    tiered().save()
    assert tiered(**other).find() == [] and tiered().find() == KEYS


def test_another_seed_of_hashes_and_another_vllm(tiered, monkeypatch):
    tiered().save()
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert tiered().find() == []
    monkeypatch.delenv("PYTHONHASHSEED")
    monkeypatch.setattr(tiers.vllm, "__version__", "0.34.0")
    assert tiered().find() == []


def test_damaged_chunks_are_computed_and_repaired(tiered, tmp_path):
    saver = tiered()
    saver.save(KEYS[:5])
    for file in [each for each in (tmp_path / "store").rglob("*") if each.is_file() and each.stat().st_size > 8192]:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.chmod(0o644)
        file.write_bytes(data)
    saver.save(KEYS[5:])
    reader = tiered()
    [lost] = set(KEYS) - set(reader.find())
    assert lost in KEYS[:5] and reader.failures == {"load": 1}
    tiered().save()
    assert tiered().find() == KEYS


def test_a_store_that_is_gone_is_left_alone(tiered, tmp_path, monkeypatch, caplog):
    (tmp_path / "store").write_text("no folder")
    server = tiered()
    asked = []
    find = server.tier._find
    monkeypatch.setattr(server.tier, "_find", lambda *all: asked.append(all) or find(*all))
    assert server.find() == [] and server.failures == {"find": 1}
    # It rests: misses come at once, and saves fail without being asked for.
    assert server.manager.lookup(KEYS[0], server.request()) is LookupResult.MISS
    server.save()
    assert len(asked) == 1 and server.failures == {"find": 1}
    server.tier._rest_until = 0
    assert server.find([make_offload_key(b"\xff" * 32, 0)]) == [] and len(asked) == 2 and server.failures == {"find": 2}
    assert len([each for each in caplog.records if "the store fails to find" in each.message]) == 1


def test_a_full_store_is_still_read(tiered, monkeypatch):
    """And a look-up that missed finds what is saved later, though requests go on that have asked before."""
    server, context = tiered(), ReqContext("goes on")
    server.run(lambda: server.tier.lookup(KEYS[0], context) is LookupResult.MISS)

    def full(*given):
        raise StoreError("it is full")

    with monkeypatch.context() as patched:
        patched.setattr(server.tier, "_save", full)
        server.save(KEYS[:1])
    assert server.failures == {"save": 1} and server.tier.lookup(KEYS[0], context) is LookupResult.MISS
    server.manager.primary_tier.reset_cache()
    server.save(KEYS[:1])
    assert server.tier.lookup(KEYS[0], context) is LookupResult.HIT


@pytest.mark.parametrize("method", ["has", "get"])
def test_a_stalled_store_fails_nothing(tiered, stalled, method):
    """Requests do not wait for it, and what it reads in the end goes nowhere."""
    tiered().save()
    goes_on = stalled(method)
    server = tiered(wait_seconds=0.2, timeout_seconds=0.2)
    assert server.find() == []
    assert server.failures == {"find" if method == "has" else "load": 1}
    assert server.manager.lookup(KEYS[0], server.request()) is LookupResult.MISS
    # Others have the rows by now.
    server.rows[:] = 77
    goes_on.set()
    for jobs in (server.tier._finder, server.tier._loader):
        jobs._threads.shutdown(wait=True)
    assert (server.rows == 77).all()


def test_what_was_asked_before_a_store_is_left_alone(tiered):
    server, context = tiered(), ReqContext("waits")
    assert server.tier.lookup(KEYS[0], context) is LookupResult.RETRY
    server.tier._rest()
    assert server.tier.lookup(KEYS[0], context) is LookupResult.MISS


def test_what_a_stalled_save_writes_is_what_was_there(tiered, stalled):
    """Its rows are others' when it is given up."""
    goes_on = stalled("put")
    server = tiered(timeout_seconds=0.2)
    server.save()
    assert server.failures == {"save": 1}
    server.rows[:] = 77
    goes_on.set()
    server.tier._saver._threads.shutdown(wait=True)
    assert tiered().find() == KEYS


def test_saves_hold_a_part_of_the_memory(tiered, stalled):
    goes_on = stalled("put")
    server = tiered()
    for key in KEYS:
        server.save([key], wait=False)
    held = int(len(server.rows) * tiers.SHARE)
    server.run(lambda: len(server.manager._jobs) == held)
    assert server.failures == {"keep up": len(KEYS) - held}
    goes_on.set()
    server.run()
    assert tiered().find() == KEYS[:held]


@pytest.mark.parametrize("keeps", [False, True])
def test_weights_that_may_change(tiered, stalled, keeps):
    """vLLM clears its caches where they do, and does not wait for a store; then the tier rests until the server is started again."""
    tiered().save()
    goes_on = stalled("get")
    server = tiered(reset_keeps_weights=keeps)
    context = server.request()
    server.run(lambda: server.manager.lookup(KEYS[0], context) is LookupResult.HIT_PENDING)
    server.step()
    assert server.manager._jobs
    server.manager.reset_cache()
    assert not server.manager._jobs
    getattr(server.manager, "on_reset_flushed", lambda: None)()
    goes_on.set()
    server.manager.on_request_finished(context)
    assert server.find() == (KEYS if keeps else [])
    assert server.failures.get("name", 0) == (0 if keeps else 1)


def test_calls_of_the_engine_that_change_weights(tiered):
    tiered().save()
    server = tiered()
    engine = SimpleNamespace(model_executor=SimpleNamespace(collective_rpc=lambda *all: []))
    core.EngineCore.collective_rpc(engine, "check_health")
    assert server.find(KEYS[:3]) == KEYS[:3]
    core.EngineCore.collective_rpc(engine, "update_weights")
    assert server.find(KEYS[3:]) == []


def test_without_a_name_nothing_is_kept(tiered, tmp_path):
    server = tiered(weights="")
    server.save()
    assert server.find(KEYS) == KEYS, "they are in vLLM's own memory"
    assert server.failures == {"name": 2} and not (tmp_path / "store").exists()


@pytest.mark.parametrize("given, told", [({}, False), ({"enable_kv_events": True}, True), ({"enable_kv_events": True, "locality": "REMOTE"}, True)])
def test_events(tiered, given, told):
    events = SimpleNamespace(enable_kv_cache_events=True)
    server = tiered(config=vllm_config(kv_events_config=events), **given)
    server.save()
    stored = [each for each in server.manager.take_events() if each.medium.value == "STORAGE"]
    assert [(each.keys, each.removed) for each in stored] == [(KEYS, False)] * told
    assert [each.locality and each.locality.value for each in stored] == [given.get("locality")] * told
    assert not [each for each in server.manager.take_events() if each.medium.value == "STORAGE"]


REFUSED = {
    "unknown": ({"stor": "file:///kv"}, {}, "secondary_tiers.stor is not a setting of TransloadTier: there are store, weights"),
    "no store": ({"store": ""}, {}, "secondary_tiers.store is '': give a URI"),
    "a number": ({"weights": 5}, {}, "secondary_tiers.weights is 5: give a text"),
    "seconds": ({"timeout_seconds": -1}, {}, "secondary_tiers.timeout_seconds is -1: give 0 to 86400 seconds"),
    "place": ({"locality": "HERE"}, {}, "secondary_tiers.locality is 'HERE': give LOCAL or REMOTE"),
    "events": ({"enable_kv_events": True}, {}, "enable_kv_events adds to vLLM's own events: start the server with --kv-events-config"),
    "adapters": ({"weights": ""}, {"lora_config": object()}, "--enable-lora: .* give secondary_tiers.weights"),
    "hash": ({}, {"cache_config__prefix_caching_hash_algo": "xxhash"}, "--prefix-caching-hash-algo xxhash has random hashes .* PYTHONHASHSEED"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_the_model_is_loaded(what):
    given, config, words = REFUSED[what]
    with pytest.raises(ConfigError, match=words):
        tiers.check_early(vllm_config(**config), TYPE | {"store": "file:///kv", "weights": "1"} | given)


def test_refused_without_the_plugin():
    with pytest.raises(ConfigError, match="plugin `transload`"):
        TieringOffloadingSpec(offloading(TYPE | {"store": "file:///kv", "_engine": {}})).get_manager()


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within MultiConnector"])
def test_vllm_hands_on_what_the_plugin_records(models, tmp_path, within):
    """Through vLLM's own configuration, and to another process, with the weights' name of the model's files."""
    _vllm_plugin.register()
    extra = {"cpu_bytes_to_use": 8192, "spec_name": "TieringOffloadingSpec", "secondary_tiers": [TYPE | {"store": f"file://{tmp_path}/kv"}]}
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    if within:
        nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        transfer = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": [nixl, transfer]}}
    from vllm.config import KVTransferConfig

    made = EngineArgs(model=str(models("llama")), dtype="float32", kv_transfer_config=KVTransferConfig(**transfer)).create_engine_config()
    made = pickle.loads(pickle.dumps(made))
    config = made.kv_transfer_config
    if within:
        config = KVTransferConfig(**config.kv_connector_extra_config["connectors"][1])
    assert tiers.FAILURES in TieringOffloadingSpec.build_metric_definitions(config.kv_connector_extra_config)
    [entry] = config.kv_connector_extra_config["secondary_tiers"]
    server = TieringOffloadingSpec(offloading(entry)).get_manager()
    [tier] = server.secondary_tiers
    while tier._named() is None:
        assert "being read" in tier._weights._files._why
        time.sleep(0.01)
    from transload.vllm.weights import weights_of

    assert tier._named() == weights_of(made.model_config)
    server.shutdown()
