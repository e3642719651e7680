"""What tells a model's weights apart in a store."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def model(connector, tmp_path):
    """A model in a folder, with one weight file."""

    def make(folder="model", *, weights=bytes(100_000), revision=None, quantization=None, overrides=None,
             other_config=None, rope=None, max_model_len=4096, original_max_model_len=None, **config):  # fmt: skip
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        if weights is not None:
            (path / "model.safetensors").write_bytes(weights)
        fields = {"hidden_size": 64, "_name_or_path": str(path), "transformers_version": folder} | config
        (path / "config.json").write_text(json.dumps(fields))
        return SimpleNamespace(
            model=str(path),
            hf_config_path=other_config,
            hf_overrides=overrides or {},
            hf_text_config=SimpleNamespace(rope_parameters=rope),
            max_model_len=max_model_len,
            original_max_model_len=original_max_model_len,
            revision=revision,
            quantization=quantization,
        )

    return make


def weights_of(model, before=None):
    from transload.vllm.weights import weights_of

    return weights_of(model, before=before)


def test_the_same_weights_elsewhere(model):
    assert weights_of(model("here")) == weights_of(model("there"))


@pytest.mark.parametrize("at", [0, 50_001, (8 << 20) - 1])
def test_one_changed_byte(model, at):
    """Of a large file that is alike everywhere else, and of which samples would be."""
    content = bytearray(os.urandom(8 << 20))
    before = weights_of(model("here", weights=content))
    content[at] ^= 1
    assert weights_of(model("there", weights=content)) != before


LONG_ROPE = {"rope_type": "longrope", "original_max_position_embeddings": 4096}


@pytest.mark.parametrize("rope", [LONG_ROPE, {"full_attention": LONG_ROPE, "sliding_attention": {"rope_type": "default"}}])
def test_keys_rotated_for_long_sequences(connector, model, rope):
    """vLLM chooses the factors of LongRoPE by the longest sequence that a server takes, not by those that come."""

    def of(length, **hub):
        return weights_of(model("hub" if hub else "here", rope=rope, max_model_len=length, **hub))

    assert of(1024) == of(4096) != of(4097) == of(8192)
    # (the longest when vLLM loaded the model, if anybody has looked, and now) and which factors it has taken by the first
    for before, now, original, far in (
        (None, 4096, 4096, False), (None, 8192, 8192, True), (4096, 4096, -1, False), (8192, 8192, -1, True), (8192, 4096, -1, True),
        (8192, 1024, -1, True), (None, 8192, -1, True), (None, 4096, -1, None),
    ):  # fmt: skip
        for more in {}, {"weights": None, "revision": "c" * 40}:
            here = model("hub" if more else "here", rope=rope, max_model_len=now, original_max_model_len=original, **more)
            looked = {} if before is None else {"max_model_len": before}
            if far is None:
                with pytest.raises(connector.ConfigError, match="LongRoPE .* --max-model-len auto is not known.* give a number, or give"):
                    weights_of(here, looked)
            else:
                assert weights_of(here, looked) == of(8192 if far else 4096, **more), (before, now, original)
    hub = {"weights": None, "revision": "c" * 40}
    assert of(4096, **hub) != of(8192, **hub)


def test_other_ropes_do_not_depend_on_lengths(model):
    for rope in None, {}, {"rope_type": "default"}:
        assert weights_of(model(rope=rope)) == weights_of(model(rope=rope, max_model_len=8192))


@pytest.mark.parametrize("other", [{"rope_theta": 1}, {"overrides": {"rope_theta": 1}}, {"quantization": "fp8"}])
def test_the_same_numbers_used_otherwise(model, other):
    assert weights_of(model("here")) != weights_of(model("here", **other))


def test_a_config_from_elsewhere(model, connector, tmp_path):
    """It takes the place of the model's own, also where the model is of a commit."""
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    for more in {}, {"weights": None, "revision": "c" * 40}:
        names = {weights_of(model(str(more), other_config=other, **more)) for other in (None, str(tmp_path))}
        assert len(names) == 2
        with pytest.raises(connector.ConfigError, match="--hf-config-path org/other is no folder with a config.json"):
            weights_of(model(str(more), other_config="org/other", **more))


def test_overrides_that_are_a_function(model, connector):
    """Two functions look alike whatever they do."""
    with pytest.raises(connector.ConfigError, match="hf_overrides is a function.*kv_connector_extra_config.model"):
        weights_of(model("here", overrides=lambda config: config))


def test_an_index_that_leads_nowhere(model):
    """A link into a cache of the hub, whose file somebody has removed."""
    here = model("here")
    named = weights_of(here)
    (Path(here.model) / "model.safetensors.index.json").symlink_to("gone")
    assert weights_of(here) == named


def test_a_commit_says_it(model):
    class ResolvedRevision(str):
        """What huggingface_hub makes of a branch: its name, and the commit beside it."""

        resolved = "0123456789abcdef0123456789abcdef01234567"

    commit = ResolvedRevision.resolved
    assert weights_of(model("here", weights=None, revision=ResolvedRevision("main"))).startswith(commit)
    assert weights_of(model("here", weights=None, revision=commit)).startswith(commit)
    assert commit not in weights_of(model("here", revision=commit)), "of files that lie in a folder"


def test_a_branch_does_not(model, connector):
    with pytest.raises(connector.ConfigError, match="store_weights"):
        weights_of(model("here", weights=None, revision="main"))
