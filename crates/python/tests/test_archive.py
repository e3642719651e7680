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
    memories = [
        transload.Memory.allocate(group.allocations(rank)) for rank in range(deployment.ranks)
    ]
    return deployment, memories


def save(archive, prompt, deployment, memories):
    missing = archive.missing(prompt)
    # As they travel to the workers, and the parts back.
    missing = transload.Missing(missing.encode())
    blocks = -(-len(prompt) // deployment.groups[0].block_size)
    parts = [
        archive.save(missing, deployment, rank, [memory], [range(blocks)])
        for rank, memory in enumerate(memories)
    ]
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
    assert report["bytes"] == 512 * 4 * 2 * 256

    _, [direct] = side(tp=1, block_size=64, order="HND")
    plan = transload.Plan(saver, reader, 512)
    for route in plan.bind([range(32)], [range(8)]).routes:
        route.copy(caches[route.src_rank], direct)
    assert cache.read(0, cache.nbytes) == direct.read(0, direct.nbytes)

    assert found.shorten(300).tokens == 256
    for other in (
        transload.Prompt(TOKENS, adapter="a"),
        transload.Prompt(TOKENS, salt="a"),
        transload.Prompt([7, *TOKENS[1:]]),
    ):
        assert archive.find(other).tokens == 0
    assert transload.Archive(uri, "demo", "r2", reader).find(prompt).tokens == 0


def test_tiers_tell_what_came_of_each(tmp_path):
    deployment, [cache] = side(tp=1)
    prompt, uri = transload.Prompt(TOKENS), f"file://{tmp_path}/kv"
    memory = f"1GiB=memory://{tmp_path.name}"
    archive = transload.Archive(f"tier://{memory},{uri}", "demo", "r1", deployment)
    save(archive, prompt, deployment, [cache])
    restored = transload.Memory.allocate(deployment.groups[0].allocations(0))
    archive.restore(archive.find(prompt), deployment, 0, [restored], [range(32)])
    above, below = archive.tiers()
    assert (above["tier"], below["tier"]) == (memory.partition("=")[2], uri)
    assert above["hits"] > 0 and above["bytes"] >= 512 * 4 * 2 * 256 and above["evictions"] == 0
    assert (above["failures"], above["skipped"]) == (0, 0)
    assert transload.Archive(uri, "demo", "r1", deployment).tiers() == []
    objects = transload.Objects(f"tier://{memory},{uri}", "test")
    objects.put([b"key"], [b"value"])
    objects.get([b"key"], [bytearray(5)])
    assert [tier["tier"] for tier in objects.tiers()] == [above["tier"], uri]


@pytest.mark.parametrize("codec", ["q8", "q4"])
def test_a_codec_takes_less_room_and_shares_with_nobody(tmp_path, codec):
    numpy = pytest.importorskip("numpy")
    deployment, [cache] = side(tp=1)
    # bf16: the upper halves of f32.
    numbers = numpy.random.default_rng(1).normal(size=cache.nbytes // 2).astype(numpy.float32)
    cache.write(0, (numbers.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes())
    uri, prompt = f"file://{tmp_path}/kv", transload.Prompt(TOKENS)

    def archive(**codec):
        return transload.Archive(uri, "demo", "r1", deployment, **codec)

    assert archive().codec == "exact"
    assert save(archive(codec=codec), prompt, deployment, [cache]) == 2
    for other in {"exact", "q8", "q4"} - {codec}:
        assert archive(codec=other).find(prompt).tokens == 0
    found = transload.Found(archive(codec=codec).find(prompt).encode())
    assert (found.tokens, found.codec, found.shorten(256).codec) == (512, codec, codec)
    restored = transload.Memory.allocate(deployment.groups[0].allocations(0))
    report = archive(codec=codec).restore(found, deployment, 0, [restored], [range(32)])
    share = {"q8": 0.5625, "q4": 0.3125}[codec]
    assert report["bytes"] == 512 * 4 * 2 * 256 * share

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
    with pytest.raises(ValueError, match="`int4` is no codec: write exact, q8 or q4"):
        archive(codec="int4")


def test_exact_saves_are_what_they_were_before_there_were_codecs(tmp_path):
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
    uri, prompt = f"file://{tmp_path}/kv", transload.Prompt(TOKENS, salt="s")
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


def test_engines_share_what_the_setting_says(tmp_path):
    deployment, caches = side()
    uri, prompt = f"file://{tmp_path}/kv", transload.Prompt(TOKENS)

    def archive(engine="vllm", version="0.32.0", **sharing):
        return transload.Archive(
            uri, "demo", "r1", deployment, engine=engine, engine_version=version, **sharing
        )

    assert save(archive(), prompt, deployment, caches) == 2
    assert archive(version="0.32.1+cpu").find(prompt).tokens == 512
    assert archive(version="0.33.0").find(prompt).tokens == 0
    assert archive(sharing="engine").find(prompt).tokens == 0
    assert transload.Archive(uri, "demo", "r1", deployment).find(prompt).tokens == 0
    with pytest.raises(ValueError, match="any, engine or version"):
        archive(sharing="all")
    with pytest.raises(ValueError, match="both of engine"):
        archive(version=None)


def test_what_cannot_be_saved_is_refused(tmp_path):
    deployment, caches = side()
    archive = transload.Archive(f"file://{tmp_path}/kv", "demo", "r1", deployment)
    prompt = transload.Prompt(TOKENS)
    missing = archive.missing(prompt)
    with pytest.raises(transload.ArchiveError, match="give the part of every rank"):
        archive.publish(missing, [])
    with pytest.raises(transload.ArchiveError, match="no rank 1"):
        archive.save(missing, deployment, 1, caches, [None])
    # Both chunks are saved at once, and either may be the first to say so.
    with pytest.raises(transload.ArchiveError, match="has 3 blocks, (16|32) are needed"):
        archive.save(missing, deployment, 0, caches, [range(3)])
    with pytest.raises(transload.ArchiveError, match="but the prompt has 600 tokens"):
        archive.missing(prompt, 601)
    with pytest.raises(transload.StoreError, match="nowhere"):
        transload.Archive("nowhere://", "demo", "r1", deployment)
    with pytest.raises(ValueError, match="not what `encode` returned"):
        transload.Found(b"nonsense")


def test_a_forked_child_opens_its_own(tmp_path):
    code = """
import json, os, sys, transload
deployment = transload.Deployment(json.loads(sys.argv[2]))
def archive():
    return transload.Archive(sys.argv[1], "demo", "r1", deployment)
mine, prompt = archive(), transload.Prompt(list(range(300)))
child = os.fork()
if child == 0:
    try:
        mine.find(prompt)
        os._exit(1)
    except transload.StoreError as error:
        assert "before the process forked" in str(error)
    # Dropping it ends nothing of the parent's.
    del mine
    os._exit(0 if archive().find(prompt).tokens == 0 else 2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert mine.find(prompt).tokens == 0
"""
    command = [sys.executable, "-W", "ignore", "-c", code, f"file://{tmp_path}/kv", json.dumps(document())]
    subprocess.run(command, check=True, timeout=60)


def test_blocks_are_free_once_they_are_staged(tmp_path):
    deployment, [cache] = side(tp=1)
    [content] = fill(cache)
    archive = transload.Archive(f"file://{tmp_path}/kv", "demo", "r1", deployment)
    prompt = transload.Prompt(TOKENS)
    missing, staging = archive.missing(prompt), transload.Staging(1 << 30)
    staged = archive.stage(missing, deployment, 0, [cache], [range(38)], staging)
    assert staged.nbytes == staging.used == 512 * 4 * 2 * 256
    cache.write(0, bytes(cache.nbytes))
    assert archive.publish(missing, [archive.put(staged)]) == 2
    del staged
    assert staging.used == 0
    found = archive.find(prompt)
    archive.restore(found, deployment, 0, [cache], [range(32)])
    block = 16 * 2 * 256
    for layer in range(4):
        start, saved = layer * 64 * block, 32 * block
        assert cache.read(start, 64 * block) == content[start : start + saved] + bytes(saved)


def test_staging_is_bounded(tmp_path):
    deployment, [cache] = side(tp=1)
    archive = transload.Archive(f"file://{tmp_path}/kv", "demo", "r1", deployment)
    staging, one = transload.Staging(1 << 20), 512 * 4 * 2 * 256

    def stage(seed):
        missing = archive.missing(transload.Prompt([seed, *TOKENS]))
        return archive.stage(missing, deployment, 0, [cache], [range(38)], staging)

    first = stage(0)
    with pytest.raises(transload.ArchiveError, match="all of its 1048576 bytes"):
        stage(1)
    assert staging.used == one == first.nbytes
    del first
    assert stage(1).nbytes == one


def test_without_a_permit_no_block_is_touched(tmp_path):
    deployment, [cache] = side(tp=1)
    fill(cache)
    archive = transload.Archive(f"file://{tmp_path}/kv", "demo", "r1", deployment)
    prompt = transload.Prompt(TOKENS)
    assert save(archive, prompt, deployment, [cache]) == 2
    cache.write(0, bytes(cache.nbytes))
    found, permit = archive.find(prompt), transload.Permit()
    assert not permit.is_quiet, "it stands"
    permit.revoke()
    assert permit.is_quiet
    with pytest.raises(transload.ArchiveError, match="the engine's again"):
        archive.restore(found, deployment, 0, [cache], [range(32)], permit=permit)
    assert cache.read(0, cache.nbytes) == bytes(cache.nbytes)
    missing = archive.missing(transload.Prompt([7, *TOKENS]))
    with pytest.raises(transload.ArchiveError, match="the engine's again"):
        archive.stage(missing, deployment, 0, [cache], [range(38)], transload.Staging(1 << 30), permit=permit)
    with pytest.raises(transload.ArchiveError, match="the engine's again"):
        archive.save(missing, deployment, 0, [cache], [range(38)], permit=permit)
    archive.save(missing, deployment, 0, [cache], [range(38)], permit=transload.Permit())
    archive.restore(found, deployment, 0, [cache], [range(32)], permit=transload.Permit())
    assert cache.read(0, cache.nbytes) != bytes(cache.nbytes)
