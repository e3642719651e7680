"""`transload.sglang.Storage` in SGLang's own factory, host pools and cache controller."""

import argparse
import dataclasses
import importlib
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

import pytest
import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_hash_str
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from transload.sglang import Storage

GUIDE = Path(__file__).parents[2] / "docs/src/guide/sglang.md"
PAGE, LAYERS, HEADS, TOKENS = 16, 3, 8, 8192
LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]
KINDS = [(layout, mla) for layout in LAYOUTS for mla in (False, True) if not (mla and layout == "page_head")]
LIMIT = 60
"""Seconds after which what a thread of SGLang's should have done is not going to happen."""


def device_pool(mla=False, heads=HEADS, dtype=torch.bfloat16, layers=LAYERS, start=0, page=PAGE):
    shape = dict(size=64, page_size=page, dtype=dtype, layer_num=layers, device="cpu", enable_memory_saver=False)
    shape |= dict(start_layer=start, end_layer=start + layers)
    if mla:
        return MLATokenToKVPool(kv_lora_rank=24, qk_rope_head_dim=8, **shape)
    return MHATokenToKVPool(head_num=heads, head_dim=8, **shape)


def host_pool(device, layout, page=PAGE):
    info = device.get_device_pool_infos()[0].buffer_info
    mla = isinstance(device, MLATokenToKVPool)
    more = dict(target_layer_num=device.layer_num) if mla else {}
    return (MLATokenToKVPoolHost if mla else MHATokenToKVPoolHost)(
        info,
        1.0,
        0,
        page,
        layout,
        pin_memory=False,
        device_capacity_tokens=64,
        host_token_capacity=TOKENS,
        start_layer=device.start_layer,
        end_layer=device.end_layer,
        **more,
    )


@pytest.fixture(scope="module", autouse=True)
def server():
    """The settings of a server, which SGLang's parts look up wherever they are."""
    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", device="cpu"))
    try:
        # Its page hashes are compiled at their first use, with the ninja of whichever environment has it.
        import ninja

        os.environ["PATH"] = f"{Path(ninja.__file__).parents[4] / 'bin'}:{os.environ['PATH']}"
        get_hash_str(list(range(PAGE)), page_size=PAGE)
    except (ImportError, RuntimeError) as error:
        why = f"NOT RUN: SGLang's page hashes cannot be compiled here: {error.__cause__ or error}"
        print(why, file=sys.stderr)
        pytest.skip(why)


@pytest.fixture
def engine(store):
    """Starts SGLang's cache controller for one rank, with our storage attached as the command line does it."""
    started = []

    def start(
        layout="page_first", *, rank=0, tp=1, model="org/model", page=PAGE, zero_copy=True, settings=None, uri=store, **pool
    ):
        device = device_pool(page=page, **pool)
        host = host_pool(device, layout, page)
        extra = dict(backend_name="transload", module_path="transload.sglang", class_name="Storage", uri=uri)
        extra |= dict(interface_v1=int(zero_copy), **settings or {})
        allocator = TokenToKVPoolAllocator(64, device.dtype, "cpu", device, False)
        ranks = dict(tp_rank=rank, attn_tp_rank=rank, tp_size=tp, attn_tp_size=tp, moe_tp_size=tp, pp_rank=0, pp_size=1)
        with get_parallel().override(**ranks):
            controller = HiCacheController(
                allocator,
                host,
                page,
                None,
                None,
                io_backend="direct",
                storage_backend="dynamic",
                prefetch_threshold=page,
                model_name=model,
                storage_backend_extra_config=extra,
                enable_storage_metrics=True,
            )
        started.append(controller)
        return controller

    yield start
    for controller in started:
        controller.detach_storage_backend()


def fill(controller, seed):
    """Fills a host pool with random numbers."""
    buffer = controller.mem_pool_host.kv_buffer
    generator = torch.Generator().manual_seed(seed)
    buffer.copy_(torch.randint(-999, 999, buffer.shape, generator=generator))


def tokens(controller):
    """A view of the host pool in SGLang's own order of a page's axes: [planes, layers, tokens, heads, content]."""
    host, buffer = controller.mem_pool_host, controller.mem_pool_host.kv_buffer
    if isinstance(host, MLATokenToKVPoolHost):
        buffer = buffer[None]
    if host.layout == "layer_first":
        return buffer
    if host.layout == "page_first":
        return buffer.transpose(1, 2)
    if host.layout == "page_first_direct":
        return buffer.permute(0, 2, 1, 3, 4, 5).flatten(2, 3)
    # [planes, pages, heads, tokens, layers, content]
    return buffer.permute(0, 4, 1, 3, 2, 5).flatten(2, 3)


def wait(queue):
    return queue.get(timeout=LIMIT)


def backup(controller, prompt):
    """Writes a prompt's pages to the store, as the radix cache asks; returns where they were and the tokens written."""
    where = controller.mem_pool_host.alloc(len(prompt))
    hashes = controller.get_hash_str(prompt, page_size=controller.page_size)
    controller.write_storage(where, prompt, hash_value=hashes)
    return where, wait(controller.ack_backup_queue).completed_tokens


def prefetch(controller, prompt):
    """Reads them back, as for a request that waits; returns how many tokens were found, where they are, and how many came."""
    controller.prefetch("request", prompt)
    found = wait(controller.prefetch_hit_queue)
    found.host_indices = controller.mem_pool_host.alloc(found.storage_hit_count)
    controller.prefetch_buffer.put(found)
    came = 0
    while not (ack := wait(controller.ack_prefetch_queue)).completed_req:
        came = ack.completed_tokens
    return found.storage_hit_count, found.host_indices, came


PROMPT = list(range(1000, 1000 + 150 * PAGE))


@pytest.mark.parametrize("zero_copy", [True, False])
@pytest.mark.parametrize(("layout", "mla"), KINDS)
def test_a_prompt_comes_back_after_a_restart(engine, layout, mla, zero_copy):
    saver = engine(layout, mla=mla, zero_copy=zero_copy)
    fill(saver, 1)
    # 150 pages are two batches of SGLang's.
    where, written = backup(saver, PROMPT)
    assert written == len(PROMPT)
    reader = engine(layout, mla=mla, zero_copy=zero_copy)
    fill(reader, 2)
    # Their places differ.
    reader.mem_pool_host.alloc(3 * PAGE)
    longer = PROMPT + list(range(5 * PAGE))
    found, there, came = prefetch(reader, longer)
    assert (found, came) == (len(PROMPT), len(PROMPT))
    assert torch.equal(tokens(saver)[:, :, where], tokens(reader)[:, :, there])
    assert prefetch(reader, [7] * 4 * PAGE)[0] == 0
    stats = reader.storage_backend.get_stats()
    assert (sum(stats.prefetch_pgs), stats.backup_pgs) == (150, [])


@pytest.mark.smallest
@pytest.mark.parametrize(("savers", "readers"), [(2, 4), (4, 2), (1, 4), (4, 4)])
def test_another_tp_reads_the_heads_of_all_ranks(engine, savers, readers):
    prompt, settings = PROMPT[: 20 * PAGE], {"tp_lcm_size": 4}
    whole = torch.randn(2, LAYERS, len(prompt), HEADS, 8).to(torch.bfloat16)
    for rank in range(savers):
        controller = engine("page_head", rank=rank, tp=savers, heads=HEADS // savers, settings=dict(settings))
        # The first pages of a new pool.
        mine = whole[..., rank * HEADS // savers : (rank + 1) * HEADS // savers, :]
        rows = mine.unflatten(2, (-1, PAGE)).permute(0, 2, 4, 3, 1, 5)
        controller.mem_pool_host.kv_buffer[:, : rows.shape[1]] = rows
        where, written = backup(controller, prompt)
        assert where.tolist() == list(range(len(prompt))) and written == len(prompt)
    got = []
    for rank in range(readers):
        controller = engine("page_head", rank=rank, tp=readers, heads=HEADS // readers, settings=dict(settings))
        found, there, came = prefetch(controller, prompt)
        assert (found, came) == (len(prompt), len(prompt))
        got.append(tokens(controller)[:, :, there])
    assert torch.equal(torch.cat(got, dim=3), whole)


@pytest.mark.smallest
def test_one_rank_writes_an_mla_cache_for_all(engine):
    prompt = PROMPT[: 8 * PAGE]
    last = engine(mla=True, rank=3, tp=4)
    fill(last, 3)
    assert backup(last, prompt)[1] == 0
    assert prefetch(last, prompt)[0] == 0
    first = engine(mla=True, rank=0, tp=4)
    fill(first, 1)
    where, written = backup(first, prompt)
    assert written == len(prompt)
    found, there, came = prefetch(last, prompt)
    assert (found, came) == (len(prompt), len(prompt))
    assert torch.equal(tokens(first)[:, :, where], tokens(last)[:, :, there])


# Of what SGLang's own pools say of themselves; the rest is tested without SGLang.
@pytest.mark.parametrize(
    "other", [dict(rank=1), dict(layout="layer_first"), dict(dtype=torch.float16), dict(layers=2), dict(start=3)], ids=str
)
def test_what_changed_between_two_runs_is_a_miss(engine, other):
    prompt = PROMPT[: 4 * PAGE]
    backup(engine(tp=2), prompt)
    assert prefetch(engine(tp=2), prompt)[2] == len(prompt)
    changed = engine(**{"tp": 2, **other})
    assert prefetch(changed, prompt)[0] == 0
    # And it keeps pages of its own.
    backup(changed, prompt)
    assert prefetch(changed, prompt)[2] == prefetch(engine(tp=2), prompt)[2] == len(prompt)


def test_salts_keep_prompts_apart(engine):
    """SGLang begins the chain of hashes with the salt, and with what it calls an extra key."""
    from array import array

    from sglang.srt.mem_cache.radix_cache import RadixKey

    controller = engine()
    backup(controller, PROMPT[: 4 * PAGE])
    for key, hit in (None, 4 * PAGE), ("salt", 0):
        prompt = RadixKey(array("q", PROMPT[: 4 * PAGE]), extra_key=key)
        assert prefetch(controller, prompt)[0] == hit


def test_the_namespace_is_made_of_what_the_server_computes_with(store, tmp_path, monkeypatch):
    from transload import _computes as computes

    # The model lies there for long.
    monkeypatch.setattr(computes, "_process_began", lambda: time.time() + 60)
    folders = [tmp_path / name for name in ("model", "adapter")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
        (folder / "model.safetensors").write_bytes(b"a")
    pool = host_pool(device_pool(), "page_first")

    def serve(content, **arguments):
        (folders[0] / "model.safetensors").write_bytes(content)
        set_global_server_args_for_scheduler(ServerArgs(model_path=str(folders[0]), device="cpu", **arguments))
        storage = Storage(config({"uri": store, "interface_v1": 1}))
        storage._objects._thread.join(60)
        storage.register_mem_pool_host(pool)
        return storage

    try:
        first = serve(b"a")
        assert first.batch_set_v1(["page"], torch.arange(PAGE)) == [True]
        assert serve(b"a").batch_exists(["page"]) == 1
        others = serve(b"b"), serve(b"a", quantization="fp8"), serve(b"a", lora_paths=[f"name={folders[1]}"])
        assert [each.batch_exists(["page"]) for each in others] == [0, 0, 0]
    finally:
        set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", device="cpu"))


def test_settings_come_through_sglangs_command_line(store):
    """All keys that its parser leaves are ours or known."""
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

    text = (
        '{"backend_name": "transload", "module_path": "transload.sglang", "class_name": "Storage", "interface_v1": 1, '
        f'"uri": "{store}", "namespace": "rev2", "prefetch_threshold": 64, "prefetch_timeout_base": 2, '
        '"prefetch_timeout_per_ki_token": 0.5, "hicache_storage_pass_prefix_keys": true}'
    )
    settings, *_ = HybridCacheController.parse_storage_backend_extra_config(text)
    made = StorageBackendFactory.create_backend("dynamic", config(settings), None)
    assert isinstance(made, Storage)


@pytest.mark.smallest
def test_the_guides_command_line_is_one(store):
    """SGLang's own parser takes it, and its factory what is in it."""
    [script] = re.findall(r"```sh\n(.*?launch_server.*?)```", GUIDE.read_text(), re.S)
    words = shlex.split(script.partition("sglang.launch_server")[2].replace("\\\n", " "))
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    args = parser.parse_args(words)
    assert (args.page_size, args.hicache_storage_backend) == (64, "dynamic")
    settings = json.loads(args.hicache_storage_backend_extra_config)
    made = StorageBackendFactory.create_backend("dynamic", config({**settings, "uri": store}), None)
    pool = host_pool(device_pool(page=64), args.hicache_mem_layout, 64)
    made.register_mem_pool_host(pool)
    assert made.batch_set_v1(["hash"], torch.arange(64)) == [True]


def config(settings, **more):
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    same = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False)
    same |= dict(enable_storage_metrics=False, is_page_first_layout=True, model_name="org/model")
    return HiCacheStorageConfig(**{**same, **more}, extra_config=settings)


def test_pools_beside_the_first_one(engine):
    """The calls that SGLang's hybrid controller makes, with its transfers."""
    controller = engine()
    fill(controller, 1)
    storage = controller.storage_backend
    window = host_pool(device_pool(heads=2), "page_first")
    window.kv_buffer.normal_()
    storage.register_mem_host_pool_v2(controller.mem_pool_host, PoolName.KV)
    storage.register_mem_host_pool_v2(window, PoolName.SWA)
    prompt = PROMPT[: 6 * PAGE]
    backup(controller, prompt)
    hashes = controller.get_hash_str(prompt, page_size=PAGE)
    last = PoolTransfer(PoolName.SWA, window.alloc(2 * PAGE), keys=hashes[2:4], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert storage.batch_set_v2([last]) == {PoolName.SWA: [True, True]}
    hits = storage.batch_exists_v2(hashes, [last])
    assert (hits.kv_hit_pages, hits.restorable_prefix_pages) == (4, [4])
    assert hits.extra_pool_hit_pages == {PoolName.KV: 6, PoolName.SWA: 4}
    there = dataclasses.replace(last, host_indices=window.alloc(2 * PAGE))
    assert storage.batch_get_v2([there]) == {PoolName.SWA: [True, True]}
    assert torch.equal(window.kv_buffer[:, last.host_indices], window.kv_buffer[:, there.host_indices])


def state_pool(conv=torch.bfloat16, temporal=torch.float32, beside=None):
    """States of two layers: those of the convolution and of the recurrence, and maybe one that a model has beside them."""
    states = dict(temporal=torch.zeros(2, 8, 4, 6, dtype=temporal), conv=(torch.zeros(2, 8, 5, 3, dtype=conv),))
    if beside:
        states["extra_checkpoint_buffers"] = (torch.zeros(8, 7, dtype=beside),)
    info = MambaStateBufferInfo(**states)
    pool = MambaPoolHost(info, 2.0, 0, device_capacity=8, pin_memory=False, layout="page_first")
    for buffer in pool.get_hybrid_pool_buffer():
        buffer.copy_(torch.randint(-99, 99, buffer.shape))
    return pool


@pytest.mark.parametrize("beside", [None, torch.bfloat16])
def test_recurrent_states_come_back_and_are_told_apart_by_their_types(engine, beside):
    """Those with more beside them tell no addresses, and are copied whole."""
    storage, pool = engine().storage_backend, state_pool(beside=beside)
    storage.register_mem_host_pool_v2(pool, PoolName.MAMBA)
    assert storage.batch_set_v2([PoolTransfer(PoolName.MAMBA, pool.alloc(2), keys=["a", "b"])]) == {PoolName.MAMBA: [True] * 2}
    there = pool.alloc(2)
    assert storage.batch_get_v2([PoolTransfer(PoolName.MAMBA, there, keys=["b", "a"])]) == {PoolName.MAMBA: [True] * 2}
    for number, source in zip(there.tolist(), (1, 0)):
        assert torch.equal(pool.get_data_page(number), pool.get_data_page(source))
    # Of equal length.
    changes = [dict(conv=torch.float16), dict(temporal=torch.int32), *[dict(beside=torch.float16)] * bool(beside)]
    for change in changes:
        other = state_pool(**{"beside": beside, **change})
        storage.register_mem_host_pool_v2(other, PoolName.MAMBA)
        assert storage.batch_get_v2([PoolTransfer(PoolName.MAMBA, other.alloc(1), keys=["a"])]) == {PoolName.MAMBA: [False]}


@pytest.mark.parametrize("zero_copy", [True, False])
def test_a_pool_that_only_numbers_pages_hits_nothing_by_itself(store, zero_copy):
    """As in DeepSeek V4, whose pages lie in pools beside it."""
    storage, pool = Storage(config({"uri": store, "interface_v1": int(zero_copy)})), LogicalHostPool(64 * PAGE, PAGE)
    storage.register_mem_pool_host(pool)
    beside = host_pool(device_pool(mla=True), "page_first")
    storage.register_mem_host_pool_v2(beside, PoolName.INDEXER)
    keys = ["a", "b", "c"]
    assert storage.batch_exists(keys) == 0
    if zero_copy:
        assert storage.batch_set_v1(keys, pool.alloc(3 * PAGE)) == [True] * 3
        assert storage.batch_get_v1(keys, pool.alloc(3 * PAGE)) == [True] * 3
    else:
        pages = [pool.get_dummy_flat_data_page() for _ in keys]
        assert storage.batch_set(keys, pages) is True
        assert storage.batch_get(keys, pages) == pages
    saved = PoolTransfer(PoolName.INDEXER, beside.alloc(2 * PAGE), keys=keys[:2])
    assert storage.batch_set_v2([saved]) == {PoolName.INDEXER: [True] * 2}
    assert storage.batch_exists_v2(keys, [PoolTransfer(PoolName.INDEXER)]).kv_hit_pages == 2


@pytest.mark.parametrize(
    "shape",
    [dict(), dict(is_mla_model=True), dict(tp_rank=1, tp_size=4), dict(is_mla_model=True, tp_rank=3, tp_size=8)],
)
def test_sglangs_own_test_of_a_backend_passes(store, monkeypatch, shape):
    """The batch test that SGLang's package has for its Mooncake store, whose class is ours here."""
    suite = importlib.import_module("sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store")

    class Ours(Storage):
        def register_mem_pool_host(self, pool):
            # Its mock of a host pool lacks what real ones have.
            pool.dtype, pool.start_layer, pool.end_layer = torch.float32, 0, 1
            super().register_mem_pool_host(pool)

    settings = {"uri": store, "interface_v1": 1}
    more = dict(model_name="m", extra_config=settings)
    monkeypatch.setattr(suite, "MooncakeStore", lambda asked: Ours(dataclasses.replace(asked, **more)))
    suite.test_batch_operation(config(settings, **shape))
