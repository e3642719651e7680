"""Saving blocks out of one layout and restoring them into another."""

import hashlib
import json
import subprocess
import sys

import pytest
from conftest import document, fill

import transload

TOKENS = list(range(600))


def side(**shape):
    deployment = transload.Deployment(document(num_blocks=64, **shape))
    [group] = deployment.groups
    return deployment, [transload.Memory.allocate(group.allocations(rank)) for rank in range(deployment.ranks)]


def empty(deployment):
    return transload.Memory.allocate(deployment.groups[0].allocations(0))


WHOLE = 512 * 4 * 2 * 256
"""Bytes of two token chunks: tokens, layers, heads, keys and values of 64 elements of 2 bytes."""


@pytest.fixture
def uri(tmp_path):
    return f"file://{tmp_path}/kv"


@pytest.fixture
def one(uri):
    """A deployment of one rank, its memory with something in it, and an archive."""
    deployment, [cache] = side(tp=1)
    fill(cache)
    return deployment, cache, transload.Archive(uri, "demo", "r1", deployment)


def save(archive, prompt, deployment, memories):
    missing = archive.missing(prompt)
    # As they travel to the workers, and the parts back.
    missing = transload.Missing(missing.encode())
    blocks = -(-len(prompt) // deployment.groups[0].block_size)
    parts = [archive.save(missing, deployment, rank, [memory], [range(blocks)]) for rank, memory in enumerate(memories)]
    return archive.publish(missing, parts)


@pytest.mark.parametrize("form", ["file://{}/kv", "tier://64MiB=memory://{0},file://{0}/kv"])
def test_what_one_layout_saved_another_restores(tmp_path, form):
    saver, caches = side(tp=2)
    for cache in caches:
        fill(cache)
    uri = form.format(tmp_path)
    archive = transload.Archive(uri, "demo", "r1", saver)
    prompt = transload.Prompt(TOKENS)
    assert archive.find(prompt).tokens == 0
    assert save(archive, prompt, saver, caches) == 2
    assert not archive.missing(prompt)

    reader, [cache] = side(tp=1, block_size=64, order="HND")
    # Another process, with its own handle.
    archive = transload.Archive(uri, "demo", "r1", reader)
    found = transload.Found(archive.find(prompt).encode())
    assert found.tokens == 512
    report = archive.restore(found, reader, 0, [cache], [range(8)])
    assert report["tokens"] == 512
    assert report["bytes"] == WHOLE

    _, [direct] = side(tp=1, block_size=64, order="HND")
    plan = transload.Plan(saver, reader, 512)
    for route in plan.bind([range(32)], [range(8)]).routes:
        route.copy(caches[route.src_rank], direct)
    assert cache.read(0, cache.nbytes) == direct.read(0, direct.nbytes)

    assert found.shorten(300).tokens == 256
    for other in {"adapter": "a"}, {"salt": "a"}, {"tokens": [7, *TOKENS[1:]]}:
        assert archive.find(transload.Prompt(**{"tokens": TOKENS} | other)).tokens == 0
    assert transload.Archive(uri, "demo", "r2", reader).find(prompt).tokens == 0


def test_tiers_tell_what_came_of_each(tmp_path, uri):
    deployment, [cache] = side(tp=1)
    prompt = transload.Prompt(TOKENS)
    memory = f"1GiB=memory://{tmp_path.name}"
    archive = transload.Archive(f"tier://{memory},{uri}", "demo", "r1", deployment)
    save(archive, prompt, deployment, [cache])
    archive.restore(archive.find(prompt), deployment, 0, [empty(deployment)], [range(32)])
    above, below = archive.tiers()
    assert (above["tier"], below["tier"]) == (memory.partition("=")[2], uri)
    assert above["hits"] > 0 and above["bytes"] >= WHOLE and above["evictions"] == 0
    assert (above["failures"], above["skipped"]) == (0, 0)
    assert transload.Archive(uri, "demo", "r1", deployment).tiers() == []
    objects = transload.Objects(f"tier://{memory},{uri}", "test")
    objects.put([b"key"], [b"value"])
    objects.get([b"key"], [bytearray(5)])
    assert [tier["tier"] for tier in objects.tiers()] == [above["tier"], uri]


@pytest.mark.parametrize("codec", ["q8", "q4"])
def test_a_codec_takes_less_room_and_shares_with_nobody(uri, codec):
    numpy = pytest.importorskip("numpy")
    deployment, [cache] = side(tp=1)
    # bf16: the upper halves of f32.
    numbers = numpy.random.default_rng(1).normal(size=cache.nbytes // 2).astype(numpy.float32)
    cache.write(0, (numbers.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes())
    prompt = transload.Prompt(TOKENS)

    def archive(**codec):
        return transload.Archive(uri, "demo", "r1", deployment, **codec)

    assert archive().codec == "exact"
    assert save(archive(codec=codec), prompt, deployment, [cache]) == 2
    for other in {"exact", "q8", "q4"} - {codec}:
        assert archive(codec=other).find(prompt).tokens == 0
    found = transload.Found(archive(codec=codec).find(prompt).encode())
    assert (found.tokens, found.codec, found.shorten(256).codec) == (512, codec, codec)
    restored = empty(deployment)
    report = archive(codec=codec).restore(found, deployment, 0, [restored], [range(32)])
    share = {"q8": 0.5625, "q4": 0.3125}[codec]
    assert report["bytes"] == WHOLE * share

    def values(memory):
        bits = numpy.frombuffer(memory.read(0, memory.nbytes), numpy.uint16)
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32)

    back = values(restored)
    there = back != 0
    errors = abs(back - values(cache))[there]
    step = 2 * 4 / {"q8": 255, "q4": 15}[codec]
    assert 0 < errors.max() < step and there.sum() > 512 * 4 * 2 * 128 * 0.9
    with pytest.raises(transload.ArchiveError, match="another model or cache"):
        archive().restore(found, deployment, 0, [restored], [range(32)])
    with pytest.raises(ValueError, match="`int4` is not a codec: write exact, q8 or q4"):
        archive(codec="int4")


def test_exact_saves_are_what_they_were_before_there_were_codecs(uri):
    """Names of roots and hashes of pieces, of keys and values, a window and recurrent state."""
    attention = {"kind": "attention", "heads": 4, "head_dim": 24, "v_head_dim": 20, "dtype": "bf16"}
    conv = {"kind": "mamba2_conv", "d_inner": 128, "heads": 8, "groups": 1, "state_size": 16, "conv_kernel": 4}
    state = {"kind": "mamba2_ssm", "heads": 8, "head_dim": 16, "state_size": 16, "dtype": "f32"}
    specs = [
        ("attn", "0-2", [attention]),
        ("near", "3", [attention | {"dtype": "f16", "sliding_window": 300}]),
        ("mamba", "4-5", [conv | {"dtype": "bf16", "conv_layout": "DS"}, state]),
    ]
    groups = [{"name": name, "layers": layers, "spec": spec} for name, layers, spec in specs]
    whole = document(tp=2, num_blocks=64) | {"group": groups}
    del whole["order"]
    deployment = transload.Deployment(whole)
    prompt = transload.Prompt(TOKENS, salt="s")
    archive = transload.Archive(uri, "demo", "r1", deployment, engine="vllm", engine_version="0.32.1")
    missing, parts = archive.missing(prompt, state=512), []
    for rank in range(2):
        memories = [transload.Memory.allocate(group.allocations(rank)) for group in deployment.groups]
        for number, memory in enumerate(memories):
            memory.write(0, hashlib.shake_128(f"{number}".encode()).digest(memory.nbytes))
        parts.append(archive.save(missing, deployment, rank, memories, [range(38), range(38), [5]]))
    assert archive.publish(missing, parts) == 2
    command = [sys.executable, "-m", "transload", "store", "ls", uri, "--chunks", "--format", "json"]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    manifests = sorted(f"{each['name']} {each['bytes']}" for each in listed["manifests"])
    chunks = sorted(f"{each['hash']} {each['bytes']}" for each in listed["chunks"])
    assert len(manifests) == 2 and len(chunks) == 13
    # Recorded with the build before codecs existed.
    golden = "fe9c43e06a11ae4d8a0629b343c1056e726868ea344a2b73e6eef33a6efef294"
    assert hashlib.sha256("\n".join(manifests + chunks).encode()).hexdigest() == golden


def test_engines_share_what_the_setting_says(uri):
    deployment, caches = side()
    prompt, vllm = transload.Prompt(TOKENS), {"engine": "vllm", "engine_version": "0.32.0"}

    def archive(**engine):
        return transload.Archive(uri, "demo", "r1", deployment, **engine)

    assert save(archive(**vllm), prompt, deployment, caches) == 2
    for other, tokens in ({"engine_version": "0.32.1+cpu"}, 512), ({"engine_version": "0.33.0"}, 0), ({"sharing": "engine"}, 0):
        assert archive(**vllm | other).find(prompt).tokens == tokens, other
    assert archive().find(prompt).tokens == 0
    for other, why in ({"sharing": "all"}, "any, engine or version"), ({"engine_version": None}, "both of engine"):
        with pytest.raises(ValueError, match=why):
            archive(**vllm | other)


def test_what_cannot_be_saved_is_refused(one):
    deployment, cache, archive = one
    missing = archive.missing(transload.Prompt(TOKENS))
    for call, error, why in [
        (lambda: archive.publish(missing, []), transload.ArchiveError, "give the part of every rank"),
        (lambda: archive.save(missing, deployment, 1, [cache], [None]), transload.ArchiveError, "no rank 1"),
        # Both chunks are saved at once, and either may be the first to say so.
        (lambda: archive.save(missing, deployment, 0, [cache], [range(3)]), transload.ArchiveError, "has 3 blocks, (16|32) are needed"),
        (lambda: archive.missing(transload.Prompt(TOKENS), 601), transload.ArchiveError, "but the prompt has 600 tokens"),
        (lambda: transload.Archive("nowhere://", "demo", "r1", deployment), transload.StoreError, "nowhere"),
        (lambda: transload.Found(b"nonsense"), ValueError, "not what `encode` returned"),
    ]:
        with pytest.raises(error, match=why):
            call()


def test_blocks_are_free_once_they_are_staged(one):
    deployment, cache, archive = one
    content = cache.read(0, cache.nbytes)
    prompt = transload.Prompt(TOKENS)
    missing, staging = archive.missing(prompt), transload.Staging(1 << 30)
    staged = archive.stage(missing, deployment, 0, [cache], [range(38)], staging)
    assert staged.nbytes == staging.used == WHOLE
    cache.write(0, bytes(cache.nbytes))
    assert archive.publish(missing, [archive.put(staged)]) == 2
    del staged
    assert staging.used == 0
    archive.restore(archive.find(prompt), deployment, 0, [cache], [range(32)])
    block = 16 * 2 * 256
    for layer in range(4):
        start, saved = layer * 64 * block, 32 * block
        assert cache.read(start, 64 * block) == content[start : start + saved] + bytes(saved)


def test_staging_is_bounded(one):
    deployment, cache, archive = one
    staging = transload.Staging(1 << 20)

    def stage(seed):
        missing = archive.missing(transload.Prompt([seed, *TOKENS]))
        return archive.stage(missing, deployment, 0, [cache], [range(38)], staging)

    first = stage(0)
    with pytest.raises(transload.ArchiveError, match="all of its 1048576 bytes"):
        stage(1)
    assert staging.used == WHOLE == first.nbytes
    del first
    assert stage(1).nbytes == WHOLE


def test_without_a_permit_no_block_is_touched(one):
    deployment, cache, archive = one
    prompt = transload.Prompt(TOKENS)
    assert save(archive, prompt, deployment, [cache]) == 2
    cache.write(0, bytes(cache.nbytes))
    found, missing, staging = archive.find(prompt), archive.missing(transload.Prompt([7, *TOKENS])), transload.Staging(1 << 30)
    calls = [
        lambda permit: archive.restore(found, deployment, 0, [cache], [range(32)], permit=permit),
        lambda permit: archive.stage(missing, deployment, 0, [cache], [range(38)], staging, permit=permit),
        lambda permit: archive.save(missing, deployment, 0, [cache], [range(38)], permit=permit),
    ]
    permit = transload.Permit()
    assert not permit.is_quiet, "it stands"
    permit.revoke()
    assert permit.is_quiet
    for call in calls:
        with pytest.raises(transload.ArchiveError, match="was revoked"):
            call(permit)
        assert cache.read(0, cache.nbytes) == bytes(cache.nbytes)
    for call in calls:
        call(transload.Permit())
    assert cache.read(0, cache.nbytes) != bytes(cache.nbytes)
