"""The storage for SGLang's hierarchical cache, on host pools of a stand-in for it."""

import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import sglang_stand_in as sglang
from sglang_stand_in import HiCacheStorageConfig, HostPool, PoolHitPolicy, PoolName, PoolTransfer, Tensor

import transload

LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]
KEYS = [f"{number:064x}" for number in range(128)]


@pytest.fixture(scope="module")
def package():
    with sglang.installed() as package:
        yield package


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def attach(package, folder):
    """Makes a storage of a pool, as SGLang's factory and controller do."""

    def attach(pool, *, uri=f"file://{folder}", namespace=None, zero_copy=True, **config):
        settings = {"backend_name": "transload", "module_path": "transload.sglang", "class_name": "Storage", "uri": uri}
        settings |= {"interface_v1": 1} if zero_copy else {}
        settings |= {"namespace": namespace} if namespace else {}
        config = HiCacheStorageConfig(is_mla_model=not hasattr(pool, "head_num"), extra_config=settings, **config)
        storage = package.Storage(config, {})
        storage.register_mem_pool_host(pool)
        return storage

    return attach


def save(storage, keys, numbers=None):
    """Saves pages, those numbered like the keys unless told otherwise."""
    numbers = range(len(keys)) if numbers is None else numbers
    return storage.batch_set_v1(keys, storage.mem_pool_host.indices(numbers))


def load(storage, keys, numbers=None):
    numbers = range(len(keys)) if numbers is None else numbers
    return storage.batch_get_v1(keys, storage.mem_pool_host.indices(numbers))


def same(one, other, pages):
    return all(numpy.array_equal(one.page(a), other.page(b)) for a, b in pages)


# --- what computes ---


@pytest.fixture
def served(package, monkeypatch, tmp_path):
    """Has this process be a server of a model that has lain there for long."""
    from transload import _computes as computes

    monkeypatch.setattr(computes, "_process_began", lambda: time.time() + 60)
    folders = {}
    for name in "model", "draft", "adapter":
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "model.safetensors").write_bytes(name.encode())
        (folders[name] / "config.json").write_text('{"a": 1}')
    (folders["adapter"] / "adapter_config.json").write_text("{}")
    monkeypatch.setattr(sglang.Server, "kv_cache_dtype", "auto")
    monkeypatch.setattr(sglang.Server, "model_path", str(folders["model"]))
    monkeypatch.setattr(sglang.Server, "speculative_draft_model_path", str(folders["draft"]))
    monkeypatch.setattr(sglang.Server, "lora_paths", [SimpleNamespace(lora_name="a", lora_path=str(folders["adapter"]))])
    return folders


def named(storage):
    """Once it is known what computes."""
    if thread := getattr(storage._objects, "_thread", None):
        thread.join(20)
    return storage


OTHERS = {
    "weights": lambda on, folders: (folders["model"] / "model.safetensors").write_bytes(b"other"),
    "the config": lambda on, folders: (folders["model"] / "config.json").write_text('{"a": 2}'),
    "another draft": lambda on, folders: (folders["draft"] / "model.safetensors").write_bytes(b"other"),
    "no draft": lambda on, folders: on.setattr(sglang.Server, "speculative_draft_model_path", None),
    "an adapter": lambda on, folders: (folders["adapter"] / "model.safetensors").write_bytes(b"other"),
    "an adapter's config": lambda on, folders: (folders["adapter"] / "adapter_config.json").write_text('{"r": 8}'),
    "no adapter": lambda on, folders: on.setattr(sglang.Server, "lora_paths", None),
    "quantization": lambda on, folders: on.setattr(sglang.Server, "quantization", "fp8"),
    "overrides": lambda on, folders: on.setattr(sglang.Server, "json_model_override_args", '{"rope_theta": 1}'),
    "a commit": lambda on, folders: (on.setattr(sglang.Server, "model_path", "org/model"), on.setattr(sglang.Server, "revision", "c" * 40)),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_pages_of_what_computes_otherwise_are_not_found(attach, served, monkeypatch, what):
    ranks = [named(attach(HostPool("page_first"), tp_rank=rank, tp_size=2)) for rank in range(2)]
    assert all(save(each, KEYS[:4]) == [True] * 4 for each in ranks)
    copy = served["model"].with_name("copy")
    shutil.copytree(served["model"], copy)
    monkeypatch.setattr(sglang.Server, "model_path", str(copy))
    assert all(named(attach(HostPool("page_first"), tp_rank=rank, tp_size=2)).batch_exists(KEYS[:4]) == 4 for rank in range(2))
    path = str(served["adapter"])
    for form in [f"a={path}"], {"a": path}, [{"lora_name": "a", "lora_path": path}]:
        monkeypatch.setattr(sglang.Server, "lora_paths", form)
        assert named(attach(HostPool("page_first"), tp_size=2)).batch_exists(KEYS[:4]) == 4, form
    OTHERS[what](monkeypatch, {**served, "model": copy})
    other = named(attach(HostPool("page_first"), tp_size=2))
    assert other.batch_exists(KEYS[:4]) == 0
    assert save(other, KEYS[:1]) == [True] and other.batch_exists(KEYS[:4]) == 1
    # Who names it is not asked.
    assert attach(HostPool("page_first"), namespace="mine", tp_size=2).batch_exists(KEYS[:4]) == 0


@pytest.mark.parametrize(
    "given", [{"model_path": "org/model"}, {"load_format": "dummy"}, {"kv_cache_dtype": None}, {"lora_paths": {"a": "org/b"}}, None]
)
def test_what_cannot_be_seen_is_told(attach, served, monkeypatch, caplog, given):
    if given is None:
        # An SGLang that has its settings elsewhere.
        monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", None)
    for name, value in (given or {}).items():
        monkeypatch.setattr(sglang.Server, name, value)
    storage = attach(HostPool("page_first"))
    assert save(storage, KEYS[:1]) == [True]
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "what computes cannot be seen here" in line and "give a namespace that is another for each" in line
    assert attach(HostPool("page_first"), namespace="default").batch_exists(KEYS[:1]) == 1


def test_weights_that_changed_since_the_process_began_have_no_name(attach, served, monkeypatch, caplog):
    """It may have loaded what was there before."""
    monkeypatch.undo()
    monkeypatch.setattr(sglang.Server, "kv_cache_dtype", "auto")
    monkeypatch.setattr(sglang.Server, "model_path", str(served["model"]))
    storage = named(attach(HostPool("page_first")))
    assert save(storage, KEYS[:1]) == [False] and storage.batch_exists(KEYS[:1]) == 0 and not storage.clear()
    assert "was changed since this process began" in caplog.text


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (None, "needs the setting uri"),
        ({"uri": ""}, "needs the setting uri"),
        ({"uri": 7}, "needs the setting uri"),
        ({"uri": "file:///kv", "namspace": "a", "cap": 1}, "does not know the setting cap, namspace"),
        ({"uri": "file:///kv", "namespace": ""}, "namespace"),
        ({"uri": "file:///kv", "namespace": 1}, "namespace"),
    ],
)
def test_settings_are_checked_by_name(package, settings, why):
    with pytest.raises(ValueError, match=why):
        package.Storage(HiCacheStorageConfig(extra_config=settings), {})


@pytest.mark.parametrize(
    ("pool", "config", "error", "why"),
    [
        (HostPool, {"model_name": None}, ValueError, "--served-model-name"),
        (HostPool, {"model_name": ""}, ValueError, "--served-model-name"),
        (HostPool, {"uri": "redis://:secret@127.0.0.1:1/0"}, transload.StoreError, "password"),
        (sglang.PoolWithoutPages, {}, ValueError, "pages of kv in layout page_head cannot be stored: scales lie elsewhere"),
        (HostPool, {"tp_lcm_size": 8, "should_split_heads": True}, ValueError,
         "tp_lcm_size 8 asks for 8 head groups of kv on each of 1 ranks, which have 4 heads"),
    ],
)  # fmt: skip
def test_what_cannot_be_attached_is_refused(attach, pool, config, error, why):
    with pytest.raises(error, match=why) as failed:
        attach(pool("page_head"), **config)
    assert "secret" not in str(failed.value)


# --- pages in and out ---


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mla", [False, True])
def test_pages_come_back_in_every_layout(attach, layout, mla):
    if mla and layout == "page_head":
        layout = "page_first"
    saver, reader = HostPool(layout, mla=mla).fill(1), HostPool(layout, mla=mla).fill(2)
    before = reader.kv_buffer.copy()
    assert save(attach(saver), KEYS, range(3, 131)) == [True] * 128
    storage = attach(reader)
    assert storage.batch_exists(KEYS) == 128
    assert load(storage, KEYS[:5], [9, 7, 5, 3, 1]) == [True] * 5
    assert same(saver, reader, [(3, 9), (4, 7), (5, 5), (6, 3), (7, 1)])
    # And nothing else was written.
    for number in {*range(160)} - {9, 7, 5, 3, 1}:
        assert numpy.array_equal(reader.raw(number), before[:, :, number] if reader.inner else before[:, number])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_pages_come_back_as_tensors(attach, layout):
    saver, reader = HostPool(layout).fill(1), HostPool(layout).fill(2)
    storage = attach(saver, zero_copy=False)
    assert storage.batch_set(KEYS[:3], [saver.get_data_page(4 * number) for number in range(3)])
    assert storage.set(KEYS[3], saver.get_data_page(12))
    storage = attach(reader, zero_copy=False)
    assert storage.batch_exists(KEYS) == 4
    assert storage.exists(KEYS[3]) and not storage.exists(KEYS[4])
    room = [reader.get_dummy_flat_data_page() for _ in range(3)]
    assert storage.batch_get([KEYS[0], KEYS[9], KEYS[3]], room) == [room[0], None, room[2]]
    assert numpy.array_equal(room[2].array, saver.get_data_page(12).array)
    assert storage.get(KEYS[1], room[1]) is room[1]
    # SGLang has one way only; the calls of the other one find the same pages.
    assert load(storage, KEYS[:4]) == [True] * 4
    assert same(saver, reader, [(number, number) for number in range(4)])


def test_no_whole_page_is_taken_for_one_in_parts(attach):
    pool = HostPool("layer_first").fill(1)
    assert attach(pool, zero_copy=False).set(KEYS[0], pool.get_data_page(0))
    storage = attach(pool)
    assert storage.batch_exists(KEYS[:1]) == 0
    assert storage.exists(KEYS[0])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_batch_is_one_call_and_one_publish(attach, folder, monkeypatch, groups):
    pool = HostPool("page_head").fill(1)
    storage = attach(pool, tp_lcm_size=groups, should_split_heads=groups > 1)
    calls = []

    class Counted:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(objects, name)

    objects = storage._objects
    monkeypatch.setattr(storage, "_objects", Counted())
    assert all(save(storage, KEYS)) and storage.batch_exists(KEYS) == 128 and all(load(storage, KEYS))
    assert calls == ["put", "has", "get"]
    assert len(objects.list()) == 128 * groups
    # Each publish writes what is new into a pack of its own.
    assert len([path for path in folder.glob("packs/*/*") if path.is_file()]) == 1


def test_a_prefix_ends_at_the_first_page_that_is_not_there(attach):
    storage = attach(HostPool("page_first").fill(1))
    assert storage.batch_exists([]) == 0
    assert save(storage, []) == [] and load(storage, []) == []
    save(storage, [KEYS[0], KEYS[1], KEYS[3]])
    assert storage.batch_exists(KEYS[:4]) == 2
    assert storage.batch_exists(KEYS[2:]) == 0
    assert load(storage, KEYS[:4]) == [True, True, False, True]


# --- head groups and ranks ---


def ranks(attach, tp, fill=None, **more):
    """The storages of all ranks of a model of eight heads."""
    pools = [HostPool("page_head", heads=8 // tp) for _ in range(tp)]
    for rank, pool in enumerate(pools):
        if fill is not None:
            pool.page(0)[...] = fill[:, :, :, rank * 8 // tp : (rank + 1) * 8 // tp]
    split = more.get("tp_lcm_size", 1) > tp
    return [
        attach(pool, tp_rank=rank, tp_size=tp, should_split_heads=split, **more) for rank, pool in enumerate(pools)
    ]


@pytest.mark.parametrize("savers", [1, 2, 4])
@pytest.mark.parametrize("readers", [1, 2, 4])
def test_another_tp_reads_the_same_heads(attach, savers, readers):
    page = numpy.random.default_rng(1).integers(0, 1 << 16, (2, 3, 4, 8, 8), numpy.uint16)
    for storage in ranks(attach, savers, page, tp_lcm_size=4):
        assert save(storage, KEYS[:1]) == [True]
    found = ranks(attach, readers, tp_lcm_size=4)
    for storage in found:
        assert storage.batch_exists(KEYS[:1]) == 1
        assert load(storage, KEYS[:1]) == [True]
    assert numpy.array_equal(numpy.concatenate([each.mem_pool_host.page(0) for each in found], axis=3), page)


def test_a_page_that_lacks_a_head_group_is_not_there(attach):
    page = numpy.random.default_rng(1).integers(0, 1 << 16, (2, 3, 4, 8, 8), numpy.uint16)
    # The last rank has died before it saved.
    for storage in ranks(attach, 4, page, tp_lcm_size=4)[:3]:
        save(storage, KEYS[:1])
    first, last = ranks(attach, 2, tp_lcm_size=4)
    assert (first.batch_exists(KEYS[:1]), load(first, KEYS[:1])) == (1, [True])
    assert (last.batch_exists(KEYS[:1]), load(last, KEYS[:1])) == (0, [False])


def test_another_tp_without_a_common_multiple_is_a_miss(attach):
    page = numpy.zeros((2, 3, 4, 8, 8), numpy.uint16)
    for storage in ranks(attach, 2, page):
        save(storage, KEYS[:1])
    assert [each.batch_exists(KEYS[:1]) for each in ranks(attach, 4)] == [0] * 4
    assert [each.batch_exists(KEYS[:1]) for each in ranks(attach, 2)] == [1] * 2


def test_mla_ranks_share_what_is_alike_and_nothing_else(attach):
    def rank(number):
        storage = attach(HostPool("page_first", mla=True).fill(number), tp_rank=number, tp_size=4)
        for name, heads in (PoolName.INDEXER, 0), (PoolName.DRAFT, 2), (PoolName.MAMBA, 0):
            pool = HostPool("page_first", mla=not heads, heads=heads).fill(10 + number)
            storage.register_mem_host_pool_v2(pool, name)
        return storage

    def transfers(storage):
        names = PoolName.INDEXER, PoolName.DRAFT, PoolName.MAMBA
        return [PoolTransfer(name, storage.registered_pools[name].indices([0]), KEYS[:1]) for name in names]

    first, last = rank(0), rank(3)
    assert save(first, KEYS[:1]) == [True]
    assert first.batch_set_v2(transfers(first)) == {"indexer": [True], "draft": [True], "mamba": [True]}
    assert load(last, KEYS[:1]) == [True]
    assert last.batch_get_v2(transfers(last)) == {"indexer": [True], "draft": [False], "mamba": [False]}
    assert same(first.mem_pool_host, last.mem_pool_host, [(0, 0)])


@pytest.mark.parametrize(
    ("pool", "config"),
    [
        *(({}, each) for each in ({"tp_rank": 1}, {"tp_size": 4}, {"pp_rank": 1, "pp_size": 2}, {"attn_cp_rank": 1, "attn_cp_size": 2})),
        *(({}, each) for each in ({"model_name": "org/other"}, {"model_name": "org-SEP-model"}, {"namespace": "others"})),
        *(({"layout": each}, {}) for each in ("page_first_direct", "layer_first")),
        *((each, {}) for each in ({"dtype": sglang.float16}, {"page": 8, "content": 4}, {"start_layer": 3}, {"layers": 4}, {"heads": 8})),
    ],
    ids=str,
)
def test_whatever_decides_what_bytes_mean_is_in_the_key(attach, pool, config):
    save(attach(HostPool("page_first").fill(1), tp_size=2), KEYS[:1])
    assert attach(HostPool("page_first"), tp_size=2).batch_exists(KEYS[:1]) == 1
    other = attach(HostPool(**{"layout": "page_first", **pool}), **{"tp_size": 2, **config})
    assert other.batch_exists(KEYS[:1]) == 0
    assert load(other, KEYS[:1]) == [False]


def test_kinds_of_fp8_that_are_kept_as_bytes_are_told_apart(attach, monkeypatch):
    monkeypatch.setattr(sglang.Server, "kv_cache_dtype", "fp8_e4m3")
    save(attach(HostPool("page_first", dtype=sglang.uint8)), KEYS[:1])
    assert attach(HostPool("page_first", dtype=sglang.uint8)).batch_exists(KEYS[:1]) == 1
    for other in "fp8_e5m2", None:
        monkeypatch.setattr(sglang.Server, "kv_cache_dtype", other)
        assert attach(HostPool("page_first", dtype=sglang.uint8)).batch_exists(KEYS[:1]) == 0
    # A version of SGLang that has its settings elsewhere.
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", None)
    with pytest.raises(ValueError, match="no settings that say which .*: start the server with --kv-cache-dtype auto"):
        attach(HostPool("page_first", dtype=sglang.uint8), namespace="mine")


@pytest.mark.parametrize(
    "names",
    [(("a", "b/c"), ("a/b", "c")), (("n", "a/b"), ("n", "a-SEP-b")), (("a", 'b","c'), ('a","b', "c"))],
)
def test_names_of_models_and_namespaces_never_meet(attach, names):
    (one, first), (two, second) = names
    save(attach(HostPool("page_first"), namespace=one, model_name=first), KEYS[:1])
    assert attach(HostPool("page_first"), namespace=two, model_name=second).batch_exists(KEYS[:1]) == 0


# --- several pools ---


@pytest.fixture
def hybrid(attach):
    storage = attach(HostPool("page_first").fill(1))
    for name in PoolName.INDEXER, PoolName.SWA, PoolName.DRAFT:
        # A window is numbered by itself, often page by page of one state.
        storage.register_mem_host_pool_v2(HostPool("page_first", page=1).fill(2), name)
    return storage


def put(storage, name, numbers):
    pool = storage.registered_pools[name]
    return storage.batch_set_v2([PoolTransfer(name, pool.indices(numbers), [KEYS[number] for number in numbers])])


def test_all_pages_of_a_pool_have_to_be_there(hybrid):
    save(hybrid, KEYS[:6])
    asked = [PoolTransfer(PoolName.INDEXER)]
    result = hybrid.batch_exists_v2(KEYS[:8], asked)
    assert (result.kv_hit_pages, result.extra_pool_hit_pages, result.restorable_prefix_pages) == (0, {"kv": 6}, [])
    assert put(hybrid, PoolName.INDEXER, [0, 1, 2, 4, 5]) == {"indexer": [True] * 5}
    result = hybrid.batch_exists_v2(KEYS[:8], asked)
    assert (result.kv_hit_pages, result.extra_pool_hit_pages) == (3, {"kv": 6, "indexer": 3})
    assert result.restorable_prefix_pages == [1, 2, 3]


def test_the_last_pages_of_a_window_have_to_be_there(hybrid):
    save(hybrid, KEYS[:8])
    put(hybrid, PoolName.SWA, [0, 2, 3, 6])
    asked = [PoolTransfer(PoolName.SWA, keys=KEYS[6:8], hit_policy=PoolHitPolicy.TRAILING_PAGES)]
    result = hybrid.batch_exists_v2(KEYS[:8], asked)
    # A window that begins before the sequence does is shorter.
    assert (result.kv_hit_pages, result.restorable_prefix_pages) == (4, [1, 4])
    assert result.extra_pool_hit_pages == {"kv": 8, "swa": 4}
    put(hybrid, PoolName.INDEXER, [0, 1])
    result = hybrid.batch_exists_v2(KEYS[:8], [*asked, PoolTransfer(PoolName.INDEXER)])
    assert (result.kv_hit_pages, result.restorable_prefix_pages) == (1, [1])


@pytest.mark.parametrize(("block", "group", "reach"), [(2, 1, 4), (4, 2, 4), (2, 2, None), (0, 0, None), (2, 3, None)])
def test_groups_at_the_ends_of_blocks_bound_nobody_else(hybrid, block, group, reach):
    save(hybrid, KEYS[:8])
    put(hybrid, PoolName.DRAFT, [1, 2, 3, 7])
    asked = PoolTransfer(PoolName.DRAFT, hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=block, group_pages=group)
    result = hybrid.batch_exists_v2(KEYS[:8], [asked])
    assert (result.kv_hit_pages, result.restorable_prefix_pages) == (8, list(range(1, 9)))
    assert result.extra_pool_hit_pages.get("draft") == reach


def test_several_pools_are_read_at_once(hybrid):
    save(hybrid, KEYS[:2])
    for name in PoolName.INDEXER, PoolName.SWA:
        put(hybrid, name, [0, 1])
    pools = hybrid.registered_pools
    want = [pools[PoolName.INDEXER].page(0).copy(), pools[PoolName.SWA].page(1).copy()]
    transfers = [
        PoolTransfer(PoolName.INDEXER, pools[PoolName.INDEXER].indices([7]), KEYS[:1]),
        PoolTransfer(PoolName.SWA, pools[PoolName.SWA].indices([8, 9]), [KEYS[5], KEYS[1]]),
    ]
    assert hybrid.batch_get_v2(transfers) == {"indexer": [True], "swa": [False, True]}
    assert numpy.array_equal(pools[PoolName.INDEXER].page(7), want[0])
    assert numpy.array_equal(pools[PoolName.SWA].page(9), want[1])
    assert hybrid.batch_get_v2([]) == {}


def test_a_pool_that_tells_no_addresses_is_copied(attach):
    saver, reader = (sglang.PoolWithoutAddresses("layer_first", mla=True).fill(seed) for seed in (1, 2))
    storage = attach(HostPool("layer_first", mla=True))
    storage.register_mem_host_pool_v2(saver, PoolName.INDEXER)
    transfer = PoolTransfer(PoolName.INDEXER, saver.indices([0, 1]), KEYS[:2])
    assert storage.batch_set_v2([transfer]) == {"indexer": [True, True]}
    storage.register_mem_host_pool_v2(reader, PoolName.INDEXER)
    before = reader.page(5).copy()
    transfer = PoolTransfer(PoolName.INDEXER, reader.indices([4, 5]), [KEYS[1], KEYS[9]])
    assert storage.batch_get_v2([transfer]) == {"indexer": [True, False]}
    assert same(saver, reader, [(1, 4)])
    # What was not found has not touched the pool.
    assert numpy.array_equal(reader.page(5), before)


def test_a_copied_page_is_one_object_for_all_its_heads(attach):
    saver, reader = (sglang.PoolWithoutAddresses("page_head").fill(seed) for seed in (1, 2))
    split = dict(tp_lcm_size=4, should_split_heads=True)
    assert save(attach(saver, **split), KEYS[:2]) == [True, True]
    assert load(attach(reader, **split), KEYS[:2], [6, 7]) == [True, True]
    assert same(saver, reader, [(0, 6), (1, 7)])


@pytest.mark.parametrize("zero_copy", [True, False])
def test_a_pool_that_only_numbers_pages_leaves_it_to_others_what_is_there(attach, zero_copy):
    storage = attach(sglang.LogicalPool(), zero_copy=zero_copy, enable_storage_metrics=True)
    assert storage.batch_exists(KEYS) == 0
    assert save(storage, KEYS) == load(storage, KEYS) == [True] * 128
    pages = [storage.mem_pool_host.get_data_page(4 * number) for number in range(3)]
    assert storage.batch_set(KEYS[:3], pages) is True
    assert storage.batch_get(KEYS[:3], pages) == pages
    storage.register_mem_host_pool_v2(HostPool("page_first", mla=True), PoolName.INDEXER)
    put(storage, PoolName.INDEXER, [0, 1])
    assert storage.batch_exists_v2(KEYS, [PoolTransfer(PoolName.INDEXER)]).kv_hit_pages == 2
    stats = storage.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([2], [])


def test_a_rank_without_memory_takes_what_another_one_has_for_its_own(attach):
    pool = HostPool("page_first", mla=True)
    pool.kv_buffer = None
    storage = attach(pool, tp_rank=1, tp_size=2)
    assert storage.batch_exists(KEYS) == 128
    assert load(storage, KEYS) == [True] * 128


@pytest.mark.parametrize("other", [{"temporal": sglang.float16}, {"beside": sglang.float16}], ids=str)
def test_a_state_of_other_types_is_a_miss(attach, other):
    storage = attach(HostPool("page_first"))
    for types, found in ({}, True), (other, False):
        pool = sglang.StatePool(**types).fill(1)
        storage.register_mem_host_pool_v2(pool, PoolName.MAMBA)
        if not types:
            assert put(storage, PoolName.MAMBA, [0]) == {"mamba": [True]}
        transfer = PoolTransfer(PoolName.MAMBA, pool.indices([5]), KEYS[:1])
        assert storage.batch_get_v2([transfer]) == {"mamba": [found]}
        assert numpy.array_equal(pool.page(5), pool.page(0)) is found


# --- what goes wrong ---


def said(caplog):
    return [record.message for record in caplog.records if record.name == "transload.sglang.storage"]


def test_a_store_that_is_gone_is_a_miss_and_told_once(attach, folder, caplog):
    pool = HostPool("page_first").fill(1)
    storage = attach(pool)
    save(storage, KEYS[:4])
    # The storage keeps the folder open, so what is in it goes.
    parts = [part for part in folder.iterdir() if part.is_dir()]
    for part in parts:
        part.rename(folder.with_name(part.name)) and part.write_bytes(b"")
    for _ in range(3):
        assert storage.batch_exists(KEYS[:4]) == 0
        assert storage.batch_exists_v2(KEYS[:4], []).kv_hit_pages == 0
        assert load(storage, KEYS[:4]) == [False] * 4
        assert save(storage, KEYS[4:8]) == [False] * 4
        assert storage.get(KEYS[0], pool.get_dummy_flat_data_page()) is None
        assert storage.set(KEYS[0], pool.get_data_page(0)) is False
        assert storage.exists(KEYS[0]) is False
        assert storage.clear() is False
    told = [message.split(",")[0] for message in said(caplog)]
    assert sorted(told) == ["cannot clear pages", "cannot look up pages", "cannot read pages", "cannot write pages"]
    for part in parts:
        part.unlink()
        folder.with_name(part.name).rename(part)
    caplog.clear()
    assert save(storage, KEYS[4:8]) == [True] * 4
    assert load(storage, KEYS[:8]) == [True] * 8
    assert storage.batch_exists(KEYS) == 8
    assert sorted(said(caplog)) == ["can look up pages again", "can read pages again", "can write pages again"]


def test_a_full_store_keeps_nothing(attach, monkeypatch, caplog):
    monkeypatch.setenv("TRANSLOAD_FILE_CAP", "1KiB")
    storage = attach(HostPool("page_first").fill(1))
    assert save(storage, KEYS[:4]) == [False] * 4
    assert "full" in said(caplog)[0]
    assert storage.batch_exists(KEYS[:4]) == 0


@pytest.mark.parametrize("count", [0, 3, 5, 8])
def test_a_wrong_number_of_indices_moves_nothing(attach, count, caplog):
    storage = attach(HostPool("page_first").fill(1))
    assert storage.batch_set_v1(KEYS[:1], sglang.arange(count)) == [False]
    assert storage.batch_get_v1(KEYS[:1], sglang.arange(count)) == [False]
    assert f"{count} indices for 1 pages of 4 in kv" in said(caplog)[0]


@pytest.mark.parametrize("action", ["set", "get"])
def test_a_request_that_makes_no_sense_fails_alone(hybrid, action, caplog):
    pools = hybrid.registered_pools
    put(hybrid, PoolName.INDEXER, [0, 1])
    transfers = [
        PoolTransfer(PoolName.MAMBA, sglang.arange(2), KEYS[:2]),
        PoolTransfer(PoolName.SWA, pools[PoolName.SWA].indices([0, 1, 2]), KEYS[:2]),
        PoolTransfer(PoolName.INDEXER, pools[PoolName.INDEXER].indices([0, 1]), KEYS[:2]),
        PoolTransfer(PoolName.DRAFT, None, []),
    ]
    move = {"set": hybrid.batch_set_v2, "get": hybrid.batch_get_v2}[action]
    for _ in range(2):
        done = {"mamba": [False] * 2, "swa": [False] * 2, "indexer": [True] * 2, "draft": []}
        assert move(transfers) == done
    verb = {"set": "write", "get": "read"}[action]
    assert said(caplog) == [
        f"cannot {verb} pages of mamba, which counts as a miss: SGLang has registered no pool of the name mamba",
        f"cannot {verb} pages of swa, which counts as a miss: 3 indices for 2 pages of 1 in swa",
    ]
    assert move([PoolTransfer(PoolName.INDEXER, None, KEYS[:1])]) == {"indexer": [False]}
    save(hybrid, KEYS[:2])
    asked = [PoolTransfer(PoolName.MAMBA, hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=1, group_pages=1)]
    assert hybrid.batch_exists_v2(KEYS[:2], [*asked, PoolTransfer(PoolName.INDEXER)]).kv_hit_pages == 2


def test_calls_that_make_no_sense_are_misses(attach):
    pool = HostPool("page_first").fill(1)
    storage = attach(pool)
    assert storage.batch_get_v2([PoolTransfer(PoolName.SWA, pool.indices([0]), KEYS[:1])]) == {"swa": [False]}
    assert storage.batch_set_v2([PoolTransfer(PoolName.SWA, None, KEYS[:1])]) == {"swa": [False]}
    assert storage.batch_exists_v2(KEYS[:1], [PoolTransfer(PoolName.SWA)]).kv_hit_pages == 0
    assert storage.get(KEYS[0]) is None and storage.set(KEYS[0]) is False
    apart = Tensor(numpy.zeros((8, 8), numpy.uint16)[:, :4])
    assert storage.set(KEYS[0], pool.get_data_page(0)) and storage.get(KEYS[0], apart) is None
    assert storage.get(KEYS[0], Tensor(pool.get_data_page(0).array, "cuda")) is None
    # As a page of another length is.
    assert storage.get(KEYS[0], Tensor(numpy.zeros(7, numpy.uint16))) is None
    assert storage.get(KEYS[0], pool.get_dummy_flat_data_page()) is not None
    assert save(storage, ["k" * 5000]) == [False]
    assert storage.exists("") is False


def test_clear_removes_what_is_its_own(attach, folder):
    first, second = attach(HostPool("page_first")), attach(HostPool("page_head"), tp_size=4)
    model = attach(HostPool("page_first"), model_name="other")
    namespace = attach(HostPool("page_first"), namespace="other")
    for storage in first, second, model, namespace:
        save(storage, KEYS[:4])
    objects = transload.Objects(f"file://{folder}", "mine")
    objects.put(["a"], [b"b"])
    assert first.clear() is True
    assert [each.batch_exists(KEYS[:4]) for each in (first, second, model, namespace)] == [0, 0, 4, 4]
    assert len(objects.list()) == 1


def test_figures_are_those_of_transfers_since_they_were_asked_for(attach):
    pool = HostPool("page_first")
    storage = attach(pool, enable_storage_metrics=True)
    save(storage, KEYS[:4])
    # What is there already is not written, nor read what is not.
    save(storage, KEYS[:4])
    load(storage, KEYS[10:12])
    load(storage, [*KEYS[:3], KEYS[10]])
    load(storage, KEYS[:2])
    stats = storage.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([4], [3, 2])
    assert [len(stats.backup_bandwidth), len(stats.prefetch_bandwidth)] == [1, 2]
    assert all(speed > 0 for speed in stats.backup_bandwidth + stats.prefetch_bandwidth)
    assert storage.get_stats() == sglang.StorageMetrics()
    storage.batch_set(KEYS[:2], [pool.get_data_page(0)] * 2)
    storage.batch_get(KEYS[1:3], [pool.get_dummy_flat_data_page() for _ in range(2)])
    stats = storage.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([2], [1])
    quiet = attach(pool)
    save(quiet, KEYS[:4])
    assert quiet.get_stats() == sglang.StorageMetrics()


def test_threads_may_call_it_at_once(attach):
    pool = HostPool("page_first").fill(1)
    storage = attach(pool)
    good = []

    def work(number):
        mine = [f"{number}-{key}" for key in KEYS[:8]]
        pages = range(8 * number, 8 * number + 8)
        for _ in range(4):
            saved, found = all(save(storage, mine, pages)), storage.batch_exists(mine) == 8
            good.append(saved and found and all(load(storage, mine, pages)))

    before = pool.kv_buffer.copy()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert good == [True] * 32
    assert numpy.array_equal(pool.kv_buffer, before)
