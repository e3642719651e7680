"""What routers are told of the store, in the words of vLLM's own events."""

import json
import socket
from types import SimpleNamespace

import msgspec
import pytest
import torch
import zmq
from disaggregated import prompts
from servers import Server, connector
from transload.vllm.events import MOST, Events
from vllm import SamplingParams
from vllm.distributed.kv_events import KVEventBatch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.request import Request

AHEAD = ["num_hash_lookahead_tokens"] if "num_hash_lookahead_tokens" in BlockPool.__init__.__code__.co_varnames else []


def group(size, kind=FullAttentionSpec, **more):
    spec = kind(block_size=size, num_kv_heads=2, head_size=64, dtype=torch.float32, **more)
    return SimpleNamespace(kv_cache_spec=spec)


def events_of(*groups, **more):
    cache = SimpleNamespace(block_size=groups[0].kv_cache_spec.block_size, prefix_match_unit=None, enable_prefix_caching=True)
    config = SimpleNamespace(
        cache_config=cache, parallel_config=SimpleNamespace(decode_context_parallel_size=1), kv_transfer_config=None, **more
    )
    kv_cache = SimpleNamespace(kv_cache_groups=list(groups), has_mamba_layers=False)
    return Events(config, kv_cache)


def request(size, **more):
    init_none_hash(sha256)
    ahead = {name: more.pop(name) for name in AHEAD if name in more}
    hasher = get_request_block_hasher(size, sha256, **ahead)
    return Request("1", list(range(1000, 1300)), SamplingParams(max_tokens=1), None, block_hasher=hasher, **more)


def image(name, offset, length):
    return MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=PlaceholderRange(offset=offset, length=length))


CONTENTS = {
    "text": {},
    "an adapter and a salt": {"lora_request": LoRARequest("sql", 7, "/sql"), "cache_salt": "a tenant"},
    "images": {"mm_features": [image("cat", 20, 50), image("dog", 70, 10)]},
} | {f"{count} tokens ahead": {AHEAD[0]: count} for count in (1, 2) if AHEAD}


@pytest.mark.newer
@pytest.mark.smallest
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("hashed, size", [(16, 16), (16, 48)])
def test_as_vllm_says_it_of_its_own_blocks(content, hashed, size):
    ahead = {name: CONTENTS[content].get(name, 0) for name in AHEAD}
    told, groups = request(hashed, **CONTENTS[content]), [group(size)] + [group(hashed)] * (size != hashed)
    ours = events_of(*groups, **ahead).of(told, 0, 256)[0]
    pool = BlockPool(8, True, hashed, enable_kv_cache_events=True, **ahead)
    pool.emit_cached_block_events(told, 256 // size, size, 0)
    [theirs] = pool.take_events()
    assert (ours.medium, theirs.medium, ours.kv_cache_spec_kind) == ("STORAGE", "GPU", "full_attention")
    for name in theirs.__struct_fields__:
        if name not in ("medium", "kv_cache_spec_kind"):
            assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.newer
@pytest.mark.smallest
def test_which_blocks_are_told_of():
    """Those that are whole and new, of groups whose layers see everything."""
    told, events = request(48), events_of(group(48))
    first, second = events.of(told, 0, 256)[0], events.of(told, 256, 288)[0]
    # The block in which the first save ended is told of when the second one has filled it.
    assert len(first.block_hashes) == 5 and len(second.block_hashes) == 1
    assert second.parent_block_hash == first.block_hashes[-1] and second.token_ids == told.all_token_ids[240:288]
    assert events.of(told, 256, 270) == []
    windows = events_of(group(16), group(16, SlidingWindowSpec, sliding_window=64))
    assert [each.group_idx for each in windows.of(request(16), 0, 256)] == [0]
    events.tell([first] * MOST)
    events.tell([second])
    taken = events.take()
    assert len(taken) == MOST and taken[-1] is second and events.take() == []


@pytest.mark.newer
@pytest.mark.parametrize("size", [32, 64])
def test_a_router_hears_of_what_a_server_saves(models, tmp_path, size):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    heard = zmq.Context.instance().socket(zmq.SUB)
    heard.setsockopt(zmq.SUBSCRIBE, b"")
    heard.connect(address)
    options = ["--kv-events-config", json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": address.replace("127.0.0.1", "*")})]
    transfer = connector("kv_both", None, store=f"file://{tmp_path}/store", store_wait_seconds=30, kv_events=True)
    [prompt] = prompts([700], seed=41)
    media = {"GPU": [], "STORAGE": []}
    with Server(models("llama"), tmp_path, "told", transfer=transfer, options=options, block_size=size) as server:
        server.wait()
        for asked in ([1, 2, 3], prompt):
            server.complete(asked, 2)
        while not media["STORAGE"]:
            # vLLM publishes events when it steps, so it needs something to compute.
            server.complete([1, 2, 3], 1)
            while heard.poll(1000):
                for event in msgspec.msgpack.decode(heard.recv_multipart()[2], type=KVEventBatch).events:
                    if getattr(event, "medium", None) in media:
                        media[event.medium].append(event)
        server.complete(prompt, 2)
    [stored] = media["STORAGE"]
    assert stored.token_ids == prompt[:512] and stored.block_size == size and stored.parent_block_hash is None
    computed = [each for event in media["GPU"] for each in event.block_hashes]
    assert stored.block_hashes == computed[: 512 // size]
