"""Names weights by a folder of files. The name is the same for whichever engine has loaded them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any, Callable

from ._digests import Digests

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
INDEX = "*.safetensors.index.json"
"""An index says which file a tensor is loaded from, where several have it."""
COMMIT = re.compile("[0-9a-f]{40}")
"""A branch or a tag may be moved to other weights; a commit may not."""
VOLATILE = ("_name_or_path", "transformers_version")
"""Fields of a config that are not about what the model computes."""


def weight_files(folder: Path) -> list[Path]:
    """Returns the files of the weights of a model, or the one that is named."""
    if folder.is_file():
        return [folder]
    files = sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file())
    return files + sorted(path for path in folder.glob(INDEX) if path.is_file()) if files else []


def content(folder: Path, files: list[Path], stop: Callable[[], bool] = lambda: False) -> str:
    """Returns a digest of weight files and of the config next to them.

    Raises:
        OSError: a file cannot be read, or has changed meanwhile.
        Stopped: `stop` has returned true.
    """
    digests, digest = Digests(), hashlib.blake2b(digest_size=20)
    digest.update(config(folder))
    for path in files:
        digest.update(f"{path.name} ".encode() + digests.of(path, stop))
    return digest.hexdigest()


def read_in_background(read: Callable[[], None]) -> threading.Thread:
    """Starts a thread of low priority: what loads the model, and computes with it, goes before what reads its files."""

    def work() -> None:
        # Linux has a priority for each thread.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        read()

    thread = threading.Thread(target=work, name="transload-weights", daemon=True)
    thread.start()
    return thread


def settings(overrides: Any, quantization: str | None, far: list[bool], given: bytes = b"") -> str:
    """Returns a digest of what an engine does otherwise than the files say: a config that was `given` in the place of theirs,
    fields of it that are overridden, quantization, and of each LongRoPE whether all keys are rotated by the factors for long
    sequences."""
    return hashlib.blake2b(given + text([overrides, quantization, *far]), digest_size=16).hexdigest()


def config(folder: Path) -> bytes:
    """Returns a config as its file has it: the one in memory is changed by each process as it likes."""
    path = folder / "config.json"
    if not path.is_file():
        return b""
    fields = json.loads(path.read_bytes())
    return text({key: value for key, value in fields.items() if key not in VOLATILE})


def text(value: Any) -> bytes:
    """Returns a value of JSON as bytes, the same in every process."""
    return json.dumps(value, sort_keys=True, default=str).encode()
