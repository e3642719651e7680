"""What tells the weights of a model apart from others of its name."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.transformers_utils.config import iter_rope_parameters

from .config import ConfigError

if TYPE_CHECKING:
    from vllm.config import ModelConfig

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SAMPLES, SAMPLE_BYTES = 1024, 4096
"""What is read of a weight file: that many pieces of it, evenly spaced; 4 MiB, however large it is. Another training run
changes nearly every number, so that any piece would do; many are read for those that change a few layers only."""
COMMIT = re.compile("[0-9a-f]{40}")
"""A branch or a tag may be moved to other weights; a commit may not."""
VOLATILE = ("_name_or_path", "transformers_version")
"""Fields of a config that are not about what the model computes."""


def weights_of(model: ModelConfig) -> str:
    """A text that is the same on every server with these weights, and on no other.

    It is the commit if the model was loaded from a hub, otherwise a digest of samples of its weight files; and with it
    what the server was told to do otherwise: quantization, overrides of the config, and with LongRoPE how its longest
    sequence has keys rotated. The config is that of the file: the one in memory is changed by each process as it likes.

    Raises:
        ConfigError: nothing is there that tells them apart.
    """
    overrides = model.hf_overrides if isinstance(model.hf_overrides, dict) else "a function"
    digest = hashlib.blake2b(_text([overrides, model.quantization, *_rotated_far(model)]), digest_size=16)
    return f"{_revision(model) or _sampled(Path(model.model))}-{digest.hexdigest()}"


def _rotated_far(model: ModelConfig) -> list[bool]:
    """Of each LongRoPE of the model: whether all keys are rotated by the factors for long sequences. vLLM takes them where
    the server may have such sequences, however short those are that come."""
    long = (rope for rope in iter_rope_parameters(model.hf_text_config) if rope.get("rope_type") == "longrope")
    return [model.max_model_len > rope["original_max_position_embeddings"] for rope in long]


def _revision(model: ModelConfig) -> str | None:
    for commit in (getattr(model.hf_config, "_commit_hash", None), model.revision):
        if commit and COMMIT.fullmatch(commit):
            return commit
    return None


def _sampled(folder: Path) -> str:
    files = [folder] if folder.is_file() else sorted(folder.glob("*"))
    files = [file for file in files if file.suffix in SUFFIXES]
    if not files:
        raise ConfigError(
            f"nothing in {str(folder)!r} tells these weights apart from others of their name: give "
            "kv_connector_extra_config.store_weights, a text of your own that is another for other weights"
        )
    digest = hashlib.blake2b(digest_size=20)
    config = folder / "config.json"
    if config.is_file():
        fields = json.loads(config.read_bytes())
        digest.update(_text({key: value for key, value in fields.items() if key not in VOLATILE}))
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for place in range(0, size, max(SAMPLE_BYTES, size // SAMPLES)):
                file.seek(place)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
