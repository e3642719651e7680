"""Makes the default namespace of an engine that names its objects only by tokens: from the model, settings and code of this process.

Weights, drafts and adapters are named by what is in their files, which a thread reads in the background, or by a commit of a hub. What
cannot be seen has to be said by whoever configures the engine, and the log says so.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from transload import Objects, StoreError

from . import _weights
from ._digests import look

log = logging.getLogger(__name__)

class Unseen(Exception):
    """Raised if the process does not show what it computes. The message says why."""


@dataclass(frozen=True)
class Model:
    """A model or an adapter that an engine has loaded from `path`: a folder, a file, or a name on a hub, of which `revision` is."""

    path: str
    revision: str | None = None

    def check(self) -> None:
        """Checks that something tells the model from others of its name.

        Raises:
            Unseen: nothing does.
        """
        if not _weights.weight_files(Path(self.path)) and not _weights.COMMIT.fullmatch(self.revision or ""):
            raise Unseen(f"{self.path!r} is no folder of weights, nor given with a commit")

    def name(self) -> str:
        """Returns a text that other weights do not have.

        Raises:
            OSError: a file cannot be read, or has changed since this process began.
        """
        folder = Path(self.path)
        files = _weights.weight_files(folder)
        if not files:
            return self.revision or ""
        configs = [path for path in (folder / "config.json", folder / "adapter_config.json") if path.is_file()]
        began = _process_began()
        for path in [*files, *configs]:
            if max(look(path)[3:]) > began * 1e9:
                raise OSError(f"{path} was changed since this process began, which may have loaded what was there before")
        texts = b"".join(path.read_bytes() for path in configs if path.name == "adapter_config.json")
        return _weights.content(folder, files) + hashlib.blake2b(texts, digest_size=16).hexdigest()


def objects(
    uri: str,
    given: str | None,
    otherwise: str,
    seen: Callable[[], tuple[list[Model], Any]],
    *,
    called: Callable[[str], str] = str,
    threads: int | None = None,
) -> Any:
    """Opens the objects of an engine in a store.

    Their namespace is `given`, if it is not None. Otherwise it is made of the models and settings that `seen` returns; if `seen`
    cannot tell them, it is `otherwise`. `called` makes the store's full namespace of this name. All calls raise StoreError until the
    namespace is known.
    """
    if given is None:
        try:
            models, settings = seen()
            for model in models:
                model.check()
            return _PendingObjects(uri, otherwise, models, settings, called, threads)
        except Unseen as why:
            log.warning(
                "keys say nothing of weights, adapters and quantization, and what computes cannot be seen here (%s): what others have "
                "computed under the same name would be taken for this model's; give a namespace that is another for each",
                why,
            )
    return Objects(uri, called(given or otherwise), threads=threads)


class _PendingObjects:
    """Objects whose namespace is not known yet. Until then all calls raise StoreError."""

    def __init__(self, uri: str, kind: str, models: list[Model], settings: Any, called: Callable, threads: int | None) -> None:
        self._why = "the files of weights are being read, until which nothing is kept or found"
        self._objects: Objects | None = None
        # What is wrong with a store is told now.
        Objects(uri, called(kind), threads=threads)

        def find_out() -> None:
            try:
                text = _weights.text([[model.name() for model in models], settings])
                name = f"{kind}.{hashlib.blake2b(text, digest_size=20).hexdigest()}"
                self._objects = Objects(uri, called(name), threads=threads)
                log.info("the namespace is %s, for what computes", name)
            except Exception as error:  # noqa: BLE001: whatever it is, what computes has no name.
                self._why = f"what computes has no name ({error}): start the server again, or give a namespace"
                log.warning("nothing is kept or found: %s", self._why)

        self._thread = _weights.read_in_background(find_out)

    def __getattr__(self, name: str) -> Any:
        if self._objects is not None:
            return getattr(self._objects, name)

        def fails(*_: Any) -> Any:
            if self._objects is not None:
                return getattr(self._objects, name)(*_)
            raise StoreError(self._why)

        fails.__name__ = name
        return fails


def _process_began() -> float:
    """Returns when this process began, in seconds since 1970, at most a second too late."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    [booted] = [line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")]
    return int(booted) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
