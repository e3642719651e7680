"""The name of weights as they are in a folder of files: the same for whichever engine has loaded them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Callable

from ._digests import Digests

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
INDEX = "*.safetensors.index.json"
"""Says which file a tensor is loaded from, where several have it."""
VOLATILE = ("_name_or_path", "transformers_version")
"""Fields of a config that are not about what the model computes."""


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights of a model, or the one that is named."""
    if folder.is_file():
        return [folder]
    files = sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file())
    return files + sorted(path for path in folder.glob(INDEX) if path.is_file()) if files else []


def content(folder: Path, files: list[Path], stop: Callable[[], bool] = lambda: False) -> str:
    """A digest of all that files of weights hold, and of the config beside them.

    Raises:
        OSError: a file cannot be read, or has changed meanwhile.
        Stopped: `stop` has returned true.
    """
    digests, digest = Digests(), hashlib.blake2b(digest_size=20)
    digest.update(config(folder))
    for path in files:
        digest.update(f"{path.name} ".encode() + digests.of(path, stop))
    return digest.hexdigest()


def settings(overrides: Any, quantization: str | None, far: list[bool], given: bytes = b"") -> str:
    """A digest of what an engine does otherwise than the files say: a config that was `given` in the place of theirs, fields of
    it that are overridden, quantization, and of each LongRoPE whether all keys are rotated by the factors for long sequences."""
    return hashlib.blake2b(given + text([overrides, quantization, *far]), digest_size=16).hexdigest()


def config(folder: Path) -> bytes:
    """A config as its file has it: the one in memory is changed by each process as it likes."""
    path = folder / "config.json"
    if not path.is_file():
        return b""
    fields = json.loads(path.read_bytes())
    return text({key: value for key, value in fields.items() if key not in VOLATILE})


def text(value: Any) -> bytes:
    """A value of JSON as bytes, the same in every process."""
    return json.dumps(value, sort_keys=True, default=str).encode()
