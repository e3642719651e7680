"""Makes digests of weight files, and keeps them in a private folder of this user, so that each file is read once."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Callable

from transload import file_digest

MOST = 4096
"""The most digests that are kept; the oldest are removed. A model's files are a few hundred."""
UNSETTLED_SECONDS = 2.0
"""A file that was changed so short a time ago may be changed again without its times showing it: file systems count
them in steps, of 2 s at worst. Its digest is not kept."""


class Stopped(Exception):
    """The digest of a file is not wanted any more."""


class Digests:
    """Computes BLAKE3 digests of files, over all their bytes.

    A digest is kept for the file that was read: its device, number, size and the times of its last changes. Where one of
    them is another afterwards, what was read is not what is there. Nothing is kept where others could write, nor beside
    the model, which is often there for many to read and for some to write.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder()

    def of(self, path: Path, stop: Callable[[], bool]) -> bytes:
        """Returns the digest of a file.

        Raises:
            Stopped: `stop` has returned true.
            OSError: the file cannot be read, or has changed meanwhile.
        """
        before = look(path)
        kept = self._recall(before)
        if kept is not None:
            return kept
        found = file_digest(path, stop=stop)
        if found is None:
            raise Stopped
        after = look(path)
        if after != before:
            raise OSError(f"{path} was changed while it was read")
        if time.time() - max(before[3:]) / 1e9 > UNSETTLED_SECONDS:
            self._keep(before, found)
        return found

    def _recall(self, file: tuple[int, ...]) -> bytes | None:
        if not self._is_private():
            return None
        try:
            kept = (self._folder / _name(file)).read_bytes()
        except OSError:
            return None
        return kept if len(kept) == 32 else None

    def _keep(self, file: tuple[int, ...], digest: bytes) -> None:
        """Keeps a digest. Where that cannot be done, the file is read again the next time."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_private():
                return
            written = self._folder / f"{_name(file)}.{os.getpid()}"
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as out:
                out.write(digest)
            written.replace(self._folder / _name(file))
            entries = sorted(self._folder.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)
            for entry in entries[:-MOST]:
                entry.unlink(missing_ok=True)
        except OSError:
            pass

    def _is_private(self) -> bool:
        """Returns whether the folder belongs to this user and only they can access it."""
        try:
            found = self._folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def cache_folder() -> Path:
    """Returns the folder of the digests: the user's cache, as the XDG Base Directory Specification says."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "transload" / "digests"


def look(path: Path) -> tuple[int, ...]:
    """Returns what distinguishes a file from other files and from earlier contents, without reading it."""
    found = path.stat()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _name(file: tuple[int, ...]) -> str:
    return hashlib.blake2b(repr(file).encode(), digest_size=20).hexdigest()
