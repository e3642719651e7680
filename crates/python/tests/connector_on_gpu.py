"""vLLM's connector where a GPU computes, which is behind what vLLM calls done; and what becomes of tokens without marks.

`test_connector_on_gpu.py` runs these in a process of their own, with the library in `CUDA_LIBRARY` for a driver and the kernel
in the file `CUDA_SPIN` for an engine's. With `STAND_IN_TORCH` tensors and streams are torch's. Where a
stream is held, none of vLLM's calls would come back that waited for it.
"""

import contextlib
import os
import time

import pytest
from fake_cuda import Driver
from vllm_stand_in import fixtures, torch_numpy
from vllm_stand_in import vllm_names as vllm
from vllm_stand_in.fixtures import FOR_DECODE, end_alike, prompt
from vllm_stand_in.gpu import Stream
from vllm_stand_in.model import Attention, IndexKeys, PackedLatents, gdn, mamba2
from vllm_stand_in.torch_numpy import torch

if torch:
    from vllm_stand_in.torch_stream import TorchStream as Stream

import transload

Status = vllm.RequestStatus

GROUPS = {
    "attention": [Attention(range(2))],
    "hybrid": [Attention(range(2)), gdn(range(2, 4))],
    "windows": [Attention(range(2)), Attention(range(2, 4), window=40)],
    "states": [Attention(range(2)), mamba2(range(2, 4))],
    "bytes": [Attention(range(2), dtype=torch_numpy.uint8)],
    "latents": [PackedLatents(range(2)), IndexKeys(range(2))],
}

MODES = pytest.mark.parametrize("mode", ["pull", "push"])
TOKENS = prompt(100)


@pytest.fixture(scope="session")
def driver():
    return Driver(os.environ["CUDA_LIBRARY"])


@pytest.fixture
def gpu_engines(two_engines, driver):
    """Starts a prefill and a decode engine, with the caches of these on GPUs: each rank on one of its own, if there are as many."""

    def start(what, on_gpu=("prefill", "decode"), *, prefill=None, decode=None, **both):
        sides = {"prefill": prefill or {}, "decode": decode or {}}
        for name in on_gpu:
            ranks = range(sides[name].get("tp", 1))
            sides[name] |= {"streams": [Stream(driver, rank % driver.devices) for rank in ranks]}
        both |= {"uniform": what == "latents"} | {"bytes": {"cache_dtype": "fp8"}, "states": {"model_groups": 1}}.get(what, {})
        return two_engines(*sides.values(), GROUPS[what], **both)

    return start


@pytest.fixture(params=[True, False], ids=["marks", "no marks"])
def marks(request):
    """Whether leases and loads wait for what vLLM has submitted, once a stream is held."""
    return request.param


@pytest.fixture
def hold(marks, connector, monkeypatch):
    """Holds the stream of a cache. Connections and rings have to be there before: to make them a driver may wait for all streams,
    and then nothing would be too early."""
    from transload.vllm.cache import Cache

    def hold(cache):
        if not marks:
            monkeypatch.setattr(Cache, "mark", lambda self: None)
        cache.stream.hold()

    return hold


@pytest.fixture
def too_early(driver):
    """Expects tokens that are wrong without marks. Nothing makes them right, but chance may: a stream of ours that shares a hardware queue
    with the one that is held waits for it as well."""

    @contextlib.contextmanager
    def too_early():
        wrong, waits = "sees wrong tokens|from a state that is not that after", "still there: "
        shared = not driver.is_fake or int(os.environ.get("FAKE_CUDA_QUEUES", 0))
        try:
            with pytest.raises(AssertionError, match=f"{wrong}|{waits}" if shared else wrong) as raised:
                yield
        except pytest.fail.Exception:
            if not shared:
                raise
            raised = None
        if raised is None or waits in str(raised.value):
            pytest.skip("NOT RUN: streams of ours share a hardware queue with the one that was held, and waited for it")

    return too_early


@pytest.fixture
def early_without_marks(marks, too_early):
    return contextlib.nullcontext if marks else too_early


def prefilled(prefill, tokens):
    """What a prefill server answers with. vLLM goes on to step until it has forgotten the request."""
    params = fixtures.prefilled(prefill, tokens)
    prefill.step()
    return params


def load_another(prefill, decode):
    """Has another prompt loaded, so that all that loads need is there."""
    tokens = prompt(100, 2)
    decode.add(tokens, prefilled(prefill, tokens), max_tokens=2)
    decode.run()
    assert len(decode.loads) == 1
    decode.assert_exact()


def load_while_held(decode, request, marks):
    """Has a prompt loaded while what it has to wait for is held, so that it is loaded then without marks only."""
    decode.run(lambda: request.status is Status.WAITING_FOR_REMOTE_KVS)
    if not marks:
        decode.run(lambda: request.request_id in decode.received)
    for _ in range(20 if marks else 0):
        decode.step()
        assert request.request_id not in decode.received


def assert_exact(*engines):
    for engine in engines:
        engine.assert_exact()
    end_alike(*engines)


# --- tokens ----------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("what", GROUPS)
def test_tokens_are_exact(gpu_engines, what, mode):
    """Of more prompts than there are blocks for, so that they are loaded into what steps under way still read and write."""
    prefill, decode = gpu_engines(what, prefill={"tp": 2}, decode={"blocks": 9}, block_size=64)
    for seed in range(8):
        tokens = prompt(60 + 25 * seed, seed)
        decode.add(tokens, prefilled(prefill, tokens), max_tokens=4)
        decode.step()
    decode.run()
    assert decode.figures.data["failures"] == {} and len(decode.loads) == 8
    assert_exact(prefill, decode)


@pytest.mark.parametrize("on_gpu", ["prefill", "decode"])
@pytest.mark.parametrize("what", ["attention", "hybrid"])
def test_between_a_gpu_and_a_host(gpu_engines, what, on_gpu):
    prefill, decode = gpu_engines(what, [on_gpu], decode={"tp": 2, "block_size": 64})
    for seed in range(3):
        tokens = prompt(100, seed)
        decode.add(tokens, prefilled(prefill, tokens), max_tokens=4)
    decode.run()
    assert decode.figures.data["failures"] == {} and len(decode.loads) == 3
    assert_exact(prefill, decode)


# --- what marks are for ----------------------------------------------------------------


@MODES
@pytest.mark.parametrize("what", ["attention", "hybrid"])
@pytest.mark.parametrize("held", ["prefill", "decode"])
def test_steps_that_a_gpu_has_not_done_yet(gpu_engines, what, held, mode, marks, hold, early_without_marks):
    """A prompt that is not computed yet, and blocks that are still read and written."""
    if held == "prefill":
        prefill, decode = gpu_engines(what, decode={"tp": 2})
        [cache] = prefill.caches
    else:
        # There are blocks for one request at a time.
        prefill, decode = gpu_engines(what, ["decode"], decode={"blocks": 5 if what == "attention" else 6})
        [cache] = decode.caches
    load_another(prefill, decode)
    hold(cache)
    if held == "decode":
        decode.add(prompt(100, 1), max_tokens=4)
        decode.run()
    request = decode.add(TOKENS, prefilled(prefill, TOKENS), max_tokens=3)
    with early_without_marks():
        load_while_held(decode, request, marks)
        cache.stream.release()
        decode.run()
        decode.assert_exact()
    if marks:
        assert_exact(prefill, decode)


@pytest.mark.parametrize("what", ["attention", "hybrid"])
def test_pieces_that_a_gpu_has_not_computed_yet(gpu_engines, what, marks, hold, early_without_marks):
    prefill, decode = gpu_engines(what, ["prefill"], prefill={"budget": 256}, decode={"tp": 2})
    another, tokens, name = prompt(100, 2), prompt(900), {"transload_overlap": os.urandom(16).hex()}
    earlier = prefilled(prefill, another)
    decode.add(another, dict(earlier), max_tokens=2)
    decode.run()
    hold(prefill.caches[0])
    lent = prefill.add(tokens, FOR_DECODE | name)
    prefill.run(lambda: lent.request_id in prefill.answers)
    # In its next step what it has submitted is all of the prompt.
    prefill.step()
    request = decode.add(tokens, earlier | name, max_tokens=3)
    with early_without_marks():
        load_while_held(decode, request, marks)
        prefill.caches[0].stream.release()
        decode.run()
        decode.assert_exact()
    if marks:
        assert_exact(prefill, decode)


def test_states_that_move_when_a_step_is_over(gpu_engines, connector, monkeypatch, too_early):
    """What vLLM calls the end of a step is too early for them."""
    from transload.vllm.cache import Cache

    monkeypatch.setattr(Cache, "writes_after_step", False)
    prefill, decode = gpu_engines("hybrid", ["prefill"])
    prefill.caches[0].lateness = [500_000]
    decode.add(TOKENS, prefilled(prefill, TOKENS), max_tokens=3)
    with too_early():
        decode.run()


@pytest.mark.parametrize("what", ["attention", "hybrid"])
def test_a_part_of_a_step_has_one_mark(gpu_engines, connector, monkeypatch, what):
    """And that is behind the zeroing of all blocks that are loaded, however long that takes."""
    from transload.vllm import cache

    made, clear = [], cache.Cache.clear

    def mark(*arguments):
        made.append(transload.Mark(*arguments))
        return made[-1]

    def clear_late(self, *arguments):
        decode.caches[0].stream.spin(50_000)
        clear(self, *arguments)

    def marks_of_a_step(engine):
        before = len(made)
        engine.step()
        return len(made) - before

    monkeypatch.setattr(cache, "Mark", mark)
    monkeypatch.setattr(cache.Cache, "clear", clear_late)
    prefill, decode = gpu_engines(what)
    prompts = [prompt(100, seed) for seed in range(3)]
    requests = [prefill.add(tokens, dict(FOR_DECODE)) for tokens in prompts]
    assert [marks_of_a_step(prefill) for _ in range(3)] == [what == "attention", what == "hybrid", 0]
    for request, tokens in zip(requests, prompts):
        decode.add(tokens, prefill.answers[request.request_id], max_tokens=3)
    assert marks_of_a_step(decode) == 1 and len(decode.loads) == 3
    decode.run()
    assert decode.figures.data["failures"] == {}
    assert_exact(prefill, decode)


# --- the store -------------------------------------------------------------------------


@pytest.fixture
def keeping(engine, driver, tmp_path):
    """Starts engines that load prefixes from a store, and save them unless they are a consumer."""

    def start(name, *, on_gpu, extra=None, **shape):
        extra = {"store": f"file://{tmp_path}/store", "store_weights": "1"} | (extra or {})
        return engine(name, certs=None, extra=extra, streams=[Stream(driver)] if on_gpu else None, **shape)

    return start


def has_saved(engine, prompts=1):
    return engine.figures.data["store_tokens"].get("saved") == 512 * prompts


def save_another(saver):
    """Has another prefix saved, so that all that saving needs is there."""
    tokens = prompt(600, 2)
    saver.add(tokens, max_tokens=2)
    saver.run(lambda: has_saved(saver))
    return tokens


def test_prefixes_that_are_not_computed_yet(keeping, marks, hold, early_without_marks):
    saver, loader = keeping("saver", on_gpu=True), keeping("loader", on_gpu=False)
    tokens = prompt(600)
    save_another(saver)
    hold(saver.caches[0])
    request = saver.add(tokens, max_tokens=2)
    saver.run(lambda: request.finished if marks else has_saved(saver, 2))
    for _ in range(20 if marks else 0):
        saver.step()
        assert not has_saved(saver, 2) and saver.manager.free_blocks < saver.all_blocks
    saver.caches[0].stream.release()
    saver.run(lambda: has_saved(saver, 2))
    loader.add(tokens, max_tokens=2)
    with early_without_marks():
        loader.run()
    if marks:
        assert loader.figures.data["store_tokens"] == {"loaded": 512}
        assert_exact(saver, loader)


def test_prefixes_for_blocks_that_are_still_read_and_written(keeping, marks, hold, early_without_marks):
    saver, loader = keeping("saver", on_gpu=False), keeping("decode", on_gpu=True, blocks=21)
    tokens = prompt(600)
    loader.add(save_another(saver), max_tokens=2)
    loader.run()
    loader.assert_exact()
    saver.add(tokens, max_tokens=2)
    saver.run(lambda: has_saved(saver, 2))
    hold(loader.caches[0])
    loader.add(prompt(600, 1), max_tokens=4)
    loader.run()
    request = loader.add(tokens, max_tokens=2)
    with early_without_marks():
        load_while_held(loader, request, marks)
        loader.caches[0].stream.release()
        loader.run()
        assert loader.figures.data["store_tokens"] == {"loaded": 2 * 512}
        loader.assert_exact()
    if marks:
        assert_exact(saver, loader)


@pytest.fixture
def hanging(driver, connector, monkeypatch):
    """Has the GPU hang as soon as a job of the workers has come to its mark, and until the test ends or says so. What is
    returned says whether a copy is under way then."""
    from transload.vllm.saved_worker import SavedWorker

    if not driver.is_fake:
        pytest.skip("NOT RUN: a real driver cannot be told to hang")

    def hang(what):
        work, before = getattr(SavedWorker, what), []

        def begin(self, request, permit, after):
            while not after.done:
                time.sleep(0.001)
            driver.hang(True)
            before.append(driver.calls("cuMemcpyHtoDAsync_v2"))
            return work(self, request, permit, after)

        def is_under_way():
            # Either way something goes to the GPU first: what is copied, or its places.
            return bool(before) and driver.calls("cuMemcpyHtoDAsync_v2") > before[0]

        monkeypatch.setattr(SavedWorker, what, begin)
        return is_under_way

    yield hang
    driver.hang(False)


def assert_held_while_it_hangs(engine, driver):
    """Steps go on, and vLLM has no block back before the GPU is done with it."""
    for _ in range(20):
        engine.step()
        assert engine.manager.free_blocks < engine.all_blocks
    driver.hang(False)
    end_alike(engine)


@pytest.mark.parametrize("end", ["aborted", "too late"])
def test_a_load_while_the_gpu_hangs(keeping, driver, hanging, end):
    seconds = 60 if end == "aborted" else 2
    saver = keeping("saver", on_gpu=False)
    loader = keeping("decode", on_gpu=True, blocks=21, extra={"store_timeout_seconds": seconds})
    tokens = prompt(600)
    saver.add(tokens, max_tokens=2)
    saver.run(lambda: has_saved(saver))
    is_under_way = hanging("_load")
    request = loader.add(tokens, max_tokens=2)
    loader.run(is_under_way)
    if end == "aborted":
        loader.abort(request)
    else:
        loader.run(lambda: loader.figures.data["store_failures"] == {"load": 1})
    assert_held_while_it_hangs(loader, driver)
    assert "loaded" not in loader.figures.data["store_tokens"]
    # Others have the blocks, and nothing comes into them.
    loader.add(prompt(600, 1), max_tokens=4)
    loader.run()
    assert_exact(saver, loader)


def test_a_save_while_the_gpu_hangs(keeping, driver, hanging):
    saver = keeping("saver", on_gpu=True, extra={"store_timeout_seconds": 2})
    is_under_way = hanging("_stage")
    saver.add(prompt(600), max_tokens=2)
    saver.run(is_under_way)
    saver.run(lambda: saver.figures.data["store_failures"] == {"stage": 1})
    assert_held_while_it_hangs(saver, driver)
    assert "saved" not in saver.figures.data["store_tokens"]
    saver.assert_exact()


def test_the_end_of_vllm_waits_for_no_mark(keeping):
    saver = keeping("saver", on_gpu=True)
    [cache], [worker] = saver.caches, saver.workers
    saved = worker._worker.saved
    cache.stream.hold()
    request = saver.add(prompt(600), max_tokens=2)
    saver.run(lambda: request.finished and any(job and job.future.running() for job in saved._unstaged.values()))
    [job] = saved._unstaged.values()
    saved.shutdown()
    assert job.future.exception(timeout=30) is not None
    cache.stream.release()


# --- what ends before its mark ---------------------------------------------------------


@MODES
def test_a_load_that_is_aborted_before_its_mark(gpu_engines, mode):
    prefill, decode = gpu_engines("attention", ["decode"], decode={"blocks": 5})
    [cache] = decode.caches
    cache.stream.hold()
    decode.add(prompt(100, 1), max_tokens=4)
    decode.run()
    request = decode.add(TOKENS, prefilled(prefill, TOKENS))
    decode.step()
    decode.abort(request)
    decode.run()
    assert decode.manager.free_blocks == decode.all_blocks
    assert decode.figures.data["failures"] == {"cancelled": 1}
    # Nothing was written, and others have the blocks.
    decode.add(prompt(100, 3), max_tokens=3)
    decode.run()
    cache.stream.release()
    decode.assert_exact()


def test_a_prefill_that_is_preempted_before_its_mark(gpu_engines):
    prefill, decode = gpu_engines("attention", ["prefill"], prefill={"budget": 60, "blocks": 5})
    [cache] = prefill.caches
    load_another(prefill, decode)
    cache.stream.hold()
    request = prefill.add(TOKENS, dict(FOR_DECODE))
    request.max_tokens = 4  # It goes on, as one whose answer is still under way.
    for _ in range(3):
        prefill.step()
    prefill.preempt(request)
    prefill.run(lambda: request.request_id in prefill.answers)
    load_while_held(decode, decode.add(TOKENS, prefill.answers[request.request_id], max_tokens=3), True)
    cache.stream.release()
    decode.run()
    assert_exact(prefill, decode)


@pytest.mark.parametrize("what", ["attention", "hybrid"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_prefill_that_is_aborted_before_its_mark(gpu_engines, what, steps):
    prefill, _ = gpu_engines(what, ["prefill"])
    [cache] = prefill.caches
    cache.stream.hold()
    request = prefill.add(TOKENS, dict(FOR_DECODE))
    request.max_tokens = 4
    for _ in range(steps):
        prefill.step()
    prefill.abort(request)
    end_alike(prefill)
    cache.stream.release()
    prefill.assert_exact()


@pytest.mark.parametrize("what", ["attention", "hybrid"])
def test_a_lease_that_expires_before_its_mark(gpu_engines, what):
    prefill, _ = gpu_engines(what, ["prefill"], prefill={"extra": {"lease_seconds": 1}})
    [cache] = prefill.caches
    cache.stream.hold()
    prefilled(prefill, TOKENS)
    end_alike(prefill)
    assert prefill.figures.data["leases"] == {"expired": 1}
    cache.stream.release()
    prefill.assert_exact()


# --- what goes wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "side", "kind"),
    [
        ("attention", "prefill", "timed_out"),  # There is no lease, which may be yet to come.
        ("hybrid", "prefill", "cancelled"),
        ("attention", "decode", "other"),
    ],
)
def test_a_mark_that_cannot_be_had(gpu_engines, driver, what, side, kind):
    """Nothing is lent or loaded without one, and the decode server computes the prompt."""
    if not driver.is_fake:
        pytest.skip("NOT RUN: a real driver cannot be told to fail")
    prefill, decode = gpu_engines(what, [side], decode={"extra": {"timeout_seconds": 2}})
    if side == "prefill":
        driver.fail("cuEventCreate", 1, 2)
    params = prefilled(prefill, TOKENS)
    if side == "decode":
        driver.fail("cuEventCreate", 1, 2)
    request = decode.add(TOKENS, params, max_tokens=3)
    decode.run()
    assert request.status is Status.FINISHED_LENGTH_CAPPED
    assert decode.figures.data["failures"] == {kind: 1}
    decode.assert_exact()
