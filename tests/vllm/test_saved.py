"""What one server saved, another loads, whatever the layouts of their caches; and a store that fails fails nobody."""

import shutil
import time

import pytest
from conftest import total
from disaggregated import prompts
from servers import Server, connector

COUNT = 16


@pytest.fixture
def start(models, tmp_path):
    """Starts servers with a store in `tmp_path`; their logs are shown after a failed test."""
    started = []

    def begin(name, model="llama", role="kv_both", store=None, **options) -> Server:
        # Long enough for whatever else keeps the machine busy: here it does not matter how fast the store is.
        transfer = connector(role, None, store=store or f"file://{tmp_path}/store", store_wait_seconds=30)
        started.append(Server(models(model), tmp_path, name, transfer=transfer, **options))
        return started[-1].wait()

    yield begin
    for server in started:
        server.stop()
        print(f"--- {server.log}\n{server.tail()}")


def tokens(server, prompt):
    return server.complete(prompt, COUNT)["choices"][0]["token_ids"]


def moved(server, what):
    return total(server, "vllm:transload_store_tokens_total", f'what="{what}"')


def saved(server, count, seconds=60):
    """Waits until so many tokens are saved: that goes on when the answer is out."""
    end = time.monotonic() + seconds
    while moved(server, "saved") < count:
        assert time.monotonic() < end, f"{moved(server, 'saved')} of {count} tokens are saved after {seconds} s"
        # What was published is counted in a step, and there is none without a request.
        tokens(server, [1, 2, 3])
        time.sleep(0.2)


def failures(server):
    return total(server, "vllm:transload_store_failures_total")


@pytest.mark.parametrize(
    "first, second",
    [(dict(tp=1, block_size=32), dict(tp=1, block_size=64)), (dict(tp=2, block_size=32), dict(tp=1, block_size=64)),
     (dict(tp=1, block_size=64), dict(tp=2, block_size=32))],
    ids=["b32-b64", "tp2b32-tp1b64", "tp1b64-tp2b32"],
)  # fmt: skip
def test_another_server_loads(start, alone, first, second):
    short, long = prompts([300, 900], seed=11)
    behind = long[:600] + short[:200]
    asked = [short, long, behind]
    expected = alone.tokens("llama", asked)

    saver = start("saver", **first)
    assert tokens(saver, short) == expected[0]
    assert tokens(saver, long) == expected[1]
    saved(saver, 256 + 768)
    assert tokens(saver, long) == expected[1]
    assert moved(saver, "loaded") == 0, "what is cached need not be loaded"
    assert failures(saver) == 0
    saver.stop()

    loader = start("loader", role="kv_consumer", **second)
    for prompt, wanted, loaded in zip(asked, expected, (256, 256 + 768, 256 + 768)):
        assert tokens(loader, prompt) == wanted, f"prompt of {len(prompt)} tokens"
        assert moved(loader, "loaded") == loaded
    assert moved(loader, "saved") == 0, "a consumer does not save"
    assert failures(loader) == 0


@pytest.mark.newer
def test_the_prefix_of_another_prompt(start, alone):
    """A prompt that goes on otherwise loads what both have in common, and its own part is saved too."""
    [long, other] = prompts([900, 900], seed=12)
    behind = long[:600] + other[:300]
    expected = alone.tokens("llama", [long, behind])
    saver = start("saver")
    assert tokens(saver, long) == expected[0]
    saved(saver, 768)
    saver.stop()
    loader = start("loader", block_size=64)
    assert tokens(loader, behind) == expected[1]
    assert moved(loader, "loaded") == 512
    saved(loader, 256)
    assert failures(loader) == 0


def test_recurrent_state(start, alone):
    """It is saved where a prompt ends with a token chunk, and nothing was computed behind it."""
    # vLLM ends on the CPU when it caches prefixes of Mamba2.
    side = {"options": ["--no-enable-prefix-caching"]}
    [long] = prompts([700], seed=15)
    [expected] = alone.tokens("falcon_h1", [long], **side)
    saver = start("saver", "falcon_h1", **side)
    saver.complete(long[:512], 1)
    saved(saver, 512)
    saver.stop()
    loader = start("loader", "falcon_h1", **side)
    assert tokens(loader, long) == expected
    assert moved(loader, "loaded") == 512
    assert failures(loader) == 0


def test_a_store_that_breaks(start, alone, tmp_path):
    """Its folder goes, or is damaged: answers stay exact."""
    asked = prompts([300, 700, 900], seed=13)
    expected = alone.tokens("llama", asked)
    store = tmp_path / "store"
    saver = start("saver")
    assert tokens(saver, asked[0]) == expected[0]
    assert tokens(saver, asked[1]) == expected[1]
    saved(saver, 256 + 512)
    saver.stop()

    for chunk in [path for path in store.rglob("*") if path.is_file() and path.stat().st_size > 4096]:
        chunk.write_bytes(bytes(chunk.stat().st_size))
    loader = start("loader")
    assert tokens(loader, asked[0]) == expected[0]
    assert failures(loader) > 0
    assert moved(loader, "loaded") == 0
    shutil.rmtree(store)
    store.write_text("no folder")
    assert tokens(loader, asked[1]) == expected[1]
    assert tokens(loader, asked[2]) == expected[2]
    assert moved(loader, "loaded") == 0


def test_a_store_that_cannot_be_opened(start, alone, tmp_path):
    [prompt] = prompts([600], seed=14)
    [expected] = alone.tokens("llama", [prompt])
    (tmp_path / "file").write_text("no folder")
    server = start("server", store=f"file://{tmp_path}/file/store")
    assert tokens(server, prompt) == expected
    assert failures(server) > 0
