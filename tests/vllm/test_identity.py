"""Names do not tell what computes blocks: of adapters, of weights, and of weights that change while a server runs."""

import json
import shutil
import urllib.error

import pytest
import tiny_models
from conftest import total
from disaggregated import prompts
from servers import Server, connector, post

DEVELOPING = {"VLLM_SERVER_DEV_MODE": "1"}


def tokens(answer):
    return answer["choices"][0]["token_ids"]


def refused(pair, kind="content"):
    return total(pair.decode, "vllm:transload_failures_total", f'kind="{kind}"')


@pytest.mark.newer
def test_adapters_of_one_name(start, tmp_path):
    """In the midst of a rolling update each server has another adapter by the same name."""
    folders = [tiny_models.adapter(name, tmp_path / name) for name in ("old", "new")]
    sides = []
    for side, folder in zip(("prefill", "decode"), folders):
        place = tmp_path / side / "tuned"
        place.parent.mkdir()
        shutil.copytree(folder, place)
        options = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={place}"]
        sides.append({"options": options})
    pair = start("llama", prefill=sides[0], decode=sides[1] | {"block_size": 64}, policy="recompute")
    asked, same = prompts([300, 300], seed=31)
    found = pair.tokens(asked, model="tuned")
    assert refused(pair) == 1
    assert tokens(pair.decode.complete(asked, model="tuned")) == found, "it is the decode server's adapter that answers"
    assert pair.loaded() == 0
    # The weights below are the same.
    pair.tokens(same)
    assert pair.loaded() > 0


def test_one_changed_row(start, models, tmp_path):
    """One row of the embeddings is another, in a file of the same size."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "changed"
    shutil.copytree(models("llama"), folder)
    [file] = folder.glob("*.safetensors")
    weights = load_file(file)
    weights["model.embed_tokens.weight"][7] += 1.0
    save_file(weights, file, {"format": "pt"})
    assert file.stat().st_size == next(models("llama").glob("*.safetensors")).stat().st_size
    changed = ["--model", str(folder), "--served-model-name", "llama"]
    pair = start("llama", decode={"options": changed}, policy="recompute")
    [asked] = prompts([300], seed=32)
    asked[100] = 7
    found = tokens(pair.decode.complete(asked, kv_transfer_params=ticket(pair, asked)))
    assert refused(pair) == 1 and pair.loaded() == 0
    assert tokens(pair.decode.complete(asked)) == found


def ticket(pair, prompt):
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    with post(f"{pair.prefill.url}/v1/completions", body) as answer:
        return json.load(answer)["kv_transfer_params"]


def call(server, path, body=None):
    with post(f"{server.url}{path}", body or {}) as answer:
        return json.loads(answer.read() or "{}")


@pytest.mark.newer
def test_weights_that_may_have_changed(start, alone):
    """After a reset nothing of before is used, and nothing moves, until the operator names the weights on both servers."""
    asked = prompts([300, 300, 300, 300], seed=33)
    expected = alone.tokens("llama", asked)
    side = {"environment": DEVELOPING}
    pair = start("llama", prefill=side, decode=side, policy="recompute")
    assert pair.tokens(asked[0]) == expected[0]
    moved = pair.loaded()
    assert moved > 0
    before = ticket(pair, asked[1])

    # Blocks are lent: vLLM's own cache is not cleared until they are back, and they are taken back.
    for server in (pair.prefill, pair.decode):
        assert call(server, "/reset_prefix_cache?reset_external=true") == {"success": False}
    assert tokens(pair.decode.complete(asked[1], kv_transfer_params=before)) == expected[1]
    assert refused(pair, "unnamed") == 1
    assert pair.tokens(asked[1]) == expected[1] and pair.loaded() == moved
    assert call(pair.prefill, "/reset_prefix_cache?reset_external=true") == {"success": False}
    assert "nobody has named them since" in pair.prefill.log.read_text()

    for server in (pair.prefill, pair.decode):
        call(server, "/update_weight_version", {"new_version": "step 2"})
    assert pair.tokens(asked[2]) == expected[2] and pair.loaded() > moved
    moved = pair.loaded()

    # Named before, and again when they are there.
    for server in (pair.prefill, pair.decode):
        call(server, "/update_weight_version", {"new_version": "step 3"})
        call(server, "/pause?mode=wait")
        call(server, "/resume")
    assert pair.tokens(asked[3]) == expected[3] and pair.loaded() > moved
    # Without a name, clearing is no success.
    with pytest.raises(urllib.error.HTTPError, match="Failed to reset the KV connector cache"):
        call(pair.decode, "/pause?mode=wait")
    call(pair.decode, "/resume")
    assert pair.tokens(asked[0]) == expected[0]


def test_within_multi_connector(models, alone, tmp_path):
    """The connector is known by its name alone there, and a store needs to be told what to do when it fails."""
    [asked] = prompts([600], seed=34)
    [expected] = alone.tokens("llama", [asked])
    inner = connector("kv_both", None, store=f"file://{tmp_path}/store", store_wait_seconds=30)
    outer = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": [inner]}}
    with Server(models("llama"), tmp_path, "failing", transfer=outer) as server:
        with pytest.raises(RuntimeError, match="beside MultiConnector's connectors.*kv_load_failure_policy"):
            server.wait()
    outer["kv_load_failure_policy"] = "recompute"
    for name, found in ("saver", 0), ("loader", 512):
        with Server(models("llama"), tmp_path, name, transfer=outer) as server:
            server.wait()
            assert tokens(server.complete(asked)) == expected
            for _ in range(30):
                server.complete([1, 2, 3])
                moved = {what: total(server, "vllm:transload_store_tokens_total", f'what="{what}"') for what in ("saved", "loaded")}
                if sum(moved.values()) == 512:
                    break
            assert moved["loaded"] == found and sum(moved.values()) == 512, server.tail()
